"""Extremes equal the elements that they are, whatever kernels compute: masks and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import flambeau


def gated(x):
    return (x * torch.sigmoid(x[:, :1])).amax((2, 3))


def normalised(x):
    return (x * torch.tanh(F.layer_norm(x, x.shape[-1:]))).amax(-1)


def smooth(x):
    return (x * F.gelu(F.layer_norm(x, x.shape[-1:]), approximate="tanh")).amin(-1)


def attentive(x):
    return (torch.tanh(x) * torch.softmax(x, -1)).amax(-1)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [gated, normalised, smooth, attentive])
def test_gradients_of_extremes(function, dynamic):
    torch.manual_seed(0)
    compiled = flambeau.compile(function, dynamic=dynamic)
    for size in (8, 10, 12, 13):
        x = torch.randn(5, 8, size, 8)
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        for call, leaf in ((compiled, ours), (function, theirs)):
            call(leaf).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_halves(dtype):
    torch.manual_seed(0)
    x = torch.randn(5, 8, 7, 9, dtype=dtype)
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    for call, leaf in ((flambeau.compile(gated), ours), (gated, theirs)):
        call(leaf).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("function", [gated, normalised, smooth, attentive])
def test_gradients_in_checkpointed_regions(function):
    torch.manual_seed(0)

    def kept(x):
        return checkpoint(function, x, use_reentrant=False) * 2

    x = torch.randn(5, 8, 10, 8)
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    for call, leaf in ((flambeau.compile(kept), ours), (kept, theirs)):
        call(leaf).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)


def test_masks_of_extremes():
    def function(x):
        y = torch.tanh(x) * torch.softmax(x, -1)
        return y == y.amax(-1, keepdim=True), (y != y.amin()).sum()

    x = torch.randn(50, 21)
    mask, others = flambeau.compile(function)(x)
    assert torch.equal(mask, function(x)[0])
    assert others == x.numel() - 1


def test_rounded_values_are_compared():
    def function(x, y):
        return (x * y).half() == (x * y + 0.001).half(), x * y

    x, y = torch.rand(2, 60, 50)
    for ours, eager in zip(flambeau.compile(function)(x, y), function(x, y), strict=True):
        assert torch.equal(ours, eager)
