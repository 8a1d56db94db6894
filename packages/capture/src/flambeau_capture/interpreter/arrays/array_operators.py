"""Python's operators on arrays, each a ufunc; with a tensor as the other operand, what torch makes of that."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.interpreter.arrays.ufuncs import call_ufunc
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.arrays.array import Array

    Operator = Callable[[Array, Any], Any]


def operators(name: str) -> tuple[Operator, Operator, Operator]:
    """A ufunc as an operator: on an array, with the array on the right, in place."""
    ufunc = getattr(np, name)

    def operate(self: Array, other: Any) -> Any:
        if not _takes(other):
            return NotImplemented
        if isinstance(other, torch.Tensor):
            return with_tensor(self, other, name)
        return call_ufunc(self.machine, ufunc, (self, other), {})

    def reflected(self: Array, other: Any) -> Any:
        if not _takes(other):
            return NotImplemented
        if isinstance(other, torch.Tensor):
            return with_tensor(self, other, name, reflected=True)
        return call_ufunc(self.machine, ufunc, (other, self), {})

    def in_place(self: Array, other: Any) -> Any:
        if self.scalar or not _takes(other):
            return NotImplemented
        if isinstance(other, torch.Tensor):
            return with_tensor(self, other, name)
        return call_ufunc(self.machine, ufunc, (self, other), {"out": self})

    return operate, reflected, in_place


def comparison(name: str) -> Operator:
    """A ufunc as a comparison; with what is no number, by identity."""
    ufunc = getattr(np, name)

    def compare(self: Array, other: Any) -> Any:
        if not _takes(other):
            if name not in ("equal", "not_equal") or self.scalar:
                return NotImplemented
            if other is not None:
                raise GraphBreak("numpy-unsupported", f"an array is compared with {other!r}")
            made = self.call(torch.full_like, self.tensor, name == "not_equal", dtype=torch.bool)
            return self.new(made)
        if isinstance(other, torch.Tensor):
            return with_tensor(self, other, name)
        return call_ufunc(self.machine, ufunc, (self, other), {})

    return compare


_OPERATORS = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "true_divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "power": operator.pow, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge, "equal": operator.eq, "not_equal": operator.ne,
}  # fmt: skip
_HALVES = (torch.float16, torch.bfloat16)


def with_tensor(array: Array, tensor: torch.Tensor, name: str, *, reflected: bool = False) -> Any:
    """An operator between a tensor and an array, as torch has it: NumPy scalars are numbers, what follows a tensor makes a tensor."""
    compares = name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
    if not array.scalar:
        if not reflected or compares or name == "divmod":
            raise GraphBreak("numpy-unsupported", "an array is combined with a tensor")
        return call_ufunc(array.machine, getattr(np, name), (tensor, array), {})
    function = _OPERATORS.get(name)
    if function is None or array.base.dtype is torch.bool or tensor.dtype in _HALVES:
        raise GraphBreak("numpy-unsupported", f"np.{name} of a NumPy scalar and a tensor")
    number = array.tape.call_method("to", (array.base, _weak_dtype(array.base.dtype, tensor.dtype)))
    return array.call(function, *((tensor, number) if reflected else (number, tensor)))


def _weak_dtype(scalar: torch.dtype, tensor: torch.dtype) -> torch.dtype:
    """The dtype in which torch takes a number: the tensor's, or the default of the number's own category where that is higher."""
    for is_in, default in (
        (
            lambda dtype: dtype.is_complex,
            torch.promote_types(torch.get_default_dtype(), torch.complex64),
        ),
        (lambda dtype: dtype.is_floating_point, torch.get_default_dtype()),
        (lambda dtype: dtype is not torch.bool, torch.int64),
    ):
        if is_in(tensor):
            return tensor
        if is_in(scalar):
            return default
    return tensor


def _takes(other: Any) -> bool:
    """Whether an array may be combined with this; strings, None and the like are compared by identity or not at all."""
    return not (other is None or isinstance(other, (str, bytes, dict, set)))
