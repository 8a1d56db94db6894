"""Exchanges of uneven parts, whose sizes add up to a size of the input: only the backward says so.

A process group that exchanges nothing stands in for two processes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.testing._internal.distributed.fake_pg import FakeStore

import flambeau


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_the_backward_is_given_what_its_sizes_have_become(group: dist.ProcessGroup) -> None:
    def exchange(x: torch.Tensor, first: int) -> torch.Tensor:
        return all_to_all_single_autograd(x, [3, 2], [first, 3], group) * 2

    compiled = flambeau.compile(exchange, fullgraph=True)
    for rows in (5, 6, 7, 9):
        x = torch.randn(rows, 4, requires_grad=True)
        out = compiled(x, rows - 3)
        assert out.shape == (5, 4)
        (gradient,) = torch.autograd.grad(out.sum(), x)
        assert gradient.shape == x.shape
    explanation = flambeau.explain(compiled)
    assert not any(graph.fallback for graph in explanation.graphs)
    assert len(explanation.graphs) == 2, "one of the first size, one of all"
