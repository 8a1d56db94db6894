"""`torch.nn.utils.parametrize.cached()`, which keeps values in a dict of torch's, beside eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import flambeau


class Symmetric(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.triu() + x.triu(1).transpose(-1, -2)


def module() -> nn.Linear:
    torch.manual_seed(0)
    made = nn.Linear(3, 3)
    parametrize.register_parametrization(made, "weight", Symmetric())
    return made


def inside(m: nn.Module, x: torch.Tensor) -> Any:
    with parametrize.cached():
        first = m(x)
        return first + m(x * 2), m.weight is m.weight


def nested(m: nn.Module, x: torch.Tensor) -> Any:
    with parametrize.cached():
        y = m(x)
        with parametrize.cached():
            y = m(y)
        y = m(y)
    return m(y), m.weight is m.weight


def plain(m: nn.Module, x: torch.Tensor) -> Any:
    return m(x) + m(x), m.weight is m.weight


def in_a_loop(m: nn.Module, x: torch.Tensor) -> Any:
    for _ in range(3):
        with parametrize.cached():
            x = m(x).tanh() + m.weight.sum()
    return x, len(parametrize._cache)


def printing(m: nn.Module, x: torch.Tensor) -> Any:
    with parametrize.cached():
        y = m(x)
        print("inside", len(parametrize._cache))
        z = m(y)
    return z, len(parametrize._cache)


def run(function: Any, call: Any) -> Any:
    m = module()
    x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    results = []
    for _ in range(3):
        y, flag = call(m, x)
        y.square().sum().backward()
        results += [y.detach(), flag]
    calls = m.parametrizations.weight[0].calls
    gradients = [x.grad, *[p.grad for p in m.parameters()]]
    return results, gradients, calls, dict(parametrize._cache), parametrize._cache_enabled


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("function", [inside, nested, plain, in_a_loop])
def test_cached(function: Any, outside: bool, fullgraph: bool) -> None:
    compiled = flambeau.compile(function, fullgraph=fullgraph)

    def cached(call: Any) -> Any:
        def within(m: nn.Module, x: torch.Tensor) -> Any:
            with parametrize.cached():
                m.weight
                return call(m, x)

        return within if outside else call

    want, found = run(function, cached(function)), run(function, cached(compiled))
    torch.testing.assert_close(found[:2], want[:2])
    assert found[2:] == want[2:]
    assert not parametrize._cache


def test_a_break_inside(capsys: pytest.CaptureFixture[str]) -> None:
    want = run(printing, printing)
    text = capsys.readouterr().out
    found = run(printing, flambeau.compile(printing))
    assert capsys.readouterr().out == text
    torch.testing.assert_close(found[:2], want[:2])
    assert found[2:] == want[2:]
