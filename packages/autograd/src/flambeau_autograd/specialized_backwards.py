"""The compiled backwards of a graph: the general one, and one for each set of undefined tangents
that occurs.

    y, z = compiled(x)
    (y + z).sum().backward()     the general one
    y.sum().backward()           one without the tangent of z

Each is compiled at its first call: a model that returns a loss and logits may never need the
general one. That of a single result is the only one, and is compiled with the forward. All take the
same saved tensors. Where more than `LIMIT` sets occur, the rest run the general backward, which
gets zeros for undefined tangents: it differs from the specialised ones only in their cost, and
where an infinite derivative meets these zeros.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from flambeau_autograd.backwards import Backward, BackwardTable
from flambeau_autograd.batched_tangents import BatchedBackward
from flambeau_autograd.check import check_graph
from flambeau_autograd.cut_backward import CutBackward, gradient_groups
from flambeau_autograd.partition import copied
from flambeau_autograd.undefined_tangents import without_undefined
from flambeau_prims.graph import Graph, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from flambeau_autograd.cut_backward import Groups
    from flambeau_autograd.options import AutogradOptions
    from flambeau_autograd.partition import Partition

    Compiled: TypeAlias = "Callable[..., tuple[Any, ...]]"


class Backwards(BackwardTable):
    """The backwards of a graph pair, by the results that have no tangent.

    `tangents[k]` is the result that tangent k of the joint graph is of, `reaching[i]` the results
    that gradient i comes from. `groups`: cut them into pieces that give these gradients.
    """

    def __init__(
        self,
        part: Partition,
        compiler: Callable[[Graph, str], Compiled],
        tangents: Sequence[int],
        reaching: Sequence[frozenset[int]],
        options: AutogradOptions,
        compile_graph: Callable[..., Compiled],
        groups: Groups | None = None,
    ) -> None:
        self._part = part
        self._compile_graph = compile_graph
        self._compiler = compiler
        self._reaching = reaching
        self._options = options
        self._groups = groups
        self._all_tangents = tangents
        self._read = [tangents[index] for kind, index in part.saved if kind == "tangent"]
        super().__init__(frozenset(self._read))
        # The compiler may rewrite the graph that it is given.
        self._graph = _copy(part.backward)
        part.backward.name = self.name_of(())
        self._batched: dict[frozenset[int], BatchedBackward] = {}
        self.separate_tangents: list[str] = []
        """Why batches of tangents ran one tangent after the other."""

    def batched(self, backward: Backward) -> BatchedBackward:
        """One of these backwards, for tangents that are batches."""
        missing = self._tangents - backward.tangents
        with self._lock:
            if missing not in self._batched:
                graph = self._graph_without(missing)
                self._batched[missing] = BatchedBackward(
                    graph, self._compile_graph, self.separate_tangents
                )
            return self._batched[missing]

    def _make(self, missing: frozenset[int]) -> Backward:
        return self._specialized(missing) if missing else self._general()

    def _general(self) -> Backward:
        sizes = tuple(str(symbol) for kind, symbol in self._part.saved if kind == "size")
        run = self._compile(self._part.backward)
        self._part.backward.short = None
        return Backward(run, sizes, self._tangents)

    def cut(self, counted: Collection[int], limits: Sequence[int]) -> tuple[Groups, Backwards]:
        """The groups of gradients whose parts at the positions `counted` reach `limits` in bytes,
        and the same backwards, cut into pieces that give one group each.
        """
        groups = gradient_groups(self._graph, counted, limits)
        if len(groups) == 1:
            return groups, self
        part = replace(self._part, backward=_copy(self._graph))
        given = (part, self._compiler, self._all_tangents, self._reaching, self._options)
        pieces = Backwards(*given, self._compile_graph, groups)
        pieces.separate_tangents = self.separate_tangents
        return groups, pieces

    def _compile(self, graph: Graph) -> Callable[..., Any]:
        if self._groups is None:
            graph.stored_as = graph.name if self._part.forward.stored_as else ""
            return self._compiler(graph, "backward")
        return CutBackward(graph, self._groups, self._compiler, primitive=self._options.decompose)

    def _specialized(self, missing: frozenset[int]) -> Backward:
        graph = self._graph_without(missing)
        return Backward(
            self._compile(graph),
            tuple(str(size) for size in graph.inputs if not isinstance(size, Value)),
            self._tangents - missing,
        )

    def _graph_without(self, missing: frozenset[int]) -> Graph:
        graph = _copy(self._graph)
        if not missing:
            return graph
        tangents: list[Any] = graph.inputs[len(graph.inputs) - len(self._read) :]
        undefined = [
            value for value, index in zip(tangents, self._read, strict=True) if index in missing
        ]
        required = {number for number, roots in enumerate(self._reaching) if not roots <= missing}
        graph = without_undefined(
            graph, tangents, undefined, required, primitive=self._options.decompose
        )
        graph.name = self.name_of(missing)
        if self._options.check:
            check_graph(graph, "without_undefined")
        return graph


def _copy(graph: Graph) -> Graph:
    return copied(graph.nodes, graph.inputs, graph.outputs, graph.env)
