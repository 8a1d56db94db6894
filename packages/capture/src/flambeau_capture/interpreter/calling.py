"""Calls: which kind of callable it is decides whether it is interpreted, recorded on the tape, run
natively, or breaks the graph.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from flambeau_capture.assumed_constants import AssumedConstant, call_marked_function
from flambeau_capture.compiler_functions import disabled_reason, innermost
from flambeau_capture.graphs.higher_order import HigherOrder
from flambeau_capture.interpreter.code.decode import decode
from flambeau_capture.interpreter.constructing import construct, instantiate
from flambeau_capture.interpreter.frame import UNBOUND, run
from flambeau_capture.interpreter.machine import Frame
from flambeau_capture.interpreter.semantics.attribute_writes import store_attr
from flambeau_capture.interpreter.semantics.attributes import load_attr, load_value
from flambeau_capture.interpreter.semantics.formatting import fill_in, fill_in_map
from flambeau_capture.interpreter.semantics.items import (
    check_receiver,
    is_instance_method,
    lazy_dict_has,
    lazy_dict_item,
    load_item,
    note_order,
)
from flambeau_capture.interpreter.semantics.native_calls import call_native, is_native
from flambeau_capture.interpreter.semantics.native_functions import (
    BUILTIN_TYPES,
    is_pure,
    prepare_arguments,
    pure_twin,
)
from flambeau_capture.interpreter.substitute_registry import RECORDED, stub_of
from flambeau_capture.interpreter.substitutes import (
    CODE_SUBSTITUTES,
    SUBSTITUTES,
    dynamo_substitute,
)
from flambeau_capture.interpreter.substitutes.modules import call_cached, call_module
from flambeau_capture.interpreter.substitutes.triton_kernels import call_of_operator, call_of_triton
from flambeau_capture.interpreter.torch_calls import torch_functions
from flambeau_capture.interpreter.torch_calls.script_functions import SCRIPT_CALLS
from flambeau_capture.interpreter.torch_calls.wrappers import MethodOfTorch, is_of_wrapper_class
from flambeau_capture.interpreter.values.classes import (
    LRU_CACHE,
    Proxy,
    lookup,
    of_bases,
    python_method,
)
from flambeau_capture.interpreter.values.deferred_strings import DeferredString, joined_by
from flambeau_capture.interpreter.values.keys import native_key
from flambeau_capture.interpreter.values.lifetimes import dereference
from flambeau_capture.interpreter.values.objects import bound_method
from flambeau_capture.interpreter.values.program_functions import default_value
from flambeau_capture.interpreter.values.subclasses import is_getter
from flambeau_capture.python_core import Compiled
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import Attribute
from flambeau_prims.concrete_sizes import concrete

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.code.decode import DecodedCode
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.protocols import Args, Kwargs

_VARARGS, _VARKEYWORDS = 0x04, 0x08
_TYPING = ("typing", "typing_extensions")
_TYPING_EFFECTS = frozenset({
    "overload", "get_overloads", "clear_overloads", "reveal_type", "final", "override",
    "no_type_check", "no_type_check_decorator", "runtime_checkable", "runtime",
    "dataclass_transform",
})  # fmt: skip
"""Functions of the typing modules that print, keep what they are given, or write to it."""
_READS_CALLER = frozenset({"_caller", "_getframe", "_getframemodulename"})
"""Names in functions of the typing modules that look at the function that called them."""
HIGHER_ORDER_OPERATORS = "torch._higher_order_ops."
"""The package of torch's operators on functions, which trace these with tracers of their own."""
_TYPE_CALL = type.__dict__["__call__"]


def call(
    machine: Machine, function: Any, args: Args, kwargs: Kwargs, *, in_place: bool = False
) -> Any:
    """`function(*args, **kwargs)`, as the tables at the end of this file say for its type.

    With `in_place` the calling instruction pushes just this value: the frame of a Python function
    may then be left and taken up again at a graph break inside it.
    """
    override = machine.user_overrides.get(id(function))
    if override is not None:
        return override(machine, function, args, kwargs)
    kind = type(function)
    way = _CALLS.get(kind) or of_bases(_CALLS_OF_SUBTYPES, kind, _call_instance)
    return way(machine, function, args, kwargs, in_place)


