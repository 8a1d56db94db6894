"""Loads and stores: constants, fast locals, cells, globals, names, attributes, subscripts."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.instructions import NULL_AFTER
from flambeau_capture.interpreter.frame import NULL, UNBOUND, local, whole_local
from flambeau_capture.interpreter.semantics.attribute_writes import delete_attr, store_attr
from flambeau_capture.interpreter.semantics.attributes import (
    load_attr,
    load_global_value,
    load_value,
    note_absent_global,
)
from flambeau_capture.interpreter.semantics.items import delete_item, load_item, store_item
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.interpreter.values.lazy_values import (
    APPENDING,
    AppendTarget,
    EntryTarget,
    LazyValue,
    expect_use,
)
from flambeau_capture.interpreter.values.lifetimes import refuse_finalizing
from flambeau_capture.interpreter.values.objects import DELETED, unbound_local
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import ABSENT
from flambeau_capture.trusted import is_trusted

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame


def LOAD_CONST(frame: Frame, arg: Any) -> None:
    frame.stack.append(arg)


# ---------------------------------------------------------------- fast locals


def LOAD_FAST(frame: Frame, arg: int, above: int = 0) -> None:
    value = frame.locals[arg]
    if value is UNBOUND:
        raise unbound_local(frame.code.local_names[arg])
    frame.stack.append(local(frame, arg, above) if type(value) is LazyValue else value)


def LOAD_FAST_CHECK(frame: Frame, arg: int) -> None:
    LOAD_FAST(frame, arg)


def LOAD_FAST_AND_CLEAR(frame: Frame, arg: int) -> None:
    frame.stack.append(frame.locals[arg])
    frame.locals[arg] = UNBOUND


def LOAD_FAST_LOAD_FAST(frame: Frame, arg: tuple[int, int]) -> None:
    LOAD_FAST(frame, arg[0], above=1)
    LOAD_FAST(frame, arg[1])


def STORE_FAST(frame: Frame, arg: int) -> None:
    refuse_finalizing(frame, arg)
    frame.locals[arg] = frame.stack.pop()


def STORE_FAST_LOAD_FAST(frame: Frame, arg: tuple[int, int]) -> None:
    refuse_finalizing(frame, arg[0])
    frame.locals[arg[0]] = frame.stack.pop()
    LOAD_FAST(frame, arg[1])


def STORE_FAST_STORE_FAST(frame: Frame, arg: tuple[int, int]) -> None:
    refuse_finalizing(frame, arg[0])
    refuse_finalizing(frame, arg[1])
    frame.locals[arg[0]] = frame.stack.pop()
    frame.locals[arg[1]] = frame.stack.pop()


def DELETE_FAST(frame: Frame, arg: int) -> None:
    if frame.locals[arg] is UNBOUND:
        raise unbound_local(frame.code.local_names[arg])
    refuse_finalizing(frame, arg)
    frame.locals[arg] = UNBOUND


# ---------------------------------------------------------------- cells


def MAKE_CELL(frame: Frame, arg: int) -> None:
    value = whole_local(frame, arg)
    frame.locals[arg] = types.CellType() if value is UNBOUND else types.CellType(value)


def COPY_FREE_VARS(frame: Frame, arg: int) -> None:
    cells = frame.function.__closure__
    assert cells is not None
    frame.machine.functions.register_closure(frame.function)
    start = frame.code.free_start
    frame.locals[start : start + arg] = cells


def LOAD_CLOSURE(frame: Frame, arg: int) -> None:
    frame.stack.append(frame.locals[arg])


def LOAD_DEREF(frame: Frame, arg: int) -> None:
    objects, code = frame.machine.objects, frame.code
    expect_use(frame)
    cell, name = frame.locals[arg], code.local_names[arg]
    frame.stack.append(objects.load_cell(cell, name, arg >= code.free_start))
    objects.loading = None


def STORE_DEREF(frame: Frame, arg: int) -> None:
    frame.machine.objects.store_cell(frame.locals[arg], frame.stack.pop())


def DELETE_DEREF(frame: Frame, arg: int) -> None:
    LOAD_DEREF(frame, arg)
    frame.stack.pop()
    frame.machine.objects.store_cell(frame.locals[arg], DELETED)


# ---------------------------------------------------------------- globals and names


def LOAD_GLOBAL(frame: Frame, arg: tuple[str, bool]) -> None:
    name, push_null = arg
    expect_use(frame)
    value = load_global(frame, name)
    frame.machine.objects.loading = None
    if push_null:
        frame.stack.extend((value, NULL) if NULL_AFTER else (NULL, value))
    else:
        frame.stack.append(value)


def load_global(frame: Frame, name: str) -> Any:
    """A global of the frame's module, or a builtin."""
    try:
        return load_global_value(frame.machine, frame.globals, name)
    except KeyError:
        pass  # nothing is raised here: the KeyError would be its context
    return _load_builtin(frame, name)


