"""Training curves of small models: compiled, they stay within eager's run-to-run noise.

The form of 300 steps is `python -m tools.bench curves`.
"""

from __future__ import annotations

import pytest

from tools.bench.curves import CURVE_CASES, compare_curves


@pytest.mark.parametrize("name", CURVE_CASES)
def test_twenty_steps(name: str) -> None:
    found = compare_curves(name, 20, (0, 1, 2))
    assert found.ratio < 1
    assert max(found.distances) < 0.01 * found.means[0]
