"""Which kernels share one launch: small neighbours of which none needs another. Those that read
inputs only are made neighbours.

    launch cast of w0; call; launch cast of w1; call      ->      launch both casts; call; call

Their order among each other is lost, so no kernel may write memory that another touches; memory
that dies with one lives to the end of the launch.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from flambeau_inductor.ir import CheckIndex
from flambeau_inductor.scheduler.match_axes import numel
from flambeau_inductor.scheduler.memory import bytes_of

if TYPE_CHECKING:
    from flambeau_inductor.ir import ScheduledKernel
    from flambeau_inductor.nodes import Lowered
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_inductor.scheduler.memory import MemoryPlan

MOST_PARTS, MOST_BUFFERS = 24, 100
LARGEST_PART = 1 << 22
"""A kernel over more points takes much longer than its launch."""

MOST_GATHERED = 1 << 24
"""Bytes that kernels may write before their results are needed."""


def gather(lowered: Lowered, groups: list[Group], needs: list[set[int]]) -> list[Group]:
    """The groups with those that only read inputs moved to the first such: they may share a launch.
    `needs`: for each node, those that come before it.
    """
    free = {id(node) for node, before in zip(lowered.nodes, needs, strict=True) if not before}
    result: list[list[Group]] = []
    open_at, written, parts = -1, 0, 0
    for group in groups:
        result.append([group])
        if not _is_leaf(lowered, group, free):
            continue
        size = sum(bytes_of(lowered, name) for name in group.stores)
        if open_at < 0 or written + size > MOST_GATHERED or parts == MOST_PARTS:
            open_at, written, parts = len(result) - 1, 0, 0
        else:
            result[open_at] += result.pop()
        written, parts = written + size, parts + 1
    return [group for place in result for group in place]


def _is_leaf(lowered: Lowered, group: Group, free: set[int]) -> bool:
    """Whether a group only computes a few elements from inputs."""
    return (
        not group.is_extern
        and group.device != "cpu"
        and all(id(node) in free and not node.relies_on_checks for node in group.nodes)
        and all(lowered.buffers[name].role == "input" for name in group.loads)
        and not any(lowered.buffers[name].role == "input" for name in group.stores)
        and lowered.sizes.hint(numel(group.outer + group.inner)) <= LARGEST_PART
    )


def combinable(
    lowered: Lowered, groups: list[Group], memory: MemoryPlan, kernels: dict[int, ScheduledKernel]
) -> list[list[int]]:
    """Runs of at least two steps whose kernels may run at once, on a GPU."""
    runs: list[_Run] = [_Run()]
    roots = _roots(memory)
    inputs = {name for name, buffer in lowered.buffers.items() if buffer.role == "input"}
    for step in range(len(groups)):
        if step not in kernels:
            runs.append(_Run())
            continue
        launch = kernels[step]
        reads = {roots.get(name, name) for name in launch.buffers}
        writes = {
            roots.get(name, name)
            for name, param in zip(launch.buffers, launch.kernel.params, strict=True)
            if param.access != "read"
        }
        small = (
            launch.device.startswith("cuda")
            and not launch.ints
            and not launch.kernel.sizes
            # Products, and what was measured alone.
            and launch.tiling is None
            and not any(isinstance(statement, CheckIndex) for statement in launch.kernel.body)
            and _points(launch) <= LARGEST_PART
            and writes.isdisjoint(inputs)
        )
        if not small:
            runs.append(_Run())
            continue
        if not runs[-1].takes(launch, reads, writes):
            runs.append(_Run())
        runs[-1].add(step, launch, reads, writes)
    return [run.steps for run in runs if len(run.steps) > 1]


class _Run:
    """Steps that may run at once, and the memory that they touch."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.buffers = 0
        self.reads: set[str] = set()
        self.writes: set[str] = set()

    def takes(self, launch: ScheduledKernel, reads: set[str], writes: set[str]) -> bool:
        """Whether one more kernel may run with these."""
        return (
            len(self.steps) < MOST_PARTS
            and self.buffers + len(launch.buffers) <= MOST_BUFFERS
            and self.writes.isdisjoint(reads | writes)
            and writes.isdisjoint(self.reads)
        )

    def add(self, step: int, launch: ScheduledKernel, reads: set[str], writes: set[str]) -> None:
        """Take one more kernel."""
        self.steps.append(step)
        self.buffers += len(launch.buffers)
        self.reads |= reads
        self.writes |= writes


def _points(launch: ScheduledKernel) -> int:
    kernel = launch.kernel
    return prod(int(axis.size) for axis in (*kernel.outer, *kernel.inner))


def _roots(memory: MemoryPlan) -> dict[str, str]:
    """For each buffer that takes over another's memory, the first one there."""
    roots: dict[str, str] = {}
    for allocations in memory.allocate:
        for each in allocations:
            if each.reuse is not None:
                roots[each.buffer] = roots.get(each.reuse, each.reuse)
    return roots
