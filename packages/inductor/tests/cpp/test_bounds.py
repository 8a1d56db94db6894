"""Greatest and least of a value and a number, alone and before a conversion to small integers."""

from __future__ import annotations

import dataclasses
import math

import pytest
import run_cpp
import torch
from run_cpp import I0, K0, Library, axes, params

from flambeau_inductor.ir import Compute, Constant, IndexValue, Load, LoopKernel, Store
from flambeau_runtime.build import isa

F32, F64 = torch.float32, torch.float64
NUMBERS = (0.0, -0.0, 127.0, -128.0, math.inf, -math.inf, math.nan)
OPERATORS = {"maximum": torch.maximum, "minimum": torch.minimum}


def kernel(described, body) -> LoopKernel:
    return LoopKernel("cpu", params(*described), (K0,), axes((I0, K0)), (), body)


def bound_kernel(op: str, dtype, number: float, first: bool) -> LoopKernel:
    args = ("v1", "v0") if first else ("v0", "v1")
    body = (
        Load("v0", dtype, "b0", I0),
        Constant("v1", dtype, number),
        Compute("v2", dtype, op, args),
        Store("b1", I0, "v2"),
    )
    return kernel([(dtype, "read"), (dtype, "write")], body)


def masked_kernel(start: int) -> LoopKernel:
    """Clamped from a place on: the loop is peeled there, and before it the load is a constant."""
    body = (
        IndexValue("v0", torch.int64, I0),
        Constant("v1", torch.int64, start),
        Compute("v2", torch.bool, "ge", ("v0", "v1")),
        Load("v3", F32, "b0", I0, "v2"),
        Constant("v4", F32, -1.0),
        Compute("v5", F32, "maximum", ("v3", "v4")),
        Compute("v6", torch.bool, "lt", ("v0", "v1")),
        Compute("v7", F32, "where", ("v6", "v4", "v5")),
        Store("b1", I0, "v7"),
    )
    return kernel([(F32, "read"), (F32, "write")], body)


def clamp_kernel(to) -> LoopKernel:
    """Stored as a small integer, and as it is."""
    info = torch.iinfo(to)
    body = (
        Load("v0", F32, "b0", I0),
        Constant("v1", F32, float(info.min)),
        Compute("v2", F32, "maximum", ("v0", "v1")),
        Constant("v3", F32, float(info.max)),
        Compute("v4", F32, "minimum", ("v3", "v2")),
        Compute("v5", to, "cast", ("v4",)),
        Store("b1", I0, "v5"),
        Store("b2", I0, "v4"),
    )
    return kernel([(F32, "read"), (to, "write"), (F32, "write")], body)


@pytest.fixture(scope="module", params=isa.LEVELS)
def options(request):
    if isa.LEVELS.index(request.param) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {request.param}")
    return dataclasses.replace(run_cpp.OPTIONS, isa=request.param)


def values(dtype) -> torch.Tensor:
    special = [*NUMBERS, 1.0, -1.0, 126.5, 127.5, -128.5, 1e-40, -1e-40]
    return torch.cat([torch.tensor(special, dtype=dtype), torch.randn(101, dtype=dtype) * 200])


def test_a_value_and_a_number(options):
    cases = [
        (op, dtype, number, first)
        for op in OPERATORS for dtype in (F32, F64) for number in NUMBERS for first in (True, False)
    ]  # fmt: skip
    library = Library({f"k{n}": bound_kernel(*case) for n, case in enumerate(cases)}, options)
    for n, (op, dtype, number, first) in enumerate(cases):
        x, bound = values(dtype), torch.tensor(number, dtype=dtype)
        got = torch.empty_like(x)
        library.run(f"k{n}", [x, got], (x.numel(),))
        want = OPERATORS[op](*((bound, x) if first else (x, bound)))
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_nan_behind_a_peeled_beginning(options):
    library = Library({f"k{start}": masked_kernel(start) for start in (0, 1, 5, 200)}, options)
    for start in (0, 1, 5, 200):
        x = values(F32)
        got = torch.empty_like(x)
        library.run(f"k{start}", [x, got], (x.numel(),))
        want = x.clamp(min=-1)
        want[:start] = -1
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_small_integers(options):
    dtypes = (torch.int8, torch.uint8, torch.int16)
    library = Library({f"k{n}": clamp_kernel(to) for n, to in enumerate(dtypes)}, options)
    for n, to in enumerate(dtypes):
        x = values(F32)
        x = torch.cat([x[~x.isnan()], torch.randn(70) * 40000])
        small, wide = torch.empty_like(x, dtype=to), torch.empty_like(x)
        library.run(f"k{n}", [x, small, wide], (x.numel(),))
        want = x.clamp(torch.iinfo(to).min, torch.iinfo(to).max)
        assert torch.equal(wide, want) and torch.equal(small, want.to(to))
