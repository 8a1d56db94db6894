"""Which kernels share one launch: small neighbours of which none needs another. Those that read
inputs only are made neighbours, and those that nothing in the program needs.

    launch cast of w0; call; launch cast of w1; call      ->      launch both casts; call; call
    call; launch last sum of g0; call; launch last sum of g1  ->  call; call; launch both sums

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
    from collections.abc import Iterable, Iterator, Sequence

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
    """The groups with those that only read inputs moved to the first such, and those that only
    compute outputs to the last such: they may share a launch. `needs`: for each node, those that
    come before it. The peak of memory rises by little at most.
    """
    free = {id(node) for node, before in zip(lowered.nodes, needs, strict=True) if not before}
    leaves = [step for step, group in enumerate(groups) if _is_leaf(lowered, group, free)]
    needed = _needed_groups(lowered, groups, needs)
    ends = [
        step
        for step, group in enumerate(groups)
        if step not in needed and step not in leaves and _is_end(lowered, group)
    ]
    if max(len(leaves), len(ends)) < 2:
        return groups
    room = _Room(lowered, bytes_alive(lowered, groups, options, spends_inputs))
    places = [[group] for group in groups]
    for start, steps in room.batches(leaves, [groups[step].stores for step in leaves]):
        places[start] += [groups[step] for step in steps]
        for step in steps:
            places[step].remove(groups[step])
    ends.reverse()
    for end, steps in room.batches(
        ends, [groups[step].loads.keys() - groups[step].stores.keys() for step in ends]
    ):
        places[end][:0] = [groups[step] for step in reversed(steps)]
        for step in steps:
            places[step].remove(groups[step])
    return [group for place in places for group in place]


class _Room:
    """How many bytes are alive in each step of the program, and how many may be."""

    def __init__(self, lowered: Lowered, alive: list[int]) -> None:
        self.lowered = lowered
        self.alive = alive
        inputs = [name for name, buffer in lowered.buffers.items() if buffer.role == "input"]
        peak = max(alive) + sum(bytes_of(lowered, name) for name in inputs)
        self.most = max(alive) + max(LEAST_RISE, int(RISE * peak))

    def batches(
        self, steps: list[int], held: Sequence[Iterable[str]]
    ) -> Iterator[tuple[int, list[int]]]:
        """Steps that move to another of them, the first, each batch. `held` are the buffers of each
        that are alive from there to where it is now.
        """
        start, written = -1, 0
        moved: list[int] = []
        for step, names in zip(steps, held, strict=True):
            size = sum(bytes_of(self.lowered, name) for name in names)
            between = range(start, step) if start < step else range(step + 1, start + 1)
            if (
                start >= 0
                and written + size <= MOST_GATHERED
                and len(moved) + 1 < MOST_PARTS
                and max(self.alive[at] for at in between) + size <= self.most
            ):
                moved.append(step)
                for at in between:
                    self.alive[at] += size
            else:
                if moved:
                    yield start, moved
                start, moved, written = step, [], 0
            written += size
        if moved:
            yield start, moved


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


def _needed_groups(lowered: Lowered, groups: list[Group], needs: list[set[int]]) -> set[int]:
    """The groups that must run before other ones."""
    position = {id(node): number for number, node in enumerate(lowered.nodes)}
    owner = {position[id(node)]: step for step, group in enumerate(groups) for node in group.nodes}
    return {
        owner[other]
        for number, before in enumerate(needs)
        for other in before
        if owner[other] != owner[number]
    }


def _is_end(lowered: Lowered, group: Group) -> bool:
    """Whether a group that no other needs computes a few elements that leave the program."""
    return (
        not group.is_extern
        and group.device != "cpu"
        and not any(node.relies_on_checks for node in group.nodes)
        and all(lowered.buffers[name].role == "computed" for name in group.stores)
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
