"""Numbers: the math module, torch's constructors of symbolic numbers, conversions, the operator
module, `pow` and `divmod`, and checks.

Native forms would make symbolic numbers concrete. Special methods of the program's classes are
interpreted.

torch._check and its kin state something about sizes and tensors. If it is data-dependent, it is
assumed, and checked as the graph runs; the function that makes the message is called only if the
check is known to fail.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import os
import sys
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.branches.speculation import check, is_in_data
from flambeau_capture.interpreter.semantics import native_functions, operators
from flambeau_capture.interpreter.semantics.formatting import (
    format_value,
    text_of_contents,
    to_text,
)
from flambeau_capture.interpreter.semantics.items import (
    delete_item,
    load_item,
    native_iterable,
    store_item,
)
from flambeau_capture.interpreter.semantics.native_functions import prepare_arguments
from flambeau_capture.interpreter.substitute_registry import (
    forwarding,
    substitute_for,
    substitute_if_new,
)
from flambeau_capture.interpreter.substitutes import introspection, tensors
from flambeau_capture.interpreter.values.classes import (
    MISSING,
    SYMBOLIC_NUMBERS,
    Proxy,
    accept,
    as_index,
    lookup,
    python_method,
)
from flambeau_capture.interpreter.values.deferred_strings import DeferredString
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.concrete_sizes import concrete
from flambeau_prims.size_floats import Condition, FloatExpr, expect, float_of, is_unbacked
from flambeau_prims.sizes import Expr, as_int
from flambeau_prims.sizes_node import from_symbolic, to_symbolic

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import Substitute


_FUNCTIONS = (
    "sqrt", "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos",
    "atan",
)  # fmt: skip


def _given_number(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The one argument, if it is computed from numbers of the program or of tensors; else None."""
    if len(args) != 1 or kwargs or type(args[0]) not in (torch.SymInt, torch.SymFloat):
        return None
    inner = from_symbolic(args[0])
    if not isinstance(inner, (Expr, FloatExpr)):
        return None
    in_data = isinstance(inner, FloatExpr) and is_unbacked(inner)
    return inner if in_data or machine.tape.is_of_numbers(inner) else None


def _math_function(name: str) -> Substitute:
    native = getattr(math, name)

    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        number = _given_number(machine, args, kwargs)
        if number is None:
            args, kwargs = prepare_arguments(machine, native, args, kwargs)
            return native(*args, **kwargs)
        return to_symbolic(float_of(f"math.{name}", number))

    return substitute


def _math_predicate(name: str, op: str, other: float | None) -> Substitute:
    """isnan and its like as a relation of the number, or of its absolute value to `other`."""
    native = getattr(math, name)

    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        number = _given_number(machine, args, kwargs)
        if number is None:
            return native(*args, **kwargs)
        if other is None:
            return Condition(op, number, number).ask()
        return Condition(op, float_of("abs", number), other).ask()

    return substitute


def _declare_math() -> None:
    for name in _FUNCTIONS:
        substitute_for(getattr(math, name))(_math_function(name))
    substitute_for(math.isnan)(_math_predicate("isnan", "!=", None))
    substitute_for(math.isinf)(_math_predicate("isinf", "==", math.inf))
    substitute_for(math.isfinite)(_math_predicate("isfinite", "<", math.inf))


def _constructor(function: Any) -> Substitute:
    """torch.tensor and torch.as_tensor: of one symbolic number, a tensor filled with it; of tensors
    in lists, those put together; other numbers in lists become concrete.
    """

    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        library = machine.foreign.of_data(args[0]) if args else None
        if library is not None:
            return library.make_tensor(function, args, kwargs)
        made = tensors.tensor_of(machine, args[0], kwargs) if len(args) == 1 else None
        if made is not None:
            return made
        if len(args) == 1:
            kwargs = tensors.with_dtype(machine, function, args[0], kwargs)
        number = args[0] if len(args) == 1 else None
        if type(number) not in (torch.SymInt, torch.SymFloat) or "pin_memory" in kwargs:
            return machine.tape.call_function(function, args, kwargs)
        call = machine.tape.call_function
        integral = type(number) is torch.SymInt
        dtype = kwargs.get("dtype") or (torch.int64 if integral else torch.get_default_dtype())
        widest = torch.int64 if integral else torch.float64
        # torch.full refuses what dtype cannot hold, torch.tensor rounds it.
        device = {"device": kwargs["device"]} if "device" in kwargs else {}
        made = call(torch.full, ((), number), {**device, "dtype": widest})
        if dtype is not widest:
            made = machine.tape.call_method("to", (made,), {"dtype": dtype})
        if kwargs.get("requires_grad"):
            made = machine.tape.call_method("requires_grad_", (made,))
        return made

    return substitute


