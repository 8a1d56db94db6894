"""What a forward saves for its backward, and what the backward recomputes instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau.explanation import count_text
from flambeau.report_page.formats import bytes_text, short_place, source_line
from flambeau.report_page.html import Html, details, element, join, table

if TYPE_CHECKING:
    from flambeau_autograd.partition import PartitionSummary


def recompute_section(summary: PartitionSummary) -> Html:
    """Two lists, the largest tensors first."""
    total = sum(tensor.bytes for tensor in summary.saved)
    repeated = sum(count for _, count in summary.recomputed)
    rows = [
        (
            element("code", tensor.name),
            bytes_text(tensor.bytes),
            element("code", tensor.operator),
            element("span", short_place(tensor.line), title=tensor.line),
            element("code", source_line(tensor.line)),
        )
        for tensor in sorted(summary.saved, key=lambda tensor: -tensor.bytes)
    ]
    calls = [
        element("li", element("code", name), f" {count}×") for name, count in summary.recomputed
    ]
    saved = f"Saves {count_text(len(rows), 'tensor')}, {bytes_text(total)}, beside its arguments"
    return join(
        element("h4", "Backward"),
        details(saved, table(("value", "bytes", "made by", "your line", ""), rows)),
        details(
            f"Recomputes {count_text(repeated, 'call')} instead of saving results",
            element("ul", calls, class_="chips"),
        ),
    )
