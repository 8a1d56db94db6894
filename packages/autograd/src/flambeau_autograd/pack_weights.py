"""Order frozen weights once as oneDNN's kernels on a CPU read them.

    t: f32[64, 48] = prims.permute(w, (1, 0))      p = mkldnn._reorder_linear_weight.default(w, 32)
    y = aten.addmm.default(b, x, t)            ->  y = mkldnn._linear_pointwise.default(x, p, b, ..)

Given other weights, the library orders them in every call, or takes a slower kernel. Only for
weights that are computed once (`freezing`): their order is no strided layout, so the Spec of `p`
says the shape of `w`, and nothing but the library's own operators may read it. Convolutions take
part if they are in channels-last layout, which their results then have. Those that a compiler
transforms (`flambeau_prims.winograd`) are left to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import primitives as prims
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.strides import is_channels_last, is_contiguous
from flambeau_prims.winograd import winograd_convolution

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten
mkldnn = torch.ops.mkldnn

FEWEST_WEIGHTS = 64 * 64
"""For smaller matrices the library's operator costs more time than it saves."""


def pack_weights(
    graph: Graph, constant: set[Value], products: bool = True, *, transforms: bool = True
) -> None:
    """Let convolutions by `constant` weights, and `products` by them, read packed ones, in place;
    adds these to `constant`. The compiler `transforms` convolutions that are worth it.
    """
    dtypes = _dtypes()
    nodes: list[Node] = []
    for node in graph.nodes:
        pack = _PACKERS.get(node.op)
        if pack is not _pack_convolution and not products:
            pack = None
        if transforms and winograd_convolution(node) is not None:
            pack = None
        if pack is not None and not node.kwargs and _is_on_cpu(node, dtypes):
            before = len(nodes)
            call = pack(nodes, node, constant)
            if call is not None:
                (out,) = node.outputs
                assert out is not None
                constant.update(value for each in nodes[before:] for value in each.outputs if value)
                out.producer, call.outputs = call, (out,)
                node = call
        nodes.append(node)
    graph.nodes = nodes


def _dtypes() -> tuple[torch.dtype, ...]:
    """The dtypes that oneDNN has fast kernels for here."""
    if not torch.backends.mkldnn.is_available() or not torch._C._get_mkldnn_enabled():
        return ()
    half_types = (
        (torch.bfloat16, "_is_mkldnn_bf16_supported"),
        (torch.float16, "_is_mkldnn_fp16_supported"),
    )
    return (torch.float32, *(dtype for dtype, name in half_types if getattr(mkldnn, name)()))


def _is_on_cpu(node: Node, dtypes: tuple[torch.dtype, ...]) -> bool:
    (out,) = node.outputs
    return out is not None and out.spec.device.type == "cpu" and out.spec.dtype in dtypes


def _pack_mm(nodes: list[Node], node: Node, constant: set[Value]) -> Node | None:
    return _pack_linear(nodes, node, None, *node.args, constant=constant)


def _pack_addmm(nodes: list[Node], node: Node, constant: set[Value]) -> Node | None:
    bias, left, right = node.args
    if bias.spec.shape != right.spec.shape[1:] or not is_contiguous(bias.spec):
        return None
    return _pack_linear(nodes, node, bias, left, right, constant=constant)


def _pack_linear(
    nodes: list[Node],
    node: Node,
    bias: Value | None,
    left: Value,
    right: Value,
    *,
    constant: set[Value],
) -> Node | None:
    depth, width = right.spec.shape
    if right not in constant or left in constant or left.spec.stride[1] != 1:
        return None
    if not isinstance(depth, int) or not isinstance(width, int) or depth * width < FEWEST_WEIGHTS:
        return None
    spec = right.spec.replace(shape=(width, depth), stride=right.spec.stride[::-1])
    weight = _append(nodes, node, prims.permute, (right, (1, 0)), spec, f"{right.name}_t")
    rows = left.spec.shape[0]
    batch = rows if isinstance(rows, int) else None
    operator = mkldnn._reorder_linear_weight.default
    packed = _packed(nodes, node, operator, (weight, batch), right)
    linear = mkldnn._linear_pointwise.default
    return Node(linear, (left, packed, bias, "none", [], ""), {}, (), node.where)


def _pack_convolution(nodes: list[Node], node: Node, constant: set[Value]) -> Node | None:
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    (out,) = node.outputs
    assert out is not None
    if weight not in constant or x in constant or transposed or x.spec.ndim != 4:
        return None
    if not is_channels_last(x.spec) or not is_channels_last(out.spec):
        return None
    sizes = list(x.spec.shape)
    if x.spec.env is not None or weight.spec.numel < FEWEST_WEIGHTS:
        return None
    settings = [list(each) for each in (padding, stride, dilation)]
    arguments = (weight, *settings, groups, sizes)
    packed = _packed(nodes, node, mkldnn._reorder_convolution_weight.default, arguments, weight)
    operator = mkldnn._convolution_pointwise.default
    arguments = (x, packed, bias, *settings, groups, "none", [], "")
    return Node(operator, arguments, {}, (), node.where)


_PACKERS: dict[Any, Callable[[list[Node], Node, set[Value]], Node | None]] = {
    aten.mm.default: _pack_mm,
    aten.addmm.default: _pack_addmm,
    aten.convolution.default: _pack_convolution,
}


def _packed(
    nodes: list[Node], node: Node, operator: Any, arguments: tuple[Any, ...], like: Value
) -> Value:
    spec = arguments[0].spec.replace(stride=None, offset=0)
    return _append(nodes, node, operator, arguments, spec, f"{like.name}_packed{len(nodes)}")


def _append(
    nodes: list[Node], node: Node, operator: Any, arguments: tuple[Any, ...], spec: Any, name: str
) -> Value:
    added = Node(operator, arguments, {}, (), node.where)
    value = Value(f"{name}_{len(nodes)}", spec, added)
    added.outputs = (value,)
    nodes.append(added)
    return value
