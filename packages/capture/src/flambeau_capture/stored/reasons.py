"""Why an entry is not stored, as data."""

from __future__ import annotations

NOT_STORABLE = {
    "dict": "it depends on a dict that is no module's",
    "object": "it depends on an object that another process cannot find",
    "content": "it depends on an object whose content cannot be compared",
    "guard": "a guard cannot be written",
    "eager": "the call runs eagerly",
    "guard-filter": "a filter leaves guards out",
    "of-the-process": "it depends on what differs from process to process",
    "graph": "its graph is not stored",
    "background": "it was compiled while the program went on, which may have changed objects",
    "override": "the program says how the compiler treats a function",
}
"""The reasons by id."""


class NotStorable(Exception):
    """An entry cannot be stored: an id of NOT_STORABLE, and details."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{NOT_STORABLE[reason]}{f' ({detail})' if detail else ''} [{reason}]")
        self.reason = reason


class Stale(Exception):
    """A stored entry does not fit this process: something is missing, or has another content."""
