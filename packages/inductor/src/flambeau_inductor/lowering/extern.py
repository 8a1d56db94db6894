"""Lower calls of ATen: operands as tensors in memory, results as buffers, and out= variants where
the program can plan the memory.

y = aten.mm.default(x, w)  ->  extern aten.mm.out(x, w, out=buf3), buf3 allocated by the program
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.lowering.collectives import WAIT, in_flight, is_wait
from flambeau_inductor.nodes import ExternCall, SizeRef, TensorRef
from flambeau_prims.graph import Node, Value
from flambeau_prims.kernel_launches import launch_of
from flambeau_prims.operator_facts import communicates, is_check
from flambeau_prims.primitives import STORED_DTYPES, Prim
from flambeau_prims.raising import can_raise
from flambeau_prims.rules.registry import aliasing
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Callable


OUT_VARIANTS = {
    "aten.mm.default": "aten.mm.out",
    "aten.mm.dtype": "aten.mm.dtype_out",
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
    """Whether a call must happen though its results are unused, at its place among its like: random
    draws, checks of data, collectives.
    """
    return torch.Tag.nondeterministic_seeded in op.tags or is_check(op) or communicates(op)


def may_alias(op: Any) -> bool:
    """Whether a result may be a window on an operand's memory, as what is waited for is."""
    return communicates(op) or any(source is not None for source in aliasing(op).returns)


def lower_extern(
    node: Node, order: int, tensor: Callable[[Value], TensorRef], make: Callable[[Value, str], str]
) -> ExternCall:
    """The call. `tensor` gives an operand's memory, `make(value, role)` a result's buffer."""
    reads = {tensor(value).buffer for value in in_flight(node)}

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
    name = WAIT if is_wait(node.op) else op_name(node.op)
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


def updated_operands(node: Node) -> tuple[int, ...]:
    """The positions of the operands that a call is lowered as an update of: they are copied, and an
    in-place call changes the copies. Each is the position of a tensor, in the order of the results.
    """
    if isinstance(node.op, Prim):
        return ()
    launch = launch_of(node.op)
    if launch is not None:
        written = launch.launch.written
        dense = all(out is None or out.spec.dtype in STORED_DTYPES for out in node.outputs)
        return written if dense and node.op is launch.functional else ()
    if in_place_variant(node.op) is None:
        return ()
    x, (out,) = node.args[0], node.outputs
    alone = (
        isinstance(x, Value)
        and out is not None
        and out.spec.dtype in STORED_DTYPES
        and out.spec.shape == x.spec.shape  # masked_scatter expands it to the mask
        and list(node.operands()).count(x) == 1
    )
    return (0,) if alone else ()


def is_update(node: Node) -> bool:
    """Whether a call is lowered as copies of operands and an in-place call."""
    return bool(updated_operands(node))


def lower_update(
    node: Node, order: int, tensor: Callable[[Value], TensorRef], copies: dict[int, TensorRef]
) -> ExternCall:
    """The in-place call of an update on copies of operands, by position."""
    launch = launch_of(node.op)
    op = in_place_variant(node.op) if launch is None else launch.mutating
    stand_ins = {at: Value(f"copy{at}", copy.spec) for at, copy in copies.items()}
    refs = {stand_ins[at]: copy for at, copy in copies.items()}
    args = tuple(stand_ins.get(at, arg) for at, arg in enumerate(node.args))
    call = lower_extern(
        Node(node.op, args, node.kwargs, node.outputs, node.where),
        order,
        lambda value: refs[value] if value in refs else tensor(value),
        lambda value, role: "",
    )
    mutates = tuple(copy.buffer for copy in copies.values())
    return replace(call, op=op_name(op), results=(), mutates=mutates)


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
