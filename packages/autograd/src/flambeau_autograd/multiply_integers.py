"""Multiply quantised matrices as the integers that they are, on a CPU.

    q: u8[32, 64];  w: i8[96, 64];  s: f32[96]
    x: f32[32, 64] = (q - 120) * 0.03                i = q - 128 as i8;  c = sum(w, 1)
    d: f32[96, 64] = w * s, each row by its scale    t: i32[32, 96] = aten._int_mm(i, w as (64, 96))
    y = aten.addmm.default(b, x, d as (64, 96))  ->  y = (t - (-8) * c) * 0.03 * s + b

Exported graphs quantise, dequantise and multiply floats. The sums of integers are exact, and what
is done with them is pointwise, up to the next quantisation: kernels take it over.

    sum((l - zl) * (r - zr)) = sum(l * r) - zl * sum(r) - zr * (sum(l) - depth * zl)

zl is known to lie near the integers, and is subtracted in int32, without rounding. zr may be any
number, and is mostly 0. Scales must not vary along the dim that is summed. Views between a factor
and its integers are repeated on these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_autograd.dce import drop_dead_calls
from flambeau_prims import primitives as prims
from flambeau_prims.builder import Builder, viewed_by
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.rules.registry import infer
from flambeau_prims.rules.view import view_stride

if TYPE_CHECKING:
    from flambeau_prims.spec import Spec

aten = torch.ops.aten
Number: TypeAlias = Any
"""A Python number, or a Value of one number or of one for each row of a factor."""

MOST_DEPTH = 1 << 15
"""Longer sums may not fit int32."""

ZERO_POINTS = range(-256, 512)
"""Zero points that are subtracted in int32."""

_INTEGERS = (torch.int8, torch.uint8)
_REPEATED = (prims.reshape, prims.permute, prims.squeeze, prims.unsqueeze)


def multiply_integers(graph: Graph) -> Graph:
    """Rewrite the products of dequantised matrices in `graph`, in place."""
    if not any(_is_product(node) for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in graph.users()))
    changed = False
    for node in graph.nodes:
        before = len(nodes)
        if _is_product(node) and _rewrite(builder, node):
            changed = True
            continue
        del nodes[before:]
        nodes.append(node)
    graph.nodes = nodes
    return drop_dead_calls(graph) if changed else graph


@dataclass(frozen=True, slots=True)
class _Quantised:
    """A matrix (integers - zero) * scale."""

    integers: Value
    scale: Number
    zero: Number


def _is_product(node: Node) -> bool:
    if node.op not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return False
    *added, left, right = node.args
    (out,) = node.outputs
    specs: list[Spec] = [each.spec for each in (*added, left, right)]
    if out is None or any(each.dtype is not torch.float32 for each in (*specs, out.spec)):
        return False
    if out.spec.device.type != "cpu" or not _is_dequantised(left) or not _is_dequantised(right):
        return False
    depth, width = right.spec.shape
    if not isinstance(depth, int) or not isinstance(width, int) or not 1 < depth <= MOST_DEPTH:
        return False
    return width > 0 and left.spec.shape[0] != 0


def _is_dequantised(value: Value) -> bool:
    """Whether a factor looks as if it were, at a glance."""
    while (source := viewed_by(value)) is not None:
        value = source
    return value.producer is not None and value.producer.op is prims.mul


def _rewrite(b: Builder, node: Node) -> bool:
    """Append the product of integers; False if the factors are none."""
    b.line = node.where
    *added, left, right = node.args
    (out,) = node.outputs
    assert out is not None
    first, second = _quantised(b, left, 0), _quantised(b, right, 1)
    if first is None or second is None:
        return False
    if not _is_near(first.zero):
        return False
    shape, depth = out.spec.shape, right.spec.shape[0]
    args = (first.integers, second.integers)
    call = Node(aten._int_mm.default, args, {}, (), node.where)
    total = Value(b.fresh_name(), infer(call.op, tuple(arg.spec for arg in args), {}), call)
    call.outputs = (total,)
    b.nodes.append(call)
    if first.zero != 0:
        columns = _sum(b, second.integers, 0)
        zero = _whole(b, first.zero)
        total = b.sub(total, b.mul(_spread(b, columns, 1, shape), _spread(b, zero, 0, shape)))
    result = b.cast(total, torch.float32)
    if second.zero != 0:
        rows = _sum(b, first.integers, 1)
        zero = _whole(b, first.zero)
        if isinstance(zero, Value):
            rows = b.sub(rows, b.expand(b.mul(zero, depth), rows.spec.shape))
        else:
            rows = b.sub(rows, zero * depth)
        rows, zero = b.cast(rows, torch.float32), second.zero
        zero = b.cast(zero, torch.float32) if isinstance(zero, Value) else float(zero)
        result = b.sub(result, b.mul(_spread(b, rows, 0, shape), _spread(b, zero, 1, shape)))
    for scale, dim in ((first.scale, 0), (second.scale, 1)):
        if isinstance(scale, Value) or scale != 1:
            result = b.mul(result, _spread(b, scale, dim, shape))
    for each in added:
        result = b.add(result, *b.broadcast([each, result])[:1])
    last = b.nodes[-1]
    if last.outputs != (result,) or result.spec != out.spec:
        return False
    last.outputs, out.producer = (out,), last
    return True


def _quantised(b: Builder, value: Value, outer: int) -> _Quantised | None:
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
        matched = _integers(scaled)
        if matched is None:
            continue
        integers, zero = matched
        scale, zero = (_along(b, each, views, outer) for each in (scale, zero))
        if scale is None or zero is None:
            return None
        if outer == 0 and isinstance(scale, Value):
            # Of an infinite scale every product is NaN, as 0 times infinity is.
            scale = b.add(b.mul(scale, 0.0), scale)
        if integers.spec.dtype is torch.uint8:
            integers = b.cast(b.sub(b.cast(integers, torch.int16), 128), torch.int8)
            zero = b.sub(zero, 128) if isinstance(zero, Value) else zero - 128
        for view in views:
            integers = b.emit(view.op, integers, *view.args[1:])
        return _Quantised(integers, scale, zero)
    return None


def _integers(value: Any) -> tuple[Value, Number] | None:
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


def _is_near(zero: Number) -> bool:
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


def _whole(b: Builder, zero: Number) -> Number:
    """A zero point in int32."""
    return b.cast(zero, torch.int32) if isinstance(zero, Value) else int(zero)


def _sum(b: Builder, integers: Value, dim: int) -> Value:
    """The sums along a dim, in int32."""
    return b.sum(b.cast(integers, torch.int32), (dim,))


def _spread(b: Builder, number: Number, dim: int, shape: Any) -> Number:
    """A number, or one for each index of `dim`, as an operand of a shape."""
    if not isinstance(number, Value):
        return number
    return b.along(number, [dim], shape) if number.spec.ndim else b.expand(number, shape)
