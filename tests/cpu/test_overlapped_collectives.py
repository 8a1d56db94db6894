"""Collectives of a compiled graph run beside its other calls: proved by programs that would wait
for ever if they did not, and raise because the wait is bounded.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

import flambeau
from tests.ranks import leave_groups, run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")

LIMIT = timedelta(seconds=200)
STORE: dict[str, Any] = {}
"""What the processes tell each other by: "store", and this process's "rank"."""


@torch.library.custom_op("flambeau_tests::tells", mutates_args=())
def tells(x: torch.Tensor, key: str, rank: int) -> torch.Tensor:
    """A copy; process `rank` says that it is made."""
    if STORE["rank"] == rank:
        STORE["store"].set(key, "")
    return x.clone()


@torch.library.custom_op("flambeau_tests::hears", mutates_args=())
def hears(x: torch.Tensor, key: str, rank: int) -> torch.Tensor:
    """A copy; process `rank` makes it when another has said so."""
    if STORE["rank"] == rank:
        STORE["store"].wait([key], LIMIT)
    return x.clone()


@tells.register_fake
@hears.register_fake
def _(x: torch.Tensor, key: str, rank: int) -> torch.Tensor:
    return torch.empty_like(x)


def waits_late(x: torch.Tensor, key: str) -> torch.Tensor:
    """Process 1 takes part when process 0 has gone on."""
    y = hears(x * 2, key, 1)
    dist.all_reduce(y)
    return y + tells(x.sin(), key, 0)


def starts_early(x: torch.Tensor, key: str) -> torch.Tensor:
    """Process 0 goes on when process 1 has the sum."""
    z = hears(x.sin(), key, 0)
    y = x * 2
    dist.all_reduce(y)
    return tells(y, key, 1) + z


def several(x: torch.Tensor, key: str) -> torch.Tensor:
    """As `waits_late`, with several kinds of collectives in flight."""
    y = hears(x * 2, key, 1)
    z = y + 1
    dist.all_reduce(y)
    rows = torch.empty(2 * x.shape[0], x.shape[1])
    dist.all_gather_into_tensor(rows, z)
    part = torch.empty_like(x)
    dist.reduce_scatter_tensor(part, torch.cat([x, z]).mul(2))
    return y + part + rows.sum(0) + tells(x.sin(), key, 0)


def check(rank: int, folder: str) -> None:
    """What each of two processes checks."""
    torch.set_num_threads(1)
    STORE["rank"] = rank
    STORE["store"] = dist.FileStore(f"{folder}/told", 2)
    dist.init_process_group(
        "gloo", rank=rank, world_size=2, init_method=f"file://{folder}/store", timeout=LIMIT
    )
    programs: list[Callable[..., Any]] = [waits_late, starts_early, several]
    for number, program in enumerate(programs):
        x = torch.randn(40, 5) + rank
        key = f"key {number}"
        ours = flambeau.compile(program, fullgraph=True)(x, key)
        # Eager's collectives wait at once: all has been said by now.
        torch.testing.assert_close(ours, program(x, key), msg=program.__name__)
    dist.barrier()
    leave_groups()


def test_two_processes(tmp_path: Path) -> None:
    run_ranks(check, (os.fspath(tmp_path),), 2)
