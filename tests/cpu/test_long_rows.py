"""Reductions of rows that no cache keeps, in one pass: as near to float64 as eager, gradients
too.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import flambeau

ROW = 70_001


def rows() -> torch.Tensor:
    """Ordinary, far from 0, ascending, with infinities and NaN, without a finite element."""
    x = torch.randn(8, ROW) * 4
    x[1] += 1e4
    x[2] = torch.arange(ROW) * 0.01
    x[3, ::2] = -math.inf
    x[4, 77] = math.inf
    x[5, -1] = math.nan
    x[6] = -math.inf
    x[7] *= 1e-20
    return x


def check(function, *inputs: torch.Tensor, factor: float = 4.0) -> None:
    """Compare with float64 where that is finite, with eager elsewhere."""
    wide = function(*(x.double() for x in inputs))
    eager = function(*inputs)
    ours = flambeau.compile(function, fullgraph=True)(*inputs)
    for exact, theirs, mine in zip(wide, eager, ours, strict=True):
        assert mine.dtype is theirs.dtype and mine.stride() == theirs.stride()
        # Eager sums exponentials of float16 in float16, which may overflow.
        infinite, finite = ~exact.isfinite(), exact.isfinite() & theirs.isfinite()
        torch.testing.assert_close(mine[infinite], theirs[infinite], equal_nan=True, rtol=0, atol=0)
        scale = exact[finite].abs().sum().clamp_min(1e-300)
        error = [(y.double() - exact)[finite].abs().sum() / scale for y in (mine, theirs)]
        assert error[0] <= factor * error[1] + 2 * torch.finfo(theirs.dtype).eps, error


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_softmax(dtype) -> None:
    check(lambda x: (x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1)), rows().to(dtype))
    check(lambda x: (x.softmax(0), x.t().logsumexp(0, keepdim=True)), rows().to(dtype)[:, :999])


@pytest.mark.parametrize("correction", [0, 1, 2.5])
def test_variances(correction) -> None:
    def moments(x):
        every = torch.var_mean(x, correction=correction)
        return *torch.var_mean(x, -1, correction=correction, keepdim=True), x.std(0), *every

    check(moments, rows()[:3])
    check(moments, rows()[:3].t().contiguous().t())
    check(lambda x: (x.var(-1), x.std((0, 1))), rows()[3:], factor=1)


def test_a_variance_written_out() -> None:
    def program(x):
        far = x - x.mean(-1, keepdim=True)
        return (far / ((far * far).mean(-1, keepdim=True) + 1e-5).sqrt(),)

    check(program, rows()[:3])


def test_gradients() -> None:
    x, weight = torch.randn(2, ROW), torch.randn(ROW)

    def program(x, weight):
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        y = F.layer_norm(x, (ROW,), weight).softmax(-1).var(-1).sum() * 1e6
        return torch.autograd.grad(y, (x, weight))

    check(program, x, weight)


def test_dynamic_sizes() -> None:
    compiled = flambeau.compile(lambda x: (x.softmax(-1), x.var(-1)), dynamic=True, fullgraph=True)
    for shape in ((3, ROW), (5, 80_000), (2, 65_537)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), (x.softmax(-1), x.var(-1)))
    assert len(flambeau.explain(compiled).graphs) == 1
