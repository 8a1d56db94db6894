"""An explanation as text that fits a page of a terminal, and ends with what to do next.

Long lists are cut: what is left out is counted, and is in the Explanation and on its page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau.explanation import count_text
from flambeau.next_steps import next_steps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flambeau.explanation import ExplanationData, GraphExplanation

MOST = 4
"""Items of a list that are shown."""

MOST_GRAPHS = 3
MOST_GUARDS = 6
"""Guards that are shown, of all graphs together, those of tensors first."""

_OF_THE_BACKGROUND = ("failed: ", "dropped: ", "foreground: ")

WIDTH = 160
"""Longer lines are cut."""


def explanation_text(head: str, explanation: ExplanationData) -> str:
    """The lines below a head."""
    lines = [head]
    graphs = explanation.graphs[:MOST_GRAPHS]
    for index, graph in enumerate(graphs):
        lines += _graph_lines(index, graph, MOST_GUARDS // len(graphs))
    rest = explanation.graphs[len(graphs) :]
    if rest:
        kernels = sum(len(graph.kernels) for graph in rest)
        eager = [graph for graph in rest if graph.fallback is not None]
        text = f"{count_text(len(rest), 'more graph')}: {count_text(kernels, 'kernel')}"
        lines.append(text + (f", {len(eager)} run eagerly" if eager else ""))
    breaks = [
        f"break: {reason.where}: {reason.cause} [{reason.id}]" for reason in explanation.breaks
    ]
    lines += _cut(breaks, "more breaks")
    plain = (
        event
        for event in explanation.events
        if event.startswith(("plain_launch: ", "cpu_launch: "))
    )
    lines += _cut(plain, "more plain launches")
    events = (event for event in explanation.events if event.startswith(_OF_THE_BACKGROUND))
    lines += _cut(events, "more events of the background")
    for recompile in explanation.recompiles[:MOST]:
        lines.append(f"recompile, {recompile.seconds:.2f} s, because")
        lines += _cut((f"  {failure}" for failure in recompile.failures), "more entries")
    if len(explanation.recompiles) > MOST:
        lines.append(f"... {len(explanation.recompiles) - MOST} more recompiles")
    lines += ["next:", *(f"  {step}" for step in next_steps(explanation))]
    return "\n".join(lines)


def _graph_lines(index: int, graph: GraphExplanation, shown: int) -> list[str]:
    seconds = ", ".join(f"{stage} {value:.2f} s" for stage, value in graph.seconds.items())
    ends = f"; ends at {graph.ends}" if graph.ends else ""
    lines = [f"graph {index}: {count_text(graph.calls, 'call')}; {seconds}{ends}"]
    if graph.fallback is not None:
        lines.append(f"  runs eagerly: {graph.fallback}")
    if graph.kernels:
        cache = f"cache: {graph.cache_hits} hits, {graph.cache_misses} misses"
        names = ", ".join(graph.kernels[:MOST])
        more = len(graph.kernels) - MOST
        lines.append(f"  kernels: {names}{f' and {more} more' if more > 0 else ''} ({cache})")
    if graph.externs:
        externs = (f"    {extern}" for extern in graph.externs)
        lines += ["  calls of ATen:", *_cut(externs, "more operators")]
    lines += [f"  backward: {partition}" for partition in graph.partitions]
    lines += [f"  second derivatives run eagerly: {text}" for text in graph.eager_derivatives]
    lines += [f"  tangents of a batch run one by one: {text}" for text in graph.separate_tangents]
    lines += [f"  {line}" for line in (*graph.launches, *graph.memory)]
    if graph.stored:
        lines.append(f"  in the cache: {graph.stored}")
    if graph.stored_pieces:
        lines.append(f"  the entries of its pieces in the cache: {', '.join(graph.stored_pieces)}")
    if graph.stored_entry:
        lines.append(f"  its entry in the cache: {graph.stored_entry}")
    if graph.background:
        lines.append(f"  compiled in the background, {graph.background}")
    if graph.assumes:
        lines += ["  assumes of data:", *_cut((f"    {a}" for a in graph.assumes), "more")]
    if graph.specialises:
        texts = (f"    {text}" for text in graph.specialises)
        lines += ["  specialises:", *_cut(texts, "more sizes")]
    guards = sorted(graph.guards, key=lambda guard: guard.kind != "TENSOR")[:shown]
    lines.append(f"  guards ({len(graph.guards)}; all of them: .graphs[{index}].guards):")
    return lines + [_shortened(f"    {guard}") for guard in guards]


def _cut(lines: Iterable[str], rest: str) -> list[str]:
    """The first lines, and how many there are beside them."""
    every = list(lines)
    left = len(every) - MOST
    indent = " " * (len(every[0]) - len(every[0].lstrip())) if every else ""
    return [*every[:MOST], *([f"{indent}... {left} {rest}"] if left > 0 else [])]


def _shortened(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
