"""Rows as text: how many of each variant differ, what broke the graph, and the rows that differ."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tools.sweep.ops.accepted import accept


def line(row: dict[str, Any]) -> str:
    """One row that differs, in a line."""
    text = "; ".join(" ".join(found.split()) for found in row["differences"])
    return f"{row['op']} [{row['variant']} {row['case']}] {text[:300]}"


def table(rows: list[dict[str, Any]], missing: int) -> tuple[str, int]:
    """The whole as Markdown, and how many rows differ without being accepted. `missing`: operators
    and variants not run.
    """
    lines = [
        "| variant | rows | same | accepted | differ | crash | broken graphs | fallbacks |",
        "|---|---|---|---|---|---|---|---|",
    ]
    accepted = [row for row in rows if row["status"] != "same" and accept(row) is not None]
    kept = {id(row) for row in accepted}
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    for variant in [*variants, "all"]:
        these = [row for row in rows if variant in ("all", row["variant"])]
        counts = Counter("accepted" if id(row) in kept else row["status"] for row in these)
        broken = sum(bool(row.get("breaks")) for row in these)
        fallen = sum(bool(row.get("fallbacks")) for row in these)
        lines.append(
            f"| {variant} | {len(these)} | {counts['same']} | {counts['accepted']} |"
            f" {counts['differs']} | {counts['crash']} | {broken} | {fallen} |"
        )
    if missing:
        lines += ["", f"{missing} operators and variants have not run."]
    for title, field in (("broken graphs", "breaks"), ("fallbacks", "fallbacks")):
        reasons = Counter(reason for row in rows for reason in row.get(field, ()))
        lines += ["", f"Rows with {title}, by reason:", ""] * bool(reasons)
        lines += [f"- {reason}: {count}" for reason, count in reasons.most_common()]
    different = [row for row in rows if row["status"] != "same" and id(row) not in kept]
    lines += ["", "Rows that differ:", ""] * bool(different)
    lines += [f"- {line(row)}" for row in sorted(different, key=line)]
    return "\n".join(lines), len(different)
