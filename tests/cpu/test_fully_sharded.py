"""Modules under `fully_shard`, compiled beside eager: one graph gathers the parameters, frees and
gathers them again, and reduces their gradients. Where hooks do more, they stay eager, and break the
graph.
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
from tests.worlds import kinds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")

WIDTH, BLOCKS = 8, 4
LIMIT = timedelta(seconds=200)


class Block(nn.Module):
    """A residual block; one parameter is used by nobody, or in some calls."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.unused = nn.Linear(width, 3)
        self.breaks = False

    def forward(self, x: torch.Tensor) -> Any:
        up = self.up(self.norm(x))
        if self.breaks:
            flambeau.compiler.graph_break()
        return x + self.down(functional.silu(up))


class Gathering:
    """A program's own all-gather, which counts its calls."""

    def __init__(self, default: Any) -> None:
        self.default, self.calls = default, 0

    def allocate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        memory: torch.Tensor = self.default.allocate(*args, **kwargs)
        return memory

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.default(*args, **kwargs)


def gather_by_own(model: Any) -> None:
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather

    model.own = Gathering(DefaultAllGather())
    for block in model:
        block.set_custom_all_gather(model.own)


def reduce_unused(model: Any) -> None:
    model.set_reduce_scatter_unused_params(True)


def keep_gathered(model: Any) -> None:
    model.set_reshard_after_backward(False)


def break_inside(model: Any) -> None:
    for block in model:
        block.breaks = True


def train(
    rank: int,
    mesh: Any,
    compiled: str,
    *,
    width: int = WIDTH,
    accumulate: bool = False,
    evaluate: bool = False,
    prepare: Callable[[Any], None] | None = None,
    **options: Any,
) -> tuple[list[Any], Any]:
    """Losses, and this rank's parts of gradients and parameters, of some steps."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model: Any = nn.Sequential(*(Block(width) for _ in range(BLOCKS)))
    for block in model:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    if prepare is not None:
        prepare(model)
    call = model
    if compiled == "blocks":
        for block in model:
            block._compiled_call_impl = flambeau.compile(block._call_impl)
    elif compiled:
        call = flambeau.compile(model, fullgraph=compiled == "whole")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shown: list[Any] = []
    for step in range(4):
        for part in range(2 if accumulate else 1):
            torch.manual_seed(10 * step + rank + 100 * part)
            model.set_requires_gradient_sync(not accumulate or part == 1)
            each = model if compiled == "sometimes" and step == 1 else call
            loss = each(torch.randn(4, width)).float().square().mean()
            loss.backward()
            shown.append(loss.detach())
        shown += [_local(p.grad) for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        shown += [_local(p) for p in model.parameters()]
        if evaluate:
            with torch.no_grad():
                shown.append(call(torch.randn(3, width)))
    shown.append(torch.tensor(model.own.calls if hasattr(model, "own") else 0))
    return shown, call


def _local(tensor: Any) -> Any:
    if tensor is None:
        return None
    if hasattr(tensor, "to_local"):  # not gathered
        tensor = tensor.to_local()
    return tensor.detach().clone()


def check(rank: int, store: str) -> None:
    """What each of two processes checks."""
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    one_graph = hasattr(FSDPState, "_cast_forward_inputs")  # as those of torch 2.13

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", rank=rank, world_size=2, init_method=f"file://{store}", timeout=LIMIT
    )
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    cases: list[tuple[str, dict[str, Any]]] = [
        ("whole", {}),
        ("whole", {"reshard_after_forward": False}),
        ("whole", {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}),
        ("whole", {"width": 7, "evaluate": True}),
        ("in parts", {"accumulate": True}),
        ("in parts", {"accumulate": True, "reshard_after_forward": False}),
        ("sometimes", {}),
        ("blocks", {}),
        ("in parts", {"prepare": gather_by_own}),
        ("in parts", {"prepare": keep_gathered}),
        ("in parts", {"prepare": break_inside}),
        ("in parts", {"prepare": break_inside, "reshard_after_forward": False}),
    ]
    if hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        cases.append(("in parts", {"prepare": reduce_unused}))
    for compiled, case in cases:
        if compiled == "whole" and not one_graph:
            compiled = "in parts"
        theirs, _ = train(rank, mesh, "", **case)
        ours, call = train(rank, mesh, compiled, **case)
        bounds = {"rtol": 0.05, "atol": 0.01} if "mp_policy" in case else {}
        for own, other in zip(ours, theirs, strict=True):
            assert (own is None) == (other is None), case
            if own is not None:
                torch.testing.assert_close(own, other, **bounds)
        if compiled == "whole":
            report = flambeau.explain(call)
            assert len(report.graphs) == (2 if "evaluate" in case else 1), case
            assert not any(graph.fallback for graph in report.graphs), (
                case,
                [graph.fallback for graph in report.graphs],
            )
            assert not report.breaks
    if one_graph:
        _gathers_again(rank, mesh)
        _whole_where_hooks_allow_it(mesh)
    dist.barrier()
    leave_groups()


def _gathers_again(rank: int, mesh: Any) -> None:
    """With `reshard_after_forward`, the backward gathers what the forward has freed."""
    gathers = []
    for option in (True, False):
        _, call = train(rank, mesh, "whole", reshard_after_forward=option)
        (graph,) = flambeau.explain(call).graphs
        gathers.append(str(graph).count("all_gather_into_tensor"))
    assert gathers[0] > gathers[1]


def _whole_where_hooks_allow_it(mesh: Any) -> None:
    """A call whose hooks break the graph leaves later calls, whose hooks do not, in one graph."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model: Any = nn.Sequential(*(Block(WIDTH) for _ in range(2)))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    call: Any = flambeau.compile(model)
    events = []
    for syncs in (False, True, True, True):
        before = len(kinds(call._compiled))
        model.set_requires_gradient_sync(syncs)
        call(torch.randn(4, WIDTH)).sum().backward()
        model.zero_grad()
        events.append(kinds(call._compiled, before))
    assert "break" in events[0]
    assert events[2:] == [["recompile"], []]


def test_two_processes(tmp_path: Path) -> None:
    run_ranks(check, (os.fspath(tmp_path / "store"),), 2)
