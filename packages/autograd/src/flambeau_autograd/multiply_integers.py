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

from typing import TYPE_CHECKING

import torch

from flambeau_autograd.dce import drop_dead_calls
from flambeau_autograd.integer_convolutions import is_convolution, rewrite_convolution
from flambeau_autograd.quantised_factors import (
    MOST_DEPTH,
    define,
    is_near,
    multiplied,
    quantised_matrix,
)
from flambeau_prims import primitives as prims
from flambeau_prims.builder import Builder, viewed_by

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph, Node, Value
    from flambeau_prims.spec import Spec

aten = torch.ops.aten


def multiply_integers(graph: Graph) -> Graph:
    """Rewrite the products of dequantised matrices in `graph`, in place."""
    rewrites = {
        node: rewrite
        for node in graph.nodes
        for matches, rewrite in ((_is_product, _rewrite), (is_convolution, rewrite_convolution))
        if matches(node)
    }
    if not rewrites:
        return graph
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in graph.users()))
    changed = False
    for node in graph.nodes:
        before = len(nodes)
        if node in rewrites and rewrites[node](builder, node):
            changed = True
            continue
        del nodes[before:]
        nodes.append(node)
    graph.nodes = nodes
    return drop_dead_calls(graph) if changed else graph


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
    first, second = quantised_matrix(b, left, 0), quantised_matrix(b, right, 1)
    if first is None or second is None or not is_near(first.zero):
        return False
    return define(b, out, multiplied(b, first, second, added))
