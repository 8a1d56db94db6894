"""Programs that communicate, for a process group of two; each takes a tensor of (n, 3), n even."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

if TYPE_CHECKING:
    from collections.abc import Callable


def summed(x: torch.Tensor) -> Any:
    y, z = x * 2, x * 3
    dist.all_reduce(y)
    dist.all_reduce(z, op=dist.ReduceOp.MAX)
    return y + 1, z * y


def summed_input(x: torch.Tensor) -> Any:
    dist.all_reduce(x, dist.ReduceOp.PRODUCT, dist.group.WORLD)
    return x.sin()


def gathered(x: torch.Tensor) -> Any:
    rows = torch.empty(2 * x.shape[0], 3)
    dist.all_gather_into_tensor(rows, x + 1)
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.cos())
    return rows.sum(0), parts[0] - parts[1]


def scattered(x: torch.Tensor) -> Any:
    rows = torch.empty(x.shape[0] // 2, 3)
    dist.reduce_scatter_tensor(rows, x * 2)
    return rows.exp()


def exchanged(x: torch.Tensor) -> Any:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x * 3)
    return out + x


def broadcast(x: torch.Tensor) -> Any:
    y = x.clone()
    dist.broadcast(y, 1)
    return y * dist.get_rank()


def of_functions(x: torch.Tensor) -> Any:
    group = dist.group.WORLD
    wide = functional.all_gather_tensor(x * 2, 0, group) + 1
    narrow = functional.reduce_scatter_tensor(x, "sum", 0, group)
    lists = functional.all_gather_into_tensor_coalesced([x, x.exp()], group)
    return functional.all_reduce(x.sin(), "sum", group) * 3, wide, narrow, torch.cat(lists).sum()


def of_much_memory(x: torch.Tensor) -> Any:
    """What the collectives read is dead after them, and memory of its size is wanted."""
    x = x.double()
    group, total = dist.group.WORLD, x.sum()
    for step in range(4):
        wide = (x.sum() + torch.arange(200_000, dtype=torch.float64).sin() + step).cos()
        sums = functional.all_reduce(wide, "sum", group)
        rows = functional.all_gather_tensor(wide * 2, 0, group)
        other = (sums[:1000].sum() + torch.arange(200_000, dtype=torch.float64)).sin()
        total = total + (other * sums).sum() + rows.view(2, -1)[step % 2].mean()
    return total


PROGRAMS: tuple[Callable[..., Any], ...] = (
    summed, summed_input, gathered, scattered, exchanged, broadcast, of_functions,
    of_much_memory,
)  # fmt: skip


def functional_loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x @ w, "sum", dist.group.WORLD).sin().sum()


def differentiable_loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(x @ w).sin().sum()  # type: ignore[no-untyped-call]
