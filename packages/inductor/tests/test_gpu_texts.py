"""What texts of GPU kernels avoid, since compilers of the day get it wrong; without a GPU."""

from __future__ import annotations

import torch
from torch import float32, int64

from flambeau_inductor.codegen.float8 import FLOAT8, triton_conversion
from flambeau_inductor.codegen.triton.backend import write
from flambeau_inductor.codegen.triton.tiling import choose_tiling
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import (
    Axis,
    CheckIndex,
    Compute,
    Constant,
    IndexValue,
    Load,
    LoopKernel,
    Param,
    Reduce,
    Store,
)
from flambeau_inductor.lowering.narrow_integers import narrowed

POINT, ROW = symbol("i0"), symbol("r0")


def kernel(*body, inner=(), size=19):
    params = (
        Param("b0", float32, "read"), Param("b1", int64, "write"), Param("b2", float32, "write"),
    )  # fmt: skip
    sizes = () if isinstance(size, int) else (size,)
    return LoopKernel(
        "cuda", params, sizes, (Axis(POINT, size),), inner, tuple(body), label="windows"
    )


def positions(*rest, size=19, inner=()):
    """Where window i of 64 elements begins."""
    return kernel(
        IndexValue("v0", int64, POINT),
        Constant("v1", int64, 64),
        Compute("v2", int64, "mul", ("v0", "v1")),
        Constant("v3", int64, 19),
        Compute("v4", int64, "floor_divide", ("v2", "v3")),
        *rest,
        size=size,
        inner=inner,
    )


def dtypes(body):
    return {each.name: each.dtype for each in body if not isinstance(each, (Store, CheckIndex))}


def test_positions_along_short_axes_are_32_bits_wide():
    of = dtypes(narrowed(positions(Store("b1", POINT, "v4"))).body)
    assert of["v0"] is of["v4"] is torch.int32
    assert of["v4w"] is int64, "what is stored has its dtype"


def test_positions_that_do_not_fit_or_are_not_known_stay():
    large = positions(Store("b1", POINT, "v4"), size=2**30)
    assert dtypes(narrowed(large).body)["v4"] is int64
    symbolic = positions(Store("b1", POINT, "v4"), size=symbol("k0"))
    assert dtypes(narrowed(symbolic).body)["v0"] is int64


def test_every_reader_of_another_kind_gets_64_bits():
    body = narrowed(
        positions(
            CheckIndex("v4", 64),
            Load("v5", float32, "b0", symbol("v4") + ROW),
            Reduce("v6", int64, "max", "v4"),
            Reduce("v7", float32, "sum", "v5"),
            Store("b1", POINT, "v6"),
            Store("b2", POINT, "v7"),
            inner=(Axis(ROW, 5),),
        )
    ).body
    check = next(each for each in body if isinstance(each, CheckIndex))
    load = next(each for each in body if isinstance(each, Load))
    most = next(each for each in body if isinstance(each, Reduce) and each.name == "v6")
    assert check.value == most.value == "v4w"
    assert symbol("v4w") in load.index.free_symbols
    places = {each.name: place for place, each in enumerate(body) if hasattr(each, "name")}
    assert places["v4w"] < places["v5"]


def test_a_kernel_without_positions_is_the_same_one():
    plain = kernel(Load("v0", float32, "b0", POINT), Store("b2", POINT, "v0"))
    assert narrowed(plain) is plain


def test_the_negative_of_zero_keeps_its_sign():
    """Triton writes -x as 0 - x."""
    negative = kernel(
        Load("v0", float32, "b0", POINT),
        Compute("v1", float32, "neg", ("v0",)),
        Store("b2", POINT, "v1"),
    )
    assert "v1 = (v0 * -1.0)" in write(negative, "negative", choose_tiling(negative))


def test_float8_is_made_of_one_number_at_a_time():
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        text = triton_conversion(FLOAT8[dtype], narrows=True, converts=True)
        assert "pack=1" in text and "tl.uint8, bitcast=True" not in text
