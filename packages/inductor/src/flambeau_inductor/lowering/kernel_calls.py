"""Calls of kernels that one source holds for all sizes: these, and strides, are arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_inductor.nodes import ExternCall, SizeRef
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.nodes import TensorRef
    from flambeau_prims.graph import Node
    from flambeau_prims.spec import Size


def append_kernel_call(
    lowering: Any, node: Node, op: str, operands: Sequence[TensorRef], ints: Sequence[Size],
    results: Sequence[str], overwrites: tuple[tuple[str, str], ...] = (),
) -> None:  # fmt: skip
    """Append the call that writes `results`, buffers of the program. `lowering` is the
    `_GraphLowering`; `overwrites` as in `ExternCall`.
    """
    nodes = lowering.lowered.nodes
    sizes = [SizeRef(size) if isinstance(size, Expr) else int(size) for size in ints]
    reads = {operand.buffer for operand in operands}
    args, out = (*operands, sizes), tuple(("out", result) for result in results)
    call = ExternCall(len(nodes), op, args, {}, (), out, reads, "cpu", where=node.where)
    call.overwrites = overwrites
    nodes.append(call)
