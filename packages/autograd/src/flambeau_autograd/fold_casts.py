"""Read through casts that lose nothing.

    w = prims.cast(h, torch.float32)       (h: float16)
    n = prims.cast(w, torch.float16)                       n = prims.cast(h, torch.float16)
    d = prims.cast(w, torch.float64)                  ->   d = prims.cast(h, torch.float64)

`fold_identities` then drops `n`, and with it a kernel where a library reads `n`. The other way
round, narrower and wider again, numbers are rounded: such casts stay. So do casts of floats to
integers, whose result differs between dtypes for numbers that do not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims import primitives as prims
from flambeau_prims.graph import Graph, Value

if TYPE_CHECKING:
    from flambeau_prims.graph import Node


def fold_casts(graph: Graph) -> Graph:
    """Let casts in `graph` read what is cast without loss, in place."""
    for node in graph.nodes:
        if node.op is prims.cast:
            while (source := _source(node)) is not None:
                node.args = (source, *node.args[1:])
    return graph


def _source(node: Node) -> Value | None:
    """What a cast may read instead of its operand."""
    operand, dtype = node.args
    if not isinstance(operand, Value) or operand.producer is None:
        return None
    producer = operand.producer
    if producer.op is not prims.cast or not isinstance(producer.args[0], Value):
        return None
    source: Value = producer.args[0]
    first, between = source.spec.dtype, operand.spec.dtype
    if first is between or not _holds(between, first):
        return None
    if between.is_floating_point and not (dtype.is_floating_point or dtype is torch.bool):
        # To integers, only where every number fits.
        return source if not first.is_floating_point and _holds(dtype, first) else None
    return source


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether each number of one dtype is one of another."""
    if wide.is_complex or narrow.is_complex:
        return False
    if narrow is torch.bool:
        return True
    if wide is torch.bool:
        return False
    if wide.is_floating_point and narrow.is_floating_point:
        return (narrow, wide) in _WIDER_FLOATS
    if narrow.is_floating_point:
        return False
    least, most = torch.iinfo(narrow).min, torch.iinfo(narrow).max
    if wide.is_floating_point:
        digits = _DIGITS.get(wide, 0)
        return -(1 << digits) <= least and most <= 1 << digits
    return torch.iinfo(wide).min <= least and most <= torch.iinfo(wide).max


_WIDER_FLOATS = {
    (torch.float16, torch.float32), (torch.bfloat16, torch.float32),
    (torch.float16, torch.float64), (torch.bfloat16, torch.float64),
    (torch.float32, torch.float64),
}  # fmt: skip
_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Integers up to 2 ** digits are exact."""
