"""Indices of tensors that only the graph knows: `x[n]` where n is in the data, or drawn at random.

    x[n], x[:, n, 2:]       ->      torch.select(x, 0, n), torch.select(x, 1, n)[:, 2:]

torch's own indexing would ask for the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.size_floats import is_unbacked
from flambeau_prims.sizes_node import from_symbolic

if TYPE_CHECKING:
    from flambeau_capture.interpreter.tape import Tape

_BASIC = frozenset({int, torch.SymInt, slice, type(None), type(...)})


def select_unbacked(tape: Tape, tensor: torch.Tensor, key: Any) -> tuple[torch.Tensor, Any]:
    """The part of a tensor that the unbacked indices of a subscript select, and the rest of the subscript; () where there is none."""
    items = key if type(key) is tuple else (key,)
    if not any(map(_is_unbacked, items)) or tape.subclasses.of(tensor) is not None:
        return tensor, key
    if any(type(item) not in _BASIC for item in items) or items.count(...) > 1:
        return tensor, key
    rest: list[Any] = []
    dim = taken = 0
    for place, item in enumerate(items):
        if item is ...:
            dim = tensor.ndim - sum(after is not None for after in items[place + 1 :])
        if _is_unbacked(item):
            tensor = _select(tape, tensor, dim, item, dim + taken)
            taken += 1
            continue
        rest.append(item)
        dim += item is not None and item is not ...
    return tensor, tuple(rest)


def _select(tape: Tape, tensor: torch.Tensor, dim: int, index: Any, shown: int) -> torch.Tensor:
    """One index along a dimension; out of bounds, it is refused as in a subscript, where the dimension is `shown`."""
    size = tensor.shape[dim] if dim < tensor.ndim else 0
    try:
        found: torch.Tensor = tape.call_function(torch.select, (tensor, dim, index))
    except IndexError:
        if dim >= tensor.ndim:
            raise IndexError(
                f"too many indices for tensor of dimension {tensor.ndim + shown - dim}"
            ) from None
        text = f"index {int(index)} is out of bounds for dimension {shown} with size {size}"
        raise IndexError(text) from None
    return found


def _is_unbacked(item: Any) -> bool:
    return type(item) is torch.SymInt and is_unbacked(from_symbolic(item))
