"""Differences that are accepted, read from `accepted.toml`: which rows, what may differ, and why
that is right.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Accepted:
    """Rows of these operators and variants (globs) may differ where every difference matches
    `text`, for the reason. `case` occurs in the names of their cases.
    """

    ops: tuple[str, ...]
    variants: tuple[str, ...]
    text: str
    reason: str
    case: str = ""

    def covers(self, row: dict[str, Any]) -> bool:
        """Whether all that differs in this row is accepted."""
        return (
            any(fnmatchcase(row["op"], op) for op in self.ops)
            and any(fnmatchcase(row["variant"], variant) for variant in self.variants)
            and self.case in row["case"]
            and all(re.search(self.text, found) for found in row["differences"])
        )


@cache
def load() -> tuple[Accepted, ...]:
    """The list, as it stands in the file."""
    found = tomllib.loads(Path(__file__).with_name("accepted.toml").read_text())
    return tuple(
        Accepted(
            tuple(item["ops"]),
            tuple(item.get("variants", ["*"])),
            item["text"],
            item["reason"],
            item.get("case", ""),
        )
        for item in found.get("accepted", [])
    )


def accept(row: dict[str, Any]) -> Accepted | None:
    """Why this row may differ, or None."""
    return next((item for item in load() if item.covers(row)), None)
