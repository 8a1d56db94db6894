"""Remainders of floats in vector loops have libm's bits: for all quotients and special values, at
every ISA level.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from run_cpp import I0, K0, OPTIONS, Library, axes, params

from flambeau_inductor.ir import Compute, Load, LoopKernel, Store
from flambeau_runtime.build import isa

DTYPES = {"float32": (torch.float32, torch.int32), "float64": (torch.float64, torch.int64)}
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1e-42, 1.0, -1.0, 4096.0, 2.0**26)


def kernel(dtype: torch.dtype) -> LoopKernel:
    body = (
        Load("v0", dtype, "b0", I0), Load("v1", dtype, "b1", I0),
        Compute("v2", dtype, "fmod", ("v0", "v1")), Store("b2", I0, "v2"),
    )  # fmt: skip
    described = params((dtype, "read"), (dtype, "read"), (dtype, "write"))
    return LoopKernel("cpu", described, (K0,), axes((I0, K0)), (), body)


@pytest.fixture(scope="module", params=isa.LEVELS)
def library(request: pytest.FixtureRequest) -> Library:
    if isa.LEVELS.index(request.param) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {request.param}")
    kernels = {f"of_{name}": kernel(dtype) for name, (dtype, _) in DTYPES.items()}
    return Library(kernels, dataclasses.replace(OPTIONS, isa=request.param))


def operands(dtype: torch.dtype, kind: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    if kind == "any":  # bits: quotients of all sizes, also those that overflow
        bits = torch.randint(-(2**62), 2**62, (2, count)) * 2 + torch.randint(0, 2, (2, count))
        words = bits if dtype is torch.float64 else (bits >> 32).to(torch.int32)
        x, y = words.view(dtype)
    elif kind == "near":  # quotients that are whole, but for a last place
        y = torch.randn(count, dtype=dtype)
        x = y * torch.randint(0, 2**15, (count,)).to(dtype)
        x = torch.where(torch.rand(count) < 0.5, x, torch.nextafter(x, x * 2))
    else:
        y = torch.randn(count, dtype=dtype)
        x = y.roll(1) * 2.0 ** torch.randint(0, 100, (count,)).to(dtype)
    x, y = x.clone(), y.clone()
    for number, value in enumerate(SPECIAL):
        x[number::61] = value
        y[number::59] = value
    return x, y


@pytest.mark.parametrize("kind", ["any", "near", "large"])
@pytest.mark.parametrize("name", DTYPES)
def test_bits_of_libm(library: Library, name: str, kind: str) -> None:
    dtype, bits = DTYPES[name]
    for count in (0, 1, 15, 17, 4001):
        x, y = operands(dtype, kind, count)
        got = torch.zeros(count, dtype=dtype)
        library.run(f"of_{name}", [x, y, got], (count,))
        known = [
            math.fmod(a, b) if math.isfinite(a) and b != 0 and not math.isnan(b) else math.nan
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
        want = torch.tensor(known, dtype=dtype)
        same = (got.view(bits) == want.view(bits)) | (got.isnan() & want.isnan())
        assert same.all(), [(float(v[~same][0]).hex()) for v in (x, y, got, want)]


def test_vectors_have_variants(library: Library) -> None:
    """Else GCC calls libm for each element."""
    assert "_ZGVdN8vv_fmodf(" in library.text and "_ZGVeN8vv_fmod(" in library.text
