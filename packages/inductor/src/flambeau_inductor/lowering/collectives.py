"""Collectives: calls that read their operands until somebody waits for their results.

    buf1 = extern all_reduce(buf0)      starts
    buf2 = extern wait_tensor(buf1)     reads buf1, and buf0, too: its memory is not free before

The waits keep the operands, so that the planned memory may serve others after them, and nothing
overwrites it before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_prims.graph import Value
from flambeau_prims.operator_facts import communicates
from flambeau_prims.unsupported import AsynchronousCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_prims.graph import Graph, Node


WAIT = "_c10d_functional.wait_tensor.default"


def is_wait(op: Any) -> bool:
    """Whether a call waits for a collective, or has whoever reads its result wait."""
    return communicates(op) and op._schema.name.endswith(
        ("::wait_tensor", "::_wrap_tensor_autograd")
    )


def in_flight(node: Node) -> Iterator[Value]:
    """The operands of the collective that a call waits for."""
    started = node.args[0]
    if is_wait(node.op) and isinstance(started, Value) and started.producer is not None:
        yield from started.producer.operands()


def check_waits(graph: Graph) -> None:
    """Raise `AsynchronousCall` where a graph does not wait for a collective itself."""
    waited = {node.args[0] for node in graph.nodes if is_wait(node.op)}
    for node in graph.nodes:
        if not communicates(node.op) or is_wait(node.op):
            continue
        if any(out is not None and out not in waited for out in node.outputs):
            raise AsynchronousCall(f"nothing in the graph waits for {node.op}", node.op)
