"""DTensors on meshes of four processes, in one and two dimensions, whose sizes four often does not
divide: eager's local tensors, placements and gradients; and the optimizers of such parameters.
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
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")

RANKS = 4
LIMIT = timedelta(seconds=200)


def _distributed(mesh: Any, placements: Any, *shape: int, grad: bool = True) -> Any:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(torch.randn(*shape), mesh, placements).requires_grad_(grad)


def _same(ours: Any, theirs: Any, where: str) -> None:
    """Both are alike, and DTensors are placed alike."""
    from torch.distributed.tensor import DTensor

    assert type(ours) is type(theirs), where
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs), where
        for own, other in zip(ours, theirs, strict=True):
            _same(own, other, where)
    elif isinstance(theirs, torch.Tensor):
        assert ours.requires_grad == theirs.requires_grad, where
        if isinstance(theirs, DTensor):
            assert ours.device_mesh == theirs.device_mesh, where
            assert ours.placements == theirs.placements, where
            assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride()), where
            ours, theirs = ours.to_local(), theirs.to_local()
        assert ours.shape == theirs.shape, where
        assert not theirs.numel() or ours.stride() == theirs.stride(), where
        torch.testing.assert_close(ours, theirs, equal_nan=True, msg=lambda text: where + text)
    else:
        assert ours == theirs, where


def _tangent(out: Any) -> Any:
    """A gradient that is placed as the result is."""
    from torch.distributed.tensor import DTensor, Replicate

    given = out.detach()
    if not isinstance(out, DTensor):
        return given.cos()
    whole = [Replicate() if each.is_partial() else each for each in out.placements]
    return given.redistribute(out.device_mesh, whole).cos()


def _shown(function: Any, arguments: tuple[Any, ...]) -> list[Any]:
    """Results, gradients of the arguments, and the arguments afterwards."""
    results = function(*arguments)
    outputs = [results] if isinstance(results, torch.Tensor) else list(results)
    wanted = [out for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad]
    if wanted:
        torch.autograd.backward(wanted, [_tangent(out) for out in wanted])
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    return [outputs, [x.grad for x in tensors if x.requires_grad], tensors]


def compare(
    program: Any, inputs: Callable[[int], tuple[Any, ...]], calls: int = 2, graphs: int | None = 1
) -> Any:
    """Some calls compiled and eager; `graphs`: how many serve them all, with no break."""
    compiled = flambeau.compile(program)
    where = getattr(program, "__name__", repr(program))
    for call in range(calls):
        shown = []
        for function in (compiled, program):
            torch.manual_seed(call)
            shown.append(_shown(function, inputs(call)))
        _same(*shown, f"{where}, call {call}")
    report = flambeau.explain(compiled)
    if graphs is not None:
        assert len(report.graphs) == graphs, (where, str(report))
        assert not report.breaks, (where, str(report))
        assert not any(graph.fallback for graph in report.graphs), (where, str(report))
    return report


# ---------------------------------------------------------------- what each process checks


def _check_placements(plane: Any) -> None:
    """Two mesh dimensions, uneven parts, empty parts."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import local_map

    rows, both = [Shard(0), Replicate()], [Shard(0), Shard(0)]

    def moved(x: Any) -> Any:
        y = x.sin()
        return y.redistribute(plane, [Shard(1), Shard(0)]), y.redistribute(plane, both) * 2

    def reduced(x: Any) -> Any:
        y = DTensor.from_local(x.to_local() * 2, plane, [Replicate(), Partial()], run_check=False)
        return y.redistribute(plane, both).cos(), y.full_tensor()

    def product(x: Any, w: Any) -> Any:
        local = (x @ w).redistribute(plane, rows).to_local(grad_placements=rows)
        return torch.relu(x @ w), local * 2

    def by_name(x: Any) -> Any:
        part = plane["tp"]
        y = DTensor.from_local(x, part, [Shard(0)], run_check=False)
        return y.redistribute(part, [Replicate()]) * part.size() + part.get_local_rank()

    mapped = local_map(
        lambda x, w: x @ w,
        out_placements=[Shard(0), Partial()],
        in_placements=([Shard(0), Shard(1)], [Replicate(), Shard(0)]),
        device_mesh=plane,
    )

    def written(x: Any, y: Any) -> Any:
        x.mul_(2).add_(y)
        return x.sum(0)

    left = [Shard(0), Shard(1)]
    compare(moved, lambda call: (_distributed(plane, both, 7, 5),))
    compare(moved, lambda call: (_distributed(plane, left, 3, 1),))
    whole = [Replicate(), Replicate()]
    compare(reduced, lambda call: (_distributed(plane, whole, 3, 5),))
    split = [Replicate(), Shard(0)]
    compare(
        product, lambda call: (_distributed(plane, rows, 7, 5), _distributed(plane, split, 5, 3))
    )
    compare(by_name, lambda call: (torch.randn(3, 2, requires_grad=True),))
    compare(
        mapped, lambda call: (_distributed(plane, left, 6, 8), _distributed(plane, split, 8, 3))
    )
    compare(
        written, lambda call: tuple(_distributed(plane, left, 5, 3, grad=False) for _ in range(2))
    )


