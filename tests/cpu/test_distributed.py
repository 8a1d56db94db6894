"""Collectives in graphs, in process groups of one and of two; modules in parallel."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import flambeau
from tests.programs import collectives
from tests.ranks import leave_groups, run_ranks
from tests.worlds import World, compare, kinds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group(
        "gloo", rank=0, world_size=1, init_method=f"file://{tmp_path / 'store'}"
    )
    yield
    leave_groups()


def program(x: torch.Tensor) -> Any:
    y = x * 2
    dist.all_reduce(y)
    return y + dist.get_rank() + dist.get_world_size()


@pytest.mark.usefixtures("_group")
def test_collectives_are_calls_of_the_graph() -> None:
    compiled = compare(lambda: World(program, lambda call: (torch.randn(3),)))
    assert kinds(compiled).count("break") == 0


def waited(x: torch.Tensor) -> Any:
    y = x * 2
    dist.all_reduce(y, async_op=True).wait()  # type: ignore[union-attr]
    return y + 1


def of_objects(x: torch.Tensor) -> Any:
    found = [None]
    dist.all_gather_object(found, 3)
    return x + found[0]


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("function", [waited, of_objects])
def test_what_hands_out_handles_or_objects_breaks(function: Any) -> None:
    compiled = compare(lambda: World(function, lambda call: (torch.randn(3),)))
    assert "break" in kinds(compiled)


def not_waited(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops._c10d_functional.all_reduce(x * 2, "sum", "0")
    return result


@pytest.mark.usefixtures("_group")
def test_a_graph_that_waits_for_no_result_runs_eagerly() -> None:
    compiled = flambeau.compile(not_waited, fullgraph=True)
    x = torch.randn(3)
    result = compiled(x)
    torch.testing.assert_close(torch.ops._c10d_functional.wait_tensor(result), x * 2)
    (graph,) = flambeau.explain(compiled).graphs
    assert graph.fallback is not None and graph.fallback.reason == "asynchronous-call"


@pytest.mark.usefixtures("_group")
def test_collectives_on_tensors_that_require_grad_break() -> None:
    def make() -> World:
        return World(program, lambda call: (torch.randn(3, requires_grad=True),))

    compiled = compare(make)
    assert "break" in kinds(compiled)


@pytest.mark.usefixtures("_group")
def test_two_sources_are_an_error() -> None:
    def both(x: torch.Tensor) -> Any:
        return dist.broadcast(x, 0, group_src=0)

    for call in (both, flambeau.compile(both)):
        with pytest.raises(ValueError, match="both group_"):
            call(torch.ones(3))


def test_another_group_is_another_entry(tmp_path: Path) -> None:
    """Groups have the names of those that were destroyed before."""
    compiled = flambeau.compile(program, fullgraph=True)
    for number in range(2):
        store = f"file://{tmp_path / f'store{number}'}"
        dist.init_process_group("gloo", rank=0, world_size=1, init_method=store)
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), program(x))
        group = dist.new_group([0])

        def within(x: torch.Tensor, group: Any = group) -> Any:
            y = x.exp()
            dist.all_reduce(y, group=group)
            return y * dist.get_world_size(group)

        torch.testing.assert_close(flambeau.compile(within, fullgraph=True)(x), within(x))
        leave_groups()
    with pytest.raises(ValueError, match="process group has not been initialized"):
        flambeau.compile(program)(x)


def _writes_count_as_in_eager() -> None:
    """Collectives move no version counter: what a backward has saved may be written to."""

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (w * x).sin()
        dist.all_reduce(x)
        return y

    found = []
    for call in (product, flambeau.compile(product, fullgraph=True)):
        x, w = torch.arange(3.0), torch.ones(3, requires_grad=True)
        call(x, w).sum().backward()
        found.append((x, w.grad))
        assert x._version == 0
    torch.testing.assert_close(*found)


def _errors_communicate_once(rank: int) -> None:
    """What raises behind a collective does not repeat it: the other process has gone on."""

    def late(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y[at]

    compiled, x, at = flambeau.compile(late, fullgraph=True), torch.ones(3), torch.tensor([0, 2])
    torch.testing.assert_close(compiled(x, at), late(x, at))
    if rank == 0:
        with pytest.raises(IndexError):
            compiled(x, at + 5)
    else:
        compiled(x, at)
    dist.all_reduce(x)
    assert x.tolist() == [2.0, 2.0, 2.0]

    def wide(x: torch.Tensor) -> torch.Tensor:
        rows = torch.empty(8, dtype=torch.float64)
        dist.all_gather_into_tensor(rows, x)
        return rows

    def stacked(x: torch.Tensor) -> torch.Tensor:
        rows = torch.empty(2, 4)
        dist.all_gather_into_tensor(rows, x)
        return rows

    for function in (wide, stacked):
        for call in (function, flambeau.compile(function)):
            with pytest.raises(RuntimeError, match="allgather: invalid tensor"):
                call(torch.ones(4))


def _outside_of_a_group(rank: int, group: Any) -> None:
    """Who is no member of a group may ask for it; collectives in it warn."""

    def asked(x: torch.Tensor) -> Any:
        ranks = dist.get_process_group_ranks(dist.group.WORLD)
        return x + dist.get_rank(group), ranks, dist.get_world_size(group)

    def summed(x: torch.Tensor) -> Any:
        y = x * 2
        dist.all_reduce(y, group=group)
        return y

    x = torch.ones(3)
    torch.testing.assert_close(flambeau.compile(asked, fullgraph=True)(x), asked(x))
    compiled = flambeau.compile(summed)
    with nullcontext() if rank == 1 else pytest.warns(UserWarning, match="not belong"):
        torch.testing.assert_close(compiled(x), x * 2)
    assert not any("defect" in event.cause for event in flambeau.explain(compiled).breaks)


def of_two(rank: int, folder: str) -> None:
    """What each of two processes checks."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=store)
    for each in collectives.PROGRAMS:
        compiled = flambeau.compile(each, fullgraph=True)
        for rows in (4, 6, 8):
            x = torch.randn(rows, 3) + rank
            given, own = x.clone(), x.clone()
            torch.testing.assert_close(compiled(own), each(given), msg=each.__name__)
            torch.testing.assert_close(own, given)
    for loss in (collectives.functional_loss, collectives.differentiable_loss):
        found = []
        x, w = torch.randn(4, 3), torch.randn(3, 2)
        for call in (loss, flambeau.compile(loss, fullgraph=True)):
            weight = w.clone().requires_grad_()
            value = call(x, weight)
            value.backward()
            found.append((value.detach(), weight.grad))
        torch.testing.assert_close(*found)
    _writes_count_as_in_eager()
    _errors_communicate_once(rank)
    group = dist.new_group([1])
    _outside_of_a_group(rank, group)
    if rank == 1:
        x = torch.randn(3)

        def alone(x: torch.Tensor) -> Any:
            y = x * 2
            dist.broadcast(y, 1, group=group)
            return y + dist.get_rank(group)

        torch.testing.assert_close(flambeau.compile(alone, fullgraph=True)(x), alone(x))
    leave_groups()


def test_two_processes(tmp_path: Path) -> None:
    run_ranks(of_two, (str(tmp_path),), 2)


@pytest.mark.usefixtures("_group")
def test_a_module_in_parallel() -> None:
    def make() -> World:
        module = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
        return World(
            lambda x: module(x) + 1, lambda call: (torch.randn(5, 4),), lambda: module.module
        )

    compare(make, backend="eager", backward=True)


@pytest.mark.usefixtures("_group")
def test_a_compiled_module_in_parallel() -> None:
    def make(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        inner: Any = nn.Linear(4, 3)
        module = nn.parallel.DistributedDataParallel(
            flambeau.compile(inner, fullgraph=True) if compiled else inner
        )
        module(torch.randn(5, 4)).sum().backward()
        return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]

    for ours, theirs in zip(make(True), make(False), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_without_a_group() -> None:
    def asking(x: torch.Tensor) -> Any:
        return x + (dist.get_rank() if dist.is_initialized() else 7)

    compare(lambda: World(asking, lambda call: (torch.randn(3),)), fullgraph=True, backend="eager")
