"""Attention that a program writes out, and merged products, on a GPU beside eager."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flambeau
from flambeau_autograd import fused_attention

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention, "FEWEST_MASKED_SCORES", 0)
    monkeypatch.setattr(fused_attention, "FEWEST_TRAINED_MASKED_SCORES", 0)


def plain(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def causal(q: Any, k: Any, v: Any, mask: Any) -> Any:
    place = torch.arange(q.shape[2], device=q.device)
    scores = (q @ k.mT * 0.2).masked_fill(place[None] > place[:, None], -math.inf)
    return scores.softmax(-1) @ v


def filled(q: Any, k: Any, v: Any, mask: Any) -> Any:
    weights = F.softmax((q @ k.mT * 0.2).masked_fill(mask, -math.inf), dim=-1)
    return (weights @ v).transpose(1, 2).contiguous().flatten(2)


def with_a_number(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return torch.where(mask, -6e4, q @ k.mT * 0.2).softmax(-1) @ v


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("program", [plain, causal, filled, with_a_number])
def test_written_attention(program: Any, dtype: torch.dtype, blind: bool) -> None:
    mask = torch.ones(48, 48, dtype=torch.bool, device="cuda").triu(1)
    if blind:
        mask[7] = True
    given = [torch.randn(2, 3, 48, 64, device="cuda", dtype=dtype) for _ in range(3)]
    results = []
    for run, wide in (
        (flambeau.compile(program), dtype),
        (program, dtype),
        (program, torch.double),
    ):
        tensors = [x.to(wide).requires_grad_() for x in (y.detach() for y in given)]
        out = run(*tensors, mask)
        kept = ~out.isnan()
        gradients = torch.autograd.grad(out[kept].square().sum(), tensors)
        results.append([out.detach(), *gradients])
    for at, (mine, its, exact) in enumerate(zip(*results, strict=True)):
        assert (mine.shape, mine.dtype, mine.stride()) == (its.shape, its.dtype, its.stride())
        if at == 0:
            assert torch.equal(mine.isnan(), its.isnan())
        fine = ~(mine.isnan() | its.isnan() | exact.isnan())
        if fine.any():
            error, its_error = ((x.double() - exact)[fine].abs().max() for x in (mine, its))
            assert error <= 4 * its_error + 1e-5


def test_merged_products() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up = nn.Linear(64, 96), nn.Linear(64, 96)

        def forward(self, x: torch.Tensor) -> Any:
            return F.silu(self.gate(x)) * self.up(x), self.up(x)

    model = Gated().cuda().half()
    run = flambeau.compile(model, options={"freezing": True})
    x = torch.randn(5, 64, device="cuda", dtype=torch.half)
    with torch.no_grad():
        for mine, its in zip(run(x), model(x), strict=True):
            torch.testing.assert_close(mine, its, rtol=4e-3, atol=4e-3)
            assert mine.stride() == its.stride()
