"""Runs of equal items in a sequence: decoder layers in a graph, their steps in a Program.

    a0 = mul(x, w0); b0 = tanh(a0); a1 = mul(b0, w1); b1 = tanh(a1); a2 = mul(b1, w2); b2 = tanh(a2)
->  Run(start=0, length=2, count=3): each copy reads what the copy before defines, and a weight

An item has a token (equal tokens: equal but for the names), the names that it reads and the names
that it defines. In a run every copy has the same tokens, and reads the same names of itself, of the
copies before it (so many copies back) and from outside.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from operator import eq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

CANDIDATES = 16
"""So many distances between equal items are tried."""


@dataclass(frozen=True)
class Run:
    """`count` copies of `length` items from `start` on.

    `outside[c]`: the names from outside the run that copy c reads, each once, in the same order in
    each copy. `reach`: how many copies back a copy reads at most.
    """

    start: int
    length: int
    count: int
    outside: list[list[Any]]
    reach: int

    @property
    def stop(self) -> int:
        """The first item behind the run."""
        return self.start + self.length * self.count

    def longest_linked(self, links: Sequence[bool]) -> Run:
        """The most neighbouring copies of which each is linked to the next one: `links[c]` says
        that of the copies c and c + 1.
        """
        data = bytes(links)
        linked = max(data.split(b"\0"), key=len)
        first, count = data.index(linked), len(linked) + 1
        outside = self.outside[first : first + count]
        start = self.start + first * self.length
        return replace(self, start=start, count=count, outside=outside)

    def place(self, item: int) -> tuple[int, int] | None:
        """The copy of an item, and its position in that; None outside the run."""
        if not self.start <= item < self.stop:
            return None
        return divmod(item - self.start, self.length)


def repeated_runs(
    tokens: Sequence[int],
    reads: Sequence[Sequence[Hashable]],
    definitions: Sequence[Sequence[Hashable]],
    least: int,
) -> Iterator[Run]:
    """The runs that have `least` copies, those of most items first, of several such that of the
    shortest copies.
    """
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for index, token in enumerate(tokens):
        if token in last:
            gaps[index - last[token]] += 1
        last[token] = index
    candidates: list[tuple[int, int, int, int]] = []
    for gap, occurrences in gaps.most_common(CANDIDATES):
        if occurrences < least - 1:
            break
        start = 0
        for stretch in bytes(map(eq, tokens, tokens[gap:])).split(b"\0"):
            count = len(stretch) // gap + 1
            if count >= least:
                candidates.append((-(len(stretch) + gap), gap, start, count))
            start += len(stretch) + 1
    if not candidates:
        return
    places = {
        name: (index, number)
        for index, names in enumerate(definitions)
        for number, name in enumerate(names)
    }
    for _, gap, start, count in sorted(candidates):
        run = _with_equal_reads(reads, places, start, gap, count)
        if run is not None and run.count >= least:
            yield run


def _with_equal_reads(
    reads: Sequence[Sequence[Hashable]],
    places: dict[Hashable, tuple[int, int]],
    start: int,
    length: int,
    count: int,
) -> Run | None:
    """The most neighbouring copies that read alike."""
    shapes: list[tuple[Any, ...]] = []
    outside: list[list[Any]] = []
    for copy in range(count):
        first = start + copy * length
        own: dict[Hashable, int] = {}
        shape: list[Any] = []
        for item in range(first, first + length):
            for name in reads[item]:
                place = places.get(name)
                if place is None or place[0] < start:
                    shape.append(own.setdefault(name, len(own)))
                else:
                    shape.append((place[0] - first, place[1]))
            shape.append(None)
        shapes.append(tuple(shape))
        outside.append(list(own))
    best = (0, 0)
    first = 0
    for copy in range(1, count + 1):
        if copy == count or shapes[copy] != shapes[first]:
            best = max(best, (copy - first, -first))
            first = copy
    count, first = best[0], -best[1]
    start += first * length
    reach = 0
    for each in shapes[first]:
        if type(each) is tuple:
            if each[0] >= length:
                return None  # it reads what a later copy defines: not in order
            reach = max(reach, -(each[0] // length))
    return Run(start, length, count, outside[first : first + count], reach)
