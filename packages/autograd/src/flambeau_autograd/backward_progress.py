"""A backward in pieces (`cut_backward`) that runs piece by piece.

Whoever records a backward imports this; that which cuts one is imported where one is cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_autograd.cut_backward import CutBackward


class Progress:
    """A backward that has run some of its pieces."""

    def __init__(self, cut: CutBackward, args: Sequence[Any]) -> None:
        self.cut = cut
        self.done = 0
        self.held = dict(zip(cut.names, args, strict=True))
        self.held.update((name, read.value(args)) for name, read in cut.sizes)

    def step(self) -> list[Any]:
        """Run the next piece: all gradients, None for those of other pieces."""
        piece, run = self.cut.pieces[self.done]
        self.done += 1
        held = self.held
        given = [held[name] for name in piece.reads]
        for name in piece.spent:
            held.pop(name, None)
        spend = getattr(run, "spend", None)
        results = spend(given) if spend is not None else run(*given)
        held.update(zip(piece.gives, results, strict=False))
        gradients = [None] * self.cut.count
        for position, gradient in zip(piece.positions, results[len(piece.gives) :], strict=True):
            gradients[position] = gradient
        return gradients

    def finish(self) -> list[Any]:
        """Run all pieces that are left: their gradients."""
        gradients: list[Any] = [None] * self.cut.count
        while self.done < len(self.cut.pieces):
            for position, gradient in enumerate(self.step()):
                if gradient is not None:
                    gradients[position] = gradient
        return gradients
