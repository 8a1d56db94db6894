"""The compiler of kernels starts while a frame is captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flambeau import expected_work
from flambeau.options import Options
from flambeau_runtime import cuda
from flambeau_runtime.build import triton_server

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_the_compiler_runs_when_capture_starts() -> None:
    running: list[bool] = []

    def seen(scope: Any, options: Any, dynamic: Any) -> Any:
        server = triton_server.server(cuda.capability(torch.device("cuda", 0)))
        running.append(server._process is not None and server._process.poll() is None)

    class Scope:
        arguments = (nn.Linear(3, 3, device="cuda"), torch.randn(2, 3))

    expected_work.expecting_kernels(seen, Options())(Scope(), None, None)  # type: ignore[arg-type]
    assert running == [True]
