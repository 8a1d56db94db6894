"""The backwards of a graph pair in a call, by the results that have no tangent: a table that is
filled when a set of undefined tangents first occurs. `specialized_backwards` compiles them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.collector import collector_paused
from flambeau_prims.fork_safety import fork_safe_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_is_deterministic = torch._C._get_deterministic_algorithms

LIMIT = 8
"""How many sets of undefined tangents get a backward: training loops use one or two."""


@dataclass(frozen=True)
class Backward:
    """A compiled backward, the sizes it takes as ints, and the results whose tangents it takes."""

    run: Callable[..., Any]
    sizes: tuple[str, ...]
    tangents: frozenset[int]

    def keep(self, args: list[Any]) -> Any:
        """A call with the items of a list, which others read again: the gradients, or the
        `Progress` of a backward in pieces.
        """
        return self.run(*args)

    def spend(self, args: list[Any]) -> Any:
        """A call with the items of a list, which it empties: where the compiler's callable has such
        an entry, what nobody else holds is freed after its last use.
        """
        spend = getattr(self.run, "spend", None)
        if spend is not None:
            return spend(args)
        given = tuple(args)
        args.clear()
        return self.run(*given)


class BackwardTable:
    """The compiled backwards by the results that have no tangent; `_make` makes one.

    `tangents` are the results whose tangents the backward reads.
    """

    def __init__(self, tangents: frozenset[int]) -> None:
        self._tangents = tangents
        self._compiled: dict[tuple[frozenset[int], bool], Backward] = {}
        self._lock = fork_safe_lock()
        self.several = len(tangents) > 1
        """Whether there are several tangents; which of them are defined, each call says."""

    def name_of(self, missing: Iterable[int]) -> str:
        """The name of the graph of the backward without these tangents."""
        absent = "_".join(map(str, sorted(missing)))
        if absent:
            return f"backward_without_{absent}"
        return "backward_of_all" if self.several else "backward"

    def without(self, missing: frozenset[int]) -> Backward:
        """The backward for a call in which the results `missing` have no tangent."""
        if missing:
            missing &= self._tangents
        known = self._compiled.get(self._place(missing))
        if known is None:
            with self._lock:
                if missing and self._is_full(missing):
                    missing = frozenset()
                place = self._place(missing)
                known = self._compiled.get(place)
                if known is None:
                    with collector_paused():  # outside of a capture, which pauses it, too
                        known = self._compiled[place] = self._make(missing)
        return known

    def _place(self, missing: frozenset[int]) -> tuple[frozenset[int], bool]:
        """Where the table has a backward: a late one is deterministic if its call asks for that, as
        eager's is; one that is compiled with its forward, if the forward did.
        """
        return missing, self.several and _is_deterministic()

    def _make(self, missing: frozenset[int]) -> Backward:
        raise NotImplementedError

    def _is_full(self, missing: frozenset[int]) -> bool:
        known = {others for others, _ in self._compiled} - {frozenset()}
        return missing not in known and len(known) >= LIMIT
