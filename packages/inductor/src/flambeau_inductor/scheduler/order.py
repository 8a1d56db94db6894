"""Order groups so that the program holds less memory at its peak.

    buf0 = extern (large); buf1 = extern (large); buf2 = sum(buf0); buf3 = sum(buf1)
->  buf0; buf2; buf1; buf3

A list scheduler: of the groups whose predecessors have run, the one that adds least memory runs
next; of several such, the first in the program. The order is taken only if the peak is lower than
that of the program's order by more than a fiftieth: neighbours in the program mostly share what is
in a cache.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from flambeau_inductor.nodes import TensorRef
from flambeau_inductor.scheduler.groups import awaited
from flambeau_inductor.scheduler.memory import bytes_of

if TYPE_CHECKING:
    from flambeau_inductor.nodes import Lowered
    from flambeau_inductor.scheduler.groups import Group

LEAST_GAIN = 0.02


def order_groups(
    lowered: Lowered, groups: list[Group], needs: list[set[int]], spends_inputs: bool = False
) -> list[Group]:
    """The groups in an order that respects `needs`: for each node, those that come before it."""
    if len(groups) < 3:
        return groups
    memory = PeakMemory(lowered, groups, spends_inputs)
    given = memory.peak(range(len(groups)))
    if given <= memory.least_peak():
        return groups
    order = memory.schedule(groups_behind(lowered, groups, needs))
    if memory.peak(order) > given * (1 - LEAST_GAIN):
        return groups
    return [groups[number] for number in order]


def groups_behind(lowered: Lowered, groups: list[Group], needs: list[set[int]]) -> list[set[int]]:
    """For each group, those that must run behind it; `needs`: for each node, those before it."""
    position = {id(node): number for number, node in enumerate(lowered.nodes)}
    owner = {
        position[id(node)]: number for number, group in enumerate(groups) for node in group.nodes
    }
    result: list[set[int]] = [set() for _ in groups]
    for number, before in enumerate(needs):
        for other in before:
            if owner[other] != owner[number]:
                result[owner[other]].add(owner[number])
    return result


class PeakMemory:
    """What each group makes, and what is free when the last of its users has run."""

    def __init__(self, lowered: Lowered, groups: list[Group], spends_inputs: bool) -> None:
        # The result of a wait is the memory of what it waits for.
        of: dict[str, str] = {}
        for group in groups:
            if started := awaited(group):
                of.update(dict.fromkeys(group.nodes[0].writes, of.get(started, started)))
        kept = {out.buffer for out in lowered.outputs if isinstance(out, TensorRef)}
        kept = {of.get(name, name) for name in kept}
        touched = [
            {of.get(name, name) for node in group.nodes for name in node.reads | node.writes}
            for group in groups
        ]
        self.users: dict[str, set[int]] = {}
        for number, names in enumerate(touched):
            for name in names:
                self.users.setdefault(name, set()).add(number)
        self.size: dict[str, int] = {}
        self.freed: set[str] = set()
        """The buffers that are freed behind their last use."""
        self.held = 0
        for name, users in self.users.items():
            role = lowered.buffers[name].role
            internal = len(users) == 1 and role == "computed" and name not in kept
            if internal and not groups[min(users)].is_extern:
                continue
            if role == "input":
                if not spends_inputs or name in lowered.write_counts:
                    continue
            self.size[name] = bytes_of(lowered, name)
            if role == "input":
                self.held += self.size[name]
            if name not in kept:
                self.freed.add(name)
        self.touched = [sorted(names & self.size.keys()) for names in touched]
        self.inputs = {name for name in self.size if lowered.buffers[name].role == "input"}

    def peak(self, order: range | list[int]) -> int:
        """The most bytes that are alive at a time, if the groups run in this order."""
        left = {name: len(self.users[name]) for name in self.size}
        alive = most = self.held
        made = set(self.inputs)
        for number in order:
            for name in self.touched[number]:
                if name not in made:
                    made.add(name)
                    alive += self.size[name]
            most = max(most, alive)
            for name in self.touched[number]:
                left[name] -= 1
                if not left[name] and name in self.freed:
                    alive -= self.size[name]
        return most

    def least_peak(self) -> int:
        """A bound that no order gets below: what one group touches, and what is there at an end."""
        outputs = sum(size for name, size in self.size.items() if name not in self.freed)
        widest = max(sum(self.size[name] for name in names) for names in self.touched)
        return max(self.held, outputs, widest)

    def schedule(self, successors: list[set[int]]) -> list[int]:
        """The numbers of the groups in the order of the list scheduler."""
        waiting = [0] * len(successors)
        for behind in successors:
            for number in behind:
                waiting[number] += 1
        left = {name: set(self.users[name]) for name in self.size}
        made = set(self.inputs)
        change = [self._change(number, left, made) for number in range(len(successors))]
        ready = [(change[n], n) for n, count in enumerate(waiting) if not count]
        ready.sort()
        order: list[int] = []
        done = [False] * len(successors)
        while ready:
            cost, number = heappop(ready)
            if done[number] or cost != change[number]:
                continue  # an entry from before its cost changed
            done[number] = True
            order.append(number)
            changed: set[int] = set()
            for name in self.touched[number]:
                left[name].discard(number)
                if name not in made:
                    made.add(name)
                    changed |= left[name]
                elif len(left[name]) == 1:
                    changed |= left[name]
            for other in successors[number]:
                waiting[other] -= 1
                if not waiting[other]:
                    heappush(ready, (change[other], other))
            for other in changed:
                cost = self._change(other, left, made)
                if cost != change[other]:
                    change[other] = cost
                    if not waiting[other]:
                        heappush(ready, (cost, other))
        return order

    def _change(self, number: int, left: dict[str, set[int]], made: set[str]) -> int:
        """By how much the memory grows when a group has run."""
        total = 0
        for name in self.touched[number]:
            if name not in made:
                total += self.size[name]
            if name in self.freed and len(left[name]) == 1:
                total -= self.size[name]
        return total
