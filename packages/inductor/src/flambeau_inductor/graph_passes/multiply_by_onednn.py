"""Let oneDNN multiply by large matrices on a CPU, as linear layers.

    y: f32[32, 3072] = aten.addmm.default(b, x, w)
    ->  t: f32[3072, 768] = prims.permute(w, (1, 0))
        y = mkldnn._linear_pointwise.default(x, t, b, "none", [], "")

ATen calls BLAS for products in float32. Where tens of rows are multiplied, oneDNN's kernels come
nearer to the machine's limit: they copy large matrices by blocks that the cache holds. For one row,
and for small matrices, BLAS is faster; so is MKL on Intel's CPUs, which it is written for. Where
products are measured (`max_autotune_gemm`), both are among the ways. Quantised weights that few
rows read are left to `tuning/dequantised.py`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.builder import Builder
from flambeau_prims.graph import Node, Value
from flambeau_prims.primitives import Prim
from flambeau_prims.quantised_weights import MOST_ROWS
from flambeau_prims.strides import is_contiguous

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph
    from flambeau_prims.spec import Spec

aten = torch.ops.aten
mkldnn = torch.ops.mkldnn

FEWEST_ROWS = 8
FEWEST_WEIGHTS = 1 << 18


def multiply_by_onednn(graph: Graph) -> Graph:
    """Rewrite the products of `graph` that oneDNN computes sooner, in place."""
    if not any(_is_large(node) for node in graph.nodes) or not _is_usable():
        return graph
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in graph.users()))
    for node in graph.nodes:
        if _is_large(node):
            bias, left, right = _factors(node)
            builder.line = node.where
            weight = builder.permute(right, (1, 0))
            node.op = mkldnn._linear_pointwise.default
            node.args = (left, weight, bias, "none", [], "")
        nodes.append(node)
    graph.nodes = nodes
    return graph


def is_large_product(left: Spec, right: Spec, bias: Spec | None) -> bool:
    """Whether oneDNN takes these factors and is likely to multiply them sooner than BLAS."""
    sizes = (*left.shape, *right.shape)
    if left.device.type != "cpu" or left.dtype is not torch.float32 or len(sizes) != 4:
        return False
    if not all(isinstance(size, int) for size in sizes):
        return False
    rows, _, depth, width = sizes
    if rows < FEWEST_ROWS or depth * width < FEWEST_WEIGHTS:
        return False
    if left.stride != (depth, 1) or right.stride not in ((width, 1), (1, depth)):
        return False
    return bias is None or (bias.shape == (width,) and is_contiguous(bias))


def _is_large(node: Node) -> bool:
    if node.op not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return False
    bias, left, right = _factors(node)
    if any(value is None or value.spec.dtype is not left.spec.dtype for value in node.outputs):
        return False
    rows = left.spec.shape[0]
    if isinstance(rows, int) and rows <= MOST_ROWS["cpu"] and _is_dequantised(right):
        return False
    return is_large_product(left.spec, right.spec, None if bias is None else bias.spec)


def _is_dequantised(factor: Value) -> bool:
    """Whether a factor is computed from a matrix of integers, two of its numbers a byte or less."""
    weights = factor.spec.numel
    pending, seen = [factor], {factor}
    while pending:
        value = pending.pop()
        spec = value.spec
        if not spec.dtype.is_floating_point and isinstance(spec.numel, int):
            if weights <= 4 * spec.numel * spec.dtype.itemsize:
                return True
        if value.producer is not None and isinstance(value.producer.op, Prim):
            operands = [each for each in value.producer.operands() if each not in seen]
            seen.update(operands)
            pending += operands
    return False


def _factors(node: Node) -> tuple[Value | None, Value, Value]:
    """What is added, if anything is, and the factors."""
    args: tuple[Any, ...] = node.args
    return (None, *args) if node.op is aten.mm.default else args  # type: ignore[return-value]


def _is_usable() -> bool:
    """Whether oneDNN is there, is faster, and computes in float32 what BLAS computes in float32."""
    if not torch.backends.mkldnn.is_available() or not torch._C._get_mkldnn_enabled():
        return False
    if has_fast_blas():
        return False
    return torch._C._get_fp32_precision_getter("mkldnn", "matmul") in ("none", "ieee")


@lru_cache(maxsize=1)
def has_fast_blas() -> bool:
    """Whether BLAS is MKL, on one of Intel's CPUs."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return torch.backends.mkl.is_available() and "GenuineIntel" in text
