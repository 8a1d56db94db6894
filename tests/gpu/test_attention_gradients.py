"""Gradients of attention by each of eager's kernels, compiled calls among eager ones of the same
shapes: ATen's plans of cuDNN's backward are found without the layout of the gradient.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import flambeau

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def heads_outside(x: Any, w: Any, groups: int) -> Any:
    """Rows of tokens in, queries and keys rotated: they are row-major, values are not."""
    rows, steps, _ = x.shape
    q, k, v = (part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in _projected(x, w, groups))
    q, k = (torch.cat((-y[..., 32:], y[..., :32]), -1) + y for y in (q, k))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups > 1)
    return y.transpose(1, 2).reshape(rows, steps, -1)


def heads_inside(x: Any, w: Any, groups: int) -> Any:
    """All are laid out as tokens, and so is the result, which is read row-major."""
    rows, steps, _ = x.shape
    q, k, v = (part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in _projected(x, w, groups))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups > 1)
    return y.contiguous().view(rows, -1, 64 * steps)


def _projected(x: Any, w: Any, groups: int) -> Any:
    return (x @ w).split([256, 256 // groups, 256 // groups], -1)


def gradients(function: Any, x: Any, w: Any, groups: int) -> list[torch.Tensor]:
    given = [each.detach().clone().requires_grad_() for each in (x, w)]
    out = function(*given, groups)
    weights = torch.linspace(-1, 1, out.numel(), device="cuda").view(out.shape)
    (out * weights.to(out.dtype)).sum().backward()
    return [out.detach(), *(each.grad for each in given)]


@pytest.mark.parametrize("order", ["eager first", "compiled first"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("program", [heads_outside, heads_inside])
def test_beside_eager(program: Any, kernel: str, groups: int, order: str) -> None:
    steps = 40 + 8 * (order == "eager first") + 16 * groups  # plans are found by shapes
    x = torch.randn(2, steps, 96, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(96, 256 + 512 // groups, device="cuda", dtype=torch.bfloat16) / math.sqrt(96)
    truth = gradients(program, x.double(), w.double(), groups)
    compiled = flambeau.compile(program)
    runs = [program, compiled, compiled, program, compiled, compiled, compiled, program]
    with sdpa_kernel([KERNELS[kernel], SDPBackend.MATH]):
        for run in runs if order == "eager first" else runs[1:]:
            for got, want in zip(gradients(run, x, w, groups), truth, strict=True):
                error = (got.double() - want).norm() / want.norm()
                assert error < 0.02, (run is compiled, float(error))
    (graph,) = flambeau.explain(compiled).graphs
    assert graph.fallback is None
