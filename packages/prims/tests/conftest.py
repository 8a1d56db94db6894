"""Every test draws the same inputs in every run."""

from __future__ import annotations

import zlib

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    """Each test draws its own inputs, the same ones in every run."""
    seed = zlib.crc32(request.node.nodeid.encode())
    # `torch.manual_seed` formats the stack of its call for each kind of device.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