def _call_python(
    machine: Machine, function: Any, args: Args, kwargs: Kwargs, in_place: bool
) -> Any:
    substitute = SUBSTITUTES.get(id(function)) or RECORDED.get(id(function))
    if substitute is not None:
        if in_place and substitute is call_module:
            return call_module(machine, args, kwargs, in_place=True)
        return substitute(machine, args, kwargs)
    by_code = CODE_SUBSTITUTES.get(id(function.__code__))
    if by_code is not None:
        return by_code(machine, function, args, kwargs)
    module = function.__module__ or ""
    of_library = _CALLS_OF_LIBRARIES.get(module.partition(".")[0], _call_of_library)
    result = of_library(machine, function, module, args, kwargs)
    if result is not NotImplemented:
        return result
    return call_function(machine, function, args, kwargs, in_place=in_place)


def _call_of_library(
    machine: Machine, function: Any, module: str, args: Args, kwargs: Kwargs
) -> Any:
    """A function of a foreign library; NotImplemented for others and where it is interpreted."""
    library = machine.foreign.of_module(module)
    return NotImplemented if library is None else library.call_python(function, args, kwargs)


def _call_of_torch(machine: Machine, function: Any, module: str, args: Args, kwargs: Kwargs) -> Any:
    if module.startswith("torch._dynamo"):
        return dynamo_substitute(function)(machine, args, kwargs)
    if is_of_wrapper_class(function):
        return machine.tape.call_function(MethodOfTorch(function), args, kwargs)
    return NotImplemented


def _call_method(
    machine: Machine, function: Any, args: Args, kwargs: Kwargs, in_place: bool
) -> Any:
    if isinstance(function.__self__, Proxy):
        return function(*args, **kwargs)
    bound = (function.__self__, *args)
    return call(machine, function.__func__, bound, kwargs, in_place=in_place)


def _call_method_wrapper(
    machine: Machine, function: Any, args: Args, kwargs: Kwargs, in_place: bool
) -> Any:
    if function.__name__ == "__call__" and isinstance(function.__self__, type):
        return instantiate(machine, function.__self__, args, kwargs)
    return _call_builtin(machine, function, args, kwargs, in_place)


def _record(machine: Machine, function: Any, args: Args, kwargs: Kwargs, in_place: bool) -> Any:
    result = call_of_operator(machine, function, args, kwargs)
    if result is not NotImplemented:
        return result
    return machine.tape.call_function(function, args, kwargs)


def _call_key_wrapper(
    machine: Machine, function: Any, args: Args, kwargs: Kwargs, in_place: bool
) -> Any:
    """An object of functools.cmp_to_key."""
    if not machine.objects.is_known(function):
        return function(*args, **kwargs)  # made in the frame, of an interpreted function
    return _call_instance(machine, function, args, kwargs, in_place)


def _call_instance(
    machine: Machine, function: Any, args: Args, kwargs: Kwargs, in_place: bool
) -> Any:
    """An object that is callable because its class has a `__call__`."""
    kind = type(function)
    if is_instance_method(function):
        return call(machine, function.__func__, args, kwargs)
    method = python_method(machine, kind, "__call__")
    if method is not None:
        return call(machine, method, (function, *args), kwargs, in_place=in_place)
    library = machine.foreign.of_callable(function)
    if library is not None:
        return library.call(function, args, kwargs)
    if not callable(function):
        _raise_not_callable(machine, function)
    if is_native(lookup(machine, kind, "__call__")):
        return call_native(machine, function, args, kwargs)
    raise GraphBreak("unknown-c-function", f"call of a {kind.__module__}.{kind.__qualname__}")


