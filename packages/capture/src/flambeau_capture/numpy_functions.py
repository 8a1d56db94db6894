"""`wrap_numpy`: a function of NumPy arrays as a function of tensors.

    @flambeau.compile(fullgraph=True)
    @wrap_numpy
    def distance(x, y):
        return np.linalg.norm(x - y)

    distance(tensor, other)     a tensor

Compiled, the function's NumPy calls become torch calls on the tensors themselves: they run where the tensors are, and gradients flow through them.
Called without being compiled, the arrays share the tensors' memory, so that these must be on the CPU and need no gradients.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch


def wrap_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes tensors where `fn` takes arrays, in (containers in) its arguments, and returns tensors for arrays."""

    @functools.wraps(fn)
    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        arguments = arrays_of((args, kwargs))
        return tensors_of(fn(*arguments[0], **arguments[1]))

    return on_tensors


def arrays_of(value: Any) -> Any:
    """The value with each tensor as an array over its memory."""
    return mapped(value, lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf)


def tensors_of(value: Any) -> Any:
    """The value with each array as a tensor over its memory; a NumPy scalar becomes a tensor without dimensions."""
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
