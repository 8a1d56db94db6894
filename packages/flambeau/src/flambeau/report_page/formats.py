"""Numbers and places as text for people."""

from __future__ import annotations

import linecache
from pathlib import PurePath

from flambeau.report_page.html import Html, element


def bytes_text(count: float) -> str:
    """1,536 -> "1.5 KiB"."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def seconds_text(seconds: float) -> str:
    """0.0123 -> "12.3 ms"."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if not seconds:
        return "0 s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} µs"


def short_place(place: str) -> str:
    """ "/home/me/model.py:12" -> "model.py:12"."""
    return PurePath(place).name


def source_line(place: str) -> str:
    """The text of a line of the program, "" if it cannot be read."""
    path, _, number = place.rpartition(":")
    return linecache.getline(path, int(number)).strip() if number.isdigit() else ""


def places(lines: tuple[str, ...]) -> Html:
    """The user's lines, each with its text."""
    items = [
        element(
            "li",
            element("span", short_place(line), class_="place", title=line),
            " ",
            element("code", source_line(line)),
        )
        for line in lines
    ]
    return element("ul", items, class_="places")
