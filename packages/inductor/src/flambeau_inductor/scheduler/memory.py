"""Plan memory: when each buffer comes to be, when it dies, and whose memory it takes over.

step 0 writes buf0; step 1 reads buf0, writes buf1; step 2 reads buf1, writes buf2 (as large as
buf0)
->  buf0: steps 0-1; buf1: steps 1-2; buf2: from step 2, in the memory of buf0
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.nodes import ExternCall, TensorRef

if TYPE_CHECKING:
    from flambeau_inductor.nodes import Lowered
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.scheduler.groups import Group


@dataclass(slots=True)
class MemoryPlan:
    """Per step: `allocate` before it, as (buffer, buffer whose memory it takes over or None);
    `free` behind it.

    `internal`: buffers that live inside one kernel only, and get no memory.
    """

    internal: set[str]
    allocate: list[list[tuple[str, str | None]]]
    free: list[list[str]]
    unused: list[str] = field(default_factory=list)  # computed by nobody, read by the caller only


def plan_memory(lowered: Lowered, groups: list[Group], options: InductorOptions) -> MemoryPlan:
    """Lifetimes and reuse for the buffers of a scheduled graph."""
    return _Planner(lowered, groups, options).plan()


class _Planner:
    def __init__(self, lowered: Lowered, groups: list[Group], options: InductorOptions) -> None:
        self.lowered = lowered
        self.groups = groups
        self.options = options
        self.kept = {out.buffer for out in lowered.outputs if isinstance(out, TensorRef)}
        self.uses: dict[str, list[int]] = {}
        for step, group in enumerate(groups):
            for name in self.touched(group):
                self.uses.setdefault(name, []).append(step)

    @staticmethod
    def touched(group: Group) -> set[str]:
        """The buffers that a group reads or writes."""
        return set().union(*(node.reads | node.writes for node in group.nodes))

    def plan(self) -> MemoryPlan:
        count = len(self.groups)
        internal = self.internal()
        allocate: list[list[tuple[str, str | None]]] = [[] for _ in range(count)]
        dies: list[list[str]] = [[] for _ in range(count)]
        born: list[list[str]] = [[] for _ in range(count)]
        buffers = self.lowered.buffers
        for name, steps in self.uses.items():
            if name in internal or buffers[name].role == "input":
                continue
            if buffers[name].role == "computed":
                born[steps[0]].append(name)
            if name not in self.kept:
                dies[steps[-1]].append(name)
        pinned = self.aliased()
        pool: dict[tuple[object, ...], list[str]] = {}
        taken: set[str] = set()
        for step in range(count):
            for name in sorted(born[step], key=_number):
                waiting = pool.get(self.size_key(name), []) if self.options.reuse_memory else []
                reuse = waiting.pop() if waiting else None
                if reuse is not None:
                    taken.add(reuse)
                allocate[step].append((name, reuse))
            for name in sorted(dies[step], key=_number):
                if buffers[name].role == "computed" and name not in pinned:
                    pool.setdefault(self.size_key(name), []).append(name)
        free = [
            [name for name in sorted(names, key=_number) if name not in taken] for names in dies
        ]
        unused = [
            n
            for n, b in buffers.items()
            if b.role == "computed" and n not in self.uses and n in self.kept
        ]
        return MemoryPlan(internal, allocate, free, unused)

    def internal(self) -> set[str]:
        """Computed buffers that one kernel writes and only that kernel reads."""
        result = set()
        for name, steps in self.uses.items():
            group = self.groups[steps[0]]
            if (
                len(steps) == 1
                and name not in self.kept
                and self.lowered.buffers[name].role == "computed"
                and not group.is_extern
                and name in group.stores
            ):
                result.add(name)
        return result

    def aliased(self) -> set[str]:
        """Buffers that the result of an extern call may alias: their memory is not reused."""
        result: set[str] = set()
        for group in self.groups:
            node = group.nodes[0]
            if isinstance(node, ExternCall) and node.may_alias:
                result |= node.reads
        return result

    def size_key(self, name: str) -> tuple[object, ...]:
        """Buffers with equal keys can use each other's memory: byte size and device."""
        spec = self.lowered.buffers[name].spec
        sizes = self.lowered.sizes
        extent: sympy.Expr = sympy.S.One
        for size, stride in zip(
            sizes.convert_all(spec.shape), sizes.convert_all(spec.stride), strict=True
        ):
            if size is sympy.S.Zero:
                return (name,)
            extent = extent + (size - 1) * stride
        return sympy.expand(extent * spec.dtype.itemsize), str(spec.device)


def _number(name: str) -> int:
    return int(name.removeprefix("buf"))
