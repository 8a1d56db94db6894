"""The bottom of the room: memory orders, dtypes, and the table of handlers.

NumPy's iterator visits its operands in the order of their strides ("K" order) and allocates results
in that order. torch decides alike for one operand and differently for several. Orders are tuples of
axes, outermost first.

A handler of one of NumPy's functions takes the arrays of the capture and NumPy's own arguments, and
records torch calls. The files of the subjects fill the table.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.reasons import GraphBreak
from flambeau_prims.fake import FakeTensor
from flambeau_prims.sizes import hint_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_capture.interpreter.torch_calls.tape import Tape

Order = tuple[int, ...]


def unsupported(detail: str) -> GraphBreak:
    """The break at what has no torch calls here."""
    return GraphBreak("numpy-unsupported", detail)


def c_order(ndim: int) -> Order:
    """Row-major."""
    return tuple(range(ndim))


def _hints(tensor: torch.Tensor) -> tuple[list[int], list[int]]:
    """This call's shape and strides; symbolic strides have one order for all sizes."""
    assert isinstance(tensor, FakeTensor)
    spec = tensor.spec
    return [hint_of(size) for size in spec.shape], [hint_of(size) for size in spec.stride]


def k_order(tensors: Sequence[torch.Tensor], ndim: int) -> Order:
    """The order in which NumPy visits operands that are broadcast to `ndim` dimensions."""
    strides = []
    for tensor in tensors:
        shape, own = _hints(tensor)
        padded = [0 if size == 1 else abs(step) for size, step in zip(shape, own, strict=True)]
        strides.append([0] * (ndim - len(padded)) + padded)
    if ndim < 2 or all(_descends(own) for own in strides):
        return c_order(ndim)
    inner_first: list[int] = []
    for axis in range(ndim - 1, -1, -1):
        at = len(inner_first)
        for place in range(len(inner_first) - 1, -1, -1):
            before = _is_inside(strides, axis, inner_first[place])
            if before is None:
                continue
            if not before:
                break
            at = place
        inner_first.insert(at, axis)
    return tuple(reversed(inner_first))


def _descends(strides: list[int]) -> bool:
    steps = [step for step in strides if step]
    return all(left >= right for left, right in itertools.pairwise(steps))


def _is_inside(strides: list[list[int]], axis: int, other: int) -> bool | None:
    """Whether `axis` has the smaller strides; False if operands disagree, None if unknown."""
    found: bool | None = None
    for own in strides:
        if own[axis] and own[other]:
            if own[other] <= own[axis]:
                return False
            found = True
    return found


def is_in_order(tensor: torch.Tensor, order: Order) -> bool:
    """Whether the elements stand without gaps in this order."""
    shape, strides = _hints(tensor)
    if 0 in shape:
        return True
    expected = 1
    for axis in reversed(order):
        if shape[axis] != 1:
            if strides[axis] != expected:
                return False
            expected *= shape[axis]
    return True


def in_order(tape: Tape, tensor: torch.Tensor, order: Order) -> torch.Tensor:
    """The tensor, or a copy of it, whose elements stand without gaps in this order."""
    return tensor if is_in_order(tensor, order) else copy_in_order(tape, tensor, order)


def copy_in_order(tape: Tape, tensor: torch.Tensor, order: Order) -> torch.Tensor:
    """A copy whose elements stand without gaps in this order."""
    if order == c_order(len(order)):
        return tape.call_method("clone", (tensor,), {"memory_format": torch.contiguous_format})
    moved = tape.call_method("permute", (tensor, order))
    moved = tape.call_method("clone", (moved,), {"memory_format": torch.contiguous_format})
    return tape.call_method("permute", (moved, inverse(order)))


def inverse(order: Order) -> Order:
    """The permutation that undoes `order`."""
    found = [0] * len(order)
    for at, axis in enumerate(order):
        found[axis] = at
    return tuple(found)


def wanted(name: Any, tensors: Sequence[torch.Tensor], ndim: int) -> Order:
    """The order that NumPy's `order=` argument asks for."""
    letter = "K" if name is None else str(name).upper()
    if letter == "C":
        return c_order(ndim)
    if letter == "F":
        return tuple(reversed(range(ndim)))
    if letter == "A":
        return (
            tuple(reversed(range(ndim)))
            if tensors and all(is_only_fortran(tensor) for tensor in tensors)
            else c_order(ndim)
        )
    return k_order(tensors, ndim)


def copied(name: Any, tensor: torch.Tensor) -> Order:
    """The order of a copy: "K" sorts axes by their strides, those of stride 0 innermost."""
    if str(name).upper() != "K" and name is not None:
        return wanted(name, [tensor], tensor.ndim)
    _, strides = _hints(tensor)
    return tuple(sorted(range(tensor.ndim), key=lambda axis: -abs(strides[axis])))


def is_only_fortran(tensor: torch.Tensor) -> bool:
    """Whether an array is column-major and not row-major as well."""
    ndim = tensor.ndim
    return is_in_order(tensor, tuple(reversed(range(ndim)))) and not is_in_order(
        tensor, c_order(ndim)
    )


def fits(shape: tuple[Any, ...], into: tuple[Any, ...]) -> bool:
    """Whether values of a shape can be broadcast to another one."""
    pairs = zip(reversed(shape), reversed(into), strict=False)
    return len(shape) <= len(into) and all(size in (1, wanted) for size, wanted in pairs)


# ---------------------------------------------------------------- dtypes

_PAIRS = (
    (np.bool_, torch.bool),
    (np.uint8, torch.uint8),
    (np.int8, torch.int8),
    (np.int16, torch.int16),
    (np.int32, torch.int32),
    (np.int64, torch.int64),
    (np.float16, torch.float16),
    (np.float32, torch.float32),
    (np.float64, torch.float64),
    (np.complex64, torch.complex64),
    (np.complex128, torch.complex128),
)
TO_TORCH: dict[Any, torch.dtype] = {np.dtype(kind): dtype for kind, dtype in _PAIRS}
TO_NUMPY: dict[torch.dtype, Any] = {dtype: np.dtype(kind) for kind, dtype in _PAIRS}
NUMBERS = (bool, int, float, complex)


def torch_dtype(dtype: Any) -> torch.dtype:
    """torch's dtype for anything that `np.dtype` takes."""
    found = TO_TORCH.get(np.dtype(dtype))
    if found is None or not np.dtype(dtype).isnative:
        raise GraphBreak("numpy-dtype", f"an array of dtype {np.dtype(dtype)}")
    return found


def abstract(value: Any) -> Any:
    """A Python number in promotion (NEP 50): weak, by its type; a bool as the dtype."""
    kind = type(value)
    if kind is bool or kind is torch.SymBool:
        return np.dtype(bool)
    if kind is torch.SymInt:
        return int
    return float if kind is torch.SymFloat else kind


# ---------------------------------------------------------------- handlers

HANDLERS: dict[int, Callable[..., Any]] = {}
"""By id of the NumPy function."""

MAKERS: set[Callable[..., Any]] = set()
"""Handlers that do for constants, too: what they make is made by the graph."""


def handler(
    *functions: Any, makes: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the handler of these NumPy functions. A maker also serves constants."""

    def declare(handler: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            if id(function) in HANDLERS:
                raise ValueError(f"{function!r} has two handlers")
            HANDLERS[id(function)] = handler
            inner = getattr(function, "_implementation", None)
            if isinstance(inner, types.BuiltinFunctionType):
                HANDLERS[id(inner)] = handler  # what NumPy's own code calls past the dispatch
        if makes:
            MAKERS.add(handler)
        return handler

    return declare