def _call_higher_order(
    machine: Machine, operator: Any, args: Args, kwargs: Kwargs, in_place: bool
) -> Any:
    """An operator on functions: what it does with them happens below the dispatcher."""
    substitute = SUBSTITUTES.get(id(operator))
    if substitute is None:
        detail = f"call of torch.ops.higher_order.{operator.__name__}"
        raise GraphBreak("higher-order-operator", detail)
    return substitute(machine, args, kwargs)


def _raise_not_callable(machine: Machine, value: Any) -> NoReturn:
    """Raise what calling `value` raises; for modules Python may suggest a function of theirs."""
    if type(value) is types.ModuleType and sys.version_info >= (3, 12):
        stand_in = types.ModuleType("")
        del stand_in.__name__
        with contextlib.suppress(AttributeError):
            name = vars(stand_in)["__name__"] = load_attr(machine, value, "__name__")
            if type(name) is str:
                vars(stand_in)[name] = load_attr(machine, value, name)
        value = stand_in
    value()
    raise AssertionError(f"a {type(value).__name__} was called")


# ---------------------------------------------------------------- functions written in Python


def call_function(
    machine: Machine,
    function: types.FunctionType,
    args: Args,
    kwargs: Kwargs,
    *,
    in_place: bool = False,
) -> Any:
    """Interpret a call of a Python function; `in_place` as in `call`."""
    if function.__dict__ and id(function) not in machine.functions.made:
        disabled = disabled_reason(function)
        if disabled is not None:
            raise GraphBreak(*disabled)
        if getattr(function, "_dynamo_marked_constant", False) and all(
            _is_given(machine, value) for value in (*args, *kwargs.values())
        ):
            return _call_constant(machine, function, args, kwargs)
        original = innermost(function)
        if original is not function:  # compiled by torch.compile: what it compiles is captured here
            return call(machine, original, args, kwargs, in_place=in_place)
    machine.functions.follow(function)
    decoded = decode(function.__code__, machine.operations.handlers)
    values = bind(machine, function, decoded, args, kwargs)
    frame = Frame(machine, decoded, function, values, machine.frame)
    frame.in_place = in_place
    if machine.depth >= machine.options.inline_depth:
        detail = f"call of {function.__qualname__} at depth {machine.depth}"
        raise GraphBreak("inline-depth", detail)
    machine.depth += 1
    handling = machine.handling
    try:
        run(frame)
    finally:
        machine.depth -= 1
        machine.handling = handling
    return frame.value


_CONSTANTS = frozenset({int, float, bool, str, bytes, type(None), torch.dtype, torch.device})


def is_constant(value: Any) -> bool:
    """Whether a value is immutable and the same in every call."""
    if type(value) is tuple:
        return all(is_constant(item) for item in value)
    if type(value) is dict:
        return all(is_constant(item) for item in value.values())
    return type(value) in _CONSTANTS


def _is_given(machine: Machine, value: Any) -> bool:
    """Whether a value is a constant, or an object that existed before the call and is as it was."""
    return is_constant(value) or (
        not isinstance(value, (torch.Tensor, list, tuple, dict, set))
        and machine.objects.is_known(value)
        and machine.objects.pending_writes_of(value) is None
    )


def _call_constant(
    machine: Machine, function: types.FunctionType, args: Args, kwargs: Kwargs
) -> Any:
    """Call a function natively that `torch.compiler.assume_constant_result` has marked."""
    machine.functions.follow(function)
    result = call_marked_function(function, args, kwargs)
    if not is_constant(result):
        returned = f"but returned a {type(result).__name__}"
        detail = f"{function.__qualname__} is marked as constant, {returned}"
        raise GraphBreak("unknown-c-function", detail)
    machine.constants.append(AssumedConstant(function, tuple(args), dict(kwargs), result))
    return result


