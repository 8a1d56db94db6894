"""When each stage of each compile ran. Time in which nothing was compiled is left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flambeau.report_page.formats import seconds_text
from flambeau.report_page.html import Html, element, join

if TYPE_CHECKING:
    from flambeau.explanation import ExplanationData

LANES = {
    "capture": "capture",
    "backend": "autograd",
    "inductor": "inductor",
    "runtime": "build",
}
"""Stages, as they are measured, and their names. The backend's time is autograd's, but for what
runs inside it.
"""

TICKS = 5
SHORT_GAP = 0.05
"""Gaps between stages that are longer than this share of the whole are left out."""


@dataclass(frozen=True)
class Bar:
    """A stage that ran from one time to another."""

    stage: str
    start: float
    end: float
    title: str


def timeline(explanation: ExplanationData) -> Html:
    """A lane a stage, a bar each time that it ran."""
    bars = _bars(explanation)
    if not bars:
        return element("p", "Nothing has been compiled.", class_="note")
    intervals = [(bar.start, bar.end) for bar in bars]
    least = SHORT_GAP * sum(end - start for start, end in _merged(intervals))
    busy = _merged(intervals, least)
    total = sum(end - start for start, end in busy) or 1e-9

    def place(time: float) -> float:
        """The share of the busy time that is over by then."""
        return sum(min(time, end) - start for start, end in busy if start < time) / total

    foreign = not any(bar.stage == "inductor" for bar in bars)
    lanes = []
    others = {bar.stage: bar.stage for bar in bars if bar.stage not in LANES}
    for stage, name in (LANES | others).items():
        mine = [bar for bar in bars if bar.stage == stage]
        if not mine:
            continue
        label = "backend" if stage == "backend" and foreign else name
        took = sum(bar.end - bar.start for bar in mine)
        drawn = [
            element(
                "i",
                class_=f"bar {name if stage in LANES else 'build'}",
                title=f"{bar.title}: {seconds_text(bar.end - bar.start)}",
                style=f"left:{100 * place(bar.start):.3f}%;"
                f"width:{max(0.2, 100 * (place(bar.end) - place(bar.start))):.3f}%",
            )
            for bar in mine
        ]
        lanes.append(
            element(
                "div",
                element("span", label, element("small", seconds_text(took)), class_="lane-name"),
                element("div", drawn, _breaks(busy, total), class_="lane-bars"),
                class_="lane",
            )
        )
    ticks = [
        element(
            "span", seconds_text(total * number / TICKS), style=f"left:{100 * number / TICKS:.0f}%"
        )
        for number in range(TICKS + 1)
    ]
    idle = busy[-1][1] - busy[0][0] - total
    note = f"Dashed lines: {seconds_text(idle)} in which nothing was compiled are left out."
    return join(
        element("div", lanes, element("div", ticks, class_="ticks"), class_="timeline"),
        element("p", note, class_="note") if len(busy) > 1 else None,
    )


def _breaks(busy: list[tuple[float, float]], total: float) -> list[Html]:
    """A line at each time that was left out."""
    over, lines = 0.0, []
    for start, end in busy[:-1]:
        over += end - start
        lines.append(element("i", class_="cut", style=f"left:{100 * over / total:.3f}%"))
    return lines


def _bars(explanation: ExplanationData) -> list[Bar]:
    bars = [
        Bar("capture", began, began + event.capture_seconds, f"{event.kind}: {event.text[:120]}")
        for event in explanation.timeline
        if event.capture_seconds and (began := event.noted - event.seconds) < event.noted
    ]
    for number, graph in enumerate(explanation.graphs):
        inner = [span for span in graph.spans if span.stage != "backend"]
        bars += [
            Bar(span.stage, span.started, span.started + span.seconds,
                f"graph {number}, {LANES.get(span.stage, span.stage)}")
            for span in inner
        ]  # fmt: skip
        covered = _merged([(span.started, span.started + span.seconds) for span in inner])
        for span in graph.spans:
            if span.stage == "backend":
                bars += [
                    Bar("backend", start, end, f"graph {number}")
                    for start, end in _without(span.started, span.started + span.seconds, covered)
                ]
    return bars


def _merged(intervals: list[tuple[float, float]], gap: float = 0.0) -> list[tuple[float, float]]:
    """The same times as intervals further apart than `gap`."""
    result: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if result and start <= result[-1][1] + gap:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def _without(
    start: float, end: float, covered: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    result = []
    for first, last in covered:
        if last <= start or first >= end:
            continue
        if first > start:
            result.append((start, first))
        start = max(start, last)
    return [*result, (start, end)] if start < end else result
