"""Gradients of modules in parallel: reduced while the compiled backward runs, and eager's own."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import flambeau
from tests.ranks import leave_groups, run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")

WIDTH, LAYERS = 12, 5
BUCKET = 2 * 4 * (WIDTH * WIDTH + WIDTH) / 1024**2
"""The size of two layers, in MB."""
LOG: list[str] = []


@torch.library.custom_op("flambeau_tests::logged", mutates_args=())
def logged(x: torch.Tensor, text: str) -> torch.Tensor:
    """A copy; says when it is made."""
    LOG.append(text)
    return x.clone()


@logged.register_fake
def _(x: torch.Tensor, text: str) -> torch.Tensor:
    return torch.empty_like(x)


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.text = inputs[1]


def _logged_backward(ctx: Any, grad: torch.Tensor) -> Any:
    return logged(grad, f"{ctx.text} backward"), None


logged.register_autograd(_logged_backward, setup_context=_remember)


class Net(nn.Module):
    """Layers that log their calls; one is used twice, and one not by each rank's every call."""

    def __init__(self, *, unused: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.unused = nn.Linear(WIDTH, 3) if unused else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(logged(x, f"layer {number}"))) + x
        return x, self.layers[0](x)


def reduced(state: list[str], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket of gradients, and say when."""
    LOG.append(f"bucket {bucket.index()}")
    return default_hooks.allreduce_hook(dist.group.WORLD, bucket)


# DistributedDataParallel compares annotations, which are strings in this file.
reduced.__annotations__ |= {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}


def train(
    rank: int,
    compiled: str,
    hook: Callable[..., Any] | None = None,
    *,
    unused: bool = False,
    accumulate: bool = False,
    one_result: bool = False,
    **options: Any,
) -> tuple[list[torch.Tensor], Any]:
    """Losses and gradients of some steps, and the compiled callable."""
    torch.manual_seed(0)
    net: Any = Net(unused=unused)
    callable_: Any = net
    if compiled == "inside":
        net = callable_ = flambeau.compile(net, fullgraph=True)
    parallel = call = DistributedDataParallel(net, bucket_cap_mb=BUCKET, **options)
    if hook is not None:
        parallel.register_comm_hook(None, hook)
    if compiled == "outside":
        call = callable_ = flambeau.compile(parallel)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    shown = []
    for step in range(4):
        for part in range(2 if accumulate else 1):
            torch.manual_seed(100 * step + 10 * part + rank)
            waits = accumulate and part == 0
            with parallel.no_sync() if waits else nullcontext():
                y, z = call(torch.randn(3 + rank, WIDTH))
                loss = y.square().sum() + (0 if one_result else z.sum())
                loss.backward()
            shown.append(loss.detach())
        shown += [p.grad.clone() for p in parallel.parameters() if p.grad is not None]
        LOG.append(f"step {step}")
        optimizer.step()
        optimizer.zero_grad()
    return shown, callable_


CASES: list[dict[str, Any]] = [
    {},
    {"accumulate": True},
    {"find_unused_parameters": True, "unused": True},
    {"gradient_as_bucket_view": True, "accumulate": True},
    {"static_graph": True},
    {"static_graph": True, "unused": True, "gradient_as_bucket_view": True},
    {"one_result": True, "find_unused_parameters": True},
]


def _equal_to_eager(rank: int) -> None:
    for case in CASES:
        theirs, _ = train(rank, "", **case)
        for compiled in ("inside", "outside"):
            ours, call = train(rank, compiled, **case)
            torch.testing.assert_close(ours, theirs, msg=lambda text, case=case: f"{case}: {text}")
            (graph,) = flambeau.explain(call).graphs
            assert graph.fallback is None


def _reduced_in_half_precision(rank: int) -> None:
    theirs, _ = train(rank, "", default_hooks.fp16_compress_hook)
    ours, _ = train(rank, "inside", default_hooks.fp16_compress_hook)
    torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=1e-2)


def _in_the_order_of_eager(rank: int) -> None:
    logs = []
    for compiled in ("", "inside", "outside"):
        LOG.clear()
        train(rank, compiled, reduced)
        logs.append(list(LOG))
    assert logs[0] == logs[1] == logs[2]
    last = logs[1][logs[1].index("step 2") :]
    assert last.index("bucket 0") < last.index("layer 2 backward")
    assert last.index("bucket 1") < last.index("layer 1 backward")


def _of_some_parameters(rank: int) -> None:
    """`torch.autograd.grad` of few parameters, backwards twice, and second derivatives."""
    torch.manual_seed(0)
    net = Net()
    parallel = DistributedDataParallel(net, bucket_cap_mb=BUCKET)
    compiled = flambeau.compile(parallel)
    x = torch.randn(4, WIDTH)
    shown: list[Any] = []
    for call in (parallel, compiled):
        parallel.zero_grad()
        last = list(net.layers[-1].parameters())
        found = list(torch.autograd.grad(call(x)[0].sum(), last))
        found += torch.autograd.grad(call(x)[0].sum(), [net.layers[1].weight, net.layers[4].bias])
        y = call(x)[0].sum()
        y.backward(retain_graph=True)
        found += [p.grad.clone() for p in net.parameters() if p.grad is not None]
        found += torch.autograd.grad(y, [net.layers[2].weight])
        (first,) = torch.autograd.grad(call(x)[0].exp().sum(), last[1], create_graph=True)
        found += torch.autograd.grad(first.sum(), [net.layers[1].weight])
        shown.append(found)
    torch.testing.assert_close(shown[1], shown[0])


def check(rank: int, store: str) -> None:
    """What each of two processes checks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{store}")
    _equal_to_eager(rank)
    _reduced_in_half_precision(rank)
    _in_the_order_of_eager(rank)
    _of_some_parameters(rank)
    leave_groups()


def test_two_processes(tmp_path: Path) -> None:
    store = os.fspath(tmp_path / "store")
    run_ranks(check, (store,), 2)
