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
from flambeau_inductor.scheduler.memory import bytes_alive, bytes_of

if TYPE_CHECKING:
    from flambeau_inductor.ir import ScheduledKernel
    from flambeau_inductor.nodes import Lowered
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_inductor.scheduler.memory import MemoryPlan

MOST_PARTS, MOST_BUFFERS = 24, 100
LARGEST_PART = 1 << 22
"""A kernel over more points takes much longer than its launch."""

MOST_GATHERED = 1 << 24
"""Bytes that kernels may write before their results are needed."""

LEAST_RISE, RISE = 1 << 20, 1 / 400
"""By how many bytes, or by what share, that may raise the peak of memory, inputs included."""


def gather(
    lowered: Lowered,
    groups: list[Group],
    needs: list[set[int]],
    options: InductorOptions,
    spends_inputs: bool = False,
) -> list[Group]:
    """The groups with those that only read inputs moved to the first such: they may share a launch.
    `needs`: for each node, those that come before it. The peak of memory rises by little at most.
    """
    free = {id(node) for node, before in zip(lowered.nodes, needs, strict=True) if not before}
    leaves = [step for step, group in enumerate(groups) if _is_leaf(lowered, group, free)]
    if len(leaves) < 2:
        return groups
    alive = bytes_alive(lowered, groups, options, spends_inputs)
    inputs = [name for name, buffer in lowered.buffers.items() if buffer.role == "input"]
    peak = max(alive) + sum(bytes_of(lowered, name) for name in inputs)
    most = max(alive) + max(LEAST_RISE, int(RISE * peak))
    places = [[group] for group in groups]
    first, written, parts = -1, 0, 0
    for step in leaves:
        size = sum(bytes_of(lowered, name) for name in groups[step].stores)
        if (
            first < 0
            or written + size > MOST_GATHERED
            or parts == MOST_PARTS
            or max(alive[first:step]) + size > most
        ):
            first, written, parts = step, 0, 0
        else:
            places[first] += places[step]
            places[step] = []
            for at in range(first, step):
                alive[at] += size
        written, parts = written + size, parts + 1
    return [group for place in places for group in place]


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
