"""Norms and moments beside eager and float64: equal numbers, rows far from 0, infinities."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional as F

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

SIZES = (2, 3, 7, 33, 100, 768, 1023, 5003, 70001)
EQUALS = (1.0, 100.0, 1e4, 0.1, -3.7, 100.3)
OFFSETS = (0.0, 3.9, -30.0, 1e3, 1e5)

channels_last = torch.channels_last


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


NORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[int], Tensor]]] = {
    "layer": (layer_norm, lambda n: torch.randn(4, n)),
    "layer, transposed": (layer_norm, lambda n: torch.randn(n, 5).t()),
    "group": (lambda x: F.group_norm(x, 2), lambda n: torch.randn(2, 4, n)),
    "group, channels last": (
        lambda x: F.group_norm(x, 2),
        lambda n: torch.randn(2, 4, n, 2).to(memory_format=channels_last),
    ),
    "instance": (F.instance_norm, lambda n: torch.randn(2, 3, n)),
    "batch": (batch_norm, lambda n: torch.randn(3, 4, n)),
    "batch, columns": (batch_norm, lambda n: torch.randn(n, 40)),
    "batch, channels last": (
        batch_norm, lambda n: torch.randn(2, 4, n, 1).to(memory_format=channels_last),
    ),
    "of a row and of the result": (
        lambda x: layer_norm(layer_norm(x) + x * 3), lambda n: torch.randn(4, n)
    ),
}  # fmt: skip


def compiled_for_each(function: Callable[..., Any]) -> Callable[..., Any]:
    """A program for each of many shapes."""
    return flambeau.compile(function, dynamic=False, fullgraph=True, recompile_limit=1000)


def farther(ours: Tensor, eager: Tensor, exact: Tensor) -> float:
    """By how much ours may be nearer to float64 to be as near as thrice eager's distance."""
    distances = [(each.double() - exact).abs().max().item() for each in (ours, eager)]
    return distances[0] - 3 * distances[1]


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equal_numbers_become_zero(name, dtype) -> None:
    norm, inputs = NORMS[name]
    compiled = compiled_for_each(norm)
    for n in SIZES if dtype is torch.float32 else SIZES[:6]:
        like = inputs(n).to(dtype)
        for value in EQUALS:
            x = torch.full_like(like, value)
            assert not compiled(x).any(), (n, value)


def test_rows_of_different_equal_numbers() -> None:
    compiled = compiled_for_each(layer_norm)
    for n in SIZES:
        x = (torch.randn(50, 1) * 100).expand(50, n).contiguous()
        assert not compiled(x).any(), n


@pytest.mark.parametrize("name", NORMS)
def test_rows_far_from_zero(name) -> None:
    norm, inputs = NORMS[name]
    compiled = compiled_for_each(norm)
    for n in SIZES:
        for offset in OFFSETS:
            x = inputs(n) + offset
            excess = farther(compiled(x), norm(x), norm(x.double()))
            assert excess <= 1e-6 * max(1, n**0.5 / 30), (n, offset)


def test_equal_numbers_of_a_dynamic_length() -> None:
    compiled = flambeau.compile(layer_norm, dynamic=True)
    for n in SIZES:
        x = (torch.randn(5, 1) * 100).expand(5, n).contiguous()
        assert not compiled(x).any(), n


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("name", ["var", "std"])
def test_deviation_of_equal_numbers(name, dim) -> None:
    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        return getattr(torch, f"{name}_mean")(x, dim)

    compiled = compiled_for_each(moments)
    for n in SIZES:
        for value in EQUALS:
            spread, mean = compiled(torch.full((n, 6) if dim == 0 else (6, n), value))
            assert not spread.any() and (mean == value).all(), (n, value)


@pytest.mark.parametrize("name", ["var", "std"])
def test_moments_far_from_zero(name) -> None:
    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        return getattr(torch, f"{name}_mean")(x, -1)

    compiled = compiled_for_each(moments)
    for n in SIZES:
        for offset in OFFSETS:
            x = torch.randn(4, n) + offset
            for ours, eager, exact in zip(
                compiled(x), moments(x), moments(x.double()), strict=True
            ):
                assert farther(ours, eager, exact) <= 3e-7 * max(1, exact.abs().max()), (n, offset)


def test_running_statistics() -> None:
    def norm(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = torch.zeros(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype)
        F.batch_norm(x, mean, var, training=True, momentum=1.0)
        return mean, var

    compiled = compiled_for_each(norm)
    for n in SIZES:
        x = torch.full((3, 4, n), 100.3)
        mean, var = compiled(x)
        assert (mean == x[0, 0, 0]).all() and not var.any(), n


@pytest.mark.parametrize("n", [1, 5, 16, 1000, 70001])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_statistics_of_infinities(n, value) -> None:
    """NaN or infinite where eager's are, first in the row, last or between.

    Where an infinity comes last in a lane of ATen's, its mean is infinite: else NaN, as here.
    """

    def statistics(x: Tensor) -> list[Tensor]:
        mean, var = torch.zeros(2), torch.ones(2)
        F.batch_norm(x, mean, var, training=True)
        layer = torch.native_layer_norm(x, x.shape[-1:], None, None, 1e-5)
        group = torch.native_group_norm(x, None, None, 3, 2, n, 1, 1e-5)
        return [mean, var, *layer, *group, x.var(-1), x.std(0)]

    compiled = compiled_for_each(statistics)
    for place in {0, n // 2, max(0, n - 2)}:
        x = torch.randn(3, 2, n)
        x[0, 0, place] = value
        for ours, eager in zip(compiled(x), statistics(x), strict=True):
            torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-4, atol=2e-5)


def gradient(function: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (function(x) * weight.to(x.dtype)).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("name", ["layer", "group", "batch", "instance"])
@pytest.mark.parametrize("offset", [None, 0.0, 30.0])
def test_gradients(name, offset) -> None:
    """Of rows of equal numbers, and of others."""
    norm, inputs = NORMS[name]
    compiled = compiled_for_each(norm)
    for n in SIZES[1:7]:
        x = torch.full_like(inputs(n), 100.3) if offset is None else inputs(n) + offset
        weight = torch.randn_like(x)

        exact = gradient(norm, x.double(), weight)
        excess = farther(gradient(compiled, x, weight), gradient(norm, x, weight), exact)
        assert excess <= 1e-6 * exact.abs().max(), n


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [7, 768, 5003])
def test_activations_that_are_kept_for_a_norm(n, dtype) -> None:
    """Rows of GELU are computed once and read again."""

    def activated(x: Tensor) -> Tensor:
        return layer_norm(F.gelu(x) + F.gelu(x * 2))

    x = torch.randn(40, n).to(dtype)
    ours, eager, exact = compiled_for_each(activated)(x), activated(x), activated(x.double())
    assert farther(ours, eager, exact) <= 1e-6
    weight = torch.randn_like(x)
    results = [gradient(f, x, weight) for f in (compiled_for_each(activated), activated)]
    exact = gradient(activated, x.double(), weight)
    assert farther(*results, exact) <= 1e-6 * exact.abs().max()
