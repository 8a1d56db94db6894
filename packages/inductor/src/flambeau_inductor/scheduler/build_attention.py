"""Name the parts of an `Attention` canonically, so that equal layers share a kernel."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import sympy

from flambeau_inductor.attention import (
    AXES,
    GRADIENTS,
    SCORES,
    AttentionKernel,
    Blocks,
    Operand,
    Scatter,
    ScheduledAttention,
)
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, Load, Param
from flambeau_inductor.scheduler.build_kernel import Namer

if TYPE_CHECKING:
    import torch

    from flambeau_inductor.indexing.sizes import SizeTable
    from flambeau_inductor.ir import Statement
    from flambeau_inductor.nodes import ExternCall


def build_attention(
    call: ExternCall, dtypes: dict[str, torch.dtype], sizes: SizeTable
) -> ScheduledAttention:
    """The launch of a call's kernel."""
    one = call.attention
    assert one is not None
    namer = Namer(tuple(Axis(axis, 0) for axis in AXES[:3]), (Axis(AXES[3], 0),))

    def operand(part: Operand, access: str) -> Operand:
        name = namer.buffer(part.buffer, access)
        strides = tuple(namer.expr(stride) for stride in part.strides)
        offset, part_stride = namer.expr(part.offset), namer.expr(part.part_stride)
        return Operand(name, part.dtype, strides, offset, part_stride)

    def renamed(part: Any) -> Any:
        if isinstance(part, Operand):
            return operand(part, "read")
        return namer.expr(part) if isinstance(part, sympy.Expr) else part

    operands = tuple((role, operand(part, "read")) for role, part in one.operands)
    results = tuple((role, operand(part, "write")) for role, part in one.results)
    blocks = one.blocks and Blocks(
        **{field.name: renamed(getattr(one.blocks, field.name)) for field in fields(one.blocks)}
    )
    body: list[Statement] = []
    for statement in one.body:
        if isinstance(statement, Load) and statement.buffer in (SCORES, GRADIENTS):
            index = namer.expr(statement.index)
            body.append(replace(statement, name=namer.define(statement.name), index=index))
        else:
            body.append(namer.statement(statement))

    scatters = tuple(
        Scatter(operand(each.into, "update"), namer.values[each.value], namer.values[each.place])
        for each in one.scatters
    )

    def value(name: str | None) -> str | None:
        return name and namer.values[name]

    attention = replace(
        one,
        operands=operands,
        results=results,
        blocks=blocks,
        body=tuple(body),
        batch=namer.size(one.batch),
        heads=one.heads,
        queries=namer.size(one.queries),
        keys=namer.size(one.keys),
        changed=namer.values[one.changed],
        visible=value(one.visible),
        gradient=value(one.gradient),
        scatters=scatters,
    )
    params = tuple(Param(new, dtypes[old], namer.access[old]) for old, new in namer.buffers.items())
    kernel = AttentionKernel(
        call.device.partition(":")[0],
        params,
        tuple(symbol(f"k{number}") for number in range(len(namer.sizes))),
        attention,
        tuple(sizes.hint(symbol(name)) for name in namer.sizes),
    )
    ints = tuple(sizes.dim(symbol(name)) for name in namer.sizes)
    return ScheduledAttention(kernel, tuple(namer.buffers), ints, call.device)
