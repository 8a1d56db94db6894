"""A way to compute a part of a schedule, and its Program: what a tuner measures.

part: groups [extern aten.addmm.out(...) -> buf0], [nest gelu: buf0 -> buf1]
ways: these groups; or one group of nests [addmm, gelu] with a tiling
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from flambeau_inductor.emit_program import emit_program
from flambeau_inductor.indexing.expressions import sympify
from flambeau_inductor.ir import CheckIndex, Load, defined_name, operands
from flambeau_inductor.lowering.contraction import product_of_call
from flambeau_inductor.nodes import Buffer, ExternCall, Lowered, TensorRef
from flambeau_inductor.schedule import Schedule
from flambeau_inductor.scheduler.memory import plan_memory
from flambeau_prims.graph import Graph
from flambeau_prims.sizes import hint_of
from flambeau_runtime.program import Symbol
from flambeau_runtime.tuning.contest import Candidate, Contest, LikelyIndices

if TYPE_CHECKING:
    from collections.abc import Callable

    import sympy

    from flambeau_inductor.nodes import LoopNest
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_runtime.program import Program


@dataclass(frozen=True)
class Way:
    """Groups that compute a part, in order, and the buffers that only they need or that they make
    in the program's memory.
    """

    name: str
    groups: tuple[Group, ...]
    buffers: dict[str, Buffer] = field(default_factory=dict)


def checked_buffers(nest: LoopNest, hint: Callable[[sympy.Expr], int]) -> dict[str, int]:
    """The buffers whose elements a nest checks as indices, with the likely bound."""
    defined = {name: each for each in nest.body if (name := defined_name(each)) is not None}
    result: dict[str, int] = {}
    for check in nest.body:
        if not isinstance(check, CheckIndex):
            continue
        below = hint(sympify(check.size))
        pending = [check.value]
        while pending:
            statement = defined[pending.pop()]
            pending += operands(statement)
            if isinstance(statement, Load) and not statement.dtype.is_floating_point:
                result[statement.buffer] = min(below, result.get(statement.buffer, below))
    return result


@dataclass(eq=False)
class Part:
    """A part of a schedule and the ways to compute it. `groups`: the numbers of its groups."""

    lowered: Lowered
    groups: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    title: str
    key: str
    tolerance: float
    ways: list[Way]
    chosen: int = 0

    @property
    def device(self) -> str:
        """Where it runs."""
        return self.ways[0].groups[0].device

    def contest(self, options: InductorOptions) -> Contest:
        """The ways as Programs."""
        candidates = tuple(
            Candidate(way.name, partial(self.program, way, options)) for way in self.ways
        )
        numbers = tuple(value for _, value in self.sizes())
        return Contest(
            self.title, self.key, self.device, candidates, self.tolerance, numbers, self.indices()
        )

    def indices(self) -> tuple[LikelyIndices, ...]:
        """The inputs that hold places of rows."""
        hint = self.lowered.sizes.hint
        found: dict[str, LikelyIndices] = {}
        for group in self.ways[0].groups:
            call = group.nodes[0]
            product = product_of_call(call) if isinstance(call, ExternCall) else None
            if product is not None and product.bounds is not None:
                name, rows = product.bounds.buffer, product.left.spec.shape[0]
                if name in self.inputs:
                    below = hint_of(rows)
                    found[name] = LikelyIndices(self.inputs.index(name), below, rising=True)
            for nest in group.nests:
                for name, below in checked_buffers(nest, hint).items():
                    if name in self.inputs:
                        old = found.get(name)
                        least = below if old is None else min(old.below, below)
                        found[name] = LikelyIndices(self.inputs.index(name), least)
        return tuple(found.values())

    def sizes(self) -> list[tuple[str, int]]:
        """The program's symbolic sizes, and their likely values."""
        hints = self.lowered.sizes.hints
        return [(each.name, hints.get(each.name, 1)) for each in self.lowered.symbols]

    def symbols(self) -> tuple[Symbol, ...]:
        """The symbolic sizes as int inputs behind the tensors."""
        first = len(self.inputs)
        return tuple(
            Symbol(name, first + number, None) for number, (name, _) in enumerate(self.sizes())
        )

    def program(self, way: Way, options: InductorOptions) -> Program:
        """The Program of one way alone: what the part reads comes in, what others read goes out."""
        known = self.lowered.buffers | way.buffers
        nodes = [node for group in way.groups for node in group.nodes]
        names = dict.fromkeys([*self.inputs, *(n for node in nodes for n in sorted(node.writes))])
        buffers = {
            name: replace(known[name], role="input") if name in self.inputs else known[name]
            for name in names
        }
        lowered = Lowered(
            Graph(name="candidate"), self.lowered.sizes, self.symbols(),
            [*self.inputs, *(name for name, _ in self.sizes())], buffers, nodes,
            [TensorRef(name, known[name].spec) for name in self.outputs],
            frozen=self.lowered.frozen & {*self.inputs},
        )  # fmt: skip
        groups = list(way.groups)
        schedule = Schedule(lowered, groups, plan_memory(lowered, groups, options), [])
        return emit_program(schedule, options)


def part_of(
    schedule: Schedule, numbers: tuple[int, ...], title: str, key: str, tolerance: float,
    ways: list[Way],
) -> Part | None:  # fmt: skip
    """The part of these groups; None if it writes to the program's inputs, draws random numbers, or
    floats are given to the program: no likely ones are known.
    """
    groups = schedule.groups
    nodes = [node for number in numbers for node in groups[number].nodes]
    written = set().union(*(node.writes for node in nodes))
    read = set().union(*(node.reads for node in nodes)) - written
    lowered = schedule.lowered
    if any(lowered.buffers[name].role == "input" for name in written):
        return None
    if any(symbol.is_float for symbol in lowered.symbols):
        return None
    if any(getattr(node, "host_reads", ()) for node in nodes):
        return None
    elsewhere = {
        name
        for number, group in enumerate(groups)
        if number not in numbers
        for node in group.nodes
        for name in node.reads | node.writes
    }
    outputs = written & (elsewhere | schedule.kept)
    return Part(
        lowered, numbers, tuple(sorted(read)), tuple(sorted(outputs)), title, key, tolerance, ways
    )
