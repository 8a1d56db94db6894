"""Hooks on saved tensors that give them back in another form than the backward was compiled for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import flambeau


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.sin() * w + (x * w).exp()


def transposed(saved: torch.Tensor) -> torch.Tensor:
    return saved.mT.contiguous().mT


def negated(saved: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(-saved)


def same(tensor: Any) -> Any:
    return tensor


HOOKS: dict[str, Callable[[], Any]] = {
    "clone": lambda: saved_tensors_hooks(torch.clone, same),
    "contiguous": lambda: saved_tensors_hooks(torch.Tensor.contiguous, same),
    "transposed": lambda: saved_tensors_hooks(same, transposed),
    "negated": lambda: saved_tensors_hooks(same, negated),
    "wider": lambda: saved_tensors_hooks(torch.Tensor.double, same),
    "to another dtype and back": lambda: saved_tensors_hooks(
        torch.Tensor.double, torch.Tensor.float
    ),
    "on the CPU": save_on_cpu,
}

INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.randn(5, 4),
    "sliced": lambda: torch.randn(5, 8)[:, ::2],
    "transposed": lambda: torch.randn(4, 5).t(),
    "expanded": lambda: torch.randn(5, 1).expand(5, 4),
    "windows": lambda: torch.randn(8).as_strided((5, 4), (1, 1)),
    "empty": lambda: torch.randn(5, 0),
}


def gradients(function: Any, x: torch.Tensor, hooks: Any, *, twice: bool) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    w = torch.linspace(-1, 1, x.numel()).view(x.shape).requires_grad_()
    with hooks():
        y = function(x, w)
    first = torch.autograd.grad(y.sum(), (x, w), create_graph=twice)
    if not twice:
        return list(first)
    return [*first, *torch.autograd.grad(sum(each.square().sum() for each in first), (x, w))]


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("hooks", HOOKS)
def test_gradients_are_eagers(hooks: str, given: str, *, twice: bool) -> None:
    x = INPUTS[given]()
    expected = gradients(program, x, HOOKS[hooks], twice=twice)
    found = gradients(flambeau.compile(program), x, HOOKS[hooks], twice=twice)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_masks_that_hooks_make_numbers_of() -> None:
    def dropped(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x @ x, 0.5)

    results = []
    for function in (flambeau.compile(dropped), dropped):
        torch.manual_seed(0)
        x = torch.randn(8, 8, requires_grad=True)
        with saved_tensors_hooks(torch.clone, lambda kept: kept * 1):
            y = function(x)
        results.append(torch.autograd.grad(y.sum(), x)[0])
    torch.testing.assert_close(*results)


def test_another_shape_is_refused() -> None:
    x = torch.randn(5, 4, requires_grad=True)
    with saved_tensors_hooks(same, lambda kept: kept[:2]):
        y = flambeau.compile(program)(x, x.detach() + 1)
    with pytest.raises(
        RuntimeError, match=r"unpacked a tensor of shape \[2, 4\] .* of shape \[5, 4\]"
    ):
        y.sum().backward()
