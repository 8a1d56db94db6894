"""The compiled backwards of a graph: the general one, and one for each set of undefined tangents
that occurs.

    y, z = compiled(x)
    (y + z).sum().backward()     the general one
    y.sum().backward()           one without the tangent of z

Each is compiled at its first call: a model that returns a loss and logits may never need the
general one. The one that is expected to be called is begun with the forward (`expect`). That of a
single result is the only one, and is compiled with the forward. All take the same saved tensors.
Where more than `LIMIT` sets occur, the rest run the general backward, which gets zeros for
undefined tangents: it differs from the specialised ones only in their cost, and where an infinite
derivative meets these zeros.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from flambeau_autograd.backwards import Backward, BackwardTable
from flambeau_autograd.batched_tangents import BatchedBackward
from flambeau_autograd.begun_compiles import begin
from flambeau_autograd.check import check_graph
from flambeau_autograd.cut_backward import CutBackward, gradient_groups
from flambeau_autograd.partition import copied
from flambeau_autograd.undefined_tangents import without_undefined
from flambeau_prims.graph import Graph, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from flambeau_autograd.begun_compiles import Compiler
    from flambeau_autograd.cut_backward import Groups
    from flambeau_autograd.graph_call import Compiled
    from flambeau_autograd.options import AutogradOptions
    from flambeau_autograd.partition import Partition

    Begun: TypeAlias = "Callable[[], Backward]"


class Backwards(BackwardTable):
    """The backwards of a graph pair, by the results that have no tangent.

    `tangents[k]` is the result that tangent k of the joint graph is of, `reaching[i]` the results
    that gradient i comes from. `groups`: cut them into pieces that give these gradients.
    """

    def __init__(
        self,
        part: Partition,
        compiler: Compiler,
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
        self._begun: dict[tuple[frozenset[int], bool], tuple[int, Begun]] = {}
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

    def expect(self) -> None:
        """Begin to compile the backward that the first call is expected to need: the only one, or
        one of results without dims, which are losses, if there are any.
        """
        if not self.several:
            self._note(frozenset(), self._begin(frozenset()))
            return
        tangents = self._graph.inputs[-len(self._read) :]
        others = {
            index
            for value, index in zip(tangents, self._read, strict=True)
            if not isinstance(value, Value) or value.spec.ndim > 0
        }
        if len(others) < len(self._read):
            missing = frozenset(others)
            # What is wrong is for the call to say that needs it.
            with contextlib.suppress(Exception):
                self._note(missing, self._begin_specialized(missing))

    def _note(self, missing: frozenset[int], begun: Begun) -> None:
        # A fork has no part in threads that build.
        self._begun[self._place(missing)] = os.getpid(), begun

    def _make(self, missing: frozenset[int]) -> Backward:
        process, begun = self._begun.pop(self._place(missing), (0, None))
        if begun is not None and process == os.getpid():
            if not self.several:
                return begun()
            with contextlib.suppress(Exception):
                return begun()
            return self._begin_specialized(missing)()
        return self._begin(missing)()

    def _begin(self, missing: frozenset[int]) -> Begun:
        return self._begin_specialized(missing) if missing else self._begin_general()

    def _begin_general(self) -> Begun:
        sizes = tuple(str(symbol) for kind, symbol in self._part.saved if kind == "size")
        begun = self._begin_graph(self._part.backward)

        def end() -> Backward:
            run = begun()
            self._part.backward.short = None
            return Backward(run, sizes, self._tangents)

        return end

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

    def _begin_graph(self, graph: Graph) -> Callable[[], Callable[..., Any]]:
        groups, primitive = self._groups, self._options.decompose
        if groups is None:
            graph.stored_as = graph.name if self._part.forward.stored_as else ""
            return begin(self._compiler, graph, "backward")
        return lambda: CutBackward(graph, groups, self._compiler, primitive=primitive)

    def _begin_specialized(self, missing: frozenset[int]) -> Begun:
        graph = self._graph_without(missing)
        sizes = tuple(str(size) for size in graph.inputs if not isinstance(size, Value))
        begun = self._begin_graph(graph)
        return lambda: Backward(begun(), sizes, self._tangents - missing)

    def _graph_without(self, missing: frozenset[int]) -> Graph:
        graph = _copy(self._graph)
        if not missing:
            graph.name = self.name_of(())
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
