"""`activation_memory_budget`: fewer saved bytes, eager's gradients, and recomputation that pays."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import flambeau
from flambeau_autograd import pipeline
from flambeau_autograd.memory_budget import seconds_of
from flambeau_autograd.partition import Partition, summarize

if TYPE_CHECKING:
    from collections.abc import Callable


class Block(nn.Module):
    """A feed-forward block with a norm, a smooth activation and dropout."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1)


def blocks() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(Block(), Block(), Block()), torch.randn(48, 32)


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers), torch.randn(2, 3, 16, 16)


def extremes() -> tuple[nn.Module, torch.Tensor]:
    class Extremes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(16, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (x @ self.weight).tanh() * 2
            return torch.softmax(y, -1) + y.amax(-1, keepdim=True) + y.cumsum(0)

    return Extremes(), torch.randn(24, 16, requires_grad=True)


MODELS = (blocks, convolutions, extremes)
BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)


def saved_bytes(compiled: Any) -> int:
    (line,) = flambeau.explain(compiled).graphs[0].partitions
    numbers = re.search(r"\(([\d,]+) bytes\)", line)
    assert numbers is not None
    return int(numbers[1].replace(",", ""))


def gradients(model: nn.Module, function: Any, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(1)
    function(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", MODELS)
def test_a_smaller_budget_saves_less_and_gradients_stay(
    make: Callable[[], tuple[nn.Module, torch.Tensor]], dynamic: bool
) -> None:
    torch.manual_seed(0)
    model, x = make()
    eager = gradients(model, model, x)
    sizes = []
    for budget in BUDGETS:
        compiled = flambeau.compile(
            model,
            fullgraph=True,
            dynamic=dynamic,
            options={"activation_memory_budget": budget},
        )
        mine = gradients(model, compiled, x)
        for ours, theirs in zip(mine, eager, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        sizes.append(saved_bytes(compiled))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.5 * sizes[0]


def test_a_budget_is_kept() -> None:
    model, x = blocks()
    whole = 0
    for budget in BUDGETS[:-1]:
        compiled = flambeau.compile(model, options={"activation_memory_budget": budget})
        compiled(x)
        whole = whole or saved_bytes(compiled)
        assert saved_bytes(compiled) <= budget * whole


@pytest.mark.parametrize("budget", [-0.1, 1.5])
def test_other_budgets_are_refused(budget: float) -> None:
    with pytest.raises(ValueError, match="activation_memory_budget"):
        flambeau.compile(lambda x: x, options={"activation_memory_budget": budget})


@pytest.mark.parametrize("make", MODELS)
def test_what_the_minimum_cut_recomputes_costs_less_than_it_saves(
    make: Callable[[], tuple[nn.Module, torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the cost model: recomputed calls take no longer than a write and a read of the bytes that
    eager's choice saves beyond.
    """
    parts: list[Partition] = []
    partition = pipeline.partition

    def noted(*args: Any) -> Partition:
        parts.append(partition(*args))
        return parts[-1]

    monkeypatch.setattr(pipeline, "partition", noted)
    model, x = make()
    saved: dict[str, int] = {}
    costs = 0.0
    for choice in ("save_all", "min_cut"):
        parts.clear()
        flambeau.compile(model, options={"partition": choice}, backend="inductor")(x)
        last = parts[-1]
        saved[choice] = sum(tensor.bytes for tensor in summarize(last).saved)
        names = {out.name for node in last.forward.nodes for out in node.outputs if out is not None}
        costs = sum(
            seconds_of(node)
            for node in last.backward.nodes
            if any(out is not None and out.name in names for out in node.outputs)
        )
    assert 0 < costs <= 2 * (saved["save_all"] - saved["min_cut"])