def bind(
    machine: Machine, function: types.FunctionType, code: DecodedCode, args: Args, kwargs: Kwargs
) -> list[Any]:
    """The fast locals of a call, as CPython binds arguments; TypeError where it would raise one."""
    count = code.argcount
    if (
        not kwargs
        and len(args) == count
        and not code.kwonly
        and not code.flags & (_VARARGS | _VARKEYWORDS)
    ):
        return [*args, *[UNBOUND] * (code.n_locals - count)]
    values: list[Any] = [UNBOUND] * code.n_locals
    given = min(len(args), count)
    values[:given] = args[:given]
    rest = args[given:]
    at = count + code.kwonly
    if code.flags & _VARARGS:
        values[at] = rest
        at += 1
    elif rest:
        _raise_binding_error(function, args, kwargs)
    extra: dict[str, Any] = {}
    if kwargs:
        names = code.varnames
        positions = {names[i]: i for i in range(code.posonly, count + code.kwonly)}
        for name, value in kwargs.items():
            position = positions.get(name)
            if position is None:
                extra[name] = value
            elif values[position] is not UNBOUND:
                _raise_binding_error(function, args, kwargs)
            else:
                values[position] = value
    if code.flags & _VARKEYWORDS:
        values[at] = extra
    elif extra:
        _raise_binding_error(function, args, kwargs)
    if not _fill_defaults(machine, function, code, values):
        _raise_binding_error(function, args, kwargs)
    return values


def _fill_defaults(
    machine: Machine, function: types.FunctionType, code: DecodedCode, values: list[Any]
) -> bool:
    """Fill in what was not given; False where there is no default for it."""
    count = code.argcount
    defaults = function.__defaults__ or ()
    first = count - len(defaults)
    for position in range(count):
        if values[position] is UNBOUND:
            if position < first:
                return False
            at = position - first
            values[position] = default_value(machine, function, "defaults", at, defaults[at])
    if code.kwonly:
        named = function.__kwdefaults__ or {}
        for position in range(count, count + code.kwonly):
            if values[position] is UNBOUND:
                name = code.varnames[position]
                if name not in named:
                    return False
                values[position] = default_value(machine, function, "kwdefaults", name, named[name])
    return True


def _raise_binding_error(function: types.FunctionType, args: Args, kwargs: Kwargs) -> NoReturn:
    """Raise CPython's error for arguments that do not fit: call a stub of the same signature."""
    stub_of(function)(*args, **kwargs)
    raise AssertionError(f"the arguments of {function.__qualname__} fit")


# ---------------------------------------------------------------- functions written in C


def _call_builtin(
    machine: Machine, function: Any, args: Args, kwargs: Kwargs, in_place: bool
) -> Any:
    """A builtin function, or a bound method of a C type."""
    substitute = SUBSTITUTES.get(id(function))
    if substitute is not None:
        return substitute(machine, args, kwargs)
    if torch_functions.is_torch_builtin(function):
        return torch_functions.call_builtin(machine, function, args, kwargs)
    library = machine.foreign.of_callable(function)
    if library is not None:
        return library.call(function, args, kwargs)
    receiver = function.__self__
    way = of_bases(_BUILTINS_OF_RECEIVERS, type(receiver), _call_bound)
    return way(machine, function, receiver, args, kwargs)


def _call_bound_to_descriptor(
    machine: Machine, function: Any, receiver: Any, args: Args, kwargs: Kwargs
) -> Any:
    if is_getter(function) and args and isinstance(args[0], torch.Tensor):
        return load_attr(machine, args[0], receiver.__name__)
    return _call_bound(machine, function, receiver, args, kwargs)


def _call_bound_to_class(
    machine: Machine, function: Any, cls: type, args: Args, kwargs: Kwargs
) -> Any:
    """A class method of a C type (`dict.fromkeys`), bound to it or to a class made from it."""
    substitute = SUBSTITUTES.get(id(lookup(machine, cls, function.__name__)))
    if substitute is not None:
        return substitute(machine, (cls, *args), kwargs)
    return _call_pure(machine, function, cls, args, kwargs)


