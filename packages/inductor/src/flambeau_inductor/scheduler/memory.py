"""Plan memory: when each buffer comes to be, when it dies, and whose memory it takes over.

step 0 writes buf0; step 1 reads buf0, writes buf1 at the places where it reads buf0; step 2 reads
buf1, writes buf2 (as large as buf1) at other places; step 3 reads buf2, writes buf3
->  buf0: step 0; buf1: steps 1-2, in the memory of buf0; buf2: steps 2-3; buf3: from step 3, in the
memory of buf1, which nobody needs any more

Memory waits for a later buffer only where that does not raise the program's peak.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.nodes import ExternCall, TensorRef
from flambeau_inductor.scheduler.overwrite import Overwrites
from flambeau_prims.sizes import hint_of

if TYPE_CHECKING:
    from flambeau_inductor.indexing.sizes import SizeTable
    from flambeau_inductor.nodes import Lowered
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_prims.spec import Spec


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory for a buffer: fresh, or that of the dead buffer `reuse`; with `in_place` the kernel
    that follows reads `reuse` from it while it writes the buffer.
    """

    buffer: str
    reuse: str | None = None
    in_place: bool = False


@dataclass(slots=True)
class MemoryPlan:
    """Per step: `allocate` before it; `free` behind it.

    `internal`: buffers that live inside one kernel only, and get no memory.
    """

    internal: set[str]
    allocate: list[list[Allocation]]
    free: list[list[str]]
    unused: list[str] = field(default_factory=list)  # computed by nobody, read by the caller only

    def overwritten(self, step: int) -> dict[str, str]:
        """The buffers that the kernel of a step overwrites as it reads them, and with which."""
        return {a.reuse: a.buffer for a in self.allocate[step] if a.in_place and a.reuse}


def plan_memory(
    lowered: Lowered, groups: list[Group], options: InductorOptions, spends_inputs: bool = False
) -> MemoryPlan:
    """Lifetimes and reuse for the buffers of a scheduled graph. `spends_inputs`: inputs are freed
    behind their last use.
    """
    return _Planner(lowered, groups, options, spends_inputs).plan()


def bytes_alive(
    lowered: Lowered, groups: list[Group], options: InductorOptions, spends_inputs: bool = False
) -> list[int]:
    """The bytes that are alive in each step of that plan, inputs that are not spent left out."""
    planner = _Planner(lowered, groups, options, spends_inputs)
    planner.find_lifetimes()
    return planner.live_bytes(planner.in_place() if options.reuse_memory else {})


