"""Numbers of the program that are inputs of the graph instead of constants: ints and floats that
were seen to change.

    self.scale = 0.5; then 0.7           first capture: EQUALS 0.5. Second: any float f0

An int is a symbol of the SizeEnv, a float a symbolic float (`size_floats.float_symbol`); Python's
control flow on them takes guards. A torch function gets float symbols or sizes. A float that the
program computes from given floats becomes a separate input: Python computes it from the same
sources before the graph runs, so its value is Python's to the last bit.

Python needs the values of symbolic numbers, and of texts of them, as keys. Making one concrete
guards its value.

Tensors may stand where an operator takes a number:

    p.addcdiv_(a, b, value=t)       p.add_(t * a / b)         for step counters of optimizers
    F.pad(x, (0, t))                n = t.item(); F.pad(x, (0, n))

Eager reads the number out of the tensor. Capture has no number to read, so it writes the call as
operators that take tensors. In a frame that is captured whole the number is unbacked.

Decimals, dates and times are values too. One that existed before the call is guarded by what it
pickles as. Decimals are computed in the context of the thread: its settings are guarded, and the
flags that the frame raises are raised in each call.
"""

from __future__ import annotations

import datetime
import decimal
import re
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.guards.constants import ComputedNumber
from flambeau_capture.interpreter.values.deferred_strings import DeferredString, readable
from flambeau_capture.record import CallSideEffect, Const
from flambeau_capture.sources import CallOf, Source
from flambeau_prims.builder import compute_dtype
from flambeau_prims.concrete_sizes import concrete
from flambeau_prims.promotion import can_cast, result_type
from flambeau_prims.size_floats import FloatExpr, as_float, float_of, number_hint
from flambeau_prims.sizes_node import from_symbolic, to_symbolic
from flambeau_prims.spec import Spec
from flambeau_prims.unsupported import DataDependent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_capture.interpreter.protocols import Args, CallTape, Kwargs, Recorder
    from flambeau_capture.record import DynamicDims, SideEffect
    from flambeau_capture.sources import Source


_INT32 = 2**31


def is_symbolic(value: int | float, dynamic: DynamicDims, source: Source, argument: bool) -> bool:
    """Whether a number is symbolic: it changed, or with `dynamic=True` it may be a size."""
    if dynamic.mode is False:
        return False
    if type(value) is float:
        return dynamic.has_changed(source)
    if not -_INT32 < value < _INT32:
        return False
    return dynamic.has_changed(source) or (dynamic.mode is True and argument and value >= 2)


def lower_bound(value: int) -> int | None:
    """The bound assumed of a symbolic int: one that looks like a size is neither 0 nor 1."""
    return 2 if value >= 2 else None


def computed_source(expr: FloatExpr) -> CallOf:
    """The source of a symbolic float: its expression, evaluated on the sources of its symbols."""
    function = ComputedNumber(expr)
    symbols = expr.env.symbols
    return CallOf(function, tuple(symbols[name].source for name in function.names))  # type: ignore[misc]


_ARITHMETIC = {
    "__add__": "+", "__sub__": "-", "__mul__": "*", "__truediv__": "/", "__floordiv__": "//",
    "__mod__": "%", "__pow__": "**",
}  # fmt: skip
_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat)


def arithmetic(method: str, left: Any, right: Any) -> Any:
    """`left op right` with a SymFloat, as Python rounds it: torch's own operators differ."""
    op = _ARITHMETIC.get(method)
    if op is None or type(left) not in _NUMBERS or type(right) not in _NUMBERS:
        return NotImplemented
    a, b = (from_symbolic(side) if type(side) in _NUMBERS[3:] else side for side in (left, right))
    if op == "**" and isinstance(number_hint(a) ** number_hint(b), complex):
        return as_float(a) ** as_float(b)
    return to_symbolic(float_of(op, a, b))


# ---------------------------------------------------------------- symbolic

_TYPE_NAMES = {"SymInt": "int", "SymFloat": "float", "SymBool": "bool", "FakeTensor": "Tensor"}
_TYPE_NAME = re.compile(rf"\b({'|'.join(_TYPE_NAMES)})\b")


def concrete_key(key: Any) -> Any:
    """A key of a dict or set: symbolic numbers have no hash."""
    kind = type(key)
    if kind is DeferredString:
        return readable(key)
    return concrete(key) if kind in (torch.SymInt, torch.SymFloat, tuple, torch.Size) else key


def name_plainly(error: BaseException) -> None:
    """Name the program's types in Python's complaint: `'int' object is not iterable`."""
    match error.args:
        case (str(text),) if _TYPE_NAME.search(text):
            error.args = (_TYPE_NAME.sub(lambda name: _TYPE_NAMES[name[0]], text),)


# ---------------------------------------------------------------- scalar arguments

_FACTORS = {
    "addcdiv": "value", "addcmul": "value", "add": "alpha", "sub": "alpha", "subtract": "alpha",
}  # fmt: skip
_PRODUCTS = {"addcdiv": "div", "addcmul": "mul"}


