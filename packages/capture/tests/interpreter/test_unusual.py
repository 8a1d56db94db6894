"""Less usual forms of Python, captured whole and compared with eager."""

from __future__ import annotations

import pytest
from capture_harness import check
from unusual_programs import PROGRAMS, X


@pytest.mark.parametrize(("fn", "args"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])
def test_same_as_eager(fn, args):
    check(fn, X.clone(), *args)
