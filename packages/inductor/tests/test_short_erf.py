"""1 + erf(x) in the short way: as near to the exact value as in the long one, for halves only."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor.codegen.short_erf import shorten_erf
from flambeau_inductor.evaluate import run_kernel
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, Compute, LoopKernel, Param
from flambeau_inductor.lowering.body_builder import BodyBuilder

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def kernel_of(count: int, out: torch.dtype, form: str = "gelu") -> LoopKernel:
    """1 + erf(x), or more of it, over `count` points."""
    builder = BodyBuilder()
    i = symbol("i0")
    x = builder.load("b0", i, F32)
    erf = builder.pointwise("erf", x)
    one = builder.constant(1.0 if form != "two" else 2.0, F32)
    value = builder.pointwise("add", one, erf) if form == "turned" else None
    value = value or builder.pointwise("add", erf, one)
    if form == "gelu":
        value = builder.pointwise("mul", x, value)
    elif form == "erf twice":
        value = builder.pointwise("mul", value, erf)
    elif form == "floor":
        value = builder.pointwise("floor", value)
    elif form in ("sqrt", "log", "reciprocal"):
        value = builder.pointwise(form, value)
    elif form in ("div", "copysign"):
        value = builder.pointwise(form, x, value)
    elif form == "compared":
        value = builder.pointwise("where", builder.pointwise("lt", value, one), x, one)
    params = [Param("b0", F32, "read"), Param("b1", out, "write")]
    if form == "stored, too":
        params.append(Param("b2", F32, "write"))
        builder.store("b2", i, value)
    builder.store("b1", i, builder.cast(value, out))
    return LoopKernel("cuda", tuple(params), (), (Axis(i, count),), (), builder.finish())


def has_erf(kernel: LoopKernel) -> bool:
    return any(isinstance(each, Compute) and each.op == "erf" for each in kernel.body)


@pytest.mark.parametrize("form", ["gelu", "plain", "turned"])
@pytest.mark.parametrize("out", [F16, BF16])
def test_halves_take_the_short_way(out: torch.dtype, form: str) -> None:
    assert not has_erf(shorten_erf(kernel_of(8, out, form)))


@pytest.mark.parametrize(
    "form",
    [
        "erf twice", "two", "floor", "compared", "stored, too", "sqrt", "log", "reciprocal", "div",
        "copysign",
    ],
)  # fmt: skip
def test_others_do_not(form: str) -> None:
    kernel = kernel_of(8, BF16, form)
    assert shorten_erf(kernel) == kernel
    wide = kernel_of(8, F32)
    assert shorten_erf(wide) == wide


def test_as_near_as_the_sum_in_float32() -> None:
    """The short way's float32 values, before they are rounded."""
    special = torch.tensor(
        [0.0, -0.0, torch.inf, -torch.inf, 1e30, -1e30, 1e-30, -1e-30, torch.nan]
    )
    x = torch.cat([torch.linspace(-14, 14, 100_001), torch.randn(10_000), special])
    short = shorten_erf(kernel_of(len(x), F16, "plain"))
    body = tuple(each for each in short.body if getattr(each, "op", "") != "cast")
    store = body[-1]
    assert short.body[-2].op == "cast"
    wide = LoopKernel(
        "cuda", (short.params[0], Param("b1", F32, "write")), (), short.outer, (),
        (*body[:-1], type(store)(**{
            **{name: getattr(store, name) for name in store.__slots__},
            "value": short.body[-2].args[0],
        })),
    )  # fmt: skip
    result = torch.empty_like(x)
    run_kernel(wide, [x, result], ())
    exact = torch.erfc(-x.double())
    eager = 1 + torch.erf(x)
    assert torch.equal(result.isnan(), eager.isnan())
    number = ~result.isnan()
    error, its = ((y.double() - exact)[number].abs() for y in (result, eager))
    assert error.max() <= 3e-7 and error.max() <= 5 * its.max()
    tail = number & (x < -1) & (x > -4)
    ours, theirs = (((y.double() - exact) / exact)[tail].abs().max() for y in (result, eager))
    assert ours <= theirs
    assert (result[x < -12] == 0).all() and (result[x > 6] == 2).all()


@pytest.mark.parametrize("out", [F16, BF16])
def test_gelu_rounds_as_well_as_eager(out: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-6, 6, 50_001), 10 * torch.randn(10_000)])
    exact = x.double() * torch.erfc(-x.double())
    errors = []
    for kernel in (kernel_of(len(x), out), shorten_erf(kernel_of(len(x), out))):
        result = torch.empty(len(x), dtype=out)
        run_kernel(kernel, [x, result], ())
        errors.append((result.double() - exact).norm() / exact.norm())
    assert errors[1] <= 1.001 * errors[0]
