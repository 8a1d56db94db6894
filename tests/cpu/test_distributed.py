"""Collectives between graphs: in a process group of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import flambeau
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
    dist.destroy_process_group()


def program(x: torch.Tensor) -> Any:
    y = x * 2
    dist.all_reduce(y)
    return y + dist.get_rank() + dist.get_world_size()


@pytest.mark.usefixtures("_group")
def test_collectives_are_breaks() -> None:
    compiled = compare(lambda: World(program, lambda call: (torch.randn(3),)))
    assert kinds(compiled).count("break") == 1


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
