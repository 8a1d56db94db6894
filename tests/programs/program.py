"""What a program of the differential tests is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Program(NamedTuple):
    """A function, a maker of its arguments, and options of `differences` and `flambeau.compile`."""

    function: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    options: dict[str, Any]


def program(table: dict[str, Program]) -> Callable[..., None]:
    """A function that adds a program to a table, and refuses a name twice."""

    def add(
        name: str, function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], **options: Any
    ) -> None:
        if name in table:
            raise ValueError(f"two programs are named {name}")
        table[name] = Program(function, make, options)

    return add
