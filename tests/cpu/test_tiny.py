"""The smallest programs, under half a minute: run this first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "sin_cos": (lambda x: torch.sin(torch.cos(x)), lambda: (torch.randn(10, 10),)),
    "scalar": (lambda x: torch.sin(x) + torch.cos(x), lambda: (torch.randn(()),)),
    "empty": (lambda x: torch.sin(x) * 2, lambda: (torch.randn(0, 3),)),
    "odd": (
        lambda x, y: F.gelu(x) * torch.sigmoid(y) + x / 2,
        lambda: (torch.randn(7, 13), torch.randn(13)),
    ),
    "transposed": (lambda x: torch.tanh(x.t()) + 1, lambda: (torch.randn(5, 9),)),
    "sliced": (lambda x: (x[1:, ::2] * 3).relu(), lambda: (torch.randn(6, 11),)),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (torch.randn(33, 65),)),
    "layer_norm": (lambda x: F.layer_norm(x, (17,)), lambda: (torch.randn(5, 17),)),
    "matmul": (lambda x, y: torch.relu(x @ y) + 1, lambda: (torch.randn(5, 7), torch.randn(7, 3))),
    "sum_all": (lambda x: (x * x).sum(), lambda: (torch.randn(101, 7),)),
    "column_mean": (lambda x: x.mean(0), lambda: (torch.randn(31, 5),)),
    "argmax": (lambda x: (x.argmax(-1), x.amax(0)), lambda: (torch.randn(9, 15),)),
    "embedding": (
        lambda i, w: F.embedding(i, w) * 2,
        lambda: (torch.randint(0, 9, (3, 4)), torch.randn(9, 5)),
    ),
    "bfloat16": (lambda x: F.silu(x) * x, lambda: (torch.randn(65, dtype=torch.bfloat16),)),
    "integers": (lambda x: (x * 3 - 1) // 2 % 5, lambda: (torch.randint(-50, 50, (41,)),)),
    "booleans": (
        lambda x, y: torch.where((x > 0) & (y > 0), x, -y),
        lambda: (torch.randn(19), torch.randn(19)),
    ),
    "cat_pad": (
        lambda x, y: F.pad(torch.cat([x, y], 1), (1, 2)),
        lambda: (torch.randn(3, 4), torch.randn(3, 5)),
    ),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1).relu(),
        lambda: (torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name: str, check: Callable[..., Any]) -> None:
    function, make = PROGRAMS[name]
    check(function, *make())


def test_fresh_inputs_reuse_the_entry() -> None:
    compiled = flambeau.compile(lambda x: torch.sin(x) + 1, fullgraph=True)
    for _ in range(3):
        x = torch.randn(12)
        torch.testing.assert_close(compiled(x), torch.sin(x) + 1)


def test_a_training_step_equals_eager() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.Linear(13, 3))
    x, target = torch.randn(5, 7), torch.randn(5, 3)
    compiled = flambeau.compile(model)
    F.mse_loss(model(x), target).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    F.mse_loss(compiled(x), target).backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_an_input_is_mutated_as_eager_does() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(y)
        return x[0] + 1

    x, y = torch.randn(4, 3), torch.randn(3)
    expected_x = x.clone()
    expected = step(expected_x, y)
    version = x._version
    found = flambeau.compile(step, fullgraph=True)(x, y)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(x, expected_x)
    assert x._version > version
