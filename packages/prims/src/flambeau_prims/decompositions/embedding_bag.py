"""Sums, means and maxima over bags of rows of a table, and their gradients, on a CPU.

    offsets: i64[4] = prims.iota(4, 0, 3, ...)
    y, ... = aten._embedding_bag.default(w, i, offsets)    # i: i64[12]
      ->  y = sum(index(w, [reshape(i, (4, 3))]), (1,))

Bags of one length, as `embedding_bag` makes them of indices of two dims, are reductions behind
gathers: what reads a bag joins their kernel. Bags between other offsets stay ATen's, because their
lengths are data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.builder import compute_dtype
from flambeau_prims.decompositions.index import from_zero
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.decompositions.scatter import add_rows
from flambeau_prims.primitives import PRIMS

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder
    from flambeau_prims.graph import Value
    from flambeau_prims.spec import Size

aten = torch.ops.aten

SUM, MEAN, MAX = range(3)


@dataclass(frozen=True)
class _Bags:
    """`count` bags of `length` indices. `places`: their (count, length) rows of the table; `padded`
    of the same shape, where an index is none (None: nowhere).
    """

    count: Size
    length: Size
    places: Value
    padded: Value | None

    @property
    def shape(self) -> tuple[Size, Size]:
        return self.count, self.length

    def lengths(self, b: Builder, dtype: torch.dtype) -> Value:
        """(count,): how many indices of each bag are of rows."""
        whole = b.full((self.count,), self.length, dtype, self.places.spec.device)
        if self.padded is None:
            return whole
        return b.sub(whole, b.cast(b.sum(b.cast(self.padded, torch.int64), (1,)), dtype))

    def along(self, b: Builder, x: Value, width: Size) -> Value:
        """A value a bag or an index, or rows of bags, repeated over (count, length, width)."""
        dims = {1: (0,), 2: (0, 1)}[x.spec.ndim]
        return b.along(x, dims, (*self.shape, width))


def _equal_bags(
    b: Builder, indices: Value, offsets: Value, rows: Size, last: bool, padding: Size
) -> _Bags | None:
    """The bags, if they are of one length that is known without data. `last`: the last offset is
    the end of the last bag.
    """
    node = offsets.producer
    if node is None or node.op is not PRIMS["iota"] or indices.spec.device.type != "cpu":
        return None
    count, start, step = node.args[:3]
    count = count - 1 if last else count
    if not (isinstance(start, int) and start == 0) or not sizes.known_lt(0, count):
        return None
    if not sizes.known_lt(0, step) or not sizes.known_eq(count * step, indices.spec.numel):
        return None
    places = from_zero(b, b.reshape(indices, (count, step)), rows)
    none = isinstance(padding, int) and padding < 0
    return _Bags(count, step, places, None if none else b.eq(places, padding))


@decomposition(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    b: Builder, weight: Value, indices: Value, offsets: Value, scale_grad_by_freq: bool = False,
    mode: int = SUM, sparse: bool = False, per_sample_weights: Value | None = None,
    include_last_offset: bool = False, padding_idx: Size = -1,
) -> Any:  # fmt: skip
    """The bags, the bag of each index, the bags' lengths, and the rows that hold the maxima."""
    rows, width = weight.spec.shape
    bags = _equal_bags(b, indices, offsets, rows, include_last_offset, padding_idx)
    if bags is None or (mode == MAX and bags.padded is not None):
        return NotImplemented
    dtype = indices.spec.dtype
    values = b.widen(b.index(weight, [bags.places]))
    if per_sample_weights is not None:
        scales = b.reshape(b.widen(per_sample_weights), bags.shape)
        values = b.mul(values, bags.along(b, scales, width))
    if bags.padded is not None:
        values = b.where(bags.along(b, bags.padded, width), 0.0, values)
    lengths = bags.lengths(b, dtype)
    if mode == MAX:
        result, where = _maxima(b, bags, values)
        where = b.cast(where, dtype)
    else:
        result, where = b.sum(values, (1,)), lengths
        if mode == MEAN:
            result = b.div(result, _divisors(b, bags, lengths, result))
    numbers = b.iota(bags.count, 0, 1, dtype, indices.spec.device)
    bag_of = b.reshape(b.along(numbers, (0,), bags.shape), (indices.spec.numel,))
    results = [result, bag_of, lengths, where]
    for number, value in enumerate(results):
        want = b.results[number]
        assert want is not None
        if not all(map(sizes.known_eq, value.spec.shape, want.shape)):
            # Eager leaves out the bags of a sum; it leaves lengths that nothing reads undefined.
            results[number] = b.full(want.shape, 0, want.dtype, want.device)
    return results


