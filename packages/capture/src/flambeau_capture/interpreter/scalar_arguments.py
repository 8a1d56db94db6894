"""Tensors that stand where an operator takes a number.

    p.addcdiv_(a, b, value=t)       p.add_(a / b * t)              optimizers need this: their step counters are tensors
    F.pad(x, (0, t))                n = t.item(); F.pad(x, (0, n))

Eager reads the number out of the tensor.  While capturing there is no number to read, so the call is written as operators that take
tensors; or, in a frame that is to be captured whole, the number is an unbacked one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_capture.interpreter.tape import Tape

_FACTORS = {
    "addcdiv": "value",
    "addcmul": "value",
    "add": "alpha",
    "sub": "alpha",
    "subtract": "alpha",
}
_PRODUCTS = {"addcdiv": "div", "addcmul": "mul"}


def takes_tensor_as_number(name: str, kwargs: dict[str, Any]) -> bool:
    """Whether a method call's factor is a tensor that torch takes as a number, of unknown contents."""
    factor = kwargs.get(_FACTORS.get(name.rstrip("_"), ""))
    if not isinstance(factor, torch.Tensor) or factor.ndim or factor.requires_grad:
        return False
    return getattr(factor, "contents", None) is None


def with_numbers(
    tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any], taken: Sequence[torch.Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with unbacked numbers for the tensors whose number it has `taken`."""
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


def call_on_tensors(tape: Tape, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call, with its factor multiplied in as a tensor."""
    stem = name.rstrip("_")
    factor_name = _FACTORS[stem]
    factor = kwargs[factor_name]
    receiver, *operands = args
    product = _PRODUCTS.get(stem)
    term = operands[0] if product is None else tape.call_method(product, tuple(operands))
    if isinstance(term, torch.Tensor) and not term.ndim and term.dtype != factor.dtype:
        factor = tape.call_method("to", (factor, term.dtype))  # as a number it would not promote
    term = tape.call_method("mul", (factor, term))
    combined = "sub" if stem.startswith("sub") else "add"
    rest = {key: value for key, value in kwargs.items() if key != factor_name}
    return tape.call_method(f"{combined}{name[len(stem) :]}", (receiver, term), rest)
