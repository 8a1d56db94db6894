"""Memory against time under `activation_memory_budget`: the bytes that a forward saves and the
milliseconds of a training step, for budgets from 0 to 1; as a table and as a picture.

OMP_NUM_THREADS=1 python -m tools.bench budget --picture docs/figures/memory_budget.svg

On a CPU it is CPU time, which other programs do not change; threads that wait for each other would.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import flambeau
from tools.bench.cases import CASES
from tools.bench.timing import interleave

if TYPE_CHECKING:
    from collections.abc import Sequence

BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
BUDGET_CASES = ("small_bert_training",)
WIDTH, HEIGHT, MARGIN = 560, 320, 56


@dataclass(frozen=True)
class Point:
    """One measured choice: what the forward saves, how long a training step takes."""

    name: str
    bytes: int
    milliseconds: float
    recomputed: int


def measure(case: str, device: str, rounds: int) -> list[Point]:
    """A point for each budget, and one for "save_all"; all are timed in turn."""
    built = CASES[case](device)
    chosen: dict[str, dict[str, Any]] = {
        f"{budget:.1f}": {"activation_memory_budget": budget} for budget in BUDGETS
    }
    chosen["save_all"] = {"partition": "save_all"}
    compiled = {
        name: flambeau.compile(built.program, options=options) for name, options in chosen.items()
    }
    seconds = interleave(
        {name: lambda f=f: built.call(f) for name, f in compiled.items()},
        device=device,
        rounds=rounds,
        clock=time.process_time if device == "cpu" else time.perf_counter,
    )
    points = []
    for name, function in compiled.items():
        saved = recomputed = 0
        for graph in flambeau.explain(function).graphs:
            for line in graph.partitions:
                numbers = re.search(r"\(([\d,]+) bytes\), recomputes ([\d,]+)", line)
                assert numbers is not None
                saved += int(numbers[1].replace(",", ""))
                recomputed += int(numbers[2].replace(",", ""))
        points.append(Point(name, saved, seconds[name] * 1e3, recomputed))
    return points


def rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """The cells of a table; shares are of budget 1.0."""
    whole = next(point for point in points if point.name == "1.0")
    return [
        (
            point.name,
            f"{point.bytes / 1e6:.2f}",
            f"{point.bytes / whole.bytes:.2f}",
            str(point.recomputed),
            f"{point.milliseconds:.2f}",
            f"{point.milliseconds / whole.milliseconds:.2f}",
        )
        for point in points
    ]


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in both memory and time, from small to large."""
    best: list[Point] = []
    for point in sorted(points, key=lambda each: (each.bytes, each.milliseconds)):
        if not best or point.milliseconds < best[-1].milliseconds:
            best.append(point)
    return best


def picture(case: str, points: Sequence[Point]) -> str:
    """The points and their Pareto front, as SVG."""
    most = max(point.bytes for point in points) / 1e6 or 1.0
    longest = max(point.milliseconds for point in points)

    def x(point: Point) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * point.bytes / 1e6 / most

    def y(point: Point) -> float:
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * point.milliseconds / longest

    line = " ".join(f"{x(point):.1f},{y(point):.1f}" for point in front(points))
    bottom, right = HEIGHT - MARGIN, WIDTH - MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text{font:12px sans-serif;fill:#222}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<path d="M{MARGIN} {MARGIN}V{bottom}H{right}" fill="none" stroke="#777"/>',
        f'<text x="{MARGIN}" y="{MARGIN - 24}">{case}: ms a step, by MB saved</text>',
        f'<text x="{right}" y="{bottom + 20}" text-anchor="end">{most:.1f} MB</text>',
        f'<text x="{MARGIN - 6}" y="{MARGIN + 4}" text-anchor="end">{longest:.1f}</text>',
        f'<polyline points="{line}" fill="none" stroke="#e65100" stroke-width="2"/>',
    ]
    for point in points:
        parts.append(f'<circle cx="{x(point):.1f}" cy="{y(point):.1f}" r="4" fill="#e65100"/>')
        label = f'<text x="{x(point):.1f}" y="{y(point) - 8:.1f}" text-anchor="middle">'
        parts.append(f"{label}{point.name}</text>")
    return "\n".join([*parts, "</svg>", ""])
