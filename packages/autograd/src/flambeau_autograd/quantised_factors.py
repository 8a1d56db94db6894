"""Factors of products that are quantised: (integers - zero point) * scale, as their integers.

q: u8[32, 64];  x: f32[32, 64] = (q - 120) * 0.03   ->   Quantised(q - 128 as i8, 0.03, -8)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_prims import primitives as prims
from flambeau_prims.builder import Builder, viewed_by
from flambeau_prims.graph import Node, Value
from flambeau_prims.rules.registry import infer
from flambeau_prims.rules.view import view_stride

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten
Number: TypeAlias = Any
"""A Python number, or a Value of one number or of one for each row of a factor."""

MOST_DEPTH = 1 << 15
"""Longer sums may not fit int32."""

ZERO_POINTS = range(-256, 512)
"""Zero points that are subtracted in int32."""

_INTEGERS = (torch.int8, torch.uint8)
_REPEATED = (prims.reshape, prims.permute, prims.squeeze, prims.unsqueeze)


@dataclass(frozen=True, slots=True)
class Quantised:
    """A matrix (integers - zero) * scale."""

    integers: Value
    scale: Number
    zero: Number


def define(b: Builder, out: Value, result: Value) -> bool:
    """Let the last Value, `result`, stand for `out`; False if it cannot."""
    last = b.nodes[-1]
    if last.outputs != (result,) or result.spec != out.spec:
        return False
    last.outputs, out.producer = (out,), last
    return True


def multiplied(
    b: Builder, first: Quantised, second: Quantised, added: list[Value],
    row_sums: Callable[[], Value] | None = None,
) -> Value:  # fmt: skip
    """The product of two matrices, and what is added to it. `row_sums` appends the sums of the
    first one's rows, where there is a shorter way than to add up the rows.
    """
    args = tuple(_plain_row(b, each.integers) for each in (first, second))
    (rows, depth), width = args[0].spec.shape, args[1].spec.shape[1]
    shape = (rows, width)
    call = Node(aten._int_mm.default, args, {}, (), b.line)
    total = Value(b.fresh_name(), infer(call.op, tuple(arg.spec for arg in args), {}), call)
    call.outputs = (total,)
    b.nodes.append(call)
    zero = b.cast(first.zero, torch.int32) if isinstance(first.zero, Value) else int(first.zero)
    if first.zero != 0:
        columns = _spread(b, _sum(b, second.integers, 0), 1, shape)
        total = b.sub(total, b.mul(columns, _spread(b, zero, 0, shape)))
    result = b.cast(total, torch.float32)
    if second.zero != 0:
        sums = _sum(b, first.integers, 1) if row_sums is None else row_sums()
        if isinstance(zero, Value):
            sums = b.sub(sums, b.expand(b.mul(zero, depth), sums.spec.shape))
        else:
            sums = b.sub(sums, zero * depth)
        other = second.zero
        other = b.cast(other, torch.float32) if isinstance(other, Value) else float(other)
        sums = _spread(b, b.cast(sums, torch.float32), 0, shape)
        result = b.sub(result, b.mul(sums, _spread(b, other, 1, shape)))
    for scale, dim in ((first.scale, 0), (second.scale, 1)):
        if isinstance(scale, Value) or scale != 1:
            result = b.mul(result, _spread(b, scale, dim, shape))
    for each in added:
        result = b.add(result, *b.broadcast([each, result])[:1])
    return result


def _plain_row(b: Builder, matrix: Value) -> Value:
    """A matrix of one row with the strides of one: `_int_mm` reads strides (1, 1) as a column's."""
    spec = matrix.spec
    if spec.shape[0] == 1 and spec.stride[0] == 1 and spec.shape[1] != 1:
        return b.unsqueeze(b.squeeze(matrix, (0,)), 0)
    return matrix


