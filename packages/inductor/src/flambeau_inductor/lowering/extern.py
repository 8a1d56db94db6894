"""Lower calls of ATen: operands as tensors in memory, results as buffers, and out= variants where
the program can plan the memory.

y = aten.mm.default(x, w)  ->  extern aten.mm.out(x, w, out=buf3), buf3 allocated by the program
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.nodes import ExternCall, SizeRef, TensorRef
from flambeau_prims.graph import Value
from flambeau_prims.operator_facts import is_check
from flambeau_prims.primitives import STORED_DTYPES, Prim
from flambeau_prims.raising import can_raise
from flambeau_prims.rules.registry import aliasing
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_prims.graph import Node

OUT_VARIANTS = {
    "aten.mm.default": "aten.mm.out",
    "aten.bmm.default": "aten.bmm.out",
    "aten.addmm.default": "aten.addmm.out",
    "aten.baddbmm.default": "aten.baddbmm.out",
}
"""Overloads whose result is written into memory that the program plans."""


def op_name(op: Any) -> str:
    """An overload as Programs name it: "aten.mm.default"."""
    namespace, _, rest = op._schema.name.partition("::")
    return f"{namespace}.{rest}.{op._overloadname}"


def has_side_effect(op: Any) -> bool:
    """Whether a call must happen though its results are unused: random draws, checks of data."""
    return torch.Tag.nondeterministic_seeded in op.tags or is_check(op)


def may_alias(op: Any) -> bool:
    """Whether a result may be a window on an operand's memory."""
    return any(source is not None for source in aliasing(op).returns)


def lower_extern(
    node: Node, order: int, tensor: Callable[[Value], TensorRef], make: Callable[[Value, str], str]
) -> ExternCall:
    """The call. `tensor` gives an operand's memory, `make(value, role)` a result's buffer."""
    reads: set[str] = set()

    def convert(arg: Any) -> Any:
        if isinstance(arg, Value):
            ref = tensor(arg)
            reads.add(ref.buffer)
            return ref
        if isinstance(arg, Expr):
            return SizeRef(arg)
        if isinstance(arg, (list, tuple)):
            return type(arg)(convert(item) for item in arg)
        return arg

    args = tuple(convert(arg) for arg in node.args)
    kwargs = {key: convert(arg) for key, arg in node.kwargs.items()}
    name = op_name(node.op)
    results: tuple[str | None, ...] = ()
    out: tuple[tuple[str, str], ...] = ()
    device = node.outputs[0].spec.device if node.outputs and node.outputs[0] is not None else None
    if name in OUT_VARIANTS and "dtype" not in kwargs:
        name = OUT_VARIANTS[name]
        out = (("out", make(node.outputs[0], "computed")),)  # type: ignore[arg-type]
    else:
        results = tuple(None if value is None else make(value, "extern") for value in node.outputs)
    return ExternCall(
        order,
        name,
        args,
        kwargs,
        results,
        out,
        reads,
        str(device or "cpu"),
        has_side_effect(node.op),
        is_check(node.op),
        may_alias(node.op),
        can_raise(node.op, node.args),
        node.where,
    )


UPDATES = frozenset({
    "index_put", "index_copy", "index_add", "index_fill", "index_reduce", "scatter", "scatter_add",
    "scatter_reduce", "masked_scatter", "put",
})  # fmt: skip
"""Operators of ATen that copy their first operand and change some places of the copy."""


@cache
def in_place_variant(op: Any) -> Any:
    """The overload that changes those places of the first operand itself; None if there is none."""
    namespace, _, name = op._schema.name.partition("::")
    if namespace != "aten" or name not in UPDATES:
        return None
    variant = getattr(getattr(torch.ops.aten, f"{name}_", None), op._overloadname, None)
    if variant is None:
        return None
    ours, theirs = (
        [(argument.name, str(argument.type)) for argument in each._schema.arguments]
        for each in (op, variant)
    )
    return variant if ours == theirs else None


def is_update(node: Node) -> bool:
    """Whether a call of ATen is lowered as a copy of its first operand and an in-place call."""
    if isinstance(node.op, Prim) or in_place_variant(node.op) is None:
        return False
    x, (out,) = node.args[0], node.outputs
    return (
        isinstance(x, Value)
        and out is not None
        and out.spec.dtype in STORED_DTYPES
        and list(node.operands()).count(x) == 1
    )


def lower_update(
    node: Node, order: int, tensor: Callable[[Value], TensorRef], copy: TensorRef
) -> ExternCall:
    """The in-place call of an update on the copy of its first operand."""
    x = node.args[0]
    call = lower_extern(
        node, order, lambda value: copy if value is x else tensor(value), lambda value, role: ""
    )
    return replace(call, op=op_name(in_place_variant(node.op)), results=(), mutates=(copy.buffer,))


def copy_into(order: int, source: TensorRef, target: TensorRef) -> ExternCall:
    """A copy of a tensor into the whole of a buffer, for dtypes that kernels do not take."""
    return ExternCall(
        order,
        "aten.alias_copy.out",
        (source,),
        {},
        (),
        (("out", target.buffer),),
        {source.buffer},
        str(target.spec.device),
    )


def copy_to_device(order: int, source: TensorRef, result: str, device: torch.device) -> ExternCall:
    """A copy of a tensor to another device."""
    return ExternCall(
        order,
        "aten._to_copy.default",
        (source,),
        {"device": device},
        (result,),
        (),
        {source.buffer},
        str(device),
    )
