"""Which inputs of a graph are indices, and their bounds: for engines that read whatever memory an
index points to, where eager raises an error.

    y = aten.embedding(table: f32[s0, 8], i: i64[4])    ->   0 <= i < s0, asked in each call
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau.engines.refusals import EngineRefuses
from flambeau_prims.graph import Graph, Value, values_in
from flambeau_prims.size_floats import evaluate_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flambeau_prims.graph import Node
    from flambeau_prims.sizes import Size

_INDEX_ARGUMENTS = frozenset({"index", "indices", "target", "self_indices", "offsets"})
_VIEWS = frozenset({
    "view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze", "slice", "select",
    "permute", "t", "transpose", "clone", "alias", "detach",
})  # fmt: skip


@dataclass(frozen=True)
class IndexBound:
    """The elements of an input lie in [0, size)."""

    index: Value
    size: Size

    def holds(self, known: Mapping[Any, Any], symbols: Mapping[str, Any]) -> bool:
        """Whether they do in a call."""
        least, greatest = known[self.index].aminmax()
        return bool(least >= 0 and greatest < evaluate_number(self.size, symbols))


def index_bounds(graph: Graph) -> tuple[IndexBound, ...]:
    """The bounds of a graph's indices. EngineRefuses where an index is computed in the graph, or
    its bounds are not known here.
    """
    return tuple(bound for node in graph.nodes for bound in _bounds(node, set(graph.inputs)))


def _bounds(node: Node, inputs: set[Any]) -> Iterator[IndexBound]:
    schema = getattr(node.op, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    indices = {
        name: list(values_in(given[name]))
        for name in _INDEX_ARGUMENTS & given.keys()
        if any(not _is_mask(value) for value in values_in(given[name]))
    }
    if not indices:
        return
    for index, size in _indexed(node, given):
        source = index
        while source not in inputs and source.producer is not None:
            if getattr(source.producer.op, "_opname", "") not in _VIEWS:
                raise EngineRefuses(f"the indices of {node.op} are computed, and not checked")
            source = source.producer.args[0]
        yield IndexBound(source, size)


def _is_mask(value: Value) -> bool:
    return value.spec.dtype is torch.bool


def _indexed(node: Node, given: Mapping[str, Any]) -> Sequence[tuple[Value, Size]]:
    """Each index of a call, with the size that it is an index of."""
    match getattr(node.op, "_opname", ""):
        case "embedding":
            return [(given["indices"], given["weight"].spec.shape[0])]
        case "index_select" | "gather":
            shape = given["self"].spec.shape
            return [(given["index"], shape[given["dim"]] if shape else 1)]
        case "index":
            shape = given["self"].spec.shape
            return [
                (index, shape[dim])
                for dim, index in enumerate(given["indices"])
                if index is not None and not _is_mask(index)
            ]
    raise EngineRefuses(f"the indices of {node.op} are not checked")
