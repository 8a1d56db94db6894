"""Convolutions and normalizations on a GPU, forward and backward."""

from __future__ import annotations

import pytest
import torch

import flambeau
from tests.programs.convolutions import PROGRAMS, assert_gradients_as_near_as_eager

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_as_near_as_eager(
    monkeypatch: pytest.MonkeyPatch, name: str, autocast: bool
) -> None:
    """From the fourth call on, launches are replayed."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert_gradients_as_near_as_eager(name, "cuda", autocast, flambeau.compile, calls=6)
