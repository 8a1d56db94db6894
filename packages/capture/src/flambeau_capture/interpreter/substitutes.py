"""What stands in for functions whose native form would see too little or do too much: introspection, attribute access,
callbacks, output, and the questions by which libraries ask whether they are being compiled.

`SUBSTITUTES[id(function)]` takes (machine, args, kwargs).  Functions are found by identity.
"""

from __future__ import annotations

import collections
import copy
import copyreg
import functools
import itertools
import logging
import operator
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter import attributes, native, operations
from flambeau_capture.interpreter.classes import MISSING, Native, python_method
from flambeau_capture.interpreter.items import delete_item, load_item, store_item
from flambeau_capture.interpreter.iteration import EXHAUSTED, advance, iterate, native_iterable
from flambeau_capture.interpreter.modules import call_module
from flambeau_capture.origins import GlobalsDict
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine

    Substitute = Callable[[Machine, tuple[Any, ...], dict[str, Any]], Any]

SUBSTITUTES: dict[int, Substitute] = {}
_KEPT_ALIVE: list[Any] = []  # what SUBSTITUTES is keyed by, so that ids stay theirs


def _for(*functions: Any) -> Callable[[Substitute], Substitute]:
    def declare(substitute: Substitute) -> Substitute:
        for function in functions:
            if id(function) in SUBSTITUTES:
                raise ValueError(f"{function!r} has two substitutes")
            SUBSTITUTES[id(function)] = substitute
            _KEPT_ALIVE.append(function)
        return substitute

    return declare


# ---------------------------------------------------------------- types and attributes


@_for(isinstance)
def _isinstance(machine: Machine, args: Any, kwargs: Any) -> bool:
    obj, classes = args
    return operations.instance_of(machine, obj, classes)


@_for(type)
def _type(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) != 1:
        raise GraphBreak("unsupported-opcode", "a class is made by type()")
    (obj,) = args
    if isinstance(obj, torch.Tensor):
        return machine.tape.real_type(obj)
    kind = type(obj)
    if issubclass(kind, Native):
        return types.FunctionType if kind is native.InterpretedCallable else types.GeneratorType
    return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}.get(kind, kind)


