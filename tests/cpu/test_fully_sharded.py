"""Modules under `fully_shard`: compiled around the hooks that gather and free parameters, beside
eager. A hook breaks the graph; each block's forward between the hooks is one graph, which
all blocks share.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import flambeau
from tests.ranks import leave_groups, run_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")

WIDTH, BLOCKS = 8, 4
LIMIT = timedelta(seconds=200)


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.down(functional.silu(self.up(self.norm(x))))


def train(
    rank: int, mesh: Any, *, compiled: bool, **options: Any
) -> tuple[list[torch.Tensor], Any]:
    """Losses, and this rank's parts of gradients and parameters, of some steps."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    for block in model:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    call: Any = flambeau.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shown: list[torch.Tensor] = []
    for step in range(4):
        torch.manual_seed(10 * step + rank)
        loss = call(torch.randn(4, WIDTH)).float().square().mean()
        loss.backward()
        shown.append(loss.detach())
        shown += [_local(p.grad) for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        shown += [_local(p) for p in model.parameters()]
    return shown, call


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local().detach().clone()
    return local


def check(rank: int, store: str) -> None:
    """What each of two processes checks."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", rank=rank, world_size=2, init_method=f"file://{store}", timeout=LIMIT
    )
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    cases: list[dict[str, Any]] = [
        {},
        {"reshard_after_forward": False},
        {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
    ]
    for case in cases:
        theirs, _ = train(rank, mesh, compiled=False, **case)
        ours, call = train(rank, mesh, compiled=True, **case)
        bounds = {"rtol": 0.05, "atol": 0.01} if "mp_policy" in case else {}
        torch.testing.assert_close(ours, theirs, **bounds)
        report = flambeau.explain(call)
        # The first block's argument has no gradient, or may be of another dtype.
        assert len(report.graphs) == 2, case
        assert not any(graph.fallback for graph in report.graphs)
        assert not report.recompiles
    dist.barrier()
    leave_groups()


def test_two_processes(tmp_path: Path) -> None:
    run_ranks(check, (os.fspath(tmp_path / "store"),), 2)
