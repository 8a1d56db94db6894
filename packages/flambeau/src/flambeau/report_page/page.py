"""The page: sections in order, with style and script inside, so that it needs no other file."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from flambeau._version import __version__
from flambeau.next_steps import next_steps
from flambeau.report_page.autotune import autotune_section
from flambeau.report_page.compiles import breaks_section, events_section, recompiles_section
from flambeau.report_page.graphs import graph_section
from flambeau.report_page.html import Html, element, join, trusted
from flambeau.report_page.summary import summary
from flambeau.report_page.timeline import timeline

if TYPE_CHECKING:
    from flambeau.explanation import ExplanationData
    from flambeau.kernel_times import Times

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What the browser may load: nothing."""


def page_html(explanation: ExplanationData, times: Times) -> str:
    """The whole page; `times` are those of measured kernels."""
    graphs = [
        graph_section(graph, number, times) for number, graph in enumerate(explanation.graphs)
    ]
    sections = (
        ("timeline", "Timeline", timeline(explanation)),
        ("graphs", "Graphs", join(graphs)),
        ("breaks", "Graph breaks", breaks_section(explanation)),
        ("recompiles", "Recompiles", recompiles_section(explanation)),
        ("events", "Events", events_section(explanation)),
        ("autotune", "Autotuning", autotune_section(explanation.tables)),
    )
    links = [element("a", name, href=f"#{target}") for target, name, _ in sections]
    button = element("button", "◐", type="button", id="theme", title="light or dark")
    body = element(
        "body",
        element(
            "header",
            element("a", "Flambeau", href="#top", class_="brand"),
            element("nav", links),
            button,
        ),
        element(
            "main",
            element("h1", explanation.name, id="top"),
            summary(explanation, next_steps(explanation)),
            [
                element("section", element("h2", name), content, id=target)
                for target, name, content in sections
            ],
        ),
        element("footer", f"Flambeau {__version__}"),
        element("script", _resource("page.js")),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", f"{explanation.name}, compiled by Flambeau"),
        element("style", _resource("page.css")),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _resource(name: str) -> Html:
    return trusted(files(__package__).joinpath(name).read_text(encoding="utf-8"))