for _conversion in (torch.tensor, torch.as_tensor):
    substitute_for(_conversion)(_constructor(_conversion))
_declare_math()


# ---------------------------------------------------------------- conversions


def _by_method(
    machine: Machine, function: Any, value: Any, names: tuple[str, ...]
) -> tuple[Any] | None:
    """The result of the first of these Python methods of the class, in a tuple; or None."""
    for name in names:
        method = python_method(machine, type(value), name)
        if method is not None:
            answer = machine.call(method, (value,), {})
            return (accept(function, name, answer, owner=type(value)),)
        if lookup(machine, type(value), name) is not MISSING:
            return None
    return None


def _item(machine: Machine, value: Any) -> Any:
    """A tensor's only element as a number, if that may be symbolic; other values unchanged."""
    if isinstance(value, torch.Tensor) and machine.tape.tracer.unbacked:
        return machine.tape.call_method("item", (value,))
    if issubclass(type(value), Proxy) and getattr(value, "ndim", None) == 0:
        return value.item()  # type: ignore[attr-defined]  # a NumPy scalar, or an array of one
    return value


def _rounded(machine: Machine, function: Any, number: Any) -> Any:
    """An int that is made of an unbacked float, unbacked as that is; None for other numbers."""
    inner = from_symbolic(number) if type(number) is torch.SymFloat else None
    if not isinstance(inner, FloatExpr) or not is_unbacked(inner) or machine.tape.subgraphs:
        return None
    return to_symbolic(machine.tape.unbacked.rounded(function, inner))