def _load_builtin(frame: Frame, name: str) -> Any:
    written = frame.machine.objects.written_global(frame.builtins, name)
    if written is DELETED or (written is ABSENT and name not in frame.builtins):
        note_absent_global(frame.machine, frame.globals, name)
        raise NameError(f"name {name!r} is not defined", name=name)
    if written is not ABSENT:  # `builtins.len = ...`
        return written
    if not is_trusted(frame.globals.get("__name__")):
        frame.machine.rely_on(frame.globals, name)  # which another process may shadow it in
    frame.machine.rely_on(frame.builtins, name)
    return frame.builtins[name]


def STORE_GLOBAL(frame: Frame, arg: str) -> None:
    frame.machine.objects.write_global(frame.globals, arg, frame.stack.pop())


def DELETE_GLOBAL(frame: Frame, arg: str) -> None:
    is_set = True
    try:
        load_global_value(frame.machine, frame.globals, arg)
    except KeyError:
        is_set = False
    if not is_set:
        raise NameError(f"name {arg!r} is not defined", name=arg)
    frame.machine.objects.write_global(frame.globals, arg, DELETED)


# ---------------------------------------------------------------- attributes and items


def LOAD_ATTR(frame: Frame, arg: tuple[str, bool]) -> None:
    name, is_method = arg
    if is_method:
        LOAD_METHOD(frame, name)
    else:
        stack = frame.stack
        expect_use(frame)
        stack[-1] = load_value(frame.machine, stack[-1], name)
        frame.machine.objects.loading = None


def LOAD_METHOD(frame: Frame, arg: str) -> None:
    stack = frame.stack
    if type(stack[-1]) is AppendTarget:
        stack.insert(-1, APPENDING[arg])
    else:
        push_method(stack, load_attr(frame.machine, stack.pop(), arg))


def push_method(stack: list[Any], found: Any) -> None:
    """Push what CALL expects for `obj.name(...)`: function and self, or a callable and NULL."""
    if type(found) is types.MethodType and not isinstance(found.__self__, Proxy):
        stack.append(found.__func__)
        stack.append(found.__self__)
    elif NULL_AFTER:
        stack.append(found)
        stack.append(NULL)
    else:
        stack.append(NULL)
        stack.append(found)


def LOAD_SUPER_ATTR(frame: Frame, arg: tuple[str, bool, bool]) -> None:
    name, is_method, _ = arg
    stack = frame.stack
    instance, cls, global_super = stack.pop(), stack.pop(), stack.pop()
    if global_super is not super:
        raise GraphBreak("unsupported-opcode", "super is not the builtin")
    if is_method:
        push_method(stack, load_attr(frame.machine, super(cls, instance), name))
    else:
        stack.append(load_value(frame.machine, super(cls, instance), name))


def STORE_ATTR(frame: Frame, arg: str) -> None:
    obj = frame.stack.pop()
    store_attr(frame.machine, obj, arg, frame.stack.pop())


def DELETE_ATTR(frame: Frame, arg: str) -> None:
    delete_attr(frame.machine, frame.stack.pop(), arg)


def BINARY_SUBSCR(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    key = stack.pop()
    if type(stack[-1]) is EntryTarget:
        expect_use(frame)
        stack[-1] = stack[-1].item(key)
        frame.machine.objects.loading = None
    else:
        stack[-1] = load_item(frame.machine, stack[-1], key)


def BINARY_SLICE(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    stop, start = stack.pop(), stack.pop()
    stack[-1] = load_item(frame.machine, stack[-1], slice(start, stop))


def STORE_SUBSCR(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    key, obj = stack.pop(), stack.pop()
    store_item(frame.machine, obj, key, stack.pop())


def STORE_SLICE(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    stop, start, obj = stack.pop(), stack.pop(), stack.pop()
    store_item(frame.machine, obj, slice(start, stop), stack.pop())


def DELETE_SUBSCR(frame: Frame, arg: Any) -> None:
    key = frame.stack.pop()
    delete_item(frame.machine, frame.stack.pop(), key)
