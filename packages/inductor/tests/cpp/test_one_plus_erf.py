"""1 + erf(x) the short way, beside float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from run_cpp import I0, K0, OPTIONS, Library, axes, params

from flambeau_inductor.ir import Compute, Constant, Load, LoopKernel, Store
from flambeau_runtime.build import isa

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def gelu(source: torch.dtype, to: torch.dtype, *, plain: bool = False) -> LoopKernel:
    """x (1 + erf(x)), or the sum alone."""
    wide = () if source is F32 else (Compute("v1", F32, "cast", ("v0",)),)
    x = "v1" if wide else "v0"
    narrow = () if to is F32 else (Compute("v6", to, "cast", ("v5",)),)
    one = Compute("v5", F32, "add" if plain else "mul", ("v2", "v3") if plain else (x, "v4"))
    body = (
        Load("v0", source, "b0", I0),
        *wide,
        Compute("v2", F32, "erf", (x,)),
        Constant("v3", F32, 1.0),
        Compute("v4", F32, "add", ("v2", "v3")),
        one,
        *narrow,
        Store("b1", I0, "v6" if narrow else "v5"),
    )
    return LoopKernel(
        "cpu", params((source, "read"), (to, "write")), (K0,), axes((I0, K0)), (), body
    )


KERNELS = {
    "f16": gelu(F16, F16), "bf16": gelu(BF16, BF16), "f32": gelu(F32, F32),
    "plain": gelu(F32, F16, plain=True), "wide": gelu(F32, BF16), "sum": gelu(F32, F32, plain=True),
}  # fmt: skip


@pytest.fixture(scope="module", params=isa.LEVELS)
def library(request) -> Library:
    if isa.LEVELS.index(request.param) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {request.param}")
    return Library(KERNELS, dataclasses.replace(OPTIONS, isa=request.param))


@pytest.mark.parametrize("name", KERNELS)
def test_every_half(library, name):
    """No farther from float64 than eager's float32 rounded once, by a thousandth of a unit."""
    (source, to) = (param.dtype for param in KERNELS[name].params)
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    x = bits.view(source) if source is not F32 else torch.cat([bits.view(F16), bits.view(BF16)])
    x = x.to(source)
    got = torch.zeros(len(x), dtype=to)
    library.run(name, [x, got], (len(x),))
    wide = 1 + torch.erf(x.double())
    eager = 1 + torch.erf(x.float())
    alone = name in ("plain", "sum")
    exact, eager = (wide, eager) if alone else (x.double() * wide, x.float() * eager)
    assert torch.equal(got.isnan(), eager.to(to).isnan())
    ok = exact.to(to).isfinite() & eager.isfinite()
    assert torch.equal(got[exact.to(to).isinf()], exact.to(to)[exact.to(to).isinf()])
    rounded = exact.to(to).abs()
    unit = (torch.nextafter(rounded, torch.full_like(rounded, torch.inf)) - rounded).double()
    error, theirs = (got.double() - exact).abs(), (eager.to(to).double() - exact).abs()
    # 1.4e-7 is the error of the short sum, 9e-8 that of eager's.
    scale = torch.ones_like(exact) if alone else x.double().abs()
    assert (error <= torch.maximum(theirs, 0.501 * unit + 1.4e-7 * scale))[ok].all()


@pytest.mark.parametrize("name", ["f32", "sum"])
def test_floats_are_as_near_as_eager(library, name):
    """On average; the largest error is at most 1.7 times that of eager's sum."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.linspace(-7, 7, 300_001), torch.randn(200_003, generator=generator)])
    got = torch.zeros(len(x))
    library.run(name, [x, got], (len(x),))
    exact = torch.special.erfc(-x.double())
    eager = 1 + torch.erf(x)
    if name == "f32":
        exact, eager = x.double() * exact, x * eager
    error, theirs = ((each.double() - exact).abs() for each in (got, eager))
    assert error.square().mean() <= 1.02 * theirs.square().mean()
    assert error.max() <= 1.7 * theirs.max()


def test_where_it_is_taken(library):
    def part(name: str) -> str:
        return library.text[library.text.index(f" {name}_part") :].partition("EXPORT")[0]

    for name in KERNELS:
        assert ("one_plus_erf(" in part(name)) == (name not in ("sum", "plain"))
    assert "erf_of(" in part("plain")  # erf and 1 are added twice there
