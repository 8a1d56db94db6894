"""Processes of a test: ranks of a process group, or programs that share a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def run_ranks(check: Callable[..., None], arguments: tuple[Any, ...], count: int) -> None:
    """Call `check(rank, *arguments)` in `count` processes; raise what one of them raises."""
    context = torch.multiprocessing.spawn(check, arguments, nprocs=count, join=False)
    assert context is not None
    ended = False
    while not ended:
        ended = context.join()
    assert [process.exitcode for process in context.processes] == [0] * count


_LEFT: list[Any] = []


def leave_groups() -> None:
    """Destroy the process groups, as the last thing that a rank does with them.

    The groups live on until the process ends: the destructor of one of gloo's waits, with the
    interpreter's lock, for threads that may need that lock to drop what a backward has handed them.
    """
    _LEFT.extend(torch.distributed.distributed_c10d._world.pg_map)
    torch.distributed.destroy_process_group()
