"""Remainders of divisions in vector loops: exact for every quotient, at every ISA level."""

from __future__ import annotations

import dataclasses
import math

import pytest
import run_cpp
import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_prims.evaluate import run_graph
from flambeau_runtime import load
from flambeau_runtime.build import isa

BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
EDGES = (
    0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, 5e-324, 3.0, 0.1, 7.5, -7.5, 1e30,
    2.0**25 + 1, 2.0**26, 2.0**52 - 1, 2.0**53,
)  # fmt: skip


@pytest.fixture(params=isa.LEVELS)
def options(request):
    if isa.LEVELS.index(request.param) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {request.param}")
    return dataclasses.replace(run_cpp.OPTIONS, isa=request.param)


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of edges, of random words, of likely numbers, and quotients next to integers."""
    torch.manual_seed(0)
    edges = torch.tensor(EDGES, dtype=dtype)
    held = torch.iinfo(BITS[dtype])
    words = torch.randint(held.min, held.max, (2, 5000), dtype=BITS[dtype]).view(dtype)
    divisors, factors = torch.randn(5000, dtype=dtype), torch.randint(1, 1 << 24, (5000,))
    near = divisors * factors
    left = [edges.repeat_interleave(len(edges)), words[0], torch.randn(5001, dtype=dtype) * 1000]
    right = [edges.repeat(len(edges)), words[1], torch.randn(5001, dtype=dtype)]
    return torch.cat([*left, near, near.nextafter(edges[4])]), torch.cat(
        [*right, divisors, divisors]
    )


@pytest.mark.parametrize("dtype", BITS)
def test_remainders_are_exact(tester, options, dtype):
    x, y = operands(dtype)
    graph = tester.graph(lambda b, x, y: [b.fmod(x, y)], [x, y])
    (got,) = load(compile_graph(graph, InductorOptions()), options)(x, y)
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    invalid = (math.isnan, math.isinf)
    exact = [
        math.nan if y == 0 or math.isnan(y) or any(bad(x) for bad in invalid) else math.fmod(x, y)
        for x, y in pairs
    ]
    wanted = torch.tensor(exact, dtype=torch.float64).to(dtype)
    nan = wanted.isnan()
    assert torch.equal(got.isnan(), nan)
    assert torch.equal(got[~nan].view(BITS[dtype]), wanted[~nan].view(BITS[dtype]))


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("op", ["remainder", "floor_divide"])
def test_quotients(tester, options, op, dtype):
    torch.manual_seed(0)
    x, y = torch.randn(2, 3001, dtype=dtype) * 100
    x[:99], y[:99] = x[:99].round(), y[:99].round()
    x[5], y[7], x[9], y[11], y[13] = 0, 0, math.inf, -math.inf, math.nan
    graph = tester.graph(lambda b, x, y: [getattr(b, op)(x, y), getattr(b, op)(x, 3.0)], [x, y])
    got = load(compile_graph(graph, InductorOptions()), options)(x, y)
    for mine, theirs in zip(got, run_graph(graph, [x, y]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(mine.signbit()[~mine.isnan()], theirs.signbit()[~mine.isnan()])
