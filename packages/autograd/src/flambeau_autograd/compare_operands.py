"""Compare what a relu was computed from, where the backward has that at hand.

    n = (x - mean) * rstd                        (forward; the backward of batch norm reads n)
    y = prims.maximum(n * w + b, 0)
    m = prims.le(y, 0)                           (backward)
      ->
    m = prims.le(n * w + b, 0)

The two masks are equal: maximum(z, 0) <= 0 where z <= 0, and both are false for NaN. The backward
then computes the mask from `n`, which its kernels read in any case, and does not read `y`. Relies
on merged common subexpressions; the minimum cut sees that `n * w + b` costs nothing to compute
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.operators import Work, memory_of, work
from flambeau_prims import primitives as prims
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.primitives import Prim
from flambeau_prims.sizes import hint_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMPARISONS = {prims.le, prims.gt}
_SMALL = 16
"""A value with this many times fewer elements costs nothing to read."""
_LONGEST_CHAIN = 16


def compare_operands(graph: Graph) -> Graph:
    """Rewrite the comparisons of the backward in `graph`, in place."""
    users: Mapping[Value, list[Node]] | None = None
    for node in graph.nodes:
        if not node.in_backward or node.op not in _COMPARISONS or node.args[1] != 0:
            continue
        source = _source_of_relu(node.args[0])
        if source is None or source.spec.shape != node.args[0].spec.shape:
            continue
        if users is None:
            users = graph.users()
        if _is_at_hand(source, hint_of(source.spec.numel), users, _LONGEST_CHAIN):
            node.args = (source, 0)
    return graph


def _source_of_relu(value: Any) -> Value | None:
    """z if the value is maximum(z, 0), in float32 or rounded to bfloat16; else None."""
    while (maker := _maker(value)) is not None and maker.op is prims.cast:
        wide: Value = maker.args[0]
        if {value.spec.dtype, wide.spec.dtype} != {torch.float32, torch.bfloat16}:
            return None  # a shorter exponent: what is above 0 may be rounded to 0
        value = wide
    if maker is None or maker.op is not prims.maximum or maker.in_backward:
        return None
    z, bound = maker.args
    return z if isinstance(z, Value) and not isinstance(bound, Value) and bound == 0 else None


def _maker(value: Any) -> Node | None:
    return value.producer if isinstance(value, Value) else None


def _is_at_hand(value: Value, elements: int, users: Mapping[Value, list[Node]], steps: int) -> bool:
    """Whether a value is small, read by kernels of the backward, or computed from such alone."""
    if hint_of(memory_of(value).spec.numel) * _SMALL <= elements:
        return True
    if any(user.in_backward and work(user.op) is Work.POINTWISE for user in users[value]):
        return True
    maker = value.producer
    return (
        steps > 0
        and maker is not None
        and isinstance(maker.op, Prim)
        and work(maker.op) in (Work.POINTWISE, Work.VIEW)
        and all(_is_at_hand(x, elements, users, steps - 1) for x in maker.operands())
    )
