"""Attention whose mask the program makes of constants, beside eager."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional as F

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LENGTH = 48


def rows(q: torch.Tensor) -> torch.Tensor:
    """Attends everywhere; repeats one element in the last dim."""
    places = torch.arange(LENGTH, device=q.device)
    return (places[None, None, :, None] >= 0).expand(q.shape[0], -1, LENGTH, LENGTH)


def causal(q: torch.Tensor) -> torch.Tensor:
    """Attends to what comes before."""
    places = torch.arange(LENGTH, device=q.device)
    return places[None] <= places[:, None]


def window(q: torch.Tensor) -> torch.Tensor:
    """Neither."""
    places = torch.arange(LENGTH, device=q.device)
    return causal(q) & (places[None] > places[:, None] - 9)


def heads(dtype: torch.dtype) -> list[torch.Tensor]:
    shape = (2, LENGTH, 4, 64)
    return [
        torch.randn(shape, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
        for _ in range(3)
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mask", [rows, causal, window])
def test_values_and_gradients(
    mask: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask(q))

    def without(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """As eager computes it where the program makes no mask; the kernel is another."""
        if mask is window:
            return program(q, k, v)
        return F.scaled_dot_product_attention(q, k, v, is_causal=mask is causal)

    inputs = heads(dtype)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    results = {}
    for name, function, given in (
        ("exact", program, doubles),
        ("eager", program, inputs),
        ("unmasked", without, inputs),
        ("ours", flambeau.compile(program, fullgraph=True), inputs),
    ):
        out = function(*given)
        # Laid out as the result is: ATen keeps a plan of cuDNN's backward for the layout of the
        # first gradient that it meets, and computes wrong numbers for another.
        weight = torch.linspace(-1, 1, out.numel(), device="cuda").view(out.shape)
        weight = torch.empty_like(out).copy_(weight)
        results[name] = [out, *torch.autograd.grad(out, given, weight)]
    assert results["ours"][0].stride() == results["eager"][0].stride()
    for exact, eager, unmasked, ours in zip(*results.values(), strict=True):
        errors = [(x.double() - exact).norm() for x in (ours, eager, unmasked)]
        assert errors[0] <= 2 * max(errors[1:]) + 1e-6 * exact.norm()


def test_dropout_draws_as_eager_where_it_leaves_the_mask_out() -> None:
    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = rows(q) if torch.compiler.is_compiling() else None
        return F.scaled_dot_product_attention(q, k, v, mask, 0.2).clone() + torch.rand_like(q)

    q, k, v = heads(torch.bfloat16)
    compiled = flambeau.compile(program, fullgraph=True)
    for seed in range(6):
        torch.manual_seed(seed)
        expected = program(q, k, v)
        torch.manual_seed(seed)
        assert torch.equal(compiled(q, k, v), expected)


def test_dropout_draws_as_eager_with_the_mask() -> None:
    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, rows(q), 0.2)

    inputs = heads(torch.float32)
    compiled = flambeau.compile(program, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = program(*inputs)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(*inputs), expected, atol=1e-4, rtol=1e-4)
