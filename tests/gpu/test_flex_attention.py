"""flex_attention on a GPU: gradients, too, which eager has on a GPU only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import flambeau
from tests.programs.flex_attention import LENGTH, MASKS, SCORES, functions, qkv

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", MASKS)
def test_gradients(score: str | None, mask: str | None) -> None:
    programs = functions("cuda")
    score_mod = score and getattr(programs, score)
    seen = mask and create_block_mask(
        getattr(programs, mask), None, None, LENGTH, LENGTH, device="cuda"
    )

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=seen)

    compiled = flambeau.compile(function, fullgraph=True)
    inputs = [one.requires_grad_() for one in qkv("cuda", width=16)]
    exact_inputs = [one.detach().double().requires_grad_() for one in inputs]
    tangent = torch.randn_like(inputs[0])
    results = []
    for run, given in ((function, exact_inputs), (function, inputs), (compiled, inputs)):
        out = run(*given)
        results.append((out, *torch.autograd.grad(out, given, tangent.to(out.dtype))))
    assert results[2][0].stride() == results[1][0].stride()
    for exact, eager, got in zip(*results, strict=True):
        error = (eager.double() - exact).abs().max()
        assert (got.double() - exact).abs().max() <= 4 * error + 1e-5