def takes_tensor_as_number(name: str, kwargs: Kwargs) -> bool:
    """Whether a method's factor is a tensor of unknown contents that torch takes as a number."""
    factor = kwargs.get(_FACTORS.get(name.rstrip("_"), ""))
    if not isinstance(factor, torch.Tensor) or factor.ndim or factor.requires_grad:
        return False
    return getattr(factor, "contents", None) is None


def with_numbers(
    tape: CallTape, args: Args, kwargs: Kwargs, taken: Sequence[torch.Tensor]
) -> tuple[Args, Kwargs]:
    """The arguments of a call, with unbacked numbers for the tensors that it has `taken`."""
    numbers: dict[int, Any] = {}

    def replaced(arg: Any) -> Any:
        if any(arg is tensor for tensor in taken):
            if id(arg) not in numbers:
                numbers[id(arg)] = tape.call_method("item", (arg,))
            return numbers[id(arg)]
        if type(arg) in (tuple, list):
            return type(arg)(map(replaced, arg))
        return arg

    return tuple(map(replaced, args)), {name: replaced(arg) for name, arg in kwargs.items()}


def call_on_tensors(tape: CallTape, name: str, args: Args, kwargs: Kwargs) -> Any:
    """The call, with its factor multiplied in as a tensor.

    As a number the factor would promote nothing: operands are multiplied in the precision in which
    the call computes, which is float32 for half precision.
    """
    stem = name.rstrip("_")
    factor_name = _FACTORS[stem]
    receiver, *operands = args
    dtype = result_type(map(_kind_of, args))
    wide = compute_dtype(dtype)
    if not can_cast(kwargs[factor_name].dtype, wide):
        raise DataDependent(f"{name} refuses such a number as {factor_name}")

    def widened(operand: Any) -> Any:
        if not isinstance(operand, torch.Tensor) or operand.dtype is wide:
            return operand
        return tape.call_method("to", (operand, wide))

    term = tape.call_method("mul", (widened(kwargs[factor_name]), widened(operands[0])))
    if stem in _PRODUCTS:
        term = tape.call_method(_PRODUCTS[stem], (term, widened(operands[1])))
    combined = "sub" if stem.startswith("sub") else "add"
    rest = {key: value for key, value in kwargs.items() if key != factor_name}
    if name.endswith("_"):
        return tape.call_method(f"{combined}_", (receiver, term), rest)
    result = tape.call_method(combined, (widened(receiver), term), rest)
    return result if result.dtype is dtype else tape.call_method("to", (result, dtype))


def _kind_of(operand: Any) -> Any:
    """What type promotion asks of an operand."""
    if isinstance(operand, torch.Tensor):
        dims = (1,) if operand.ndim else ()
        return Spec.of(dims, dtype=operand.dtype, device=operand.device)
    return from_symbolic(operand) if type(operand) in _NUMBERS[3:] else operand


VALUE_TYPES: frozenset[type] = frozenset(
    {
        datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone,
        decimal.Decimal,
    }
)  # fmt: skip
_PARTS = (bytes, int, str)


def guard_value(machine: Recorder, value: Any, source: Source) -> bool:
    """Guard what a value is; False where it holds an object of the program, as a time zone."""
    packed = _packed(value)
    if not all(type(part) in _PARTS for part in packed):
        return False
    machine.guard("EQUALS", CallOf(_packed, (source,)), packed)
    if type(value) is decimal.Decimal:
        enter_context(machine)
    return True


def _packed(value: Any) -> tuple[Any, ...]:
    if type(value) is datetime.timezone:
        return repr(value), str(value)
    parts: tuple[Any, ...] = value.__reduce_ex__(4)[1]
    return parts


class DecimalContext:
    """The thread's context while a capture computes in a copy of it."""

    def __init__(self) -> None:
        self.real: decimal.Context | None = None


def enter_context(machine: Recorder) -> None:
    """Compute decimals in a copy of the thread's context from now on."""
    state = machine.state_of(DecimalContext)
    if state.real is None:
        machine.guard("EQUALS", CallOf(_settings, ()), _settings())
        state.real = decimal.getcontext()
        own = state.real.copy()
        own.clear_flags()
        decimal.setcontext(own)


def leave_context(machine: Recorder) -> None:
    """Give the thread its context back."""
    state = machine.state_of(DecimalContext)
    if state.real is not None:
        decimal.setcontext(state.real)
        state.real = None


def _settings() -> tuple[Any, ...]:
    context = decimal.getcontext()
    traps = [signal.__name__ for signal, is_trapped in context.traps.items() if is_trapped]
    return (
        context.prec, context.rounding, context.Emin, context.Emax, context.capitals,
        context.clamp, *traps,
    )  # fmt: skip


def context_flags(machine: Recorder) -> list[SideEffect]:
    """The flags that the frame has raised in the context."""
    if machine.state_of(DecimalContext).real is None:
        return []
    raised = tuple(signal for signal, is_up in decimal.getcontext().flags.items() if is_up)
    return [CallSideEffect(_raise_flags, (Const(raised),))] if raised else []


def _raise_flags(signals: tuple[Any, ...]) -> None:
    flags = decimal.getcontext().flags
    for signal in signals:
        flags[signal] = True
