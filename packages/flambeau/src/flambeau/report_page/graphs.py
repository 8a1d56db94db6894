"""One captured graph: what it is, its Programs with pictures, kernels and memory, its guards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau.explanation import count_text
from flambeau.report_page.formats import bytes_text, seconds_text, short_place
from flambeau.report_page.graph_picture import graph_picture
from flambeau.report_page.highlight import code_block
from flambeau.report_page.html import Html, details, element, table
from flambeau.report_page.kernels import call_table, kernel_list
from flambeau.report_page.memory_plot import memory_plot
from flambeau.report_page.recompute import recompute_section

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flambeau.explanation import GraphExplanation, GuardExplanation
    from flambeau.kernel_times import KernelTime, Times
    from flambeau.program_explanation import ProgramExplanation


def graph_section(graph: GraphExplanation, number: int, times: Times) -> Html:
    """Everything about one graph."""
    stages = ", ".join(f"{stage} {seconds_text(took)}" for stage, took in graph.seconds.items())
    cache = f"{graph.cache_hits} kernels from the cache, {graph.cache_misses} built"
    parts = [element("p", f"{count_text(graph.calls, 'call')}; {stages}; {cache}.", class_="note")]
    if graph.fallback is not None:
        hint = element("p", graph.fallback.hint) if graph.fallback.hint else None
        text = f"Runs eagerly: {graph.fallback}"
        parts.append(element("article", element("strong", text), hint, class_="card bad"))
    if graph.ends:
        parts.append(element("p", f"Ends with the graph break at {graph.ends}."))
    lists = (
        ("Assumes of data", graph.assumes),
        ("Specialises sizes", graph.specialises),
        ("Launches", graph.launches),
    )
    parts += [
        details(f"{name} ({len(texts)})", element("ul", [element("li", text) for text in texts]))
        for name, texts in lists
        if texts
    ]
    if graph.stored:
        parts.append(element("p", f"In the cache of graphs: {graph.stored}.", class_="note"))
    if graph.stored_entry:
        parts.append(element("p", f"Its entry in the cache: {graph.stored_entry}.", class_="note"))
    if graph.background:
        text = f"Compiled in the background, {graph.background}."
        parts.append(element("p", text, class_="note"))
    for at, program in enumerate(graph.programs):
        parts.append(_program(program, f"g{number}p{at}", times.get((number, at), {})))
    parts += [recompute_section(summary) for summary in graph.savings]
    parts += [
        call_table(graph.externs, graph.programs),
        details(f"Guards ({len(graph.guards)})", _guards(graph.guards)),
        details("Captured graph", code_block(graph.code, "python")),
    ]
    return element(
        "section", element("h3", f"Graph {number}"), parts, id=f"g{number}", class_="graph"
    )


def _program(program: ProgramExplanation, prefix: str, times: Mapping[str, KernelTime]) -> Html:
    text = "\n".join(
        f"{step.text}{f'  # {chr(44).join(map(short_place, step.lines))}' if step.lines else ''}"
        for step in program.steps
    )
    return element(
        "div",
        element(
            "h4",
            program.name,
            element(
                "small",
                f"{count_text(len(program.kernels), 'kernel')}, peak "
                f"{bytes_text(program.peak_bytes)}",
            ),
        ),
        graph_picture(program, prefix),
        kernel_list(program, times, prefix),
        element("h5", "Memory over time"),
        memory_plot(program),
        details(f"Steps ({len(program.steps)})", code_block(text, "python")),
        class_="program",
        id=prefix,
    )


def _guards(guards: tuple[GuardExplanation, ...]) -> Html:
    rows = [
        (
            element("code", guard.text),
            guard.kind,
            element("span", short_place(guard.where), title=guard.where),
        )
        for guard in guards
    ]
    return table(("guard", "kind", "read at"), rows)