@substitute_for(int)
def _int(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs:
        args = (_item(machine, args[0]),)
        kind = type(args[0])
        if kind is torch.SymInt:
            return args[0]
        if kind in (torch.SymFloat, torch.SymBool):
            rounded = _rounded(machine, int, args[0])
            return torch.sym_int(args[0]) if rounded is None else rounded  # type: ignore[no-untyped-call]
        found = _by_method(machine, int, args[0], ("__int__", "__index__", "__trunc__"))
        if found is not None:
            return found[0]
    return int(*args, **kwargs)


@substitute_for(float)
def _float(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 1:
        args = (_item(machine, args[0]),)
        if type(args[0]) in (torch.SymInt, torch.SymFloat):
            return torch.sym_float(args[0])  # type: ignore[no-untyped-call]
        found = _by_method(machine, float, args[0], ("__float__", "__index__"))
        if found is not None:
            return found[0]
    return float(*args, **kwargs)


@substitute_for(complex)
def _complex(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs:
        found = _by_method(machine, complex, args[0], ("__complex__", "__float__", "__index__"))
        if found is not None:
            return found[0]
    return complex(*args, **kwargs)


@substitute_for(str)
def _str(machine: Machine, args: Any, kwargs: Any) -> str:
    if len(args) == 1 and not kwargs:
        return to_text(machine, args[0], str)
    return str(*args, **kwargs)


# `object.__str__` is `repr` of its argument, of a tensor too.
substitute_for(repr, object.__str__)(lambda machine, args, kwargs: to_text(machine, args[0], repr))
substitute_for(ascii)(lambda machine, args, kwargs: to_text(machine, args[0], ascii))


def _contents_repr(kind: Any, machine: Machine, args: Any, kwargs: Any) -> str:
    if len(args) != 1 or kwargs or not isinstance(args[0], kind):
        return kind.__repr__(*args, **kwargs)  # type: ignore[no-any-return]  # raises
    return text_of_contents(machine, args[0], kind)


for _container in (list, tuple, dict):
    substitute_for(_container.__repr__)(functools.partial(_contents_repr, _container))


@substitute_for(format)
def _format(machine: Machine, args: Any, kwargs: Any) -> str:
    if kwargs or len(args) not in (1, 2):
        return format(*args, **kwargs)  # raises
    spec = args[1] if len(args) > 1 else ""
    if not isinstance(spec, (str, DeferredString)):
        return format("", spec)  # raises
    return format_value(machine, args[0], None, spec)


@substitute_for(torch.Tensor.__format__, unpacked=True)
def _format_tensor(machine: Machine, tensor: Any, spec: Any) -> str:
    return _format(machine, (tensor, spec), {})


@substitute_for(torch.Tensor.__repr__)
def _repr_tensor(machine: Machine, args: Any, kwargs: Any) -> str:
    if kwargs:
        return machine.interpret(torch.Tensor.__repr__, args, kwargs)  # type: ignore[no-any-return]
    return to_text(machine, args[0], repr)


@substitute_for(bytes)
def _bytes(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs:
        found = _by_method(machine, bytes, args[0], ("__bytes__",))
        if found is not None:
            return found[0]
        if lookup(machine, type(args[0]), "__bytes__") is not MISSING:
            return bytes(args[0])
        value: Any = as_index(machine, args[0])
        if not isinstance(value, (int, str)):
            value = native_iterable(machine, value)
        return bytes(value)
    return bytes(*args, **kwargs)


_CHECKED = frozenset({"__index__", "__fspath__"})
_ROUNDING = frozenset({round, math.floor, math.ceil, math.trunc})


def _converting(function: Any, name: str) -> None:
    """A function that asks its first argument's special method, and passes it the others."""

    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        method = python_method(machine, type(args[0]), name)
        if name == "__index__" and isinstance(args[0], int):
            method = None  # an int is its own index
        if method is not None:
            result = machine.call(method, (args[0], *args[1:], *kwargs.values()), {})
            return accept(function, name, result, *args[1:]) if name in _CHECKED else result
        if function in _ROUNDING and len(args) == 1 and not kwargs:
            rounded = _rounded(machine, function, args[0])
            if rounded is not None:
                return rounded
        elif function is round and type(args[0]) is torch.SymInt:
            return round(as_int(from_symbolic(args[0])), *args[1:], **kwargs)  # SymInt drops digits
        args, kwargs = native_functions.prepare_arguments(machine, function, args, kwargs)
        return function(*args, **kwargs)

    substitute_if_new(function, substitute)


for _function, _name in (
    (round, "__round__"),
    (math.floor, "__floor__"),
    (math.ceil, "__ceil__"),
    (math.trunc, "__trunc__"),
    (os.fspath, "__fspath__"),
    (operator.index, "__index__"),
):
    _converting(_function, _name)


@substitute_for(operator.length_hint)
def _length_hint(machine: Machine, args: Any, kwargs: Any) -> Any:
    """The length, else the hint, else the default, which also stands for a TypeError."""
    obj, *rest = args
    length, hint = (python_method(machine, type(obj), name) for name in _LENGTHS)
    if length is None and (hint is None or lookup(machine, type(obj), "__len__") is not MISSING):
        args, kwargs = native_functions.prepare_arguments(
            machine, operator.length_hint, args, kwargs
        )
        return operator.length_hint(*args)
    default = operator.length_hint(object(), *rest)
    if length is not None:
        with contextlib.suppress(TypeError):
            return accept(len, "__len__", machine.call(length, (obj,), {}))
    if hint is None:
        return default
    try:
        answer = machine.call(hint, (obj,), {})
    except TypeError:
        return default
    return accept(operator.length_hint, "__length_hint__", answer, *rest)


_LENGTHS = ("__len__", "__length_hint__")
_PREHEADER = 1 << 3 | 1 << 4
"""Types whose objects have a dict or weak references in front (CPython's Include/object.h)."""


class _WithDict:
    """An object with a `__dict__` that says this of its size."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __sizeof__(self) -> Any:
        return self.answer


@substitute_for(sys.getsizeof)
def _getsizeof(machine: Machine, args: Any, kwargs: Any) -> Any:
    obj = args[0] if args else kwargs["object"]
    method = python_method(machine, type(obj), "__sizeof__")
    if method is None:
        if id(obj) in machine.objects.tracked_copies:
            raise GraphBreak("unknown-c-function", f"the size of a {type(obj).__name__}")
        args, kwargs = native_functions.prepare_arguments(machine, sys.getsizeof, args, kwargs)
        return sys.getsizeof(*args, **kwargs)
    default = (*args[1:], *(kwargs[name] for name in ("default",) if name in kwargs))
    try:
        answer = machine.call(method, (obj,), {})
        if type(obj).__flags__ & _PREHEADER:  # counted beside what `__sizeof__` says
            return sys.getsizeof(_WithDict(answer))
        return accept(sys.getsizeof, "__sizeof__", answer)
    except TypeError:
        if not default:
            raise
        return default[0]


# ---------------------------------------------------------------- operators and checks


def _declare_operators() -> None:
    for entry in operators.COMPARISONS.values():
        substitute_for(entry.function)(forwarding(operators.compare, entry))
    for entry in operators.BINARY_BY_SYMBOL.values():
        substitute_for(entry.function)(forwarding(operators.binary, entry))
    for name, unary in operators.UNARY_FUNCTIONS.items():
        substitute_for(unary)(forwarding(operators.unary, name))
    substitute_for(operator.getitem)(forwarding(load_item))
    substitute_for(operator.setitem)(forwarding(store_item))
    substitute_for(operator.delitem)(forwarding(delete_item))
    substitute_for(operator.truth)(forwarding(operators.truth))
    substitute_for(operator.not_)(lambda machine, args, kwargs: not operators.truth(machine, *args))
    substitute_for(operator.contains)(forwarding(operators.contains))


@substitute_for(pow)
def _pow(machine: Machine, args: Any, kwargs: Any) -> Any:
    given = (*args, *(kwargs[name] for name in ("base", "exp", "mod") if name in kwargs))
    if len(given) == 2 or given[2] is None:
        return operators.binary(machine, operators.BINARY_BY_SYMBOL["**"], *given[:2])
    method = python_method(machine, type(given[0]), "__pow__")
    return pow(*concrete(given)) if method is None else machine.call(method, given, {})


_NUMBERS = (bool, int, float, complex)
_DIVMOD = operators.BinaryOperator(divmod, "__divmod__", "__rdivmod__")


@substitute_for(divmod, unpacked=True)
def _divmod(machine: Machine, left: Any, right: Any) -> Any:
    if any(
        python_method(machine, type(value), name) is not None
        for value, name in ((left, "__divmod__"), (right, "__rdivmod__"))
    ):
        return operators.binary(machine, _DIVMOD, left, right)
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):  # which have no divmod
        kinds = [introspection.type_of(machine, value) for value in (left, right)]
        if not all(kind in _NUMBERS or issubclass(kind, torch.Tensor) for kind in kinds):
            raise GraphBreak("unknown-c-function", f"divmod of a {kinds[0].__name__}")
        return operators.refuse(_DIVMOD, *kinds)
    quotient = operators.binary(machine, operators.BINARY_BY_SYMBOL["//"], left, right)
    return quotient, operators.binary(machine, operators.BINARY_BY_SYMBOL["%"], left, right)


_declare_operators()


# ---------------------------------------------------------------- checks


def _holds(machine: Machine, condition: Any) -> bool:
    if type(condition) is not torch.SymBool:
        return bool(condition)
    answer = expect(from_symbolic(condition))
    machine.tape.unbacked.write_checks()
    return answer


def _check_with(machine: Machine, error_type: Any, cond: Any, message: Any = None) -> None:
    if type(cond) not in (bool, torch.SymBool):
        machine.interpret(torch._check_with, (error_type, cond, message), {})  # raises a TypeError
    elif not _holds(machine, cond):
        _fail(machine, error_type, message)


def _fail(machine: Machine, error: Any, message: Any) -> None:
    """What torch's own check does with a condition that does not hold."""
    machine.interpret(torch._check_with, (error, False, message), {})


def _check_tensor_all_with(
    machine: Machine, error_type: Any, cond: Any, message: Any = None
) -> None:
    if not isinstance(cond, torch.Tensor):
        seen = SYMBOLIC_NUMBERS.get(type(cond), type(cond))
        raise TypeError(f"cond must be a tensor, but got {seen}")
    if cond.dtype is not torch.bool:
        raise TypeError(f"cond tensor must have dtype torch.bool, but got {cond.dtype}")
    holds = machine.tape.call_method("_is_all_true", (cond,))
    frame = machine.frame
    # What a `try` awaits is one of the program's ordinary ways.
    awaited = frame is None or machine.backwards or frame.is_in_block(with_too=False)
    if is_in_data(holds) and not awaited:
        check(machine, holds, f"{machine.where}: the program raises here")
    elif not operators.truth(machine, holds):
        _fail(machine, error_type, message)


def _check_is_size(machine: Machine, i: Any, message: Any = None, *, max: Any = None) -> None:
    bounds = [(">=", 0)] if max is None else [(">=", 0), ("<=", max)]
    for op, bound in bounds:
        condition = operators.compare(machine, operators.COMPARISONS[op], i, bound)
        if not _holds(machine, condition):
            raise RuntimeError("Expected cond to be True, but got False.")


def _constrain(machine: Machine, symbol: Any, min: Any = None, max: Any = None) -> None:
    """`torch._constrain_as_size` and `_constrain_as_value`."""
    for op, bound in ((">=", min), ("<=", max)):
        if bound is not None:
            condition = operators.compare(machine, operators.COMPARISONS[op], symbol, bound)
            if not _holds(machine, condition):
                raise RuntimeError(f"{symbol} is out of range")


def _declare_checks() -> None:
    table: dict[str, Substitute] = {
        "_check": forwarding(_check_with, RuntimeError),
        "_check_with": forwarding(_check_with),
        "_check_tensor_all": forwarding(_check_tensor_all_with, RuntimeError),
        "_check_tensor_all_with": forwarding(_check_tensor_all_with),
        "_check_index": forwarding(_check_with, IndexError),
        "_check_value": forwarding(_check_with, ValueError),
        "_check_type": forwarding(_check_with, TypeError),
        "_check_not_implemented": forwarding(_check_with, NotImplementedError),
        "_check_is_size": forwarding(_check_is_size),
        "_constrain_as_size": forwarding(_constrain),
    }
    for name, substitute in table.items():
        substitute_if_new(getattr(torch, name, None), substitute)


_declare_checks()