def _call_bound_to_dict(
    machine: Machine, function: Any, receiver: Any, args: Args, kwargs: Kwargs
) -> Any:
    if machine.objects.is_known(receiver) and function.__name__ in _LAZY_DICT_METHODS:
        return _read_lazy_dict(machine, receiver, function.__name__, *args)
    return _call_bound(machine, function, receiver, args, kwargs)


def _call_bound(machine: Machine, function: Any, receiver: Any, args: Args, kwargs: Kwargs) -> Any:
    descriptor = lookup(machine, type(receiver), function.__name__)
    if getattr(descriptor, "__objclass__", None) is not type(receiver):  # perhaps of a base
        method = bound_method(function)
        if method is not None:
            return _call_slot(machine, method, (receiver, *args), kwargs, False)
    substitute = SUBSTITUTES.get(id(descriptor))
    if substitute is not None:
        return substitute(machine, (receiver, *args), kwargs)
    return _call_pure(machine, function, receiver, args, kwargs)


def _call_pure(machine: Machine, function: Any, receiver: Any, args: Args, kwargs: Kwargs) -> Any:
    """A C function that runs natively during capture if it is known to be pure."""
    if not is_pure(function):
        twin = pure_twin(function)
        if twin is not None:
            return _call_builtin(machine, twin, args, kwargs, False)
        if is_native(function):
            return call_native(machine, function, args, kwargs)
        name = getattr(function, "__qualname__", function.__name__)
        module = getattr(function, "__module__", None) or type(receiver).__name__
        if machine.handling is not None and any(isinstance(arg, BaseException) for arg in args):
            # A break in front of it would hand on an exception without its traceback.
            raise GraphBreak("traceback", f"call of {module}.{name} with an exception")
        raise GraphBreak("unknown-c-function", f"call of {module}.{name}")
    if isinstance(receiver, dict) and machine.objects.is_known(receiver):
        function = getattr(machine.objects.whole_dict(receiver), function.__name__)
    check_receiver(machine, receiver)
    if function.__name__ in ("pop", "__iter__", "__repr__", "__str__"):
        note_order(machine, receiver)
    elif function is threading.get_ident or function.__name__ == "__hash__":
        machine.of_the_process = "a thread's number, or a hash"
    args, kwargs = prepare_arguments(machine, function, args, kwargs)
    if type(receiver) is str:
        return _call_str_method(machine, function, receiver, args, kwargs)
    if receiver is math:
        args = concrete(args)
    elif args and isinstance(receiver, (dict, set)):
        args = (native_key(machine, args[0], receiver), *args[1:])
    return function(*args, **kwargs)


def _call_str_method(
    machine: Machine, function: Any, receiver: str, args: Args, kwargs: Kwargs
) -> Any:
    name = function.__name__
    if name == "format":
        return fill_in(machine, receiver, args, kwargs)
    if name == "format_map" and len(args) == 1 and not kwargs:
        return fill_in_map(machine, receiver, args[0])
    if name == "join" and len(args) == 1 and not kwargs:
        items = list(args[0])
        if any(type(item) is DeferredString for item in items):
            return joined_by(receiver, items)
        args = (items,)
    return function(*concrete(args), **concrete(kwargs))


_LAZY_DICT_METHODS = ("get", "__getitem__", "__contains__")


def _read_lazy_dict(
    machine: Machine, mapping: dict[Any, Any], method: str, key: Any, default: Any = None
) -> Any:
    """`get` and the like on a dict that is read entry by entry."""
    if method == "__getitem__":
        return lazy_dict_item(machine, mapping, key)
    found = lazy_dict_has(machine, mapping, key)
    if method == "__contains__":
        return found
    return lazy_dict_item(machine, mapping, key) if found else default


_SYMBOLIC_FORMS = {int: torch.SymInt, float: torch.SymFloat}
_ARITHMETIC = frozenset(
    {"__add__", "__sub__", "__mul__", "__radd__", "__rsub__", "__rmul__", "__floordiv__", "__mod__"}
)


