"""Numbers that change and data-dependent numbers, on a GPU."""

from __future__ import annotations

import math

import pytest
import torch

import flambeau
from flambeau_capture.compiled import state_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_float_argument(dtype: torch.dtype) -> None:
    compiled = flambeau.compile(lambda x, k: (x * k + k / 3, x.sum(0) * k), fullgraph=True)
    x = (torch.randn(33, 7, device="cuda") * 3).to(dtype)
    for k in (0.1, 2.5, -0.0, math.inf, math.nan, -7.0):
        got, want = compiled(x, k), (x * k + k / 3, x.sum(0) * k)
        # Of bfloat16, a fused kernel does not round what is between two operators.
        rtol, atol = (0.02, 0.05) if dtype is torch.bfloat16 else (1e-5, 1e-5)
        torch.testing.assert_close(got, want, equal_nan=True, rtol=rtol, atol=atol)
    assert len(state_of(compiled).entries) == 2


def test_gradients_through_a_changing_float_and_an_int() -> None:
    def program(x: torch.Tensor, k: float, n: int) -> torch.Tensor:
        return (torch.sin(x * k) / n).sum()

    compiled = flambeau.compile(program, fullgraph=True)
    for step in range(10):
        ours = torch.randn(50, device="cuda", requires_grad=True)
        theirs = ours.detach().clone().requires_grad_()
        compiled(ours, step * 0.3, step + 2).backward()
        program(theirs, step * 0.3, step + 2).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert len(state_of(compiled).entries) <= 3


def test_selections_and_items() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = x[x[:, 0] > 0]
        count = (x > 0).sum().item()
        where = torch.where(x > 0)[0]
        return (chosen * count).softmax(-1), x[x > 0].sum() / count, where * 2 + count

    compiled = flambeau.compile(program, fullgraph=True)
    for _ in range(6):
        x = torch.randn(40, 9, device="cuda")
        torch.testing.assert_close(compiled(x), program(x))
    assert len(state_of(compiled).entries) == 1


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_integers_wrap_where_indices_are_checked(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = x[i]
        return -chosen * chosen + 100 - x[i - 5], chosen.sum()

    info = torch.iinfo(dtype)
    x = torch.randint(info.min, info.max, (101,), device="cuda").to(dtype)
    x[:3] = torch.tensor([info.min, info.max, 0])
    i = torch.randint(-90, 101, (1000,), device="cuda")
    i[:3] = torch.arange(3)
    got = flambeau.compile(program, fullgraph=True)(x, i)
    torch.testing.assert_close(got, program(x, i), rtol=0, atol=0)
