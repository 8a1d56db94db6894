"""The result of a contest as text, in the form that torch prints.

AUTOTUNE addmm(4096x4096, 4096x4096)
  128x256x64 warps=8 stages=3 0.2110 ms 100.0%
  aten.addmm.out + gelu 0.2300 ms 91.7%
measured in 1.2 s, built in 3.0 s, 12 choices
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_LINES = 10
"""Choices that are printed."""


@dataclass(frozen=True)
class Outcome:
    """What became of one candidate: its time, or why it has none."""

    name: str
    milliseconds: float | None
    reason: str = ""


@dataclass(frozen=True)
class TuningTable:
    """The result of a contest: `chosen` is the number of the outcome that was taken; building and
    measuring are seconds. `problem` says why nothing was measured.
    """

    title: str
    outcomes: tuple[Outcome, ...] = ()
    chosen: int = 0
    building: float = 0.0
    measuring: float = 0.0
    problem: str = ""

    def in_order(self) -> list[Outcome]:
        """The chosen candidate first, then those that were timed, by time; rejected ones last."""
        rest = [outcome for number, outcome in enumerate(self.outcomes) if number != self.chosen]
        timed = [outcome for outcome in rest if outcome.milliseconds is not None]
        timed.sort(key=lambda outcome: outcome.milliseconds or 0.0)
        rejected = [outcome for outcome in rest if outcome.milliseconds is None]
        return [self.outcomes[self.chosen], *timed, *rejected]

    def __str__(self) -> str:
        if self.problem:
            return f"AUTOTUNE {self.title}\n  not measured: {self.problem}"
        best, *rest = self.in_order()
        rejected = [outcome for outcome in rest if outcome.milliseconds is None]
        lines = [f"AUTOTUNE {self.title}"]
        for outcome in [best, *rest[: len(rest) - len(rejected)]][:MAX_LINES]:
            if outcome.milliseconds is None:
                lines.append(f"  {outcome.name} not measured")
                continue
            share = 100 * (best.milliseconds or outcome.milliseconds) / outcome.milliseconds
            lines.append(f"  {outcome.name} {outcome.milliseconds:.4f} ms {share:.1f}%")
        lines += [f"  {outcome.name} rejected: {outcome.reason}" for outcome in rejected]
        seconds = f"built in {self.building:.1f} s, measured in {self.measuring:.1f} s"
        lines.append(f"{seconds}, {len(self.outcomes)} choices")
        return "\n".join(lines)
