"""Leave quantised weights as they are where few rows read them: products dequantise them.

    f: f32[4096, 4096] = prims.cast(q, torch.float32)     q is a frozen int8 weight
    d = prims.mul(f, s); y = aten.mm.default(x, prims.permute(d, (1, 0)))
      ->  d is computed by the product, in every call

With few rows, reading the weights takes all the time of a product, and a dequantised one has two to
eight times the bytes. That does not matter where all of them stay in a cache. Torch's freezing
leaves such weights, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.graph import Value
from flambeau_prims.quantised_weights import FEWEST_WEIGHTS, MOST_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flambeau_prims.graph import Graph

aten = torch.ops.aten

PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default})

CACHE_BYTES = 32 << 20
"""About the last-level cache of a CPU, and of a GPU."""


def quantised_weights(graph: Graph, constant: set[Value]) -> set[Value]:
    """The `constant` values that are not to be computed once: the right factors and what is between
    them and the integers.
    """
    factors: dict[Value, list[Value]] = {}
    for left, right in _products(graph):
        rows = left.spec.shape[-2]
        most = MOST_ROWS.get(left.spec.device.type, 0)
        if right not in constant or not isinstance(rows, int) or rows > most:
            continue
        between = list(_from_integers(right, constant))
        if between and right.spec.numel >= FEWEST_WEIGHTS:
            factors[right] = between
    total = sum(int(right.spec.numel) * right.spec.dtype.itemsize for right in factors)
    if total <= CACHE_BYTES:
        return set()
    return {value for between in factors.values() for value in between}


def _products(graph: Graph) -> Iterator[tuple[Value, Value]]:
    for node in graph.nodes:
        if node.op in PRODUCTS:
            left, right = node.args[-2:]
            yield left, right


def _from_integers(right: Value, constant: set[Value]) -> Iterable[Value]:
    """The values between a factor and its integers, if these take at most half of its bytes."""
    if right.producer is None or not right.spec.dtype.is_floating_point:
        return ()
    reaches: dict[Value, bool] = {}
    pending, integers = [right], 0
    while pending:
        value = pending[-1]
        node = value.producer
        operands = [] if node is None else [each for each in node.operands() if each in constant]
        unknown = [each for each in operands if each not in reaches]
        if unknown:
            pending += unknown
            continue
        pending.pop()
        if node is None:
            size = int(value.spec.numel) * value.spec.dtype.itemsize
            whole = not value.spec.dtype.is_floating_point
            reaches[value] = whole and 4 * size >= int(right.spec.numel)
            integers = max(integers, size if reaches[value] else 0)
        else:
            reaches[value] = any(reaches[each] for each in operands)
    size = int(right.spec.numel) * right.spec.dtype.itemsize
    if not reaches[right] or 2 * integers > size:
        return ()
    return [value for value, is_so in reaches.items() if is_so and value.producer is not None]
