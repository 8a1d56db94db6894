"""Long dicts are read entry by entry; what reads all of one is guarded by all of it."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from capture_harness import compiled

if TYPE_CHECKING:
    from collections.abc import Callable

FULL = {f"k{at}": at for at in range(200)}
TABLE = dict(FULL)

READS: dict[str, Callable[[], Any]] = {
    "len": lambda: len(TABLE),
    "method len": lambda: TABLE.__len__(),
    "bool": lambda: bool(TABLE),
    "not": lambda: not TABLE,
    "branch": lambda: 2 if TABLE else 3,
    "and": lambda: 2 if (TABLE and True) else 3,
    "truth": lambda: operator.truth(TABLE),
    "any": lambda: any([TABLE]),
    "equal": lambda: TABLE == {"k0": 0},
    "equal on the right": lambda: {"k0": 0} == TABLE,  # noqa: SIM300 (another operand)
    "unequal": lambda: TABLE != {"k0": 0},
    "in a tuple": lambda: TABLE in ({"k0": 0},),
    "union": lambda: len(TABLE | {"z": 1}),
    "copied": lambda: len({**TABLE}),
    "dict": lambda: len(dict(TABLE)),
    "method copy": lambda: len(TABLE.copy()),
    "listed": lambda: len([*TABLE]),
    "keys": lambda: len(TABLE.keys()),
    "compared keys": lambda: TABLE.keys() == {"k0"},
    "values": lambda: len(list(TABLE.values())),
    "loop": lambda: sum(1 for _ in TABLE),
    "sorted": lambda: len(sorted(TABLE)),
    "largest": lambda: max(TABLE, default="") == "k99",
    "set": lambda: set(TABLE) == {"k0"},
    "reversed": lambda: next(reversed(TABLE), "") == "k199",
    "hint": lambda: operator.length_hint(TABLE),
    "text": lambda: len(str(TABLE)),
}


@pytest.mark.parametrize("name", READS)
def test_a_changed_dict_is_read_again(name: str) -> None:
    read = READS[name]

    def program(x: torch.Tensor) -> Any:
        return x * read()

    fast = compiled(program)
    x = torch.ones(2)
    try:
        for content in (FULL, {"k0": 0}, {}, {**FULL, "k200": 1}):
            TABLE.clear()
            TABLE.update(content)
            torch.testing.assert_close(fast(x), program(x))
    finally:
        TABLE.clear()
        TABLE.update(FULL)
