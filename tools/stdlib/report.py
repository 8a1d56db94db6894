"""What came of the tests, as text; which failures are accepted, and why."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tools.stdlib.cases import DEFAULT, GRAPH, MODES, Row

Results = dict[tuple[str, str, str], Row]
"""By (file, mode, test)."""
ACCEPTED = Path(__file__).with_name("accepted.toml")
"""Tests that may fail compiled, each with the reason: "file.Class.method" = "reason"."""


def accepted() -> dict[str, str]:
    """The tests that may fail compiled, and why."""
    listed: dict[str, str] = tomllib.loads(ACCEPTED.read_text())["accepted"]
    return listed


def unexpected(results: Results, listed: Mapping[str, str]) -> list[str]:
    """The tests that do not pass compiled, and are not listed."""
    return [
        f"{file}.{name}"
        for (file, mode, name), row in results.items()
        if mode == DEFAULT
        and row["status"] not in ("pass", "skip")
        and f"{file}.{name}" not in listed
    ]


def table(results: Results, listed: Mapping[str, str]) -> str:
    """How many tests end how in each mode, the reasons of breaks by frequency, and the failures
    that are not accepted.
    """
    lines = []
    for mode in MODES:
        counts = Counter(
            row["status"] for (_, of, name), row in results.items() if of == mode and name
        )
        ran = sum(counts.values()) - counts["skip"]
        if ran:
            parts = ", ".join(f"{count} {status}" for status, count in counts.most_common())
            lines.append(f"{mode}: {ran} ran, {counts['pass'] / ran:.2%} pass ({parts})")
    for mode in (DEFAULT, GRAPH):
        reasons = Counter(
            reason for (_, of, _), row in results.items() if of == mode for reason in _reasons(row)
        )
        if reasons:
            parts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            lines.append(f"breaks ({mode}): {parts}")
    names = unexpected(results, listed)
    return "\n".join([*lines, f"not accepted: {len(names)}", *[f"- {name}" for name in names]])


def _reasons(row: Row) -> list[str]:
    """The ids of the reasons for which a test's graphs broke."""
    if row["status"] == "break":
        return [row["cause"].partition(":")[0]]
    breaks: list[str] = row.get("breaks", [])
    return breaks
