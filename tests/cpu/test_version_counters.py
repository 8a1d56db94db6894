"""Version counters of tensors that a compiled program writes move where eager moves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

    Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def norm(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, mean, var, training=True)


def legit(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return torch._native_batch_norm_legit(x, None, None, mean, var, True, 0.1, 1e-5)[0]


def norm_and_write(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    mean.mul_(2)
    return F.batch_norm(x, mean, var, training=True)


def write(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    var.add_(1)
    return x * var[0]


def many_writes(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    var.add_(1)
    var[0] = 2
    var.view(-1).mul_(3)
    mean.sub_(1).sub_(0)
    return x * var[0]


def writes_in_a_loop(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    for i in range(len(mean)):
        mean[i] = i
    torch._foreach_add_([mean, var], 1)
    with torch.no_grad():
        x.mul_(2)
        x.t_() if x.ndim == 2 else x.add_(1)
    return x * mean[0]


def versions(program: Program, *, grad: bool) -> tuple[list[int], list[torch.Tensor]]:
    torch.manual_seed(0)
    tensors = [torch.randn(4, 3, 5, requires_grad=grad), torch.zeros(3), torch.ones(3)]
    program(*tensors)
    return [tensor._version for tensor in tensors], tensors


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "program", [norm, legit, norm_and_write, write, many_writes, writes_in_a_loop]
)
def test_counters_are_eagers(program: Program, grad: bool) -> None:
    wanted, theirs = versions(program, grad=grad)
    found, ours = versions(flambeau.compile(program), grad=grad)
    assert found == wanted
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("executor", ["c", "python"])
@pytest.mark.parametrize("program", [many_writes, writes_in_a_loop])
def test_each_write_counts(program: Program, executor: str) -> None:
    wanted, _ = versions(program, grad=False)
    compiled = flambeau.compile(program, options={"executor": executor}, fullgraph=True)
    assert versions(compiled, grad=False)[0] == wanted


@pytest.mark.parametrize("executor", ["c", "python"])
def test_statistics_that_are_only_updated_stay_uncounted(executor: str) -> None:
    wanted, _ = versions(norm, grad=False)
    assert wanted == [0, 0, 0], "eager's batch norm counts no write"
    compiled = flambeau.compile(norm, options={"executor": executor})
    assert versions(compiled, grad=False)[0] == wanted


def test_writes_under_autograd_count_each() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        x[0].add_(1)
        return x.add_(1).sin()

    for run in (program, flambeau.compile(program)):
        x = torch.ones(3, requires_grad=True) * 1
        run(x)
        assert x._version == 3
