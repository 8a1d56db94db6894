"""Pipeline parallelism: compiled stages under torch's schedules, trained beside eager."""

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

WIDTH, ROWS, STAGES = 8, 8, 4
LIMIT = timedelta(seconds=200)


class Layer(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.down(functional.silu(self.up(self.norm(x))))


def error(y: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (y - wanted).square().mean()


def train(
    rank: int, name: str, numbers: list[int], *, compiled: bool
) -> tuple[list[torch.Tensor], list[Any]]:
    """Losses, results, gradients and parameters of the stages `numbers`, and their callables."""
    from torch.distributed import pipelining

    torch.manual_seed(0)
    layers = [Layer() for _ in range(STAGES)]
    per_stage = 1 if len(numbers) == 2 else 2
    modules = [
        nn.Sequential(*layers[per_stage * number : per_stage * (number + 1)]) for number in numbers
    ]
    calls: list[Any] = [
        flambeau.compile(module, fullgraph=True) if compiled else module for module in modules
    ]
    stages = [
        pipelining.PipelineStage(call, number, STAGES // per_stage, torch.device("cpu"))
        for call, number in zip(calls, numbers, strict=True)
    ]
    schedule = getattr(pipelining, name)(stages if len(stages) > 1 else stages[0], 4, loss_fn=error)
    parameters = [p for module in modules for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    shown: list[torch.Tensor] = []
    for step in range(3):
        torch.manual_seed(step + 1)
        x, wanted = torch.randn(2, ROWS, WIDTH)
        losses: list[torch.Tensor] = []
        given = (x,) if rank == 0 else ()
        last = {"target": wanted, "losses": losses} if rank == 1 else {}
        result = schedule.step(*given, **last)
        shown += [loss.detach() for loss in losses]
        if result is not None:
            shown.append(result.detach())
        shown += [p.grad.clone() for p in parameters if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        shown += [p.detach().clone() for p in parameters]
    return shown, calls


SCHEDULES = {
    "ScheduleGPipe": ([0], [1]),
    "Schedule1F1B": ([0], [1]),
    "ScheduleInterleaved1F1B": ([0, 2], [1, 3]),
}
"""The stages of both ranks."""


def check(rank: int, store: str) -> None:
    """What each of two processes checks."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", rank=rank, world_size=2, init_method=f"file://{store}", timeout=LIMIT
    )
    for name, numbers in SCHEDULES.items():
        theirs, _ = train(rank, name, numbers[rank], compiled=False)
        ours, calls = train(rank, name, numbers[rank], compiled=True)
        torch.testing.assert_close(ours, theirs, msg=lambda text, name=name: f"{name}: {text}")
        for call in calls:
            (graph,) = flambeau.explain(call).graphs
            assert graph.fallback is None, name
    dist.barrier()
    leave_groups()


def test_two_processes(tmp_path: Path) -> None:
    run_ranks(check, (os.fspath(tmp_path / "store"),), 2)
