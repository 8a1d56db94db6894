"""A backward in pieces that runs piece by piece. `cut_backward` makes the pieces; a process without
any does not import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_prims.graph import Graph


@dataclass(frozen=True)
class Piece:
    """A part of a backward. `reads`: names of the tensors it takes, then of sizes; `gives`: names
    of the tensors it returns for later pieces, then come the gradients at `positions`. `spent`:
    names that no later piece reads.
    """

    graph: Graph
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    positions: tuple[int, ...]
    spent: tuple[str, ...]


class Progress:
    """A backward that has run some of its pieces."""

    def __init__(
        self,
        pieces: Sequence[tuple[Piece, Callable[..., Sequence[Any]]]],
        count: int,
        held: dict[str | None, Any],
    ) -> None:
        """`count` gradients; `held` are the tensors and sizes that it begins with, by name."""
        self.done = 0
        self._pieces = pieces
        self._count = count
        self._held = held

    def step(self) -> list[Any]:
        """Run the next piece: all gradients, None for those of other pieces."""
        piece, run = self._pieces[self.done]
        self.done += 1
        held = self._held
        given = [held[name] for name in piece.reads]
        for name in piece.spent:
            held.pop(name, None)
        spend = getattr(run, "spend", None)
        results = spend(given) if spend is not None else run(*given)
        held.update(zip(piece.gives, results, strict=False))
        gradients = [None] * self._count
        for position, gradient in zip(piece.positions, results[len(piece.gives) :], strict=True):
            gradients[position] = gradient
        return gradients

    def finish(self) -> list[Any]:
        """Run all pieces that are left: their gradients."""
        gradients: list[Any] = [None] * self._count
        while self.done < len(self._pieces):
            for position, gradient in enumerate(self.step()):
                if gradient is not None:
                    gradients[position] = gradient
        return gradients