def quantised_matrix(b: Builder, value: Value, outer: int) -> Quantised | None:
    """A factor as int8 numbers, with a scale and a zero point for all, or for each index of its dim
    `outer`; None if it is not of that form.
    """
    views: list[Node] = []
    while (source := viewed_by(value)) is not None:
        assert value.producer is not None
        if value.producer.op not in _REPEATED:
            return None
        views.insert(0, value.producer)
        value = source
    assert value.producer is not None
    first, second = value.producer.args
    for scaled, scale in ((first, second), (second, first)):
        matched = integers_of(scaled)
        if matched is None:
            continue
        integers, zero = matched
        scale, zero = (_along(b, each, views, outer) for each in (scale, zero))
        if scale is None or zero is None:
            return None
        if outer == 0 and isinstance(scale, Value):
            # Of an infinite scale every product is NaN, as 0 times infinity is.
            scale = b.add(b.mul(scale, 0.0), scale)
        integers, zero = signed(b, integers, zero)
        for view in views:
            integers = b.emit(view.op, integers, *view.args[1:])
        return Quantised(integers, scale, zero)
    return None


def signed(b: Builder, integers: Value, zero: Number) -> tuple[Value, Number]:
    """Integers as int8, and their zero point."""
    if integers.spec.dtype is torch.int8:
        return integers, zero
    integers = b.cast(b.sub(b.cast(integers, torch.int16), 128), torch.int8)
    return integers, b.sub(zero, 128) if isinstance(zero, Value) else zero - 128


def integers_of(value: Any) -> tuple[Value, Number] | None:
    """The integers, and the zero point, of which a value is the difference as float32."""
    if not isinstance(value, Value) or value.producer is None:
        return None
    op, args = value.producer.op, value.producer.args
    if op is prims.cast and _wide(args[0]):
        value = args[0]
        assert value.producer is not None
        op, args = value.producer.op, value.producer.args
    if op is prims.cast and isinstance(args[0], Value) and args[0].spec.dtype in _INTEGERS:
        return args[0], 0
    if op is not prims.sub or not isinstance(args[0], Value):
        return None
    minuend, zero = args
    if minuend.producer is None or minuend.producer.op is not prims.cast:
        return None
    source = minuend.producer.args[0]
    return (source, zero) if source.spec.dtype in _INTEGERS else None


def _wide(value: Any) -> bool:
    """Whether a value is a difference of integers that fits its dtype."""
    return (
        isinstance(value, Value)
        and value.spec.dtype in (torch.int32, torch.int64)
        and value.producer is not None
        and value.producer.op is prims.sub
    )


def _along(b: Builder, number: Number, views: list[Node], outer: int) -> Number | None:
    """A number, or a tensor of numbers after `views` as one for all or one for each index of the
    dim `outer`; None if they vary along the other dim.
    """
    if not isinstance(number, Value):
        return number
    for view in views:
        spec = number.spec
        if view.op is prims.reshape and view_stride(spec.shape, spec.stride, view.args[1]) is None:
            return None
        number = b.emit(view.op, number, *view.args[1:])
    assert isinstance(number, Value)
    dims = [dim for dim in (0, 1) if number.spec.stride[dim] == 0]
    if 1 - outer not in dims:
        return None
    for dim in dims:
        number = b.slice(number, dim, 0, 1, 1)
    return b.squeeze(number, tuple(dims))


def is_near(zero: Number) -> bool:
    """Whether a zero point is a whole number of `ZERO_POINTS`."""
    if not isinstance(zero, Value):
        return zero in ZERO_POINTS
    whole = False
    while True:
        whole = whole or not zero.spec.dtype.is_floating_point
        node = zero.producer
        if whole and zero.spec.dtype.itemsize == 1:
            return True
        if node is None:
            return False
        if node.op is prims.minimum and isinstance(node.args[0], Value):
            lower, high = node.args
            if lower.producer is None or lower.producer.op is not prims.maximum:
                return False
            return whole and all(
                not isinstance(bound, Value) and bound in ZERO_POINTS
                for bound in (high, lower.producer.args[1])
            )
        if node.op is prims.sub and not isinstance(node.args[1], Value):
            if node.args[1] != 128:
                return False
        elif node.op is not prims.cast and viewed_by(zero) is None:
            return False
        zero = node.args[0]


def _sum(b: Builder, integers: Value, dim: int) -> Value:
    """The sums along a dim, in int32."""
    return b.sum(b.cast(integers, torch.int32), (dim,))


def _spread(b: Builder, number: Number, dim: int, shape: Any) -> Number:
    """A number, or one for each index of `dim`, as an operand of a shape."""
    if not isinstance(number, Value):
        return number
    return b.along(number, [dim], shape) if number.spec.ndim else b.expand(number, shape)
