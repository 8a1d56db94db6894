"""Dropout and other coins on a CPU: eager's numbers, in the forward and in the backward."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import flambeau


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(100, 33), (64, 64), (3, 5), (0, 4), (2, 16, 9, 9)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_of_many_elements(
    shape: tuple[int, ...], dtype: torch.dtype, dynamic: bool
) -> None:
    """What is dropped, and the generator behind it, are eager's; the backward drops the same."""

    def program(x: torch.Tensor) -> torch.Tensor:
        rows = F.dropout(x.transpose(0, 1), 0.3) + F.alpha_dropout(x.transpose(0, 1), 0.2)
        return rows * torch.bernoulli(torch.empty_like(rows), 0.7) + F.dropout(rows, 0.9)

    compiled = flambeau.compile(program, fullgraph=True, dynamic=dynamic)
    x = torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()
    results = []
    for call in (program, compiled):
        torch.manual_seed(7)
        out = call(x)
        state = torch.get_rng_state()
        results.append((out, state, *torch.autograd.grad(out.float().sum(), x)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
        assert torch.equal(found == 0, expected == 0)
    assert torch.equal(results[0][1], results[1][1])
