"""HTML as a value: `element("p", "a < b", class_="note")` -> `<p class="note">a &lt; b</p>`.

A str is text, and escaped; an `Html` is markup, and stays as it is.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

VOID = frozenset({"meta", "br", "hr", "input", "link"})


class Html(str):
    """Markup. Only this module makes one from a str."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[Child] | None"


def element(tag: str, *children: Child, **attributes: str | float | None) -> Html:
    """An element. Attributes: `class_` is class, `data_name` is data-name; None leaves one out."""
    texts = (
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    head = f"<{tag}{''.join(texts)}>"
    return Html(head if tag in VOID else f"{head}{join(*children)}</{tag}>")


def join(*children: Child) -> Html:
    """Children one after another."""
    return Html("".join(map(_text, children)))


def trusted(text: str) -> Html:
    """Markup of our own: the style, the script."""
    return Html(text)


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return str(child)
    if isinstance(child, str):
        return html.escape(child)
    return "".join(map(_text, child))


def table(head: Iterable[Child], rows: Iterable[Iterable[Child]], class_: str = "") -> Html:
    """A table in a box that scrolls if it is too wide."""
    names = element("tr", [element("th", name, scope="col") for name in head])
    body = [element("tr", [element("td", cell) for cell in row]) for row in rows]
    whole = element("table", element("thead", names), element("tbody", body), class_=class_ or None)
    return element("div", whole, class_="scroll", tabindex=0)


def details(summary: Child, *children: Child, **attributes: str | float | None) -> Html:
    """What a click opens."""
    return element("details", element("summary", summary), *children, **attributes)
