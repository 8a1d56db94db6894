"""Names in class bodies: read from the body's namespace first, then from cells, globals and builtins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.items import delete_item, load_item, store_item
from flambeau_capture.interpreter.opcodes.load_store import load_global

if TYPE_CHECKING:
    from flambeau_capture.interpreter.frame import Frame

_ABSENT = object()


def _in_namespace(frame: Frame, namespace: Any, name: str) -> Any:
    """The value of a name in a namespace, which `__prepare__` may have made, or _ABSENT."""
    if type(namespace) is dict:
        return namespace.get(name, _ABSENT)
    try:
        return load_item(frame.machine, namespace, name)
    except KeyError:
        return _ABSENT


def _load_from(frame: Frame, namespace: Any, name: str) -> Any:
    value = _in_namespace(frame, namespace, name)
    return load_global(frame, name) if value is _ABSENT else value


def LOAD_NAME(frame: Frame, arg: str) -> None:
    namespace = {} if frame.namespace is None else frame.namespace
    frame.stack.append(_load_from(frame, namespace, arg))


def STORE_NAME(frame: Frame, arg: str) -> None:
    store_item(frame.machine, frame.namespace, arg, frame.stack.pop())


def DELETE_NAME(frame: Frame, arg: str) -> None:
    try:
        delete_item(frame.machine, frame.namespace, arg)
    except KeyError:
        raise NameError(f"name {arg!r} is not defined", name=arg) from None


def LOAD_LOCALS(frame: Frame, arg: Any) -> None:
    frame.stack.append(frame.namespace)


def LOAD_FROM_DICT_OR_GLOBALS(frame: Frame, arg: str) -> None:
    frame.stack.append(_load_from(frame, frame.stack.pop(), arg))


def _load_cell_or(frame: Frame, namespace: Any, arg: int) -> None:
    name = frame.code.local_names[arg]
    value = _in_namespace(frame, namespace, name)
    if value is _ABSENT:
        value = frame.machine.load_cell(frame.locals[arg], name, arg >= frame.code.free_start)
    frame.stack.append(value)


def LOAD_CLASSDEREF(frame: Frame, arg: int) -> None:
    _load_cell_or(frame, frame.namespace, arg)


def LOAD_FROM_DICT_OR_DEREF(frame: Frame, arg: int) -> None:
    _load_cell_or(frame, frame.stack.pop(), arg)


def SETUP_ANNOTATIONS(frame: Frame, arg: Any) -> None:
    if _in_namespace(frame, frame.namespace, "__annotations__") is _ABSENT:
        store_item(frame.machine, frame.namespace, "__annotations__", {})