def _call_slot_of_number(function: Any, args: Args, kwargs: Kwargs) -> Any:
    """`int.__add__(n, 1)` of a symbolic number; only arithmetic of one type keeps it symbolic."""
    number, *others = args
    symbolic = _SYMBOLIC_FORMS[function.__objclass__]
    same = len(others) == 1 and type(others[0]) in (symbolic, function.__objclass__)
    if type(number) is symbolic and same and function.__name__ in _ARITHMETIC:
        return getattr(number, function.__name__)(*others)
    return function(*concrete(args), **concrete(kwargs))


def _call_slot(machine: Machine, function: Any, args: Args, kwargs: Kwargs, in_place: bool) -> Any:
    """An unbound method of a C type, called with its receiver first."""
    substitute = SUBSTITUTES.get(id(function))
    if substitute is not None:
        return substitute(machine, args, kwargs)
    if function is _TYPE_CALL:
        return instantiate(machine, args[0], args[1:], kwargs)
    if args and isinstance(args[0], Proxy) and args[0].seen_type() is not None:
        return args[0].seen_attribute(function.__name__)(*args[1:], **kwargs)
    if any(type(arg) is _SYMBOLIC_FORMS.get(function.__objclass__) for arg in args):
        return _call_slot_of_number(function, args, kwargs)
    if args and isinstance(args[0], torch.Tensor):
        if issubclass(torch.Tensor, function.__objclass__) and function.__objclass__ is not object:
            return machine.tape.call_method(function.__name__, args, kwargs)
    if not is_pure(function):
        if is_native(function):
            return call_native(machine, function, args, kwargs)
        detail = f"call of {function.__objclass__.__qualname__}.{function.__name__}"
        raise GraphBreak("unknown-c-function", detail)
    if args:
        check_receiver(machine, args[0])
    prepared, kwargs = prepare_arguments(machine, function, args[1:], kwargs)
    return function(*args[:1], *prepared, **kwargs)


def _call_partial(
    machine: Machine, function: Any, args: Args, kwargs: Kwargs, in_place: bool
) -> Any:
    target, first, named = function.func, function.args, function.keywords
    if machine.objects.is_known(function):
        source = machine.objects.source_of(function)
        assert source is not None
        target = machine.objects.wrap(target, Attribute(source, "func"))
        first = machine.objects.wrap(first, Attribute(source, "args"))
        named = machine.objects.wrap(named, Attribute(source, "keywords"))
    return call(machine, target, (*first, *args), {**named, **kwargs}, in_place=in_place)


def _call_of_typing(
    machine: Machine, function: Any, module: str, args: Args, kwargs: Kwargs
) -> Any:
    """A function of the typing modules: about types only, so native, but for three kinds.

    Calling `Generic[int]` makes an instance; some functions have side effects; some name what they
    make after their caller's module.
    """
    name = function.__name__
    warns = name == "__getattribute__" or (
        name == "__instancecheck__" and not isinstance(args[0], type)
    )
    if (
        module not in _TYPING
        or warns
        or name in _TYPING_EFFECTS
        or not _READS_CALLER.isdisjoint(function.__code__.co_names)
    ):
        return NotImplemented
    if name == "__call__" and hasattr(args[0], "__origin__") and getattr(args[0], "_inst", True):
        return _call_alias(machine, args[0], args[1:], kwargs)
    _guard_type_forms(machine, (*args, *kwargs.values()))
    return function(*args, **kwargs)


def _call_alias(
    machine: Machine, alias: Any, args: Args, kwargs: Kwargs, in_place: bool = False
) -> Any:
    """`dict[str, int](...)`: an instance of its class, which notes the alias if it can."""
    made = call(machine, alias.__origin__, args, kwargs)
    if hasattr(made, "__dict__"):
        with contextlib.suppress(AttributeError):
            store_attr(machine, made, "__orig_class__", alias)
    return made


