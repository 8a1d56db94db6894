"""Fuse loop nests into groups that share a kernel, and remember why others do not.

    nest add, nest sum (over its rows), nest exp (of add - sum)  ->  one group over the rows
    nest transpose of what nest add wrote    ->  "buf0 is read at other places than it is written"

Greedy in program order: each node joins the youngest group it reads from, then one that reads what
it reads, then a neighbour with the same axes. A last pass merges groups that a later node brought
together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import Scan, Sort
from flambeau_inductor.nodes import LoopNest
from flambeau_inductor.scheduler.groups import (
    Accesses,
    Group,
    Order,
    checked_before,
    dependencies,
    group_of,
    is_column_reduction,
    map_accesses,
    map_members,
    math_for,
    only_checks,
)
from flambeau_inductor.scheduler.match_axes import Match, matches, numel
from flambeau_inductor.split_reduction import COLUMNS_PER_PROGRAM, MOST_KEPT_COLUMNS

if TYPE_CHECKING:
    from flambeau_inductor.nodes import Lowered, Node
    from flambeau_inductor.options import InductorOptions

HORIZONTAL_WINDOW = 4
"""How many of the youngest groups a node without common data is compared with."""

HORIZONTAL_NESTS = 8
"""At most this many loop nests that share no data are put together."""

SMALL_REDUCTION = {"cpu": 1 << 16, "cuda": 1 << 20}
"""Reductions of up to so many elements that share no data are put together: each would take less
time than its launch.
"""

MIN_ROWS_FOR_ROW_KERNEL = 64
"""On a GPU, a pointwise nest joins a reduction only if there are that many rows, or rows are short.
"""

SHORT_ROW = 8192

FEWEST_COLUMN_PROGRAMS = 256
"""A reduction of columns on a GPU takes over what it reads if so many programs share it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Two groups that were considered for one kernel, and why they did not get it."""

    first: str
    second: str
    reason: str


@dataclass(slots=True)
class Fusion:
    """The outcome: groups in an order that respects all dependencies, and the refused fusions.
    `needs`: for each node of the lowered graph the numbers of those that must run before it.
    """

    groups: list[Group]
    refusals: list[Refusal] = field(default_factory=list)
    needs: list[set[int]] = field(default_factory=list)


def fuse(lowered: Lowered, options: InductorOptions) -> Fusion:
    """Put the nodes of a lowered graph into groups."""
    return _Fuser(lowered, options).run()


def merged(lowered: Lowered, a: Group, b: Group, options: InductorOptions) -> Group | str:
    """The union of two groups, `a` first, or why there is none."""
    return _Fuser(lowered, options).try_merge(a, b)


class _Fuser:
    def __init__(self, lowered: Lowered, options: InductorOptions) -> None:
        self.lowered = lowered
        self.options = options
        self.hint = lowered.sizes.hint
        self.inputs = {name for name, buffer in lowered.buffers.items() if buffer.role == "input"}
        self.groups: list[Group | None] = []
        self.order = Order()
        self.group_of_node: list[int] = []
        self.users: dict[
            str, list[int]
        ] = {}  # buffer -> numbers of the groups that read or write it
        self.refusals: dict[tuple[str, str, str], Refusal] = {}

    def run(self) -> Fusion:
        needs = dependencies(self.lowered)
        for node, before in zip(self.lowered.nodes, needs, strict=True):
            self.place(node, before)
        self.merge_groups()
        return Fusion(self.sorted_groups(), list(self.refusals.values()), needs)

    # Greedy placement

    def place(self, node: Node, needs: set[int]) -> None:
        """Put a node into a group: an old one if that is allowed and pays."""
        direct = {self.group_of_node[n] for n in needs}
        group = group_of(node)
        number = None
        if isinstance(node, LoopNest):
            group.column = is_column_reduction(node, self.hint)
            number = self.vertical(group, direct)
            if number is None:
                number = self.sibling(group, direct)
            if number is None and self.options.fuse_horizontal:
                number = self.neighbour(group, direct)
        if number is None:
            self.groups.append(group)
            number = self.order.add(direct)
        else:
            self.order.extend(number, self.order.closure(direct - {number}))
        self.group_of_node.append(number)
        for name in node.reads | node.writes:
            users = self.users.setdefault(name, [])
            if not users or users[-1] != number:
                users.append(number)

    def vertical(self, group: Group, direct: set[int]) -> int | None:
        """The youngest group that the node reads from and can join."""
        for number in sorted(direct, reverse=True):
            if self.join(number, group, direct):
                return number
        return None

    def sibling(self, group: Group, direct: set[int]) -> int | None:
        """A group that reads at some place what the node reads there too."""
        tried: set[int] = set(direct)
        for name in group.loads:
            if numel(group.outer + group.inner).is_Integer and self.is_small(name, group):
                continue
            for number in reversed(self.users.get(name, [])[-HORIZONTAL_WINDOW:]):
                if number not in tried:
                    tried.add(number)
                    if self.join(number, group, direct, shares=True):
                        return number
        return None

    def is_small(self, name: str, group: Group) -> bool:
        """Whether a buffer is much smaller than the loop nest: sharing its loads gains nothing."""
        elements = 1
        for size in self.lowered.buffers[name].spec.shape:
            elements *= self.hint(self.lowered.sizes.convert(size))
        return elements * 8 < self.hint(numel(group.outer + group.inner))

    def neighbour(self, group: Group, direct: set[int]) -> int | None:
        """One of the last groups over just the same axes, if both are pointwise or small."""
        small = SMALL_REDUCTION.get(group.device.partition(":")[0], SMALL_REDUCTION["cpu"])
        if group.inner and self.hint(numel(group.outer + group.inner)) > small:
            return None
        for number in range(
            len(self.groups) - 1, max(len(self.groups) - 1 - HORIZONTAL_WINDOW, -1), -1
        ):
            other = self.groups[number]
            if (
                other is None
                or other.is_extern
                or number in direct
                or other.inner != group.inner
                or other.outer != group.outer
                or len(other.members) >= HORIZONTAL_NESTS
            ):
                continue
            if self.join(number, group, direct):
                return number
        return None

    def join(self, number: int, group: Group, direct: set[int], shares: bool = False) -> bool:
        """Fuse a new node's group into group `number`, if that is allowed."""
        target = self.groups[number]
        if target is None or target.is_extern:
            return False
        if any(other != number and self.order.precedes(number, other) for other in direct):
            return self.refuse(target, group, "another kernel must run between them")
        merged = self.try_merge(target, group, shares)
        if isinstance(merged, str):
            return self.refuse(target, group, merged)
        self.groups[number] = merged
        return True

    def refuse(self, first: Group, second: Group, reason: str) -> bool:
        key = (first.label, second.label, reason)
        self.refusals.setdefault(key, Refusal(*key))
        return False

    # Merging two groups

    def try_merge(self, a: Group, b: Group, shares: bool = False) -> Group | str:
        """The union of two groups, `a` first, or why there is none."""
        if a.device != b.device:
            return f"they run on {a.device} and {b.device}"
        reason = self.too_large(a, b)
        if reason:
            return reason
        for writing, checking in ((a, b), (b, a)):
            if not self.inputs.isdisjoint(writing.stores) and any(
                n.can_raise for n in checking.nodes
            ):
                return "an input is written when all indices have been checked"
            if any(map(only_checks, checking.nests)) and any(map(checked_before, writing.nests)):
                return "the indices of one are checked by the other"
        if not self.lowered.compared.isdisjoint(a.stores.keys() & b.loads.keys()):
            return "what is compared with its extreme is computed once"
        reason = _scattered(a, b) or self.updated(a, b) or self.shared_out(a, b)
        reason = reason or self.unprofitable(a, b)
        if reason:
            return reason
        names = [name for name in b.loads if name in a.stores]
        names += [name for name in b.stores if name in a.loads]
        names += [name for name in b.loads if name in a.loads and name not in names]
        reason = "their loops run over different sizes"
        for match in matches(a, b, names, self.hint):
            merged = self.union(a, b, match, shares)
            if not isinstance(merged, str):
                return merged
            reason = merged
        return reason

    def too_large(self, a: Group, b: Group) -> str:
        """Why a kernel of both would be too large; "" if it would not."""
        options = self.options
        if len(a.members) + len(b.members) > options.max_fusion_size:
            return f"a kernel of more than {options.max_fusion_size} loop nests"
        if a.statements + b.statements > options.max_kernel_statements:
            return f"a kernel of more than {options.max_kernel_statements} statements"
        buffers = a.loads.keys() | b.loads.keys() | a.stores.keys() | b.stores.keys()
        if len(buffers) > options.max_kernel_buffers:
            return f"a kernel of more than {options.max_kernel_buffers} buffers"
        return ""

    def updated(self, a: Group, b: Group) -> str:
        """Why two groups that write one updated buffer cannot share a kernel; "" if they can."""
        for name in a.stores.keys() & b.stores.keys() & self.lowered.updated:
            if a.stores[name] != b.stores[name]:
                return f"{name} is written at different places"
        return ""

    def shared_out(self, a: Group, b: Group) -> str:
        """Why groups cannot share out their rows together; "" if they can."""
        if a.shares == 0 and b.shares == 0:
            return ""
        if a.shares != 0 and b.shares != 0 and a.shares != b.shares:
            return "they share out rows differently"
        if any(isinstance(s, (Scan, Sort)) for n in (*a.nests, *b.nests) for s in n.body):
            return "rows are scanned or sorted, and columns reduced"
        columns = (n for n in (*a.nests, *b.nests) if n.shares != 0)
        kept = sum(self.hint(numel(nest.inner)) for nest in columns)
        if a.device != "cpu" and kept > MOST_KEPT_COLUMNS:
            return f"a program keeps no {kept} sums of columns"
        return ""

    def unprofitable(self, a: Group, b: Group) -> str:
        """Why a fusion that may be legal is not wanted; "" if it is."""
        directions = {a.scan_direction, b.scan_direction} - {None}
        if len(directions) > 1:
            return "they scan in both directions"
        for reduction, other in ((a, b), (b, a)):
            if not reduction.inner or other.inner:
                continue
            full = numel(other.outer) == numel(reduction.outer + reduction.inner)
            if not full:
                continue
            if reduction.column and reduction.scan_direction is None:
                if not self.feeds_many_programs(reduction, other):
                    return "the reduction runs over rows of what the other walks along"
                continue
            rows, row = self.hint(numel(reduction.outer)), self.hint(numel(reduction.inner))
            if reduction.device != "cpu" and rows < MIN_ROWS_FOR_ROW_KERNEL and row > SHORT_ROW:
                return f"a kernel over {rows} rows of {row} would leave most of the GPU idle"
        if a.inner and b.inner and a.column != b.column:
            return "one reduction is over rows, the other over columns"
        return ""

    def feeds_many_programs(self, reduction: Group, other: Group) -> bool:
        """Whether a pointwise group writes what a reduction of columns reads, and that has programs
        enough to do both at full speed.
        """
        programs = self.hint(numel(reduction.outer)) // COLUMNS_PER_PROGRAM
        return (
            reduction.device != "cpu"
            and programs >= FEWEST_COLUMN_PROGRAMS
            and not other.stores.keys().isdisjoint(reduction.loads)
        )

    def union(self, a: Group, b: Group, match: Match, shares: bool) -> Group | str:
        """The groups over common axes, or why their accesses do not allow it."""
        math = math_for((*match.outer, *match.inner))
        loads_a, stores_a = (map_accesses(part, match.a, math) for part in (a.loads, a.stores))
        loads_b, stores_b = (map_accesses(part, match.b, math) for part in (b.loads, b.stores))
        inner = {axis.symbol.name for axis in match.inner}
        both_add = a.scattered.keys() & b.scattered.keys()
        for name, indices in loads_b.items():
            if name in both_add:
                continue
            if name in stores_a and indices != stores_a[name]:
                return f"{name} is read at other places than it is written"
        for name, indices in stores_b.items():
            if name in loads_a and name not in both_add:
                if loads_a[name] != indices:
                    return f"{name} is overwritten at other places than it is read"
                if any(not inner.isdisjoint(free_names(index)) for index in indices):
                    return f"{name} is read in a row reduction and overwritten"
        if shares and not any(
            name in loads_a and not indices.isdisjoint(loads_a[name])
            for name, indices in loads_b.items()
        ):
            return "they read the same memory at other places"
        members = map_members(a.members, match.a, math) + map_members(b.members, match.b, math)
        members.sort(key=lambda member: member[0].order)
        return Group(
            members,
            match.outer,
            match.inner,
            _joined(loads_a, loads_b),
            _joined(stores_a, stores_b),
            a.column or b.column,
        )

    # Later passes

    def merge_groups(self) -> None:
        """Merge a group with one that it reads, where no later node is between them any more."""
        for number, group in enumerate(self.groups):
            if group is None or group.is_extern:
                continue
            producers = {
                other
                for name in group.loads
                for other in self.users.get(name, ())
                if other < number
                and (result := self.groups[other]) is not None
                and name in result.stores
            }
            for other in sorted(producers, reverse=True):
                self.merge_pair(other, number)
                if self.groups[number] is None:
                    break

    def merge_pair(self, first: int, second: int) -> None:
        """Merge group `second` into group `first`, which it reads from, if that is allowed."""
        a, b = self.groups[first], self.groups[second]
        if a is None or b is None or a.is_extern:
            return
        between = self.order.between(first, second)
        if between or self.order.precedes(second, first):
            return
        merged = self.try_merge(a, b)
        if isinstance(merged, str):
            return
        self.groups[first], self.groups[second] = merged, None
        bits = self.order.before[second] & ~(1 << first)
        self.order.extend(first, bits)
        for number, before in enumerate(self.order.before):
            if before >> second & 1:
                self.order.before[number] = (
                    (before & ~(1 << second)) | 1 << first | self.order.before[first]
                )
        for users in self.users.values():
            users[:] = [first if user == second else user for user in users]

    def sorted_groups(self) -> list[Group]:
        """The groups in dependency order, as close to program order as possible."""
        alive = [number for number, group in enumerate(self.groups) if group is not None]
        mask = sum(1 << number for number in alive)
        done = 0
        result = []
        pending = sorted(alive, key=lambda n: self.groups[n].members[0][0].order)  # type: ignore[union-attr]
        while pending:
            for index, number in enumerate(pending):
                if not self.order.before[number] & mask & ~done:
                    result.append(self.groups[number])
                    done |= 1 << number
                    del pending[index]
                    break
            else:
                raise AssertionError("groups depend on each other in a circle")
        return result  # type: ignore[return-value]


def _joined(a: Accesses, b: Accesses) -> Accesses:
    result = dict(a)
    for name, indices in b.items():
        result[name] = result.get(name, frozenset()) | indices
    return result


def _scattered(a: Group, b: Group) -> str:
    """Why a scatter keeps two groups apart; "" if it does not."""
    ours, theirs = a.scattered, b.scattered
    for name in sorted(ours.keys() | theirs.keys()):
        if a.device != "cpu" and ours.get(name) == theirs.get(name) == "add":
            continue  # sums on a GPU are in any order
        if name in (a.loads.keys() | a.stores) and name in (b.loads.keys() | b.stores):
            return f"{name} is written at computed places"
    if (ours and b.inner) or (theirs and a.inner):
        return "a scatter is not part of a reduction"
    if a.device == "cpu" and bool(ours) != bool(theirs):
        return "a scatter is one thread's work on a CPU"
    return ""