def _divisors(b: Builder, bags: _Bags, lengths: Value, like: Value) -> Any:
    """What a mean divides by: a bag of padding only is 0."""
    if bags.padded is None and isinstance(bags.length, int):
        return bags.length
    divisors = b.cast(b.maximum(lengths, 1), like.spec.dtype)
    return b.along(divisors, (0,), like.spec.shape)


def _maxima(b: Builder, bags: _Bags, values: Value) -> tuple[Value, Value]:
    """The greatest of each column of a bag and its row: NaN is passed over, but for the first."""
    first = b.reshape(b.slice(values, 1, 0, 1, 1), (bags.count, values.spec.shape[2]))
    numbers = b.where(b.isnan(values), float("-inf"), values)
    at = b.where(b.isnan(first), 0, b.argmax(numbers, 1))
    result = b.where(b.isnan(first), first, b.amax(numbers, (1,)))
    return result, b.gather(bags.places, 1, at)


@decomposition(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    b: Builder, grad: Value, indices: Value, offsets: Value, offset2bag: Value, bag_size: Value,
    maximum_indices: Value, num_weights: Size, scale_grad_by_freq: bool, mode: int, sparse: bool,
    per_sample_weights: Value | None, padding_idx: Size = -1,
) -> Any:  # fmt: skip
    """For each row of the table the sum of the gradients of its bags, as often as it is in them."""
    if scale_grad_by_freq or sparse:
        return NotImplemented
    last = not sizes.known_eq(offsets.spec.shape[0], grad.spec.shape[0])
    bags = _equal_bags(b, indices, offsets, num_weights, last, padding_idx)
    if bags is None or (mode == MAX and bags.padded is not None):
        return NotImplemented
    width = grad.spec.shape[1]
    grad = b.widen(grad)
    zeros = b.full((num_weights, width), 0.0, compute_dtype(grad.spec.dtype), grad.spec.device)
    if mode == MAX:
        columns = b.iota(width, 0, 1, torch.int64, grad.spec.device)
        columns = b.along(columns, (1,), grad.spec.shape)
        return add_rows(b, zeros, [b.cast(maximum_indices, torch.int64), columns], grad)
    if mode == MEAN:
        lengths = bags.lengths(b, torch.int64)
        grad = b.div(grad, _divisors(b, bags, lengths, grad))
    grad = b.expand(b.unsqueeze(grad, 1), (*bags.shape, width))
    if per_sample_weights is not None:
        scales = b.reshape(b.widen(per_sample_weights), bags.shape)
        grad = b.mul(grad, bags.along(b, scales, width))
    if bags.padded is not None:
        grad = b.where(bags.along(b, bags.padded, width), 0.0, grad)
    return add_rows(b, zeros, [bags.places], grad)


@decomposition(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_weights_backward(
    b: Builder, grad: Value, weight: Value, indices: Value, offsets: Value, offset2bag: Value,
    mode: int, padding_idx: Size = -1,
) -> Any:  # fmt: skip
    """For each index the product of its row with the gradient of its bag."""
    rows, width = weight.spec.shape
    last = not sizes.known_eq(offsets.spec.shape[0], grad.spec.shape[0])
    bags = _equal_bags(b, indices, offsets, rows, last, padding_idx)
    if bags is None:
        return NotImplemented
    values = b.widen(b.index(weight, [bags.places]))
    grad = b.expand(b.unsqueeze(b.widen(grad), 1), (*bags.shape, width))
    result = b.sum(b.mul(values, grad), (2,))
    if bags.padded is not None:
        result = b.where(bags.padded, 0.0, result)
    return b.reshape(result, (indices.spec.numel,))