def _guard_type_forms(machine: Machine, values: Any) -> None:
    """Guard the identity of type forms from before the call: native code of typing reads them."""
    for value in values:
        if type(value) in (tuple, list):
            _guard_type_forms(machine, value)
        elif type(value).__module__ in _TYPING:
            source = machine.objects.source_of(value)
            if source is not None:
                machine.guard("IS", source, value)


def _call_getter(
    machine: Machine, function: Any, args: Args, kwargs: Kwargs, in_place: bool
) -> Any:
    """operator.itemgetter and operator.attrgetter objects."""
    wanted, obj = function.__reduce__()[1], args[0]
    if type(function) is operator.itemgetter:
        found = tuple(load_item(machine, obj, key) for key in wanted)
    else:
        load = functools.partial(load_value, machine)
        found = tuple(functools.reduce(load, path.split("."), obj) for path in wanted)
    return found[0] if len(found) == 1 else found


def _call_methodcaller(
    machine: Machine, function: Any, args: Args, kwargs: Kwargs, in_place: bool
) -> Any:
    """An operator.methodcaller object."""
    obj = args[0]
    made, args = function.__reduce__()
    named = {}
    if isinstance(made, functools.partial):
        args, named = (*made.args, *args), made.keywords
    return call(machine, load_attr(machine, obj, args[0]), args[1:], dict(named))


# ---------------------------------------------------------------- which type is called how

_CALLS: dict[type, Callable[[Machine, Any, Args, Kwargs, bool], Any]] = {
    types.FunctionType: _call_python,
    types.MethodType: _call_method,
    **dict.fromkeys(BUILTIN_TYPES, _call_builtin),
    types.MethodWrapperType: _call_method_wrapper,
    types.MethodDescriptorType: _call_slot,
    types.WrapperDescriptorType: _call_slot,
    types.ClassMethodDescriptorType: _call_slot,
    torch._ops.OpOverload: _record,
    torch._ops.OpOverloadPacket: _record,
    **SCRIPT_CALLS,
    functools.partial: _call_partial,
    types.GenericAlias: _call_alias,
    LRU_CACHE: lambda machine, cached, args, kwargs, _: call_cached(machine, cached, args, kwargs),
    Compiled: lambda machine, compiled, args, kwargs, in_place: call(
        machine, compiled.__wrapped__, args, kwargs, in_place=in_place
    ),
    weakref.ReferenceType: lambda machine, reference, args, kwargs, _: dereference(
        machine, reference
    ),
    operator.itemgetter: _call_getter,
    operator.attrgetter: _call_getter,
    operator.methodcaller: _call_methodcaller,
    type(functools.cmp_to_key(operator.lt)): _call_key_wrapper,
}
"""By the callable's exact type."""

_CALLS_OF_SUBTYPES = {
    type: lambda machine, cls, args, kwargs, _: construct(machine, cls, args, kwargs),
    HigherOrder: lambda machine, node, args, kwargs, _: machine.tape.call_function(
        node, args, kwargs
    ),
    torch._ops.HigherOrderOperator: _call_higher_order,
    Proxy: lambda machine, proxy, args, kwargs, _: proxy(*args, **kwargs),
    staticmethod: lambda machine, static, args, kwargs, _: call(
        machine, static.__func__, args, kwargs
    ),
}
"""By a base of the callable's type; what has none of them is an instance with a `__call__`."""

_CALLS_OF_LIBRARIES = {
    "triton": call_of_triton,
    "torch": _call_of_torch,
    **dict.fromkeys(_TYPING, _call_of_typing),
}
"""Python functions by the top-level module; NotImplemented has them interpreted."""

_BUILTINS_OF_RECEIVERS = {
    type(None): _call_pure,
    types.ModuleType: _call_pure,
    type: _call_bound_to_class,
    torch.Tensor: lambda machine, function, tensor, args, kwargs: machine.tape.call_method(
        function.__name__, (tensor, *args), kwargs
    ),
    types.GetSetDescriptorType: _call_bound_to_descriptor,
    dict: _call_bound_to_dict,
}
"""By a base of the receiver's type; `_call_bound` for all others."""
