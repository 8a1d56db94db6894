"""Blocks, handlers, comprehensions, generators and cells in each other: as eagerly, wherever the
frames are suspended.
"""

from __future__ import annotations

import block_programs
import capture_harness
import pytest
import scope_programs
from capture_harness import check

PROGRAMS = block_programs.PROGRAMS + scope_programs.PROGRAMS


@pytest.mark.parametrize("steps", [None, 7, 20], ids=["whole", "every 7", "every 20"])
@pytest.mark.parametrize(("fn", "args"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])
def test_same_as_eager(fn, args, steps, monkeypatch):
    monkeypatch.setattr(capture_harness, "STEPS", steps)
    check(fn, block_programs.X.clone(), *args)
