"""Less usual forms of Python, captured whole and compared with eager."""

from __future__ import annotations

import gc
import itertools
import warnings

import pytest
from capture_harness import check
from captured import compiled
from unusual_programs import PROGRAMS, X


@pytest.mark.parametrize(("fn", "args"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])
def test_same_as_eager(fn, args):
    check(fn, X.clone(), *args)


def test_iterators_cross_breaks_without_warnings():
    def program():
        letters, sums = itertools.cycle("abc"), itertools.accumulate([1, 2, 3])
        next(letters), next(sums)
        gc.collect()
        return list(itertools.islice(letters, 4)), list(sums)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(program)() == program()
