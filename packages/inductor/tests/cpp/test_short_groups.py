"""Normalisation over groups of a few neighbouring channels of channels-last images: values,
layouts, what is stored of each group, and which kernels are walked by columns.
"""

from __future__ import annotations

import pytest
import torch
from run_cpp import OPTIONS

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_prims.evaluate import run_graph
from flambeau_runtime import load


def normalise(groups, reduce="sum", dims=(2, 3, 4)):
    """Builds (n, c, h, w) less its groups' sums, scaled, with these sums."""

    def build(b, x, scale, of_groups):
        n, channels, h, w = x.spec.shape
        shape = (n, groups, channels // groups, h, w)
        parts = b.reshape(b.permute(x, (0, 2, 3, 1)), (n, h, w, groups, channels // groups))
        parts = b.permute(parts, (0, 3, 4, 1, 2))
        total = getattr(b, reduce)(parts, dims)
        mean = b.mul(total, 1 / (channels // groups * h * w))
        spread = b.reshape(mean, (n, groups, 1, 1, 1))
        centred = b.sub(parts, b.expand(spread, shape))
        square = b.reshape(b.sum(b.mul(centred, centred), (2, 3, 4)), (n, groups, 1, 1, 1))
        factor = b.reshape(scale, (1, groups, channels // groups, 1, 1))
        result = b.mul(b.mul(centred, b.expand(square, shape)), b.expand(factor, shape))
        offset = b.reshape(of_groups, (1, groups, 1, 1, 1))
        return [b.add(result, b.expand(offset, shape)), total]

    return build


def inputs(n, channels, h, w, groups, dtype=torch.float32):
    """Channels-last images, a scale of each channel and an offset of each group."""
    x = torch.randn(n, channels, h, w, dtype=dtype).contiguous(memory_format=torch.channels_last)
    return [x / 8, torch.randn(channels, dtype=dtype), torch.randn(groups, dtype=dtype)]


def text_of(program):
    return "\n".join(source.text for source in program.sources)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((2, 64, 7, 9), 16),
        ((3, 40, 8, 8), 10),
        ((1, 24, 11, 5), 12),
        ((2, 160, 6, 7), 20),
        ((2, 272, 6, 7), 17),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_groups(tester, shape, groups, threads, dtype):
    tensors = inputs(*shape, groups, dtype)
    graph = tester.graph(normalise(groups), tensors)
    program = compile_graph(graph, InductorOptions(threads=threads, debug_checks=True))
    assert f"c += {shape[1] // groups})" in text_of(program)
    exact = run_graph(graph, [one.double() for one in tensors])
    for mine, theirs, best in zip(
        load(program, OPTIONS)(*tensors), run_graph(graph, tensors), exact, strict=True
    ):
        assert mine.dtype is theirs.dtype and mine.stride() == theirs.stride()
        assert (mine - best).abs().max() <= 2 * (theirs - best).abs().max() + 1e-6


def test_products_and_numbers_that_are_not_finite(tester):
    x, scale, of_groups = inputs(2, 64, 8, 8, 16)
    x, of_groups = x * 0.01 + 1, of_groups
    x[0, 5, 3, 3], x[1, 9, 0, 7] = torch.nan, torch.inf
    graph = tester.graph(normalise(16, "prod"), [x, scale, of_groups])
    program = compile_graph(graph)
    assert "c += 4)" in text_of(program)
    results = load(program, OPTIONS)(x, scale, of_groups)
    for mine, theirs in zip(results, run_graph(graph, [x, scale, of_groups]), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "groups", "reduce"),
    [
        ((2, 64, 7, 9), 2, "sum"),  # long groups
        ((2, 60, 7, 9), 20, "sum"),  # groups of 3
        ((2, 8, 7, 9), 2, "sum"),  # few columns
        ((2, 64, 3, 3), 16, "sum"),  # few rows
        ((2, 64, 7, 9), 16, "amax"),
    ],
)
def test_what_is_walked_by_rows(tester, shape, groups, reduce):
    tensors = inputs(*shape, groups)
    graph = tester.graph(normalise(groups, reduce), tensors)
    program = compile_graph(graph)
    if reduce == "sum":
        assert "for (int64_t other = c + 1" not in text_of(program)
    for mine, theirs in zip(
        load(program, OPTIONS)(*tensors), run_graph(graph, tensors), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
