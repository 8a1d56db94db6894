"""The head of the page: what was compiled, the counts, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau.report_page.formats import bytes_text, seconds_text
from flambeau.report_page.html import Html, element, join

if TYPE_CHECKING:
    from flambeau.explanation import ExplanationData


def summary(explanation: ExplanationData, steps: tuple[str, ...]) -> Html:
    """Cards of counts, then a list of next steps."""
    programs = [program for graph in explanation.graphs for program in graph.programs]
    kernels = sum(len(program.kernels) for program in programs)
    calls = sum(extern.calls for graph in explanation.graphs for extern in graph.externs)
    peak = max((program.peak_bytes for program in programs), default=0)
    fallbacks = sum(graph.fallback is not None for graph in explanation.graphs)
    cards = [
        _card("graphs", len(explanation.graphs), "graphs"),
        _card("graph breaks", len(explanation.breaks), "breaks", bad=bool(explanation.breaks)),
        _card("recompiles", len(explanation.recompiles), "recompiles"),
        _card("kernels", kernels, "graphs"),
        _card("calls of ATen", calls, "graphs"),
        _card("compiling", seconds_text(explanation.seconds), "timeline"),
        _card("peak memory", bytes_text(peak) if peak else "—", "graphs"),
    ]
    if fallbacks:
        cards.insert(1, _card("run eagerly", fallbacks, "graphs", bad=True))
    return join(
        element("div", cards, class_="cards"),
        element("h2", "What to do next", id="next"),
        element("ol", [element("li", step) for step in steps], class_="next"),
    )


def _card(name: str, value: str | int, target: str, *, bad: bool = False) -> Html:
    return element(
        "a",
        element("strong", str(value)),
        element("span", name),
        href=f"#{target}",
        class_="stat bad" if bad else "stat",
    )
