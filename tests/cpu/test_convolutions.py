"""Convolutions and normalizations on a CPU, forward and backward."""

from __future__ import annotations

import pytest

import flambeau
from tests.programs.convolutions import (
    PROGRAMS,
    assert_gradients_as_near_as_eager,
    assert_gradients_through_relus,
)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_as_near_as_eager(name: str, autocast: bool) -> None:
    assert_gradients_as_near_as_eager(name, "cpu", autocast, flambeau.compile)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_through_relus(name: str) -> None:
    assert_gradients_through_relus(name, "cpu", flambeau.compile)
