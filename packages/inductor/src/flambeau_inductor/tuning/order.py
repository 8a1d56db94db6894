"""Which groups of a schedule may be joined: nothing must run between them, and there may be no
circle of joined groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.scheduler.groups import dependencies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.nodes import Lowered
    from flambeau_inductor.scheduler.groups import Group


class GroupOrder:
    """The dependencies among the groups of a schedule, with some joined."""

    def __init__(self, lowered: Lowered, groups: Sequence[Group]) -> None:
        owner = {id(node): number for number, group in enumerate(groups) for node in group.nodes}
        nodes = lowered.nodes
        self.before: list[set[int]] = [set() for _ in groups]
        for node, needs in zip(nodes, dependencies(lowered), strict=True):
            number = owner[id(node)]
            self.before[number] |= {owner[id(nodes[need])] for need in needs} - {number}
        self.joined: dict[int, int] = {}

    def is_joined(self, number: int) -> bool:
        """Whether a group has been joined to another, or another to it."""
        return number in self.joined or number in self.joined.values()

    def may_join(self, first: int, second: int) -> bool:
        """Whether nothing has to run behind `first` and before `second`, which needs it."""
        start = {self.head(n) for n in self.before[second]} - {self.head(first)}
        return not self.reaches(start, first)

    def join(self, first: int, second: int) -> None:
        """Run `second` as a part of `first`."""
        self.joined[second] = first
        self.before[first] |= self.before[second]
        self.before[first] -= {first, second}
        self.before[second] = {first}

    def head(self, number: int) -> int:
        """The group that a group has been joined to, or itself."""
        return self.joined.get(number, number)

    def reaches(self, start: set[int], goal: int) -> bool:
        """Whether any of `start` has to run behind `goal`."""
        seen: set[int] = set()
        pending = list(start)
        while pending:
            number = pending.pop()
            if number == goal:
                return True
            if number not in seen:
                seen.add(number)
                pending += {self.head(n) for n in self.before[number]} - seen
        return False

    def sorted(self) -> list[int]:
        """The numbers of the groups that are joined to no other, in an order that respects all
        dependencies, as close to their own as possible.
        """
        needs = {
            number: {self.head(each) for each in before} - {number}
            for number, before in enumerate(self.before)
            if number not in self.joined
        }
        done: set[int] = set()
        pending = list(needs)
        result: list[int] = []
        while pending:
            number = next(n for n in pending if needs[n] <= done)
            pending.remove(number)
            done.add(number)
            result.append(number)
        return result
