"""Lower scans and sorts: the other dims become outer axes, the dim that is followed the inner axis.

y: f32[8, 512] = prims.cumsum(x: f32[8, 512], 1, False)
nest cumsum (i0 < 8 | r0 < 512) {
  v0 = load x[512*i0 + r0]; v1 = scan sum v0; store y[512*i0 + r0] v1 }
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.primitives import Kind

if TYPE_CHECKING:
    from flambeau_inductor.lowering.elements import Elements
    from flambeau_prims.graph import Node

SCANS = {
    "cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min",
    "logcumsumexp": "logaddexp",
}  # fmt: skip
"""Primitive -> Scan kind."""

SORTS = {"sort": "values", "argsort": "positions"}
"""Primitive -> Sort kind."""


def follow(elements: Elements, node: Node, value: str) -> str:
    """The result's element of a scan or sort, from the operand's."""
    builder, flag = elements.builder, node.args[2]
    elements.labels[node.op.name] = None
    dtype = torch.int64 if node.op.name == "argsort" else builder.dtypes[value]
    if node.op.kind is Kind.SCAN:
        return builder.scan(SCANS[node.op.name], value, dtype, flag)
    return builder.sort(SORTS[node.op.name], value, dtype, flag)


def follow_one(elements: Elements, node: Node, value: str) -> str:
    """The same along a dim of size 1."""
    elements.labels[node.op.name] = None
    if node.op.name == "argsort":
        return elements.builder.constant(0, torch.int64)
    return value
