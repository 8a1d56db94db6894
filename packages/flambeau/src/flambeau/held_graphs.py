"""The graphs that a captured graph holds in its nodes, and the operators that they call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.graphs.higher_order import HigherOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def operator_name(operator: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> str:
    """ "aten::add" of any of its overloads."""
    packet = operator.overloadpacket if isinstance(operator, torch._ops.OpOverload) else operator
    return str(packet._qualified_op_name)


def graphs_within(value: Any) -> Iterator[torch.fx.Graph]:
    """The graph of a module, or of the parts of a node that holds graphs, and those below it."""
    parts: tuple[Any, ...] = ()
    if isinstance(value, torch.fx.GraphModule):
        yield value.graph
        parts = tuple(node.target for node in value.graph.nodes if node.op == "call_function")
        parts = tuple(target for target in parts if isinstance(target, HigherOrder))
    elif dataclasses.is_dataclass(value):
        parts = tuple(getattr(value, field.name) for field in dataclasses.fields(value))
    elif isinstance(value, Mapping):
        parts = tuple(value.values())
    elif isinstance(value, tuple):
        parts = value
    for part in parts:
        yield from graphs_within(part)
