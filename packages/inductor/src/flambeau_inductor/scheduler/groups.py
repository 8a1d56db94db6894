"""Groups: loop nests that share a kernel, or one extern call; and who must come before whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.indexing.expressions import free_names, linear_parts
from flambeau_inductor.indexing.ranges import RangedMath
from flambeau_inductor.ir import Load, Store, finds_positions, scan_direction
from flambeau_inductor.lowering.collectives import WAIT
from flambeau_inductor.lowering.split_axes import rewrite
from flambeau_inductor.nodes import ExternCall, LoopNest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from flambeau_inductor.ir import Axis, Integer
    from flambeau_inductor.nodes import Lowered, Node
    from flambeau_prims.graph import Node as GraphNode

Mapping = dict[sympy.Symbol, sympy.Expr]
"""Axis symbol -> expression in other axes."""
Accesses = dict[str, frozenset[sympy.Expr]]
"""Buffer -> the index expressions at which it is read or written."""


@dataclass(eq=False, slots=True)
class Group:
    """Loop nests over one set of axes, in program order, or one extern call (then there are no
    axes).

    `members` pairs each nest with the mapping from its own axes to the group's. `loads` and
    `stores` are in the group's axes.
    """

    members: list[tuple[Node, Mapping]]
    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    loads: Accesses
    stores: Accesses
    column: bool = False
    tiling: Hashable | None = None
    """How the code generator is to cut the kernel; None: as it chooses."""

    @property
    def nodes(self) -> list[Node]:
        """The members without their mappings."""
        return [node for node, _ in self.members]

    @property
    def nests(self) -> list[LoopNest]:
        """The members that are loop nests."""
        return [node for node, _ in self.members if isinstance(node, LoopNest)]

    @property
    def is_extern(self) -> bool:
        """Whether this is an extern call."""
        return isinstance(self.members[0][0], ExternCall)

    @property
    def finds_positions(self) -> bool:
        """Whether the order of the inner axes matters (`ir.finds_positions`)."""
        return any(
            finds_positions(node.body) for node in self.nodes if not isinstance(node, ExternCall)
        )

    @property
    def scattered(self) -> dict[str, str]:
        """The buffers that members write at computed places, with the modes of the scatters."""
        return {name: mode for nest in self.nests for name, mode in nest.scattered.items()}

    @property
    def shares(self) -> Integer:
        """The shares of its outer points (`ir.LoopKernel.shares`)."""
        return next((nest.shares for nest in self.nests if nest.shares != 0), 0)

    @property
    def scan_direction(self) -> bool | None:
        """Whether its Scans are reversed; None if there are none."""
        directions = (
            scan_direction(node.body) for node in self.nodes if isinstance(node, LoopNest)
        )
        return next((found for found in directions if found is not None), None)

    @property
    def statements(self) -> int:
        """The statements of all members."""
        return sum(len(node.body) for node in self.nodes if not isinstance(node, ExternCall))

    @property
    def device(self) -> str:
        """The device that all members run on."""
        return self.members[0][0].device

    @property
    def computes(self) -> dict[GraphNode, None]:
        """The calls of the graph that its members compute."""
        return {call: None for node in self.nodes for call in node.computes}

    @property
    def label(self) -> str:
        """What it does, for people: the members' labels, and the user's lines behind them."""
        text = "+".join(
            node.op if isinstance(node, ExternCall) else node.label for node in self.nodes
        )
        lines = ", ".join(dict.fromkeys(node.where for node in self.nodes if node.where))
        return f"{text} ({lines})" if lines else text


def group_of(node: Node) -> Group:
    """A group of one."""
    if isinstance(node, ExternCall):
        return Group([(node, {})], (), (), {}, {})
    loads = {name: frozenset(load.index for load in result) for name, result in node.loads.items()}
    stores = {
        name: frozenset(store.index for store in result) for name, result in node.stores.items()
    }
    identity: Mapping = {axis.symbol: axis.symbol for axis in (*node.outer, *node.inner)}
    return Group([(node, identity)], node.outer, node.inner, loads, stores)


def math_for(axes: Iterable[Axis]) -> RangedMath:
    """Index arithmetic over these axes."""
    return RangedMath({axis.symbol.name: sympy.sympify(axis.size) for axis in axes})


def awaited(group: Group) -> str:
    """The buffer that a group waits for; "" if it is no wait."""
    call = group.nodes[0]
    if not isinstance(call, ExternCall) or call.op != WAIT:
        return ""
    buffer: str = call.args[0].buffer
    return buffer


def map_accesses(accesses: Accesses, mapping: Mapping, math: RangedMath) -> Accesses:
    """Accesses with their axes replaced."""
    if all(old == new for old, new in mapping.items()):
        return accesses
    return {
        name: frozenset(rewrite(index, mapping, math) for index in indices)
        for name, indices in accesses.items()
    }


def map_members(
    members: list[tuple[Node, Mapping]], mapping: Mapping, math: RangedMath
) -> list[tuple[Node, Mapping]]:
    """Members with their mappings composed with another."""
    if all(old == new for old, new in mapping.items()):
        return members
    return [(node, {s: rewrite(e, mapping, math) for s, e in own.items()}) for node, own in members]


@dataclass(eq=False, slots=True)
class Order:
    """A partial order of groups as bit sets: `before[i]` are the groups that precede group i."""

    before: list[int] = field(default_factory=list)

    def add(self, direct: set[int]) -> int:
        """A new group behind those of `direct`; returns its number."""
        self.before.append(self.closure(direct))
        return len(self.before) - 1

    def closure(self, direct: Iterable[int]) -> int:
        """The bits of these groups and of all before them."""
        bits = 0
        for number in direct:
            bits |= self.before[number] | 1 << number
        return bits

    def precedes(self, a: int, b: int) -> bool:
        """Whether a must come before b."""
        return bool(self.before[b] >> a & 1)

    def between(self, a: int, b: int) -> bool:
        """Whether some group must run behind `a` and before `b`."""
        candidates = self.before[b] & ~self.before[a] & ~(1 << a)
        while candidates:
            lowest = candidates & -candidates
            if self.precedes(a, lowest.bit_length() - 1):
                return True
            candidates ^= lowest
        return False

    def extend(self, number: int, bits: int) -> None:
        """Put more groups before a group, and so before all behind it."""
        if self.before[number] | bits == self.before[number]:
            return
        self.before[number] |= bits
        for other, own in enumerate(self.before):
            if own >> number & 1:
                self.before[other] = own | bits


def dependencies(lowered: Lowered) -> list[set[int]]:
    """For each node, the numbers of the nodes that must run before it: writers of what it reads,
    readers and writers of what it overwrites, and the call with an effect before it, if it is one.
    Nodes that write to inputs follow all that may raise: a call of the program that raises has
    changed nothing of its caller's. What may fail for what its operands hold follows the checks in
    front of it in the program, which may be what it relies on: an accelerator that meets an index
    out of bounds does not come back, nor do all operators of others. A nest whose indices another
    checks follows that one.
    """
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    aliased: dict[
        str, set[str]
    ] = {}  # result of an extern call -> buffers whose memory it may be a window on
    last_side_effect: int | None = None
    last_check: int | None = None
    raising: set[int] = set()
    checks: list[int] = []
    result = []
    inputs = {name for name, buffer in lowered.buffers.items() if buffer.role == "input"}
    for number, node in enumerate(lowered.nodes):
        needs: set[int] = set()
        writes = node.writes
        reads = node.reads.union(*(aliased.get(name, ()) for name in node.reads))
        if isinstance(node, ExternCall) and node.may_alias:
            aliased.update(dict.fromkeys(writes, reads))
        for name in reads:
            needs.update(writers.get(name, ()))
        for name in writes:
            # Parts of a cat write different places of one buffer, which nothing has read yet.
            needs.update(readers.get(name, ()))
            if name in inputs or name in lowered.updated:
                needs.update(writers.get(name, ()))
            if name in inputs:
                needs.update(raising)
        if last_check is not None and node.relies_on_checks:
            needs.add(last_check)
        if isinstance(node, LoopNest):
            if checked_before(node):
                needs.update(checks)
            elif only_checks(node):
                checks.append(number)
        # A wait follows its collective, and may follow those that start behind that.
        if isinstance(node, ExternCall) and node.side_effect and node.op != WAIT:
            if last_side_effect is not None:
                needs.add(last_side_effect)
            last_side_effect = number
            if node.is_check:
                last_check = number
        if node.can_raise:
            raising.add(number)
        for name in reads:
            readers.setdefault(name, []).append(number)
        for name in writes:
            writers.setdefault(name, []).append(number)
        needs.discard(number)
        result.append(needs)
    return result


def only_checks(nest: LoopNest) -> bool:
    """Whether a nest checks indices for others (update_in_place splits such nests off)."""
    return not nest.stores and nest.relies_on_checks


def checked_before(nest: LoopNest) -> bool:
    """Whether a nest reads or writes at computed indices that it does not check."""
    return not nest.relies_on_checks and any(
        name[0] == "v"
        for statement in nest.body
        if isinstance(statement, (Load, Store))
        for name in free_names(statement.index)
    )


def is_column_reduction(nest: LoopNest, hint: Callable[[sympy.Expr], int]) -> bool:
    """Whether a reduction is over an axis that is not innermost in the memory it reads."""
    if not nest.inner or not nest.outer:
        return False
    names = frozenset(axis.symbol.name for axis in (*nest.outer, *nest.inner))
    last = nest.inner[-1].symbol.name
    for loads in nest.loads.values():
        for load in loads:
            parts = linear_parts(load.index, names)
            if parts is None or last not in parts[0]:
                continue
            own = hint(parts[0][last])
            if any(
                hint(parts[0][a.symbol.name]) < own for a in nest.outer if a.symbol.name in parts[0]
            ):
                return True
    return False
