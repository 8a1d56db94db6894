"""Compute convolutions over patches (windows that touch but do not overlap) as matrix products.

    y: bf16[16, 768, 14, 14] = aten.convolution.default(x, w, None, [16, 16], [0, 0], ...)
      ->  p = clone of x as patches: [16 * 14 * 14, 3 * 16 * 16]
          m: bf16[3136, 768] = aten.mm.default(p, w as [768, 768], transposed)
          y = clone of m as [16, 768, 14, 14]

The clones become part of the kernels beside them. In half precision on a GPU, where the input has
a number of channels that is no multiple of 8: the libraries' fast kernels need that, so they
convert the image or take slow ones. float32 stays, since libraries may round it to TF32 in
convolutions and not in products. The gradients are products of the patches, too.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.builder import Builder
from flambeau_prims.graph import Node, Value
from flambeau_prims.primitives import PRIMS
from flambeau_prims.sizes import known_eq
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph

aten = torch.ops.aten

_MM = aten.mm.default
_CONVOLUTION = aten.convolution.default
_BACKWARD = aten.convolution_backward.default
_ALIGNED = 8
_DEVICES = {"cuda"}
_HALVES = (torch.bfloat16, torch.float16)


def patch_products(graph: Graph) -> Graph:
    """Rewrite such convolutions and their gradients of `graph`, in place."""
    if not any(_is_over_patches(node) for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in graph.users()))
    for node in graph.nodes:
        if not _is_over_patches(node):
            nodes.append(node)
            continue
        builder.line = node.where
        if node.op is _CONVOLUTION:
            _forward(builder, node)
        else:
            _backward(builder, node)
    graph.nodes = nodes
    return graph


def _is_over_patches(node: Node) -> bool:
    if node.kwargs:
        return False
    if node.op is _CONVOLUTION:
        x, w, bias, stride, padding, dilation, transposed, _, groups = node.args
        if bias is not None:
            return False
    elif node.op is _BACKWARD:
        _, x, w, _, stride, padding, dilation, transposed, _, groups, _ = node.args
        if len(node.outputs) > 2 and node.outputs[2] is not None:
            return False
    else:
        return False
    window = w.spec.shape[2:]
    sizes = (*x.spec.shape, *w.spec.shape)
    if transposed or groups != 1 or not all(isinstance(size, int) and size for size in sizes):
        return False
    spread = tuple(stride) * (len(window) if len(stride) == 1 else 1)
    return (
        x.spec.device.type in _DEVICES
        and x.spec.dtype in _HALVES
        and w.spec.dtype is x.spec.dtype
        and x.spec.ndim == len(window) + 2
        and spread == tuple(window)
        and prod(window) > 1
        and all(known_eq(size, 0) for size in padding)
        and all(known_eq(step, 1) for step in dilation)
        and x.spec.shape[1] % _ALIGNED != 0
        and all(size % part == 0 for size, part in zip(x.spec.shape[2:], window, strict=True))
    )


def _patches(b: Builder, x: Value, window: tuple[int, ...]) -> Value:
    """An image as a matrix with a row for each patch: [N * places, C * window]."""
    n, c, *size = x.spec.shape
    parts: list[Any] = [n, c]
    for whole, part in zip(size, window, strict=True):
        parts += [whole // part, part]
    dims = range(len(window))
    places, inside = [2 + 2 * d for d in dims], [3 + 2 * d for d in dims]
    split = b.permute(b.reshape(x, tuple(parts)), (0, *places, 1, *inside))
    rows = prod([n, *(parts[d] for d in places)])
    return b.reshape(_dense(b, split), (rows, c * prod(window)))


def _image(b: Builder, rows: Value, like: Spec, window: tuple[int, ...]) -> Value:
    """The image of which `rows` are the patches."""
    n, c, *size = like.shape
    places = [whole // part for whole, part in zip(size, window, strict=True)]
    split = b.reshape(rows, (n, *places, c, *window))
    rank = len(window)
    dims = [0, 1 + rank]
    for d in range(rank):
        dims += [1 + d, 2 + rank + d]
    return b.reshape(_dense(b, b.permute(split, tuple(dims))), like.shape)


def _forward(b: Builder, node: Node) -> None:
    x, w = node.args[:2]
    (out,) = node.outputs
    assert out is not None
    window = w.spec.shape[2:]
    flat = b.permute(b.reshape(w, (w.spec.shape[0], prod(w.spec.shape[1:]))), (1, 0))
    rows = _product(b, _patches(b, x, window), flat)
    n, o, *places = out.spec.shape
    y = b.permute(
        b.reshape(rows, (n, *places, o)), (0, len(places) + 1, *range(1, len(places) + 1))
    )
    _replace(b, out, y)


def _backward(b: Builder, node: Node) -> None:
    g, x, w = node.args[:3]
    for_x, for_w = node.outputs[:2]
    window = w.spec.shape[2:]
    o = g.spec.shape[1]
    order = (0, *range(2, g.spec.ndim), 1)
    count = prod(g.spec.shape) // o
    rows = b.reshape(_dense(b, b.permute(g, order)), (count, o))
    if for_w is not None:
        product = _product(b, b.permute(rows, (1, 0)), _patches(b, x, window))
        _replace(b, for_w, b.reshape(product, w.spec.shape))
    if for_x is not None:
        flat = b.reshape(w, (o, prod(w.spec.shape[1:])))
        _replace(b, for_x, _image(b, _product(b, rows, flat), x.spec, window))


def _product(b: Builder, left: Value, right: Value) -> Value:
    shape = (left.spec.shape[0], right.spec.shape[1])
    spec = Spec.of(shape, dtype=left.spec.dtype, device=left.spec.device)
    out = Value(b.fresh_name(), spec)
    out.producer = Node(_MM, (left, right), {}, (out,), b.line)
    b.nodes.append(out.producer)
    return out


def _dense(b: Builder, x: Value) -> Value:
    """x in row-major order."""
    spec = Spec.of(x.spec.shape, dtype=x.spec.dtype, device=x.spec.device)
    out = Value(b.fresh_name(), spec)
    out.producer = Node(PRIMS["clone"], (x,), {}, (out,), b.line)
    b.nodes.append(out.producer)
    return out


def _replace(b: Builder, out: Value, value: Value) -> None:
    """Have `out` be a copy of `value`, in the strides that it has."""
    out.producer = Node(PRIMS["clone"], (value,), {}, (out,), b.line)
    b.nodes.append(out.producer)
