"""Index expressions: arithmetic under ranges, printing, reshape maps against enumeration, splitting
of axes.
"""

from __future__ import annotations

import itertools
import math

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from flambeau_inductor.indexing.expressions import (
    FloorDiv,
    Mod,
    evaluate_expr,
    integer_text,
    symbol,
)
from flambeau_inductor.indexing.ranges import RangedMath, reshape_index

i, j, k, n = (symbol(name) for name in ("i0", "i1", "i2", "s0"))


def test_division_in_ranges():
    ranged = RangedMath({"i0": sympy.Integer(6), "i1": sympy.Integer(12), "i2": sympy.Integer(64)})
    assert ranged.floordiv(768 * i + 64 * j + k, sympy.Integer(768)) == i
    assert ranged.mod(768 * i + 64 * j + k, sympy.Integer(768)) == 64 * j + k
    assert ranged.floordiv(64 * j + k, sympy.Integer(64)) == j
    assert ranged.mod(64 * j + k, sympy.Integer(128)) == 64 * Mod(j, 2) + k


def test_division_by_symbols():
    ranged = RangedMath({"i0": sympy.Integer(6), "i1": n})
    assert ranged.floordiv(n * i + j, n) == i
    assert ranged.mod(n * i + j, n) == j


def test_text():
    assert integer_text(768 * i + j) == "768*i0 + i1"
    assert integer_text(FloorDiv(i + 1, 3) * 2 + Mod(j, n)) == "2*((i0 + 1) // 3) + i1 % s0"
    assert integer_text(FloorDiv(i, 3), floordiv="/") == "i0 / 3"
    assert integer_text(n**2 + 1) == "s0*s0 + 1"


def test_nested_division():
    assert FloorDiv(FloorDiv(i, 3), 4) == FloorDiv(i, 12)
    assert FloorDiv(12 * i + 5, 4) == 3 * i + 1
    assert Mod(12 * i + 5, 4) == 1


shapes = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=0, max_size=4)


@settings(max_examples=60, deadline=None)
@given(shapes, st.randoms(use_true_random=False))
def test_reshape_index_against_enumeration(old, random):
    total = math.prod(old)
    new = _regroup(total, random)
    symbols = [symbol(f"i{d}") if size > 1 else sympy.S.Zero for d, size in enumerate(new)]
    ranged = RangedMath({f"i{d}": sympy.Integer(size) for d, size in enumerate(new)})
    wide_old, wide_new = ([sympy.Integer(size) for size in shape] for shape in (old, new))
    found = reshape_index(wide_old, wide_new, symbols, ranged)
    for number, point in enumerate(itertools.product(*(range(size) for size in new))):
        values = {f"i{d}": position for d, position in enumerate(point)}
        flat = 0
        for size, position in zip(old, found, strict=True):
            flat = flat * size + int(evaluate_expr(position, values))
        assert flat == number


def _regroup(total: int, random) -> list[int]:
    """A random shape of `total` elements."""
    shape = []
    while total > 1:
        divisor = random.choice([d for d in range(2, total + 1) if total % d == 0])
        shape.append(divisor)
        total //= divisor
        if random.random() < 0.3:
            shape.append(1)
    return shape


@pytest.mark.parametrize("bad", [i**-1, sympy.sqrt(i)])
def test_other_functions_are_refused(bad):
    with pytest.raises(TypeError):
        integer_text(bad)
