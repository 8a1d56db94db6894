"""Graph breaks, recompiles with the guards that failed, and what else happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau.report_page.formats import places, seconds_text, short_place
from flambeau.report_page.html import Html, details, element, join, table

if TYPE_CHECKING:
    from flambeau.explanation import ExplanationData


def breaks_section(explanation: ExplanationData) -> Html:
    """Each graph break: where, why, what helps."""
    if not explanation.breaks:
        return element("p", "None: each call runs as one graph.", class_="good")
    return join(
        element(
            "article",
            element("h3", reason.cause, " ", element("code", reason.id, class_="id")),
            places((reason.where,)),
            element("p", element("strong", "What helps: "), reason.hint) if reason.hint else None,
            class_="card",
        )
        for reason in explanation.breaks
    )


def recompiles_section(explanation: ExplanationData) -> Html:
    """Each recompile: the guard of each entry that failed, the value that it expects and the value
    that the call had.
    """
    if not explanation.recompiles:
        return element("p", "None: the first entry serves every call.", class_="good")
    parts = []
    for number, recompile in enumerate(explanation.recompiles, 1):
        rows = [
            (
                element("code", failure.source or failure.text),
                failure.kind,
                failure.expected or "",
                failure.found or failure.text,
                element("span", short_place(failure.where), title=failure.where),
            )
            for failure in recompile.failures
        ]
        parts += [
            element("h3", f"Recompile {number}, {seconds_text(recompile.seconds)}"),
            table(("read", "guard", "expected", "found", "read at"), rows),
        ]
    return join(parts)


def events_section(explanation: ExplanationData) -> Html:
    """All events in order."""
    rows = [
        (event.kind, event.text, seconds_text(event.seconds) if event.seconds else "")
        for event in explanation.timeline
    ]
    return details(f"All events ({len(rows)})", table(("event", "what happened", "took"), rows))
