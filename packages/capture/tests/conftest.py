"""What several test files share is imported by name."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    """Each test draws its own inputs, the same ones in every run."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
