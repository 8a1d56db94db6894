"""Calls of torch whose C++ takes no symbolic sizes: what they are given becomes concrete, and that
is guarded, or assumed.

    F.interpolate(x, size=(n, m), antialias=True)     n and m are constants from this call on
"""

from __future__ import annotations

from typing import Any

import torch

from flambeau_prims.fake import FakeTensor, set_geometry
from flambeau_prims.sizes import as_int


def with_concrete_sizes(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with concrete numbers and sizes for symbolic ones."""
    for tensor in _tensors((args, tuple(kwargs.values()))):
        _make_concrete(tensor)
    return concrete(args), concrete(kwargs)


def concrete(value: Any) -> Any:
    """The value with every symbolic number in it (also in containers) made concrete."""
    kind = type(value)
    if kind is torch.SymInt:
        return int(value)
    if kind is torch.SymFloat:
        return float(value)
    if kind is torch.SymBool:
        return bool(value)
    if kind is tuple or kind is torch.Size or kind is list:
        items = [concrete(item) for item in value]
        changed = any(new is not old for new, old in zip(items, value, strict=True))
        return kind(items) if changed else value
    if kind is dict:
        table = {key: concrete(item) for key, item in value.items()}
        changed = any(table[key] is not item for key, item in value.items())
        return table if changed else value
    return value


def _tensors(value: Any) -> list[FakeTensor]:
    if type(value) is FakeTensor:
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _make_concrete(tensor: FakeTensor) -> None:
    spec = tensor.spec
    if all(type(size) is int for size in (*spec.shape, *spec.stride, spec.offset)):
        return
    shape, stride = tuple(map(as_int, spec.shape)), tuple(map(as_int, spec.stride))
    with torch.no_grad():
        set_geometry(tensor, spec.replace(shape=shape, stride=stride, offset=as_int(spec.offset)))