class _Planner:
    def __init__(
        self, lowered: Lowered, groups: list[Group], options: InductorOptions, spends_inputs: bool
    ) -> None:
        self.lowered = lowered
        self.groups = groups
        self.options = options
        self.spends_inputs = spends_inputs
        self.kept = {out.buffer for out in lowered.outputs if isinstance(out, TensorRef)}
        self.uses: dict[str, list[int]] = {}
        for step, group in enumerate(groups):
            for name in self.touched(group):
                self.uses.setdefault(name, []).append(step)
        self.pinned = self.aliased()
        self.born: list[list[str]] = [[] for _ in groups]
        self.dies: list[list[str]] = [[] for _ in groups]
        self.internal = {name for name in self.uses if self.is_internal(name)}
        self.sizes: dict[str, int] = {}
        """Hints of the bytes of the buffers that get memory or free it."""

    @staticmethod
    def touched(group: Group) -> set[str]:
        """The buffers that a group reads or writes."""
        return set().union(*(node.reads | node.writes for node in group.nodes))

    def plan(self) -> MemoryPlan:
        self.find_lifetimes()
        taken: dict[str, Allocation] = {}
        if self.options.reuse_memory:
            taken = self.in_place()
            self.wait_for_memory(taken)
        allocate = [
            [taken.get(name) or Allocation(name) for name in sorted(names, key=_number)]
            for names in self.born
        ]
        reused = {each.reuse for each in taken.values()}
        free = [
            [name for name in sorted(names, key=_number) if name not in reused]
            for names in self.dies
        ]
        unused = [
            n
            for n, b in self.lowered.buffers.items()
            if b.role == "computed" and n not in self.uses and n in self.kept
        ]
        return MemoryPlan(self.internal, allocate, free, unused)

    # Lifetimes

    def find_lifetimes(self) -> None:
        """Fill `born` and `dies`: the steps before and behind which buffers come and go."""
        buffers = self.lowered.buffers
        mutated = set(self.lowered.write_counts)
        for name, steps in self.uses.items():
            role = buffers[name].role
            if name in self.internal or (
                role == "input" and (not self.spends_inputs or name in mutated)
            ):
                continue
            self.sizes[name] = bytes_of(self.lowered, name)
            if role == "computed":
                self.born[steps[0]].append(name)
            if name not in self.kept:
                self.dies[steps[-1]].append(name)

    def is_internal(self, name: str) -> bool:
        """Whether one kernel writes a computed buffer and only that kernel reads it."""
        steps = self.uses[name]
        group = self.groups[steps[0]]
        return (
            len(steps) == 1
            and name not in self.kept
            and self.lowered.buffers[name].role == "computed"
            and not group.is_extern
            and name in group.stores
        )

    def aliased(self) -> set[str]:
        """Buffers that the result of an extern call may alias: their memory is not reused."""
        result: set[str] = set()
        for group in self.groups:
            node = group.nodes[0]
            if isinstance(node, ExternCall) and node.may_alias:
                result |= node.reads
        return result

    # Reuse

    def in_place(self) -> dict[str, Allocation]:
        """The buffers that a kernel writes over one that it is the last to read."""
        overwrites = Overwrites(self.lowered, self.groups, self.kept, self.pinned)
        taken: dict[str, Allocation] = {}
        for step, group in enumerate(self.groups):
            smallest = self.options.smallest_overwrite
            free = [
                name
                for name in self.dies[step]
                if name not in self.born[step] and self.sizes[name] >= smallest
            ]
            for name in sorted(self.born[step], key=_number):
                for old in sorted(free, key=_number):
                    if self.size_key(old) == self.size_key(name) and overwrites.allows(
                        group, old, name
                    ):
                        taken[name] = Allocation(name, old, in_place=True)
                        free.remove(old)
                        break
        return taken

    def wait_for_memory(self, taken: dict[str, Allocation]) -> None:
        """Have new buffers take over the memory of dead ones, if the peak does not rise while that
        waits for them. The memory that was freed last is the likeliest to be in a cache.
        """
        live = self.live_bytes(taken)
        limit = max(live, default=0)
        pool: dict[tuple[object, ...], list[tuple[int, str]]] = {}
        in_place = {each.reuse for each in taken.values()}
        for step in range(len(self.groups)):
            for name in sorted(self.born[step], key=_number):
                waiting = pool.get(self.size_key(name))
                if name in taken or not waiting:
                    continue
                died, old = waiting[-1]
                size = self.sizes[name]
                if any(live[at] + size > limit for at in range(died + 1, step)):
                    continue
                waiting.pop()
                for at in range(died + 1, step):
                    live[at] += size
                taken[name] = Allocation(name, old)
            for name in sorted(self.dies[step], key=_number):
                if (
                    self.lowered.buffers[name].role == "computed"
                    and name not in self.pinned
                    and name not in in_place
                ):
                    pool.setdefault(self.size_key(name), []).append((step, name))

    def live_bytes(self, taken: dict[str, Allocation]) -> list[int]:
        """The bytes alive in each step, inputs that are not spent left out."""
        change = [0] * (len(self.groups) + 1)
        for name, size in self.sizes.items():
            steps = self.uses[name]
            role = self.lowered.buffers[name].role
            first = 0 if role == "input" else steps[0]
            if name in taken:
                first += 1  # counted as the memory that it overwrites
            change[first] += size
            if name not in self.kept:
                change[steps[-1] + 1] -= size
        total, result = 0, []
        for delta in change[:-1]:
            total += delta
            result.append(total)
        return result

    def size_key(self, name: str) -> tuple[object, ...]:
        """Buffers with equal keys can use each other's memory: byte size and device."""
        spec = self.lowered.buffers[name].spec
        extent = extent_of(spec, self.lowered.sizes)
        if extent is sympy.S.Zero:
            return (name,)
        return sympy.expand(extent * spec.dtype.itemsize), str(spec.device)


def bytes_of(lowered: Lowered, name: str) -> int:
    """How many bytes a buffer has, for the sizes seen while tracing."""
    spec = lowered.buffers[name].spec
    extent = 1
    for size, stride in zip(spec.shape, spec.stride, strict=True):
        if not hint_of(size):
            return 0
        extent += (hint_of(size) - 1) * hint_of(stride)
    return extent * spec.dtype.itemsize


def extent_of(spec: Spec, table: SizeTable) -> sympy.Expr:
    """How many elements lie between the first and the last, both counted; 0 if there is none."""
    static = [
        (size, stride)
        for size, stride in zip(spec.shape, spec.stride, strict=True)
        if isinstance(size, int) and isinstance(stride, int)
    ]
    if len(static) == len(spec.shape):
        empty = any(size == 0 for size, _ in static)
        return sympy.Integer(0 if empty else 1 + sum((n - 1) * step for n, step in static))
    extent: sympy.Expr = sympy.S.One
    for size, stride in zip(
        table.convert_all(spec.shape), table.convert_all(spec.stride), strict=True
    ):
        if size is sympy.S.Zero:
            return sympy.S.Zero
        extent = extent + (size - 1) * stride
    return sympy.expand(extent)


def _number(name: str) -> int:
    return int(name.lstrip("abfgru"))
