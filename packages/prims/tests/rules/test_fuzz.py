"""Random calls of every operator of the table: rule and eager agree in shape, dtype, stride and
offset, or both raise.
"""

from __future__ import annotations

import random
import warnings

import pytest
import rules.calls_model
import rules.calls_nn
import rules.calls_rare
import rules.calls_view  # noqa: F401 - each adds its calls to the table
from rules.calls import CALLS
from rules.compare import check

CALLS_EACH = 8


@pytest.mark.parametrize("name", CALLS)
def test_rule_agrees_with_eager(name: str) -> None:
    """The seed is the operator's name, so a failure repeats."""
    rng = random.Random(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [check(*CALLS[name](rng)) for _ in range(CALLS_EACH)]
    differing = [text for text in found if text is not None]
    assert not differing, "\n".join(differing)
