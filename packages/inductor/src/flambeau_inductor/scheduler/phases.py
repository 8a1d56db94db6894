"""Cut a kernel's flat body into loops, for code generators that cannot keep a whole row in
registers.

Softmax (see `ir`) becomes: an inner loop to the maximum; an inner loop over `sub`, `exp` to the
sum; an inner loop that computes `sub`, `exp` again, divides and stores. Values that cost more than
`keep_cost` to compute again are named in `Phase.keeps` instead, and the generator keeps them in a
row of scratch memory. A Scan runs in each loop that needs it, or is kept. A Sort needs its whole
row before its first result: later loops read the sorted row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import (
    CheckIndex,
    Compute,
    Load,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
    defined_name,
    index_of,
    inner_names,
    is_inner,
    operands,
)
from flambeau_inductor.scalar_ops import SCALAR_OPS
from flambeau_inductor.scheduler.deferred_reductions import find_deferrals

if TYPE_CHECKING:
    from flambeau_inductor.ir import Body, LoopKernel
    from flambeau_inductor.scheduler.deferred_reductions import Deferral


@dataclass(frozen=True)
class Phase:
    """A part of a kernel: row statements, then (if `inner` is not empty) one loop over the inner
    axes, then its Reduces and Sorts.

    `keeps`: inner values of this phase that later phases read: store them in a row of scratch.
    `fetches`: those that this phase's inner statements read from there. `sorted`: the Sorts of
    earlier phases that this phase reads. `deferrals`: the loop is for nothing unless one of their
    conditions holds; their bodies, which no phase has among its row statements, come behind it.
    """

    row: Body
    inner: Body
    reduces: tuple[Reduce, ...]
    keeps: tuple[str, ...] = ()
    fetches: tuple[str, ...] = ()
    sorts: tuple[Sort, ...] = ()
    sorted: tuple[Sort, ...] = ()
    deferrals: tuple[Deferral, ...] = ()


def split_phases(
    kernel: LoopKernel, keep_cost: int | None = None, *, defers: bool = False
) -> tuple[Phase, ...]:
    """The phases of a kernel in order. `keep_cost=None`: all values are recomputed, none kept.

    `defers`: a Reduce that counts only where a condition holds gets a loop behind that condition.
    """
    if not kernel.inner:
        return (Phase(kernel.body, (), ()),)
    return _Splitter(kernel, keep_cost, defers=defers).split()


class _Splitter:
    def __init__(self, kernel: LoopKernel, keep_cost: int | None, *, defers: bool) -> None:
        self.body = kernel.body
        self.keep_cost = keep_cost
        self.inner = inner_names(kernel.body, kernel.inner)
        self.defined = {s.name: s for s in self.body if not isinstance(s, (Store, CheckIndex))}
        self.level: dict[str, int] = {}
        self.home: dict[str, int] = {}
        """The phase that computes an inner value: the first that needs it, whatever conditions."""
        self.deferrals = find_deferrals(self.body, self.inner) if defers else []
        self.earliest: dict[str, int] = {}
        """The phase of each deferred Reduce."""

    def levels(self) -> list[int]:
        """The phase of each statement. Deferred Reduces have phases that nothing else needs."""
        level_of = [self.level_of(statement) for statement in self.body]
        accepted: list[Deferral] = []
        for deferral in self.deferrals:
            before = dict(self.earliest)
            level = self.level[deferral.condition]
            self.earliest |= dict.fromkeys(deferral.reduces, level)
            deferred = [self.level_of(statement) for statement in self.body]
            if self.can_defer([*accepted, deferral], self.roots(deferred)):
                accepted.append(deferral)
                level_of = deferred
            else:
                self.earliest = before
                level_of = [self.level_of(statement) for statement in self.body]
        self.deferrals = accepted
        return level_of

    def can_defer(self, deferrals: list[Deferral], roots: list[list[Statement]]) -> bool:
        """Whether phases are for deferred Reduces alone, with all that stands in their place."""

        def ready(name: str) -> int:
            return self.level[name] + isinstance(self.defined[name], (Reduce, Sort))

        return all(
            ready(name) <= self.earliest[reduce]
            for deferral in deferrals
            for reduce in deferral.reduces
            for name in (deferral.condition, *(choice.args[2] for choice in deferral.choices))
        ) and all(
            isinstance(root, Reduce) and root.name in self.earliest
            for level in set(self.earliest.values())
            for root in roots[level]
        )

    def split(self) -> tuple[Phase, ...]:
        level_of = self.levels()
        count = max(level_of, default=0) + 1
        rows: list[list[Statement]] = [[] for _ in range(count)]
        late = {s.name for deferral in self.deferrals for s in deferral.body}
        for statement, level in zip(self.body, level_of, strict=True):
            if defined_name(statement) in late:
                continue
            if not isinstance(statement, Reduce) and not is_inner(statement, self.inner):
                rows[level].append(statement)
        roots = self.roots(level_of)
        needed = [self.closure(level, roots[level]) for level in range(count)]
        while self.postpone_stores(level_of, needed):
            roots = self.roots(level_of)
            needed = [self.closure(level, roots[level]) for level in range(count)]
        deferring = set(self.earliest.values())
        for level, names in enumerate(needed):
            for name in names if level not in deferring else ():
                self.home.setdefault(name, level)
        kept = self.choose_kept([n for i, n in enumerate(needed) if i not in deferring])
        phases = []
        for level in range(count):
            names = self.closure(level, roots[level], kept)
            inner = tuple(
                s
                for s, depth in zip(self.body, level_of, strict=True)
                if (
                    isinstance(s, (Store, CheckIndex))
                    and depth == level
                    and is_inner(s, self.inner)
                )
                or (
                    (result := defined_name(s)) in names
                    and not self.is_fetched(str(result), kept, level)
                )
            )
            keeps = tuple(str(result) for s in inner if (result := defined_name(s)) in kept)
            fetches = tuple(n for n in self.body_order(names) if self.is_fetched(n, kept, level))
            reduces = tuple(s for s in roots[level] if isinstance(s, Reduce))
            sorts = tuple(s for s in roots[level] if isinstance(s, Sort))
            read = {name for s in (*inner, *reduces, *sorts) for name in self.reads(s)}
            done = tuple(s for s in self.body if isinstance(s, Sort) and s.name in read)
            names_of_reduces = {reduce.name for reduce in reduces}
            deferred = tuple(d for d in self.deferrals if d.reduces <= names_of_reduces)
            row = tuple(rows[level])
            phases.append(Phase(row, inner, reduces, keeps, fetches, sorts, done, deferred))
        return tuple(phases)

    def roots(self, level_of: list[int]) -> list[list[Statement]]:
        """Of each phase, what its loop over the inner axes is for."""
        roots: list[list[Statement]] = [[] for _ in range(max(level_of, default=0) + 1)]
        for statement, level in zip(self.body, level_of, strict=True):
            if isinstance(statement, Reduce) or (
                isinstance(statement, (Sort, Store, CheckIndex)) and is_inner(statement, self.inner)
            ):
                roots[level].append(statement)
        return roots

    def postpone_stores(self, level_of: list[int], needed: list[set[str]]) -> bool:
        """Move each Store to the last phase that loads what it overwrites, and behind the Stores
        that it overwrites; whether one was moved.
        """
        last: dict[str, int] = {}
        is_moved = False
        for position, statement in enumerate(self.body):
            if isinstance(statement, Load):
                loaded_by = (level for level, names in enumerate(needed) if statement.name in names)
                last[statement.buffer] = max(last.get(statement.buffer, 0), *loaded_by, 0)
            elif isinstance(statement, Store) and is_inner(statement, self.inner):
                level = max(level_of[position], last.get(statement.buffer, 0))
                is_moved |= level > level_of[position]
                last[statement.buffer] = level_of[position] = level
        return is_moved

    def level_of(self, statement: Statement) -> int:
        """The number of Reduces and Sorts before a statement; these are in the loop that feeds
        them.
        """
        level = 0
        for name in self.reads(statement):
            behind = 1 if isinstance(self.defined[name], (Reduce, Sort)) else 0
            level = max(level, self.level[name] + behind)
        level = max(level, self.earliest.get(defined_name(statement) or "", 0))
        if not isinstance(statement, (Store, CheckIndex)):
            self.level[statement.name] = level
        return level

    def reads(self, statement: Statement) -> list[str]:
        """The values a statement reads, those of its index expression included."""
        names = list(operands(statement))
        index = index_of(statement)
        if index is not None:
            names += [name for name in sorted(free_names(index)) if name in self.defined]
        return names

    def closure(
        self, level: int, roots: list[Statement], kept: frozenset[str] = frozenset()
    ) -> set[str]:
        """The inner values that a phase's loop needs, without those that earlier phases kept."""
        result: set[str] = set()
        pending = [name for root in roots for name in self.reads(root)]
        while pending:
            name = pending.pop()
            whole = isinstance(self.defined[name], (Reduce, Sort))
            if name in result or name not in self.inner or whole:
                continue
            result.add(name)
            if not self.is_fetched(name, kept, level):
                pending += self.reads(self.defined[name])
        return result

    def is_fetched(self, name: str, kept: frozenset[str], level: int) -> bool:
        """Whether a phase reads a value that an earlier phase has kept."""
        return name in kept and self.home[name] < level

    def choose_kept(self, needed: list[set[str]]) -> frozenset[str]:
        """Values needed in several phases whose cost, from kept ones on, exceeds `keep_cost`."""
        if self.keep_cost is None:
            return frozenset()
        several = {n for n in set().union(*needed) if sum(n in names for names in needed) > 1}
        kept: set[str] = set()
        cost: dict[str, int] = {}
        for statement in self.body:
            name = defined_name(statement)
            if name is None or name not in self.inner:
                continue
            own = (
                SCALAR_OPS[statement.op].cost
                if isinstance(statement, Compute)
                else isinstance(statement, (Load, Scan))
            )
            cost[name] = own + sum(
                0 if arg in kept else cost.get(arg, 0) for arg in self.reads(statement)
            )
            if name in several and cost[name] > self.keep_cost and not isinstance(statement, Load):
                kept.add(name)
        return frozenset(kept)

    def body_order(self, names: set[str]) -> list[str]:
        return [name for s in self.body if (name := defined_name(s)) in names]
