"""Fewer cases of tests with many parameters: `pytest -p tests.covering --cover={values,pairs}`.

    all cases of a test  ->  a covering array: each value of a parameter occurs (strength 1), or
                             each pair of values of two parameters (strength 2)

A row of one `parametrize` counts as one value: what is listed by hand is always run, and only
products of lists shrink. The choice is fixed, for each test and ISA level. Most faults show with
one or two parameters (Kuhn, Kacker, Lei, "Practical Combinatorial Testing", NIST SP 800-142, 2010).
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

STRENGTHS = {"values": 1, "pairs": 2}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cover", choices=STRENGTHS, help="of tests with many cases, run these")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases whose values, or pairs of values, occur in others."""
    if not (name := config.getoption("--cover")):
        return
    level = config.getoption("--isa", None)
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    chosen: set[pytest.Item] = set()
    for test, cases in tests.items():
        seed = zlib.crc32(f"{test} {level}".encode())
        chosen.update(covering([values_of(case) for case in cases], cases, STRENGTHS[name], seed))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def values_of(item: pytest.Item) -> list[Any]:
    """The value of each `parametrize` of a test, a row of several names as one value; cases that
    have none differ in their names.
    """
    if not hasattr(item, "callspec"):
        return [item.nodeid]
    left = {name: id(value) for name, value in item.callspec.params.items()}
    values: list[Any] = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        words = names.replace(",", " ").split() if isinstance(names, str) else names
        values.append(tuple(left.pop(word, None) for word in words))
    return values + [left[name] for name in sorted(left)]  # of fixtures


def covering(
    rows: Sequence[Sequence[Any]], cases: Sequence[Any], strength: int, seed: int
) -> list[Any]:
    """Cases, one of each row, whose rows have every combination of `strength` values that all rows
    together have. Each is the one with most combinations that no earlier one has (greedy).
    """
    order = list(range(len(cases)))
    random.Random(seed).shuffle(order)
    parts = [set(combinations(enumerate(row), min(strength, len(row)))) for row in map(tuple, rows)]
    missing = set().union(*parts)
    chosen = []
    while missing:
        best = max(order, key=lambda number: len(parts[number] & missing))
        chosen.append(cases[best])
        missing -= parts[best]
    return chosen