@_for(getattr)
def _getattr(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 2:
        return attributes.load_attr(machine, args[0], args[1])
    try:
        return attributes.load_attr(machine, args[0], args[1])
    except AttributeError:
        return args[2]


@_for(hasattr)
def _hasattr(machine: Machine, args: Any, kwargs: Any) -> bool:
    return attributes.has_attr(machine, args[0], args[1])


@_for(setattr)
def _setattr(machine: Machine, args: Any, kwargs: Any) -> None:
    attributes.store_attr(machine, *args)


@_for(delattr)
def _delattr(machine: Machine, args: Any, kwargs: Any) -> None:
    attributes.delete_attr(machine, *args)


@_for(object.__getattribute__)
def _object_getattribute(machine: Machine, args: Any, kwargs: Any) -> Any:
    obj, name = args
    found = attributes.generic_load(machine, obj, name)
    if found is MISSING:
        raise AttributeError(f"{type(obj).__name__!r} object has no attribute {name!r}", name=name, obj=obj)
    return found


@_for(object.__setattr__)
def _object_setattr(machine: Machine, args: Any, kwargs: Any) -> None:
    attributes.generic_store(machine, *args)


@_for(object.__delattr__)
def _object_delattr(machine: Machine, args: Any, kwargs: Any) -> None:
    attributes.generic_delete(machine, *args)


@_for(torch.nn.Module.__getattr__)
def _module_getattr(machine: Machine, args: Any, kwargs: Any) -> Any:
    obj, name = args
    found = attributes._module_table_attribute(machine, obj, name)
    if found is MISSING:
        raise AttributeError(f"{type(obj).__name__!r} object has no attribute {name!r}")
    return found


@_for(torch.nn.Module.__setattr__)
def _module_setattr(machine: Machine, args: Any, kwargs: Any) -> None:
    obj, name, value = args
    if machine.objects.is_known(obj):
        attributes._store_module_attribute(machine, obj, name, value)
    else:
        machine.interpret(torch.nn.Module.__setattr__, args, kwargs)


@_for(vars)
def _vars(machine: Machine, args: Any, kwargs: Any) -> Any:
    return attributes.load_attr(machine, args[0], "__dict__") if args else _locals(machine, args, kwargs)


@_for(super)
def _super(machine: Machine, args: Any, kwargs: Any) -> Any:
    if args:
        return super(*args)
    frame = machine.frame
    assert frame is not None
    names = frame.code.local_names
    if "__class__" not in names:
        raise RuntimeError("super(): __class__ cell not found")
    cls = frame.locals[names.index("__class__")].cell_contents
    first = frame.locals[0]
    return super(cls, first.cell_contents if isinstance(first, types.CellType) else first)


@_for(callable)
def _callable(machine: Machine, args: Any, kwargs: Any) -> bool:
    return callable(args[0]) and not isinstance(args[0], torch.Tensor)


@_for(id)
def _id(machine: Machine, args: Any, kwargs: Any) -> int:
    obj = args[0]
    if isinstance(obj, torch.Tensor):
        found = machine.tape.input_of(obj)
        obj = obj if found is None else found[0]
    shadow = machine.objects.shadows.get(id(obj))
    return id(obj if shadow is None else shadow.real)


@_for(hash)
def _hash(machine: Machine, args: Any, kwargs: Any) -> int:
    method = python_method(machine, type(args[0]), "__hash__")
    return hash(args[0]) if method is None else machine.call(method, args, {})


@_for(globals)
def _globals(machine: Machine, args: Any, kwargs: Any) -> Any:
    frame = machine.frame
    assert frame is not None
    machine.objects.register(frame.globals, GlobalsDict(frame.globals, frame.globals.get("__name__", "")))
    return frame.globals


@_for(locals)
def _locals(machine: Machine, args: Any, kwargs: Any) -> Any:
    frame = machine.frame
    assert frame is not None
    found = {}
    for name, value in zip(frame.code.local_names, frame.locals, strict=True):
        if isinstance(value, types.CellType):
            try:
                found[name] = machine.load_cell(value, name, False)
            except (NameError, UnboundLocalError):
                continue
        elif not repr(type(value)).endswith("Sentinel'>"):
            found[name] = value
    return found


# ---------------------------------------------------------------- conversion, size, iteration


@_for(len)
def _len(machine: Machine, args: Any, kwargs: Any) -> Any:
    (obj,) = args
    return operations.length(machine, obj)


@_for(bool)
def _bool(machine: Machine, args: Any, kwargs: Any) -> bool:
    return operations.truth(machine, args[0]) if args else False


@_for(int)
def _int(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 1:
        if type(args[0]) is torch.SymInt:
            return args[0]
        if type(args[0]) in (torch.SymFloat, torch.SymBool):
            return torch.sym_int(args[0])
        method = python_method(machine, type(args[0]), "__int__")
        if method is not None:
            return machine.call(method, args, {})
    return int(*args, **kwargs)


@_for(float)
def _float(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 1 and type(args[0]) in (torch.SymInt, torch.SymFloat):
        return torch.sym_float(args[0])
    return float(*args)


@_for(str)
def _str(machine: Machine, args: Any, kwargs: Any) -> str:
    return operations.to_text(machine, args[0], str) if len(args) == 1 and not kwargs else str(*args, **kwargs)


@_for(repr)
def _repr(machine: Machine, args: Any, kwargs: Any) -> str:
    return operations.to_text(machine, args[0], repr)


@_for(format)
def _format(machine: Machine, args: Any, kwargs: Any) -> str:
    return operations.format_value(machine, args[0], None, args[1] if len(args) > 1 else "")


@_for(iter)
def _iter(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 2:
        return iter(native.InterpretedCallable(machine, args[0]), args[1])
    return iterate(machine, args[0])


@_for(next)
def _next(machine: Machine, args: Any, kwargs: Any) -> Any:
    item = advance(machine, args[0])
    if item is EXHAUSTED:
        if len(args) == 2:
            return args[1]
        raise StopIteration(machine.stop_value)
    return item


@_for(reversed)
def _reversed(machine: Machine, args: Any, kwargs: Any) -> Any:
    (obj,) = args
    method = python_method(machine, type(obj), "__reversed__")
    if method is not None:
        return machine.call(method, (obj,), {})
    if python_method(machine, type(obj), "__getitem__") is not None and not isinstance(obj, (dict, list, tuple)):
        size = operations.length(machine, obj)
        return iter([load_item(machine, obj, index) for index in range(size - 1, -1, -1)])
    return reversed(obj)


@_for(sum)
def _sum(machine: Machine, args: Any, kwargs: Any) -> Any:
    total = args[1] if len(args) > 1 else kwargs.get("start", 0)
    add = operations.BINARY_BY_SYMBOL["+"]
    for item in native_iterable(machine, args[0]):
        total = operations.binary(machine, add, total, item)
    return total


@_for(any)
def _any(machine: Machine, args: Any, kwargs: Any) -> bool:
    for item in native_iterable(machine, args[0]):
        if operations.truth(machine, item):
            return True
    return False


@_for(all)
def _all(machine: Machine, args: Any, kwargs: Any) -> bool:
    for item in native_iterable(machine, args[0]):
        if not operations.truth(machine, item):
            return False
    return True


@_for(functools.reduce)
def _reduce(machine: Machine, args: Any, kwargs: Any) -> Any:
    function, items, *initial = args
    return functools.reduce(native.InterpretedCallable(machine, function), native_iterable(machine, items), *initial)


def _extreme(function: Any) -> Substitute:
    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        if len(args) == 1:
            args = (native_iterable(machine, args[0]),)
        if kwargs.get("key") is not None:
            kwargs = {**kwargs, "key": native.InterpretedCallable(machine, kwargs["key"])}
        elif len(args) > 1 and any(isinstance(arg, torch.SymInt) for arg in args) and not kwargs:
            symbolic = torch.sym_max if function is max else torch.sym_min
            return functools.reduce(symbolic, args)
        return function(*args, **kwargs)

    return substitute


_for(max)(_extreme(max))
_for(min)(_extreme(min))


@_for(sorted)
def _sorted(machine: Machine, args: Any, kwargs: Any) -> Any:
    if kwargs.get("key") is not None:
        kwargs = {**kwargs, "key": native.InterpretedCallable(machine, kwargs["key"])}
    return sorted(native_iterable(machine, args[0]), **kwargs)


@_for(list.sort)
def _list_sort(machine: Machine, args: Any, kwargs: Any) -> None:
    if kwargs.get("key") is not None:
        kwargs = {**kwargs, "key": native.InterpretedCallable(machine, kwargs["key"])}
    list.sort(*args, **kwargs)


def _taking_callback(function: Any, position: int = 0) -> None:
    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        prepared = [
            (native.InterpretedCallable(machine, arg) if arg is not None else None) if at == position else native_iterable(machine, arg)
            for at, arg in enumerate(args)
        ]
        return function(*prepared, **kwargs)

    _for(function)(substitute)


for _function in (map, filter, itertools.starmap, itertools.takewhile, itertools.dropwhile, itertools.filterfalse):
    _taking_callback(_function)
_taking_callback(itertools.groupby, 1)


@_for(itertools.accumulate)
def _accumulate(machine: Machine, args: Any, kwargs: Any) -> Any:
    items, *rest = args
    function = rest[0] if rest else kwargs.pop("func", operator.add)
    return itertools.accumulate(native_iterable(machine, items), native.InterpretedCallable(machine, function), **kwargs)


@_for(functools.cmp_to_key)
def _cmp_to_key(machine: Machine, args: Any, kwargs: Any) -> Any:
    return functools.cmp_to_key(native.InterpretedCallable(machine, args[0]))


@_for(tuple.index, list.index)
def _index(machine: Machine, args: Any, kwargs: Any) -> int:
    sequence, wanted, *bounds = args
    eq = operations.COMPARISONS["=="]
    for at in range(len(sequence))[slice(*bounds) if bounds else slice(None)]:
        item = sequence[at]
        if item is wanted or operations.truth(machine, operations.compare(machine, eq, item, wanted)):
            return at
    raise ValueError(f"{wanted!r} is not in {type(sequence).__name__}")


# ---------------------------------------------------------------- the operator module


def _declare_operators() -> None:
    done: set[int] = set()
    for function, entry in operations.OPERATOR_FUNCTIONS.items():
        run = operations.compare if entry in operations.COMPARISONS.values() else operations.binary
        done.add(id(function))
        _for(function)(lambda machine, args, kwargs, run=run, entry=entry: run(machine, entry, *args))
    for name, function in operations.UNARY_FUNCTIONS.items():
        _for(function)(lambda machine, args, kwargs, name=name: operations.unary(machine, name, *args))
    _for(operator.getitem)(lambda machine, args, kwargs: load_item(machine, *args))
    _for(operator.setitem)(lambda machine, args, kwargs: store_item(machine, *args))
    _for(operator.delitem)(lambda machine, args, kwargs: delete_item(machine, *args))
    _for(operator.truth)(lambda machine, args, kwargs: operations.truth(machine, *args))
    _for(operator.not_)(lambda machine, args, kwargs: not operations.truth(machine, *args))
    _for(operator.contains)(lambda machine, args, kwargs: operations.contains(machine, *args))
    _for(pow)(lambda machine, args, kwargs: operations.binary(machine, operations.BINARY_BY_SYMBOL["**"], *args) if len(args) == 2 else pow(*args))
    _for(divmod)(_divmod)


def _divmod(machine: Machine, args: Any, kwargs: Any) -> Any:
    quotient = operations.binary(machine, operations.BINARY_BY_SYMBOL["//"], *args)
    return quotient, operations.binary(machine, operations.BINARY_BY_SYMBOL["%"], *args)


_declare_operators()


# ---------------------------------------------------------------- copies


@_for(copy.copy)
def _copy(machine: Machine, args: Any, kwargs: Any) -> Any:
    (obj,) = args
    kind = type(obj)
    if isinstance(obj, torch.Tensor):
        return machine.tape.call_function(copy.copy, args)
    method = python_method(machine, kind, "__copy__")
    if method is not None:
        return machine.call(method, (obj,), {})
    if kind in (list, dict, set, tuple, frozenset, str, int, float, bool, type(None), collections.OrderedDict, collections.deque):
        return copy.copy(machine.whole_dict(obj) if kind is dict and machine.objects.is_known(obj) else obj)
    if isinstance(obj, (type, types.FunctionType, types.ModuleType)):
        return obj
    if not hasattr(obj, "__dict__") or isinstance(obj, (list, dict, set, tuple)):
        return machine.interpret(copy.copy, args, kwargs)
    made = kind.__new__(kind)
    made.__dict__.update(attributes.instance_dict(machine, obj))
    return made


@_for(object.__reduce_ex__)
def _reduce_ex(machine: Machine, args: Any, kwargs: Any) -> Any:
    """How copy.deepcopy takes an instance apart: class and attributes (through origins), as protocol 4 does."""
    obj = args[0]
    kind = type(obj)
    if python_method(machine, kind, "__reduce__") is not None:
        return machine.call(attributes.load_attr(machine, obj, "__reduce__"), (), {})
    if isinstance(obj, (list, dict, set, tuple)) or not hasattr(obj, "__dict__") or kind.__new__ is not object.__new__:
        if machine.objects.is_known(obj):
            raise GraphBreak("unknown-c-function", f"a {kind.__qualname__} that existed before the call is copied or pickled")
        return object.__reduce_ex__(*args)
    if python_method(machine, kind, "__getstate__") is not None:
        state = machine.call(attributes.load_attr(machine, obj, "__getstate__"), (), {})
    else:
        state = attributes.instance_dict(machine, obj)
    return copyreg.__newobj__, (kind,), state  # type: ignore[attr-defined]


# ---------------------------------------------------------------- output


@_for(print)
def _print(machine: Machine, args: Any, kwargs: Any) -> None:
    shown = tuple(arg if operations.holds_tensor(arg) else operations.to_text(machine, arg, str) for arg in args)
    machine.defer(print, shown, kwargs)


@_for(warnings.warn)
def _warn(machine: Machine, args: Any, kwargs: Any) -> None:
    kwargs = {name: value for name, value in kwargs.items() if name != "skip_file_prefixes"}
    machine.defer(warnings.warn, args, kwargs)


def _declare_logging() -> None:
    levels = {
        "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "warn": logging.WARNING, "error": logging.ERROR,
        "critical": logging.CRITICAL, "exception": logging.ERROR,
    }  # fmt: skip
    for name, level in levels.items():
        function = getattr(logging.Logger, name)
        if id(function) not in SUBSTITUTES:
            _for(function)(functools.partial(_log, function, level))


def _log(function: Any, level: int, machine: Machine, args: Any, kwargs: Any) -> None:
    if args[0].isEnabledFor(level):
        machine.defer(function, args, kwargs)


_declare_logging()


# ---------------------------------------------------------------- introspection that is about code, not values


for _function in native.PYTHON_NATIVE.values():
    if id(_function) not in SUBSTITUTES:
        _for(_function)(functools.partial(lambda function, machine, args, kwargs: function(*args, **kwargs), _function))


@_for(sys.exc_info)
def _exc_info(machine: Machine, args: Any, kwargs: Any) -> Any:
    error = machine.handling
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


# ---------------------------------------------------------------- torch


_for(torch.nn.Module.__call__, torch.nn.Module._call_impl)(call_module)


def _answer(value: Any) -> Substitute:
    return lambda machine, args, kwargs: value


_for(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)(_answer(True))
for _module, _name, _value in (
    (torch.compiler, "is_exporting", False),
    (torch.jit, "is_scripting", False),
    (torch._jit_internal, "is_scripting", False),
    (torch._utils, "is_compiling", True),
):
    _function = getattr(_module, _name, None)
    if _function is not None and id(_function) not in SUBSTITUTES:
        _for(_function)(_answer(_value))


@_for(torch._check)
def _torch_check(machine: Machine, args: Any, kwargs: Any) -> None:
    condition = args[0] if args else kwargs["cond"]
    if not operations.truth(machine, condition):
        message = args[1] if len(args) > 1 else kwargs.get("message")
        raise RuntimeError(machine.call(message, (), {}) if message is not None else "Expected cond to be True, but got False.")


@_for(torch.autograd.Function.apply.__func__)
def _function_apply(machine: Machine, args: Any, kwargs: Any) -> Any:
    raise GraphBreak("autograd-function", f"call of {args[0].__qualname__}.apply")


def _run_natively(function: Any) -> Substitute:
    return lambda machine, args, kwargs: function(*args, **kwargs)


for _name in ("sym_int", "sym_float", "sym_max", "sym_min", "sym_not", "sym_ite", "sym_sum", "sym_sqrt"):
    _function = getattr(torch, _name, None)
    if _function is not None:
        _for(_function)(_run_natively(_function))

_for(torch.autograd.profiler.record_function.__enter__)(lambda machine, args, kwargs: args[0])
_for(torch.autograd.profiler.record_function.__exit__)(_answer(None))


def _dynamo_function(name: str) -> Substitute:
    """What a function of torch._dynamo, if the program has loaded it, answers during capture."""
    if name in ("is_compiling", "is_dynamo_compiling"):
        return _answer(True)
    if name == "graph_break":

        def break_here(machine: Machine, args: Any, kwargs: Any) -> Any:
            raise GraphBreak("explicit-break", "torch._dynamo.graph_break()")

        return break_here
    return lambda machine, args, kwargs: args[0] if args and name in ("allow_in_graph", "disable", "run") else None


def dynamo_substitute(function: types.FunctionType) -> Substitute | None:
    """A substitute for a function of torch._dynamo, found by its module's name: nothing here imports that."""
    module = function.__module__ or ""
    return _dynamo_function(function.__name__) if module.startswith("torch._dynamo") else None

