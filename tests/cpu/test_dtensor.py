"""DTensors under compile, in one process and in two: eager's local tensors and placements."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.parallel import loss_parallel

import flambeau
from tests.ranks import leave_groups, run_ranks
from tests.worlds import kinds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def elementwise(x: Any, w: Any, mesh: Any) -> Any:
    return torch.sin(x) * 2 + 1


def product(x: Any, w: Any, mesh: Any) -> Any:
    return torch.relu(x @ w)


def local(x: Any, w: Any, mesh: Any) -> Any:
    return x.to_local() * 2


def from_local(x: Any, w: Any, mesh: Any) -> Any:
    return DTensor.from_local(x.to_local() * 2, mesh, [Shard(0)]) + 1


def redistributed(x: Any, w: Any, mesh: Any) -> Any:
    return (x @ w).redistribute(mesh, [Replicate()]) * 2


def given_and_local(x: Any, w: Any, mesh: Any) -> Any:
    return x, x.to_local(), x.to_local().view(-1)


def made_and_local(x: Any, w: Any, mesh: Any) -> Any:
    y = x + 1
    return y, y.to_local()


RETURN_PARTS: tuple[Callable[..., Any], ...] = given_and_local, made_and_local
"""Results that share memory: the gradients of DTensor's own Functions lead to the local ones."""
PROGRAMS: list[Callable[..., Any]] = [elementwise, product, local, from_local, redistributed]


def same(ours: Any, theirs: Any) -> None:
    """Both are alike, and DTensors are placed alike."""
    assert type(ours) is type(theirs)
    if isinstance(ours, DTensor):
        assert ours.placements == theirs.placements
        assert ours.shape == theirs.shape
        assert ours.stride() == theirs.stride()
        ours, theirs = ours.to_local(), theirs.to_local()
    torch.testing.assert_close(ours, theirs)


def check(rank: int, ranks: int, store: str) -> None:
    """Each program, compiled and eager, on this rank: results and gradients."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
    )
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        for program in PROGRAMS:
            compiled = flambeau.compile(program, fullgraph=True)
            for call in range(2):
                shown = []
                for function in (compiled, program):
                    torch.manual_seed(call)
                    x = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)]).requires_grad_()
                    w = distribute_tensor(torch.randn(4, 6), mesh, [Replicate()]).requires_grad_()
                    result = function(x, w, mesh)
                    total = result.sum()
                    (total.full_tensor() if isinstance(total, DTensor) else total).backward()
                    shown.append([result, x.grad, w.grad])
                for ours, theirs in zip(*shown, strict=True):
                    if theirs is None:
                        assert ours is None
                    else:
                        same(ours, theirs)
            assert kinds(compiled) == ["capture"], program.__name__
            graphs = flambeau.explain(compiled).graphs
            assert not any(graph.fallback for graph in graphs), program.__name__
        found = []
        for function in (flambeau.compile(_loss_in_parallel), _loss_in_parallel):
            x = distribute_tensor(torch.arange(32.0).view(8, 4).sin(), mesh, [Shard(1)])
            loss = function(x.requires_grad_())
            with loss_parallel():
                loss.backward()
            found += [loss.full_tensor().detach(), x.grad.to_local()]
        torch.testing.assert_close(found[:2], found[2:])
        found = []
        hooked = flambeau.compile(_hooked)
        for function in (hooked, _hooked):
            x = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]).requires_grad_()
            function(x).sum().full_tensor().backward()
            found.append(x.grad)
        same(*found)
        (event,) = [e for e in flambeau.explain(hooked).breaks if "hook" in e.cause]
        assert "wrapper subclass" in event.cause
        for program in RETURN_PARTS:
            shown = []
            for function in (flambeau.compile(program, fullgraph=True), program):
                x = distribute_tensor(torch.arange(32.0).view(8, 4), mesh, [Shard(0)])
                results = function(x.requires_grad_(), None, mesh)
                parts = [y.sin().sum() for y in results]
                sum(y.full_tensor() if isinstance(y, DTensor) else y for y in parts).backward()
                shown.append([*results, x.grad])
            for ours, theirs in zip(*shown, strict=True):
                same(ours, theirs)
    finally:
        leave_groups()


QUESTIONS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "equal": lambda x, placement: (placement == Shard(0), x + 1),
    "is_shard": lambda x, placement: (placement.is_shard(), placement.is_shard(1), x + 1),
    "is_replicate": lambda x, placement: x + 1 if placement.is_replicate() else x - placement.dim,
    "text": lambda x, placement: x + len(f"{placement!r} {placement}") + placement.is_shard(1),
    "hash": lambda x, placement: (hash(placement) == hash(Shard(1)), x + 1),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_a_placement_says_is_guarded(name: str) -> None:
    """An equal placement is served by the same entry."""
    question = QUESTIONS[name]
    compiled, x = flambeau.compile(question, fullgraph=True), torch.ones(2)
    for placement in (Shard(0), Shard(0), Shard(1), Replicate(), Shard(1)):
        torch.testing.assert_close(compiled(x, placement), question(x, placement))
    assert kinds(compiled) == ["capture", "recompile", "recompile"]


def _loss_in_parallel(x: Any) -> Any:
    with loss_parallel():
        return torch.nn.functional.cross_entropy(x, torch.arange(8) % 4)


def _hooked(x: Any) -> Any:
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3)
    return y.sin()


@pytest.mark.parametrize("ranks", [1, 2])
def test_equal_to_eager(ranks: int, tmp_path: Path) -> None:
    store = os.fspath(tmp_path / "store")
    run_ranks(check, (ranks, store), ranks)
