"""Why the compiled form of a graph is not stored, as data."""

from __future__ import annotations

NOT_STORED = {
    "not-asked": "the option graph_cache is off, caches are, or stages are dumped or checked",
    "measured": "its kernels are chosen by measurement",
    "frozen": "values of its inputs are frozen into it",
    "device": "a tensor is neither on a CPU nor on a GPU that this process has used before",
    "symbolic": "a size or number is symbolic",
    "data-dependent": "sizes or numbers depend on data",
    "foreign-input": "an input is no plain tensor",
    "foreign-call": "it calls a function that another process cannot find by its name",
    "foreign-constant": "a call holds an object that is no plain data",
    "functions-of-the-program": "it has a backward, and calls functions or holds objects of the "
    "program",
    "eager": "it runs eagerly",
    "draws": "it draws random numbers on a GPU, and has symbolic sizes or functions of the program",
    "programs": "it is compiled to several programs",
    "foreign-result": "a result is no plain data",
    "no-directory": "the cache directory cannot be used",
}
"""Why the compiled form of a graph is not stored, by id."""


class NotStored(Exception):
    """A graph has no key, or cannot be stored: an id of NOT_STORED, and details."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{NOT_STORED[reason]}{f' ({detail})' if detail else ''} [{reason}]")
        self.reason = reason
