"""Convolutions and normalizations on a CPU, forward and backward."""

from __future__ import annotations

import pytest
import torch

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


@pytest.mark.parametrize("shape", [(16, 16, 64), (16, 4, 32), (8, 40, 64), (3, 16, 48)])
def test_norms_of_transposed_images(shape: tuple[int, ...]) -> None:
    """Of the image, channels are reduced; the result is row-major."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, None, None, training=True)

    x = torch.randn(shape).transpose(0, -1)
    torch.testing.assert_close(flambeau.compile(program)(x), program(x), atol=1e-5, rtol=1e-5)
