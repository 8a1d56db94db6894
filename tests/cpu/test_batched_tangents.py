"""Compiled backwards that take batches of tangents: `is_grads_batched=True`, `torch.vmap` around
`torch.autograd.grad`, vectorized Jacobians and Hessians.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import flambeau
from flambeau_autograd.batched_tangents import BatchedBackward

if TYPE_CHECKING:
    from collections.abc import Callable

torch.manual_seed(0)
LINEAR = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
CONVOLUTION = nn.Sequential(
    nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(0), nn.Softmax(0)
)

PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "linear": (LINEAR, (4, 5)),
    "convolution": (CONVOLUTION, (2, 4, 9)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x.sin(), x.cos()), (1, 2, 5, 8)),
    "scalar": (lambda x: x.sum() * x[0], (5,)),
    "gathered": (lambda x: x[[0, 2, 2]].cumsum(0).sort(0).values, (4, 3)),
    "padded": (lambda x: torch.cat([x, x * 2], 1).split([2, 8], 1)[1].amax(0), (4, 5)),
    "in_place": (lambda x: x.clone().mul_(x).add_(1)[1:].exp(), (4, 3)),
    "as_strided": (lambda x: torch.as_strided(x.sin(), (3, 3), (1, 1)).exp(), (12,)),
}


def gradients(function: Any, x: torch.Tensor, tangents: Callable[..., Any], how: str) -> Any:
    y = function(x)
    batch = tangents(y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eager may loop over a batch, and says so
        if how == "vmap":
            return torch.vmap(lambda tangent: torch.autograd.grad(y, x, tangent)[0])(batch)
        return torch.autograd.grad(y, x, batch, is_grads_batched=True)[0]


@pytest.mark.parametrize("how", ["engine", "vmap"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_batches(name: str, dynamic: bool | None, how: str) -> None:
    program, shape = PROGRAMS[name]
    compiled = flambeau.compile(program, fullgraph=True, dynamic=dynamic)
    for size in (3, 1):
        x = torch.randn(shape, requires_grad=True)

        def tangents(y: torch.Tensor, size: int = size) -> torch.Tensor:
            torch.manual_seed(size)
            return torch.randn(size, *y.shape)

        eager = gradients(program, x, tangents, how)
        mine = gradients(compiled, x, tangents, how)
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
    assert not any(graph.fallback for graph in flambeau.explain(compiled).graphs)


def test_a_batch_is_one_call_and_a_graph_that_reads_memory_runs_for_each_tangent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loops: list[int] = []
    one_by_one = BatchedBackward._one_by_one

    def counted(self: Any, given: Any, batched: Any, size: int, one: Any) -> Any:
        loops.append(size)
        return one_by_one(self, given, batched, size, one)

    monkeypatch.setattr(BatchedBackward, "_one_by_one", counted)
    for name, expected in (("padded", []), ("linear", []), ("as_strided", [3])):
        program, shape = PROGRAMS[name]
        x = torch.randn(shape, requires_grad=True)
        compiled = flambeau.compile(program)
        gradients(compiled, x, lambda y: torch.randn(3, *y.shape), "engine")
        assert loops == expected, name
        (graph,) = flambeau.explain(compiled).graphs
        assert any("as_strided" in text for text in graph.separate_tangents) == bool(expected)


def test_parameters_partial_tangents_and_graphs_that_are_kept() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a.sin() * b, (a @ b.t()).tanh(), b.exp()

    compiled = flambeau.compile(program, fullgraph=True)
    inputs = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    tangents = [torch.randn(2, 3, 4), torch.randn(2, 3, 3)]

    def all_of(function: Any) -> list[Any]:
        results = function(*inputs)
        found: list[Any] = []
        for chosen in ((0,), (1,), (0, 1)):
            found += torch.autograd.grad(
                [results[at] for at in chosen],
                inputs,
                [tangents[at].flip(0) for at in chosen],
                is_grads_batched=True,
                retain_graph=True,
            )
        found += torch.autograd.grad(results[1], inputs, tangents[1][0], retain_graph=True)
        unused = torch.autograd.grad(
            results[2], inputs, tangents[0], is_grads_batched=True, allow_unused=True
        )
        assert unused[0] is None
        return [*found, unused[1]]

    torch.testing.assert_close(all_of(compiled), all_of(program))


def test_jacobians_and_hessians() -> None:
    compiled = flambeau.compile(lambda x: LINEAR(x).square().sum(0), fullgraph=True)
    x = torch.randn(2, 5)
    expected = torch.autograd.functional.jacobian(lambda x: LINEAR(x).square().sum(0), x)
    for vectorize in (True, False):
        mine = torch.autograd.functional.jacobian(compiled, x, vectorize=vectorize)
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
    scalar = flambeau.compile(lambda x: LINEAR(x).square().sum(), fullgraph=True)
    expected = torch.autograd.functional.hessian(lambda x: LINEAR(x).square().sum(), x)
    mine = torch.autograd.functional.hessian(scalar, x, vectorize=True)
    torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-4)


def test_derivatives_of_a_batch_of_gradients() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).sum() * x

    x = torch.randn(3, requires_grad=True)

    def second(function: Any) -> Any:
        y = function(x)
        (batch,) = torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True, create_graph=True)
        return batch.detach(), torch.autograd.grad(batch.square().sum(), x)

    torch.testing.assert_close(second(flambeau.compile(program)), second(program))


@pytest.mark.parametrize("maps", [True, False])
def test_an_empty_batch(maps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not maps:
        monkeypatch.setattr(BatchedBackward, "_of", lambda *_: None)
    x = torch.randn(4, 5, requires_grad=True)
    for function in (flambeau.compile(LINEAR), LINEAR):
        assert gradients(function, x, lambda y: y.new_zeros(0, 4, 3), "vmap").shape == (0, 4, 5)


def test_batches_of_vmap_within_vmap() -> None:
    x = torch.randn(4, requires_grad=True)

    def nested(function: Any) -> torch.Tensor:
        y = function(x)

        def pulled(tangent: torch.Tensor) -> torch.Tensor:
            return torch.autograd.grad(y, x, tangent, retain_graph=True)[0]

        return torch.vmap(torch.vmap(pulled), in_dims=1)(torch.arange(24.0).view(2, 3, 4))

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(0) * x.sum()

    torch.testing.assert_close(nested(flambeau.compile(program)), nested(program))
