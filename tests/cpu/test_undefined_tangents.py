"""Backwards from some of the outputs of a compiled function: the others contribute nothing, also
where their derivatives are infinite.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flambeau
from flambeau.report import report_of


class Pair(torch.autograd.Function):
    """Gets zeros for an undefined gradient; not linear in its gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
        ctx.save_for_backward(w)
        return x * 2, w * 3

    @staticmethod
    def backward(ctx: Any, by_x: torch.Tensor, by_w: torch.Tensor) -> Any:
        (w,) = ctx.saved_tensors
        return by_x * 2 + 1, by_w * (w * 1000).exp() + by_x.sum()


def overflowing(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (w * 2).sum(), (w * 1000).exp(), x * w


def custom(x: torch.Tensor, w: torch.Tensor) -> Any:
    return *Pair.apply(x.sin(), w), (w * 2000).exp() * x


def of_sizes(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x.new_zeros(x.shape[0] * 3, 2) + w[0, 0], (w * 1000).exp(), x.sum(0) * w[0]


def written(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * w
    z = (y * 1000).exp()
    y.mul_(3)
    return y, z, z.t()


PROGRAMS = [overflowing, custom, of_sizes, written]
SUBSETS: list[list[tuple[int, ...]]] = [
    [(0,)], [(1,)], [(2,)], [(0, 2)], [(0, 1, 2)], [(0,), (1,)], [(2,), (0,)], [(0,), (0,)],
]  # fmt: skip


def gradients(call: Any, inputs: list[torch.Tensor], used: list[tuple[int, ...]]) -> list[Any]:
    twins = [x.clone().requires_grad_() for x in inputs]
    outputs = call(*twins)
    for positions in used:
        loss = torch.stack([(outputs[at] * (at + 1.5)).sum() for at in positions]).sum()
        loss.backward(retain_graph=True)
    return [x.grad for x in twins]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_backward_of_some_outputs(program: Any, backend: str, dynamic: bool) -> None:
    compiled = flambeau.compile(program, backend=backend, dynamic=dynamic, fullgraph=True)
    for rows in (4, 6) if dynamic else (4,):
        for used in SUBSETS:
            inputs = [torch.rand(rows, 3) + 0.5 for _ in range(2)]
            expected = gradients(program, inputs, used)
            for mine, theirs in zip(gradients(compiled, inputs, used), expected, strict=True):
                assert (mine is None) == (theirs is None)
                if theirs is not None:
                    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.stages
def test_only_the_needed_backward_runs() -> None:
    """The gradient of a cheap output: the products of the other one are not in its program, and
    those of both are compiled when they are wanted.
    """

    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        deep = w
        for _ in range(4):
            deep = (deep @ w).tanh()
        return x * w, deep

    compiled = flambeau.compile(program)
    inputs = [torch.rand(5, 5) for _ in range(2)]
    for count, used in enumerate(([(0,)], [(0, 1)]), 2):
        expected = gradients(program, inputs, used)
        torch.testing.assert_close(gradients(compiled, inputs, used), expected)
        (graph,) = report_of(compiled).graphs
        assert graph.fallback is None and len(graph.programs) == count
    _forward, special, general = graph.programs
    assert 2 * len(special.steps) < len(general.steps)
