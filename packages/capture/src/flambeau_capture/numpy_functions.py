"""ndarrays at the border of an entry: as the tensors that its graph reads, and tensors as the
arrays that its program returns.

No element is copied in either direction: a graph that updates its input in place writes the
caller's array.

`wrap_numpy`: a function of NumPy arrays as a function of tensors.

    @flambeau.compile(fullgraph=True)
    @wrap_numpy
    def distance(x, y):
        return np.linalg.norm(x - y)

    distance(tensor, other)     a tensor

Compiled, the function's NumPy calls become torch calls on the tensors themselves: they run where
the tensors are, and gradients flow through them. Called without being compiled, the arrays share
the tensors' memory, so that these must be on the CPU and need no gradients.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

ALIGNED, WRITEABLE = 0x100, 0x400
"""Bits of `PyArrayObject.flags` (NumPy's C API)."""


class _Memory:
    """An array's memory, offered for reading and writing; what is made of it keeps the array alive."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Any) -> None:
        self.array = array
        described = array.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}


def tensor_of_readonly(array: Any) -> torch.Tensor:
    """The tensor of an array that must not be written to, without torch's warning about that."""
    found: torch.Tensor = torch.from_numpy(np.asarray(_Memory(array)))
    return found


@functools.cache
def tensor_of_reversed(flips: frozenset[int], writeable: bool) -> Callable[[Any], torch.Tensor]:
    """A converter of arrays with negative strides along the axes `flips`: to the tensor that runs
    along them forwards.
    """

    def tensor_of_reversed_array(array: Any) -> torch.Tensor:
        forwards = np.flip(array, tuple(sorted(flips)))
        return torch.from_numpy(forwards) if writeable else tensor_of_readonly(forwards)

    return tensor_of_reversed_array


def converter(flips: frozenset[int], writeable: bool) -> Callable[[Any], torch.Tensor]:
    """The function that gives the tensor of an array: one object for each way to convert."""
    if flips:
        return tensor_of_reversed(flips, writeable)
    return torch.from_numpy if writeable else tensor_of_readonly


def array_flags(array: Any) -> int:
    """What a graph depends on of an array's flags."""
    return ALIGNED * array.flags.aligned | WRITEABLE * array.flags.writeable


def scalar_tensor(scalar: Any) -> torch.Tensor:
    """A NumPy scalar as a tensor without dimensions."""
    found: torch.Tensor = torch.from_numpy(np.array(scalar))
    return found


# ---------------------------------------------------------------- results


def to_array(tensor: torch.Tensor) -> Any:
    """The array over a tensor's memory."""
    return tensor.detach().numpy()


def to_scalar(tensor: torch.Tensor) -> Any:
    """A NumPy scalar."""
    return tensor.detach().numpy()[()]


def to_readonly_array(tensor: torch.Tensor) -> Any:
    """An array over a tensor's memory that refuses to be written to."""
    array = tensor.detach().numpy()
    array.flags.writeable = False
    return array


def flipped(array: Any, *axes: int) -> Any:
    """A view with axes reversed."""
    return np.flip(array, axes)


def raise_for_status(status: torch.Tensor, error: str) -> None:
    """NumPy's error, where LAPACK's status of some matrix says that it failed."""
    if status.any():
        raise np.linalg.LinAlgError(error)


# ---------------------------------------------------------------- numpy functions


def wrap_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes tensors where `fn` takes arrays, in (containers in) its arguments, and
    returns tensors for arrays.
    """

    @functools.wraps(fn)
    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        arguments = arrays_of((args, kwargs))
        return tensors_of(fn(*arguments[0], **arguments[1]))

    return on_tensors


def arrays_of(value: Any) -> Any:
    """The value with each tensor as an array over its memory."""
    return mapped(value, lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf)


def tensors_of(value: Any) -> Any:
    """The value with each array as a tensor over its memory; a NumPy scalar becomes a tensor
    without dimensions.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return value
    kinds = (numpy.ndarray, numpy.generic)
    return mapped(value, lambda leaf: torch.as_tensor(leaf) if isinstance(leaf, kinds) else leaf)


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """`function` of each leaf of nested tuples (named ones, too), lists and dicts."""
    if isinstance(value, tuple):
        items = [mapped(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if type(value) is list:
        return [mapped(item, function) for item in value]
    if type(value) is dict:
        return {key: mapped(item, function) for key, item in value.items()}
    return function(value)
