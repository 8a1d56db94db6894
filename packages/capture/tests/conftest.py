"""What all tests of capture share."""

from __future__ import annotations

import gc
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import torch

from flambeau_capture.bytecode.checker import assembled_code_checked
from flambeau_capture.entries import entry
from flambeau_capture.graphs.check import check_captured_graph

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_finish() -> None:
    """Modules and tests live as long as the run: no later collection of garbage visits them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    """Each test draws its own inputs, the same ones in every run."""
    seed = zlib.crc32(request.node.nodeid.encode())
    # `torch.manual_seed` formats the stack of its call for each kind of device.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


@pytest.fixture(scope="session", autouse=True)
def _graphs_are_checked() -> Iterator[None]:
    """Each graph that is captured in a test keeps the contract of border 1."""
    build = entry.build_graph_module

    def checked(capture: Any, wanted: Any) -> Any:
        module, inputs = build(capture, wanted)
        check_captured_graph(module, [item.example for item in inputs])
        return module, inputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry, "build_graph_module", checked)
        yield


@pytest.fixture(scope="session", autouse=True)
def _code_is_checked() -> Iterator[None]:
    """CPython's compiler could have made each code object that a test assembles."""
    with assembled_code_checked():
        yield
