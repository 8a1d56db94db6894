"""What becomes of operators, as `python -m tools.operators` counts it, and the page of those that
stay calls of ATen.
"""

from __future__ import annotations

import pytest

from tools.operators.count import count
from tools.operators.page import PAGE, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "python -m tools.operators --page"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("logit", "kernels"), ("masked.softmax", "kernels"), ("special.i1e", "kernels"),
        ("angle", "kernels"), ("t", "views"), ("linalg.inv", "extern"), ("nonzero", "breaks"),
    ],
)  # fmt: skip
def test_what_becomes_of_operators(name: str, kind: str) -> None:
    for dynamic in (False, True):
        assert count(name, dynamic, samples=2).kind == kind
