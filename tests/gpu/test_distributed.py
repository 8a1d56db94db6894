"""Models in parallel on two GPUs by NCCL, trained compiled beside eager."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

import flambeau
from tests.ranks import leave_groups, run_ranks
from tools.bench.distributed_cases import DISTRIBUTED_CASES, SMALL, Llama

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs"
)

STEPS = 12
"""More than the calls after which Programs are launched as recorded graphs."""


def train(case: str, way: str, mode: str | None, mesh: Any) -> list[torch.Tensor]:
    """Losses of some steps, gradients of the last one, and the parameters after it."""
    torch.manual_seed(0)
    model = Llama(SMALL).cuda()
    if way == "layers":
        for layer in model.layers:
            layer._compiled_call_impl = flambeau.compile(layer._call_impl, mode=mode)
    ranked = DISTRIBUTED_CASES[case](model, mesh)
    call = flambeau.compile(ranked, mode=mode) if way == "whole" else ranked
    optimizer = torch.optim.SGD(ranked.parameters(), lr=0.1, foreach=False)  # of mixed types
    shown = []
    for step in range(STEPS):
        torch.manual_seed(step if case == "tensor_parallel" else 2 * step + mesh.get_local_rank())
        words, wanted = torch.randint(0, SMALL.words, (2, SMALL.rows, SMALL.tokens)).cuda()
        optimizer.zero_grad()
        loss = call(words, wanted)
        loss.backward()
        optimizer.step()
        shown.append(loss.detach())
    shown += [_whole(p.grad) for p in ranked.parameters()]
    return shown + [_whole(p).detach() for p in ranked.parameters()]


def _whole(tensor: Any) -> torch.Tensor:
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def check(rank: int, case: str, mode: str | None, store: str) -> None:
    """What each of two processes checks."""
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", rank=rank, world_size=2, init_method=f"file://{store}",
        timeout=timedelta(seconds=200), device_id=torch.device("cuda", rank),
    )  # fmt: skip
    mesh = dist.device_mesh.init_device_mesh("cuda", (2,))
    theirs = train(case, "", None, mesh)
    for way in ("whole", "layers"):
        torch.testing.assert_close(
            train(case, way, mode, mesh), theirs, rtol=1e-4, atol=1e-5,
            msg=lambda text, way=way: f"{way}: {text}",
        )  # fmt: skip
    leave_groups()


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("case", DISTRIBUTED_CASES)
def test_training_as_eager(case: str, mode: str | None, tmp_path: Path) -> None:
    run_ranks(check, (case, mode, os.fspath(tmp_path / "store")), 2)
