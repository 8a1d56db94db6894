"""`compile`, `eval` and `exec`: source is compiled at capture, and its code is interpreted.

    exec("y = x + 1", {"x": x})     ->   the module's code, interpreted with the dict as its globals

A dict that the frame made may serve as globals; the functions that are made there cannot leave the
frame, since each call has a dict of its own.
"""

from __future__ import annotations
import __future__

import builtins
import functools
import inspect
import operator
import types
import warnings
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.semantics.items import load_item, store_item
from flambeau_capture.interpreter.semantics.native_calls import call_native, guard_filters
from flambeau_capture.interpreter.substitute_registry import (
    breaking,
    substitute_for,
    substitute_if_new,
)
from flambeau_capture.interpreter.substitutes.class_making import run_body
from flambeau_capture.interpreter.substitutes.introspection import globals_of, locals_of
from flambeau_capture.interpreter.values.classes import MISSING, lookup
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import GlobalsDict

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame, Machine

_FUTURES = functools.reduce(
    operator.or_,
    (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names),
)
_COMPILE = inspect.signature(compile)
substitute_if_new(
    getattr(warnings, "_showwarnmsg", None), breaking("side-effect", "C code shows a warning")
)


@substitute_for(compile)
def _compile(machine: Machine, args: Any, kwargs: Any) -> Any:
    """With the `__future__` statements of the module of the calling frame."""
    try:
        given = dict(_COMPILE.bind(*args, **kwargs).arguments)
    except TypeError:
        return compile(*args, **kwargs)  # which raises
    if not given.get("dont_inherit"):
        assert machine.frame is not None
        futures = machine.frame.function.__code__.co_flags & _FUTURES
        given["flags"] = given.get("flags", 0) | futures
    given["dont_inherit"] = True
    guard_filters(machine)
    return call_native(machine, compile, (), given)


@substitute_for(eval)
def _eval(machine: Machine, args: Any, kwargs: Any) -> Any:
    return _evaluate(machine, eval, args, kwargs)


@substitute_for(exec)
def _exec(machine: Machine, args: Any, kwargs: Any) -> None:
    _evaluate(machine, exec, args, kwargs)


def _evaluate(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    frame = machine.frame
    assert frame is not None
    source, module_globals, names = (*args, kwargs.get("globals"), kwargs.get("locals"))[:3]
    closure = kwargs.get("closure")
    if module_globals is None:
        module_globals = globals_of(frame)
        names = locals_of(frame) if names is None else names
    if not isinstance(module_globals, dict) or _is_no_mapping(machine, names):
        function(source, module_globals, names)  # which raises
    _prepare(machine, frame, module_globals)
    if not isinstance(source, types.CodeType):
        if function is eval and isinstance(source, str):
            source = source.lstrip(" \t")
        elif function is eval and isinstance(source, bytes):
            source = source.lstrip(b" \t")
        source = machine.call(compile, (source, "<string>", function.__name__), {})
    if closure is None and source.co_freevars:
        function(source, {})  # which raises
    if closure is not None and len(closure) != len(source.co_freevars):
        function(source, {}, closure=closure)  # which raises
    made = types.FunctionType(source, module_globals, closure=closure)
    machine.functions.made[id(made)] = made
    return run_body(machine, made, module_globals if names is None else names)


def _is_no_mapping(machine: Machine, names: Any) -> bool:
    return names is not None and lookup(machine, type(names), "__getitem__") is MISSING


def _prepare(machine: Machine, frame: Frame, module_globals: dict[str, Any]) -> None:
    """Have a dict serve as globals; it gets the builtins of the frame where it has none."""
    objects = machine.objects
    if objects.is_known(module_globals):
        if not isinstance(objects.source_of(module_globals), GlobalsDict):
            raise GraphBreak("unknown-c-function", "code is run with a big dict as its globals")
    else:
        objects.namespaces[id(module_globals)] = module_globals
    if frame.builtins is vars(builtins):
        objects.register(frame.builtins, GlobalsDict(frame.builtins, "builtins"))
    try:
        load_item(machine, module_globals, "__builtins__")
    except KeyError:
        store_item(machine, module_globals, "__builtins__", frame.builtins)
