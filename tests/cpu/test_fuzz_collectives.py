"""Programs that communicate, made by `tools.fuzz`, and what they found."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.utils._python_dispatch import TorchDispatchMode

import flambeau
from tests.ranks import leave_groups

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


@pytest.mark.parametrize(("first", "dynamic"), [(0, False), (1000, True)])
def test_random_programs(first: int, dynamic: bool) -> None:
    from tools.fuzz.collectives import differing

    assert differing(first, 10 if not dynamic else 4, dynamic=dynamic) == []


class _Counting(TorchDispatchMode):
    """Counts collectives that start."""

    def __init__(self) -> None:
        super().__init__()
        self.started = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        self.started += name.startswith("_c10d_functional::") and not name.endswith("wait_tensor")
        return func(*args, **(kwargs or {}))


def test_a_gradient_that_nobody_needs_is_not_communicated(tmp_path: Path) -> None:
    store = os.fspath(tmp_path / "store")
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{store}")

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        functional.wait_tensor(functional.all_reduce(y - 0.5, "sum", dist.group.WORLD))
        return y + 1

    compiled = flambeau.compile(program, fullgraph=True)
    for call in (program, compiled):
        x = torch.randn(4, requires_grad=True)
        y = call(x)
        with _Counting() as counting:
            y.sum().backward()
        assert counting.started == 0
        torch.testing.assert_close(x.grad, 1 - x.detach().tanh() ** 2)
    leave_groups()
