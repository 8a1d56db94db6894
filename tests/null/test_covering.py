"""The cases that `--cover` leaves of a test."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import pytest

from tests.covering import covering
from tests.other_process import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def combinations_of(rows: Any, strength: int) -> set[Any]:
    return {part for row in rows for part in combinations(enumerate(row), strength)}


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_of_values_occurs(strength: int) -> None:
    for seed in range(20):
        draw = random.Random(seed)
        sizes = [draw.randint(1, 4) for _ in range(4)]
        rows = [row for row in product(*map(range, sizes)) if draw.random() < 0.8] or [(0,) * 4]
        chosen = covering(rows, rows, strength, seed)
        assert combinations_of(chosen, strength) == combinations_of(rows, strength)
        assert len(set(chosen)) == len(chosen)
        assert chosen == covering(rows, rows, strength, seed)


TESTS = """
import pytest

def test_alone(): pass

@pytest.mark.parametrize("a", range(5))
def test_one(a): pass

@pytest.mark.parametrize("a,b", [(1, 2), (1, 3), (4, 2)])
@pytest.mark.parametrize(("c",), [(1,), (2,)])
def test_rows(a, b, c): pass

@pytest.fixture(params=range(3))
def number(request): return request.param

@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(3))
def test_product(a, b, number): pass
"""


@pytest.mark.parametrize(("cover", "count"), [("values", 1 + 5 + 3 + 3), ("pairs", 1 + 5 + 6 + 9)])
def test_the_option(cover: str, count: int, tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(TESTS)
    command = (
        sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "tests.covering",
        f"--cover={cover}", str(file),
    )  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    passed = int(done.stdout.splitlines()[-1].partition(" passed")[0])
    # A greedy choice of pairs may have some cases more than the smallest one.
    assert count <= passed <= count + 2, done.stdout
