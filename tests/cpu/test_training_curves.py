"""Training curves of small models: compiled, they are eager's.

In float64, where rounding has no time to grow, they are equal; in float32, a convolution net in
training mode turns a change of 1e-7 of its first weights into 10 % of the loss within 20 steps, so
that there a curve has to be eager's in its first steps, and later to stay within eager's spread
over seeds. The form of 300 steps is `python -m tools.bench curves`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest
import torch

from tools.bench import curves
from tools.bench.curves import CURVE_CASES, compare_curves

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def _each_curve_once() -> Iterator[None]:
    """Curves of float32 are compared in two ways."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "losses", functools.cache(curves.losses))
        yield


@pytest.mark.parametrize("name", CURVE_CASES)
def test_twenty_steps_in_float64(name: str) -> None:
    found = compare_curves(name, 20, (0,), torch.float64)
    for distance, mean in zip(found.distances, found.means, strict=True):
        assert distance < 1e-9 * mean


@pytest.mark.parametrize("name", CURVE_CASES)
def test_twenty_steps_in_float32(name: str) -> None:
    assert compare_curves(name, 20, (0, 1, 2)).ratio < 1


@pytest.mark.parametrize("name", CURVE_CASES)
def test_steady_steps_in_float32(name: str) -> None:
    case = CURVE_CASES[name]
    eager, compiled = (
        curves.losses(case, 0, 20, compiles=compiles, dtype=torch.float32)
        for compiles in (False, True)
    )
    for one, other in list(zip(eager, compiled, strict=True))[: case.steady_steps]:
        assert abs(one - other) < 1e-3 * one
