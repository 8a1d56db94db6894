"""What was measured to choose kernels: a table for each contest, times as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau.report_page.formats import seconds_text
from flambeau.report_page.html import Html, element, join, table

if TYPE_CHECKING:
    from flambeau_runtime.tuning.table import Outcome, TuningTable


def autotune_section(tables: tuple[TuningTable, ...]) -> Html:
    """The tables in the order in which they were measured."""
    if not tables:
        return element(
            "p",
            'Nothing was measured. mode="max-autotune" measures; choices that the cache holds are '
            "not measured again.",
            class_="note",
        )
    return join(_contest(each) for each in tables)


def _contest(each: TuningTable) -> Html:
    if each.problem:
        return join(element("h3", each.title), element("p", f"Not measured: {each.problem}"))
    ordered = each.in_order()
    longest = max([outcome.milliseconds or 0.0 for outcome in ordered]) or 1.0
    rows = [_row(outcome, number == 0, longest) for number, outcome in enumerate(ordered)]
    note = (
        f"{len(ordered)} choices, built in {each.building:.1f} s, measured in "
        f"{each.measuring:.1f} s."
    )
    return join(
        element("h3", each.title),
        table(("candidate", "time", ""), rows),
        element("p", note, class_="note"),
    )


def _row(outcome: Outcome, chosen: bool, longest: float) -> tuple[Html | str, ...]:
    name = element("code", outcome.name)
    if chosen:
        name = join(name, " ", element("span", "chosen", class_="tag"))
    if outcome.milliseconds is None:
        return name, "—", f"rejected: {outcome.reason}" if outcome.reason else "not measured"
    bar = element("b", style=f"width:{100 * outcome.milliseconds / longest:.1f}%")
    meter = element("i", bar, class_="meter wide")
    return name, seconds_text(outcome.milliseconds / 1e3), meter
