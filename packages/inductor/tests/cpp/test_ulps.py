"""How far the prelude's functions of float32 are from float64's, in units in the last place, over
their domains; the others are libmvec's (`test_scalar_ops`).
"""

from __future__ import annotations

import dataclasses

import pytest
import run_cpp
import torch
from run_cpp import I0, K0, Library, axes, params

from flambeau_inductor.ir import Compute, Load, LoopKernel, Store
from flambeau_runtime.build import isa

F32 = torch.float32
DOMAINS = {
    "exp": (-87.0, 88.0), "log": (1e-30, 100.0), "erf": (-5.0, 5.0), "lgamma": (1e-30, 20.0),
}  # fmt: skip
FUSED = {"exp": 1.03, "log": 0.83, "erf": 1.2, "lgamma": 0.6}
"""With fused multiply-add, as every AVX2 machine has it. Eager's log has 0.83."""
PLAIN = FUSED | {"erf": 1.4}


def kernel(name: str) -> LoopKernel:
    body = (Load("v0", F32, "b0", I0), Compute("v1", F32, name, ("v0",)), Store("b1", I0, "v1"))
    return LoopKernel("cpu", params((F32, "read"), (F32, "write")), (K0,), axes((I0, K0)), (), body)


@pytest.mark.parametrize("level", isa.LEVELS)
def test_errors(level):
    if isa.LEVELS.index(level) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {level}")
    torch.manual_seed(0)
    options = dataclasses.replace(run_cpp.OPTIONS, isa=level)
    library = Library({f"k_{name}": kernel(name) for name in DOMAINS}, options)
    errors = {}
    for name, (low, high) in DOMAINS.items():
        x = torch.rand(500_000) * (high - low) + low
        x[::7] *= 2.0 ** -torch.randint(0, 20, x[::7].shape)
        got = torch.empty_like(x)
        library.run(f"k_{name}", [x, got], (x.numel(),))
        exact = getattr(torch, name)(x.double())
        near = exact.float().abs()
        unit = torch.nextafter(near, torch.tensor(float("inf"))).double() - near
        errors[name] = round(((got - exact).abs() / unit).max().item(), 3)
    table = PLAIN if level == "baseline" else FUSED
    assert {name: error for name, error in errors.items() if error > table[name]} == {}


@pytest.mark.parametrize("level", isa.LEVELS)
def test_lgamma_of_all_sizes(level):
    """Also next to its zeros at negative numbers, where an error of 3e-14 is allowed."""
    if isa.LEVELS.index(level) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {level}")
    torch.manual_seed(0)
    options = dataclasses.replace(run_cpp.OPTIONS, isa=level)
    library = Library({"k_lgamma": kernel("lgamma")}, options)
    bits = torch.randint(-(1 << 31), 1 << 31, (500_000,)).to(torch.int32).view(F32)
    zeros = torch.tensor([1.0, 2.0, -2.4570247, -2.7476826, -3.1435809, -3.955294, -4.0393615])
    steps = torch.arange(-500, 500, dtype=torch.int32)
    near = (zeros.view(torch.int32)[:, None] + steps).flatten().view(F32)
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, -1.0, -8388609.0])
    x = torch.cat([bits, -100 * torch.rand(100_000), near, special, -torch.arange(1000.0)])
    got = torch.empty_like(x)
    library.run("k_lgamma", [x, got], (x.numel(),))
    exact = torch.lgamma(x.double())
    assert torch.equal(got.isnan(), exact.isnan())
    finite = exact.abs() < torch.finfo(F32).max
    assert torch.equal(got[~finite].nan_to_num(-1.0), exact[~finite].float().nan_to_num(-1.0))
    size = exact[finite].float().abs()
    unit = torch.nextafter(size, torch.tensor(float("inf"))).double() - size
    errors = (got[finite] - exact[finite]).abs()
    assert (errors - 0.6 * unit).max() <= 3e-14
