"""Random Python programs do compiled what they do eagerly; `python -m tools.fuzz python` runs more
of them.
"""

from __future__ import annotations

import pytest

from tools.fuzz.python_check import first_difference


@pytest.mark.parametrize(("seed", "dynamic"), [(0, None), (1, None), (2, True), (3, None)])
def test_random_python_programs(seed: int, dynamic: bool | None) -> None:
    ran, text = first_difference(15, seed, dynamic=dynamic)
    assert text is None, text
    assert ran >= 15
