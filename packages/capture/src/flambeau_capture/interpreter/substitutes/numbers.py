"""The math module and torch's constructors on symbolic numbers: their native forms would make them concrete."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.native import prepare_arguments
from flambeau_capture.interpreter.scalars import given_floats
from flambeau_capture.interpreter.substitutes import numpy_tensors, tensor_lists
from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_prims.size_floats import Condition, FloatExpr, float_of
from flambeau_prims.sizes_node import from_symbolic, to_symbolic

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitutes.registry import Substitute

_FUNCTIONS = ("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan")  # fmt: skip


def _given_float(args: tuple[Any, ...], kwargs: dict[str, Any]) -> FloatExpr | None:
    """The one argument, if it is computed from a float of the program."""
    if len(args) != 1 or kwargs or type(args[0]) is not torch.SymFloat:
        return None
    inner = from_symbolic(args[0])
    return inner if isinstance(inner, FloatExpr) and given_floats(inner) else None


def _math_function(name: str) -> Substitute:
    native = getattr(math, name)

    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        number = _given_float(args, kwargs)
        if number is None:
            args, kwargs = prepare_arguments(machine, native, args, kwargs)
            return native(*args, **kwargs)
        return to_symbolic(float_of(f"math.{name}", number))

    return substitute


def _math_predicate(name: str, op: str, other: float | None) -> Substitute:
    """isnan and its like, as a relation: of the number to itself, or of its absolute value to `other`."""
    native = getattr(math, name)

    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        number = _given_float(args, kwargs)
        if number is None:
            return native(*args, **kwargs)
        if other is None:
            return Condition(op, number, number).ask()
        return Condition(op, float_of("abs", number), other).ask()

    return substitute


def _declare() -> None:
    for name in _FUNCTIONS:
        substitute_for(getattr(math, name))(_math_function(name))
    substitute_for(math.isnan)(_math_predicate("isnan", "!=", None))
    substitute_for(math.isinf)(_math_predicate("isinf", "==", math.inf))
    substitute_for(math.isfinite)(_math_predicate("isfinite", "<", math.inf))


def _constructor(function: Any) -> Substitute:
    """torch.tensor and torch.as_tensor: of one symbolic number, a tensor filled with it; of tensors in lists, those put together; other numbers in
    lists become concrete.
    """

    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        if numpy_tensors.is_numpys(args):
            return numpy_tensors.make_tensor(machine, function, args, kwargs)
        made = tensor_lists.tensor_of(machine, args[0], kwargs) if len(args) == 1 else None
        if made is not None:
            return made
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


for _function in (torch.tensor, torch.as_tensor):
    substitute_for(_function)(_constructor(_function))
_declare()
