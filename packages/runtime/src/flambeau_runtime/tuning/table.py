"""The result of a contest as text, in the form that torch prints.

AUTOTUNE addmm(4096x4096, 4096x4096)
  128x256x64 warps=8 stages=3 0.2110 ms 100.0%
  aten.addmm.out + gelu 0.2300 ms 91.7%
measured in 1.2 s, built in 3.0 s, 12 choices
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LINES = 10
"""Choices that are printed."""


@dataclass(frozen=True)
class Outcome:
    """What became of one candidate: its time, or why it has none."""

    name: str
    milliseconds: float | None
    reason: str = ""


def format_table(
    title: str, outcomes: Sequence[Outcome], chosen: int, building: float, measuring: float
) -> str:
    """The table, the chosen candidate first, then by time; rejected ones last."""
    best = outcomes[chosen]
    rest = [outcome for number, outcome in enumerate(outcomes) if number != chosen]
    timed = sorted(
        (outcome for outcome in rest if outcome.milliseconds is not None),
        key=lambda outcome: outcome.milliseconds or 0.0,
    )
    rejected = [outcome for outcome in rest if outcome.milliseconds is None]
    lines = [f"AUTOTUNE {title}"]
    for outcome in [best, *timed][:MAX_LINES]:
        if outcome.milliseconds is None:
            lines.append(f"  {outcome.name} not measured")
            continue
        share = 100 * (best.milliseconds or outcome.milliseconds) / outcome.milliseconds
        lines.append(f"  {outcome.name} {outcome.milliseconds:.4f} ms {share:.1f}%")
    lines += [f"  {outcome.name} rejected: {outcome.reason}" for outcome in rejected]
    lines.append(
        f"built in {building:.1f} s, measured in {measuring:.1f} s, {len(outcomes)} choices"
    )
    return "\n".join(lines)
