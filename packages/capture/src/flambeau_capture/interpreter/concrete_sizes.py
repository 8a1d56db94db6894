"""Calls of torch whose C++ takes no symbolic sizes: the sizes that they are given become concrete, and that is guarded, or assumed.

    F.interpolate(x, size=(n, m), antialias=True)      n and m are what they are on this call from here on
"""

from __future__ import annotations

from typing import Any

import torch

from flambeau_capture.interpreter.symbolic import concrete
from flambeau_prims.fake import FakeTensor, set_geometry
from flambeau_prims.sizes import as_int

_REFUSALS = ("with symbolic sizes", "SymIntArrayRef expected")


def refuses_symbolic_sizes(error: BaseException) -> bool:
    """Whether torch's C++ says that it can do nothing with symbolic sizes."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _REFUSALS)


def with_concrete_sizes(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with ints for symbolic ones; the tensors among them get concrete sizes."""
    for tensor in _tensors((args, tuple(kwargs.values()))):
        _make_concrete(tensor)
    return concrete(args), concrete(kwargs)


def _tensors(value: Any) -> list[FakeTensor]:
    if type(value) is FakeTensor:
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _make_concrete(tensor: FakeTensor) -> None:
    spec = tensor.spec
    geometry = (*spec.shape, *spec.stride, spec.offset)
    if all(type(size) is int for size in geometry):
        return
    shape, stride = tuple(map(as_int, spec.shape)), tuple(map(as_int, spec.stride))
    with torch.no_grad():
        set_geometry(tensor, spec.replace(shape=shape, stride=stride, offset=as_int(spec.offset)))
