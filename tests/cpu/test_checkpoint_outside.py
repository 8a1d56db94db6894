"""torch.utils.checkpoint around compiled callables: its hooks and exceptions pass through them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import flambeau


class Indexed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[torch.tensor([0, 2])] * self.scale).sin() * self.scale


MODELS = {
    "embedding": lambda: nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.ReLU()),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4), nn.Sigmoid()),
    "indexing": Indexed,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("backend", ["inductor", "eager"])
def test_checkpointed(name: str, early_stop: bool, backend: str) -> None:
    model = MODELS[name]()
    twin = copy.deepcopy(model)
    compiled = flambeau.compile(twin, backend=backend)
    x = torch.randint(0, 10, (3,)) if name == "embedding" else torch.randn(3, 4)
    for step in range(3):
        results = []
        for each in (model, compiled):
            torch.manual_seed(step)
            out = checkpoint(each, x, use_reentrant=False, early_stop=early_stop)
            out.square().sum().backward()
            results.append(out)
        torch.testing.assert_close(*reversed(results))
        for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(other.grad, parameter.grad)
    assert not any("eager_replay" in event for event in flambeau.explain(compiled).events)


class Stopped(Exception):
    pass


class Halt(BaseException):
    pass


@pytest.mark.parametrize("error", [Stopped, IndexError, Halt, KeyboardInterrupt])
@pytest.mark.parametrize("kind", ["function", "method", "object"])
def test_what_a_saved_tensors_hook_raises_passes_through(
    error: type[BaseException], kind: str
) -> None:
    class Hook:
        calls = 0

        def pack(self, tensor: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            raise error("no more")

        __call__ = pack

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        return (x[torch.tensor([0, 2])] * weight).sin()

    ran: list[int] = []
    x, weight = torch.randn(3, 4), torch.randn(4, requires_grad=True)
    compiled = flambeau.compile(program)
    compiled(x, weight)
    ran.clear()
    hook = Hook()
    pack: Any = {"function": lambda t: hook.pack(t), "method": hook.pack, "object": hook}[kind]
    with (
        pytest.raises(error, match="no more"),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
    ):
        compiled(x, weight)
    assert hook.calls == 1
    assert not ran  # it has not run again


def test_an_error_of_the_graph_under_hooks_runs_again() -> None:
    def program(x: torch.Tensor, i: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        return x[i] * weight

    ran: list[int] = []
    compiled = flambeau.compile(program)
    x, weight = torch.randn(3, 4), torch.randn(4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        compiled(x, torch.tensor([0, 2]), weight)
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([0, 7]), weight)
    assert len(ran) == 2
