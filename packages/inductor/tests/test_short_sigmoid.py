"""Sigmoids without a division: as near to the exact value as rounding to halves lets one see."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor.codegen.triton.short_sigmoid import shorten_sigmoid
from flambeau_inductor.evaluate import run_kernel
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, Compute, LoopKernel, Param
from flambeau_inductor.lowering.body_builder import BodyBuilder

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
FORMS = {
    "silu": lambda x: x * torch.sigmoid(x),
    "sigmoid": torch.sigmoid,
    "of positive": lambda x: torch.sigmoid(-x),
    "tanh": lambda x: 1 + torch.tanh(x),
}


def kernel_of(count: int, out: torch.dtype, form: str) -> LoopKernel:
    builder = BodyBuilder()
    i = symbol("i0")
    x, one = builder.load("b0", i, F32), builder.constant(1.0, F32)
    exp = builder.pointwise("exp", x if form == "of positive" else builder.pointwise("neg", x))
    bottom = builder.pointwise("add", one, exp)
    if form == "silu":
        value = builder.pointwise("div", x, bottom)
    elif form == "tanh":
        value = builder.pointwise("add", builder.pointwise("tanh", x), one)
    elif form == "plain division":
        value = builder.pointwise("div", x, exp)
    else:
        value = builder.pointwise("reciprocal", bottom)
    if form == "floor":
        value = builder.pointwise("floor", value)
    params = [Param("b0", F32, "read"), Param("b1", out, "write")]
    if form == "gathered":
        # The index depends on arithmetic that no statement but the index reads.
        params.append(Param("b2", torch.int64, "read"))
        place = builder.compute(
            "add", (builder.load("b2", i, torch.int64), builder.constant(1, torch.int64)),
            torch.int64,
        )  # fmt: skip
        value = builder.pointwise("mul", value, builder.load("b0", symbol(place), F32))
    builder.store("b1", i, builder.cast(value, out))
    return LoopKernel("cuda", tuple(params), (), (Axis(i, count),), (), builder.finish())


def divides(kernel: LoopKernel) -> bool:
    slow = ("div", "reciprocal", "tanh", "exp")
    return any(isinstance(each, Compute) and each.op in slow for each in kernel.body)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("out", [F16, BF16])
def test_halves_take_the_short_way(out: torch.dtype, form: str) -> None:
    x = torch.cat([torch.linspace(-30, 30, 50_001), 3 * torch.randn(10_000)])
    special = [0.0, -0.0, torch.inf, -torch.inf, 1e30, -1e30, 1e-30, torch.nan, 88.8, -88.8, 104.0]
    x = torch.cat([x, torch.tensor([*special, -104.0])])
    long = kernel_of(len(x), out, form)
    short = shorten_sigmoid(long)
    assert divides(long) and not divides(short)
    exact = FORMS[form](x.double())
    results = []
    for kernel in (long, short):
        result = torch.empty(len(x), dtype=out)
        run_kernel(kernel, [x, result], ())
        results.append(result)
    finite = results[0].isfinite()
    assert torch.equal(results[0].isnan(), results[1].isnan())
    assert torch.equal(results[0][~finite].nan_to_num(), results[1][~finite].nan_to_num())
    errors = [(each.double() - exact)[finite].norm() for each in results]
    assert errors[1] <= 1.002 * errors[0]
    # And in each place within one rounding, where halves are normal numbers.
    normal = finite & (exact.abs() > 1e-4)
    relative = ((results[1].double() - exact) / exact)[normal].abs().max()
    assert relative <= 0.51 * torch.finfo(out).eps


@pytest.mark.parametrize("form", ["floor", "plain division"])
def test_others_do_not(form: str) -> None:
    kernel = kernel_of(8, BF16, form)
    assert shorten_sigmoid(kernel) == kernel
    for wide in FORMS:
        assert shorten_sigmoid(kernel_of(8, F32, wide)) == kernel_of(8, F32, wide)


def test_what_an_index_reads_is_kept() -> None:
    x, places = torch.randn(9), torch.arange(7).flip(0)
    result = torch.empty(7, dtype=F16)
    kernel = shorten_sigmoid(kernel_of(7, F16, "gathered"))
    assert not divides(kernel)
    run_kernel(kernel, [x, result, places], ())
    torch.testing.assert_close(result, (x[:7].sigmoid() * x[places + 1]).half())