def _check_dynamic_sizes(line: Any) -> None:
    """One graph for all sizes that are split evenly; its backward is the compiled one."""
    from torch.distributed.tensor import Replicate, Shard

    def halves(x: Any) -> Any:
        return [part * 2 for part in x.redistribute(line, [Replicate()]).chunk(2, 1)]

    compare(halves, lambda call: (_distributed(line, [Shard(0)], 8 + 4 * call, 6),), 4, graphs=2)


def _check_masks(line: Any) -> None:
    """What a row-wise embedding keeps until its reduction stays with eager calls."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    words = distribute_tensor(torch.tensor([0, 5, 7, 2, 6]), line, [Replicate()])

    def inputs(call: int) -> Any:
        return _distributed(line, [Shard(0)], 8, 3), words

    def reduced(w: Any, given: Any) -> Any:
        return functional.embedding(given, w).redistribute(line, [Replicate()]) * 2

    def waiting(w: Any, given: Any) -> Any:
        return functional.embedding(given, w)

    def broken(w: Any, given: Any) -> Any:
        y = functional.embedding(given, w)
        flambeau.compiler.graph_break()
        return y.redistribute(line, [Replicate()]) * 2

    compare(reduced, inputs)
    compare(broken, inputs, graphs=None)
    compiled = flambeau.compile(waiting)
    for _ in range(2):
        w, given = inputs(0)
        shown = [function(w, given).full_tensor() for function in (compiled, waiting)]
        _same(*shown, "waiting")
    (graph,) = flambeau.explain(compiled).graphs
    assert "mask" in str(graph.fallback)


def _check_views(line: Any) -> None:
    """Views of an argument that one call takes; the class refuses the gradient of one alone."""
    from torch.distributed.tensor import Shard

    for program in (lambda x: x.unbind(1), lambda x: x.split([1, 2], 1)):
        report = compare(program, lambda call: (_distributed(line, [Shard(0)], 5, 3),), graphs=None)
        assert "several views" in str(report.graphs[0].fallback)


class _Parameters(nn.Module):
    """Parameters that are placed in several ways."""

    def __init__(self, plane: Any) -> None:
        from torch.distributed.tensor import Replicate, Shard

        super().__init__()
        self.first = nn.Parameter(_distributed(plane, [Shard(0), Shard(1)], 7, 4))
        self.second = nn.Parameter(_distributed(plane, [Replicate(), Shard(0)], 4))
        self.third = nn.Parameter(_distributed(plane, [Shard(0), Shard(0)], 5))

    def forward(self, x: Any) -> Any:
        return (x @ self.first @ self.second).sum() + self.third.square().sum()


def _check_optimizers(plane: Any) -> None:
    """Steps in one graph, however often; also behind the rest of a training step."""
    from torch.distributed.tensor import Replicate, Shard

    _scheduled(plane)

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        loss = model(x).full_tensor().square()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), norm

    compiled, counts = flambeau.compile(step), []
    worlds = []
    for _ in range(2):
        torch.manual_seed(0)
        model = _Parameters(plane)
        worlds.append((model, torch.optim.AdamW(model.parameters(), lr=0.1)))
    for number in range(4):
        shown = []
        for function, world in zip((compiled, step), worlds, strict=True):
            torch.manual_seed(number)
            x = _distributed(plane, [Shard(0), Replicate()], 3, 7, grad=False)
            shown.append([function(*world, x), list(world[0].parameters())])
        _same(*shown, f"whole step {number}")
        counts.append(len(flambeau.explain(compiled).graphs))
    assert counts[1] == counts[3], counts


def _scheduled(plane: Any) -> None:
    """Steps of Adam on lists of parameters, whose rate changes."""
    from torch.distributed.tensor import Replicate, Shard

    worlds: list[Any] = []
    for compiles in (True, False):
        torch.manual_seed(0)
        model = _Parameters(plane)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True, foreach=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
        step = flambeau.compile(optimizer.step, fullgraph=True) if compiles else optimizer.step
        worlds.append((model, optimizer, step, schedule))
    for number in range(4):
        shown = []
        for model, optimizer, step, schedule in worlds:
            torch.manual_seed(number)
            x = _distributed(plane, [Shard(0), Replicate()], 3, 7, grad=False)
            model(x).full_tensor().square().sqrt().backward()
            step()
            optimizer.zero_grad()
            schedule.step()
            state = [list(each.values()) for each in optimizer.state.values()]
            shown.append([list(model.parameters()), state])
        _same(*shown, f"step {number}")
    assert len(flambeau.explain(worlds[0][2]).graphs) <= 2


def check(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", rank=rank, world_size=RANKS, init_method=f"file://{store}", timeout=LIMIT
    )
    line = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    plane = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    _check_placements(plane)
    _check_dynamic_sizes(line)
    _check_masks(line)
    _check_views(line)
    _check_optimizers(plane)
    dist.barrier()
    leave_groups()


def test_four_processes(tmp_path: Path) -> None:
    run_ranks(check, (os.fspath(tmp_path / "store"),), RANKS)
