"""What all tests of capture share."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest
import torch

from flambeau_capture.bytecode.checker import assembled_code_checked

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    """Each test draws its own inputs, the same ones in every run."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(scope="session", autouse=True)
def _code_is_checked() -> Iterator[None]:
    """CPython's compiler could have made each code object that a test assembles."""
    with assembled_code_checked():
        yield
