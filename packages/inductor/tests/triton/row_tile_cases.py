"""Kernels over rows of two axes, kept in several tiles or walked in a loop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.codegen.triton.tiling import Tiling
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, Compute, Constant, Load, LoopKernel, Param, Reduce, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

F32, BF16 = torch.float32, torch.bfloat16


def row_tile_cases(case: Callable[..., Any]) -> Iterator[Any]:
    """Tiles that divide the innermost axis, the row, or neither."""
    kept = Tiling(1, 16, True, tiles=4)
    for shape in ((4, 16), (2, 32), (1, 64), (7, 9), (5, 10), (64, 1)):
        yield normalized(case, 5, *shape, kept)
    yield normalized(case, 5, 3, 32, replace(kept, tiles=6))
    yield normalized(case, 5, 3, 32, Tiling(1, 16))
    yield normalized(case, 5, 3, 32, Tiling(2, 32))
    yield normalized(case, 3, 10, 4096, None)
    for shape, tiling in (
        ((4, 16), Tiling(1, 16, group=4)), ((5, 10), Tiling(1, 16, group=8)),
        ((1, 64), Tiling(2, 32, group=4)),
    ):  # fmt: skip
        yield normalized(case, 5, *shape, tiling)
        yield with_infinities(case, 40, tiling)
    yield with_infinities(case, 40, Tiling(1, 16, True, tiles=3))
    for row, tiling in (
        (64, kept),
        (41, replace(kept, tiles=3)),
        (41, Tiling(1, 64, True)),
        (41, Tiling(2, 64, True)),
    ):
        yield rounded(case, row, tiling)
        yield beside_one(case, row, tiling)


def rounded(case: Callable[..., Any], row: int, tiling: Tiling) -> Any:
    """What may be computed in short ways since it is rounded: an error function, a sigmoid, and a
    row divided by one number; also by zero, infinity, NaN, and where that one has no reciprocal.
    """
    i, r = symbol("i0"), symbol("r0")
    body = (
        Load("v0", BF16, "b0", row * i + r),
        Compute("v1", F32, "cast", ("v0",)),
        Reduce("v2", F32, "max", "v1"),
        Compute("v3", F32, "sub", ("v1", "v2")),
        Constant("v4", F32, 1.0),
        Compute("v5", F32, "erf", ("v3",)),
        Compute("v6", F32, "add", ("v5", "v4")),
        Compute("v7", F32, "neg", ("v3",)),
        Compute("v8", F32, "exp", ("v7",)),
        Compute("v9", F32, "add", ("v8", "v4")),
        Compute("v10", F32, "div", ("v1", "v9")),
        Compute("v11", F32, "mul", ("v10", "v6")),
        Compute("v12", BF16, "cast", ("v11",)),
        Store("b1", row * i + r, "v12"),
        Constant("v13", F32, 2.0**-100),
        Compute("v14", F32, "mul", ("v2", "v13")),
        Compute("v15", F32, "div", ("v1", "v14")),
        Compute("v16", BF16, "cast", ("v15",)),
        Store("b2", row * i + r, "v16"),
    )
    params = tuple(Param(f"b{n}", BF16, "write" if n else "read") for n in range(3))
    x = torch.randn(9, row)
    largest = (0.0, math.inf, math.nan, 3e38, 1e20, 1e-5, -2.0, 1e-10)
    for number, value in enumerate(largest):
        x[number] = -x[number].abs() + min(value, 0.0)
        x[number, 7] = value
    x[7, :7] *= 1e-30  # divided by a subnormal number
    kernel = LoopKernel("cuda", params, (), (Axis(i, 9),), (Axis(r, row),), body)
    made = [x.to(BF16).reshape(-1), *(torch.zeros(9 * row, dtype=BF16) for _ in range(2))]
    return case(f"row_tiles-rounded-{row}-{tiling}", kernel, made, (), 1e-2, tiling)


def beside_one(case: Callable[..., Any], row: int, tiling: Tiling) -> Any:
    """Functions of quotients less 1, which are 0 where a row is divided by its least element: many
    a number times its reciprocal is less than 1.
    """
    i, r = symbol("i0"), symbol("r0")
    body = [
        Load("v0", BF16, "b0", row * i + r),
        Compute("v1", F32, "cast", ("v0",)),
        Reduce("v2", F32, "min", "v1"),
        Compute("v3", F32, "div", ("v1", "v2")),
        Constant("v4", F32, 1.0),
        Compute("v5", F32, "sub", ("v3", "v4")),
    ]
    functions = {
        "sqrt": ("v5",), "rsqrt": ("v5",), "log": ("v5",), "reciprocal": ("v5",),
        "div": ("v4", "v5"), "copysign": ("v4", "v5"), "acosh": ("v3",),
    }  # fmt: skip
    for number, (op, args) in enumerate(functions.items(), 1):
        body += [
            Compute(f"v{2 * number + 4}", F32, op, args),
            Compute(f"v{2 * number + 5}", BF16, "cast", (f"v{2 * number + 4}",)),
            Store(f"b{number}", row * i + r, f"v{2 * number + 5}"),
        ]
    params = tuple(Param(f"b{n}", BF16, "write" if n else "read") for n in range(8))
    least = torch.tensor([41.0, 47.0, 55.0, 61.0, 82.0, 83.0])
    x = (least[:, None] + torch.randint(0, 40, (6, row))).to(BF16)
    x[:, row // 2] = least.to(BF16)
    kernel = LoopKernel("cuda", params, (), (Axis(i, 6),), (Axis(r, row),), tuple(body))
    made = [x.reshape(-1), *(torch.zeros(6 * row, dtype=BF16) for _ in range(7))]
    return case(f"row_tiles-beside_one-{row}-{tiling}", kernel, made, (), 1e-2, tiling)


def with_infinities(case: Callable[..., Any], row: int, tiling: Tiling) -> Any:
    """Sums of exponentials of rows that hold NaN and infinities, or these alone."""
    i, r = symbol("i0"), symbol("r0")
    body = (
        Load("v0", F32, "b0", row * i + r),
        Reduce("v1", F32, "sum_exp", "v0"),
        Reduce("v2", F32, "max", "v0"),
        Store("b1", i, "v1"),
        Store("b2", i, "v2"),
    )
    params = (Param("b0", F32, "read"), Param("b1", F32, "write"), Param("b2", F32, "write"))
    x = torch.randn(9, row)
    x[0], x[1, :17], x[2, 17:], x[3, ::2] = -math.inf, -math.inf, -math.inf, -math.inf
    x[4, 18], x[5, -1], x[6, 0], x[7, 5:30] = math.inf, math.nan, -math.inf, math.inf
    kernel = LoopKernel("cuda", params, (), (Axis(i, 9),), (Axis(r, row),), body)
    made = [x.reshape(-1), torch.zeros(9), torch.zeros(9)]
    return case(f"row_tiles-infinities-{tiling}", kernel, made, (), 1e-5, tiling)


def normalized(
    case: Callable[..., Any], rows: int, high: int, low: int, tiling: Tiling | None
) -> Any:
    """Rows by the reductions of every kind that parts of a row can be joined for, times a weight of
    the outer inner axis.
    """
    i, r, s = (symbol(name) for name in ("i0", "r0", "r1"))
    axes = tuple(Axis(a, size) for a, size in ((r, high), (s, low)) if size != 1)
    if high == 1:
        axes, r, s = (Axis(symbol("r0"), low),), r * 0, r
    elif low == 1:
        s = s * 0
    index = high * low * i + low * r + s
    body = [
        Load("v0", F32, "b0", index),
        Load("v1", BF16, "b1", r),
        Compute("v2", F32, "cast", ("v1",)),
        Reduce("v3", F32, "squared_deviations", "v0"),
        Reduce("v4", F32, "sum", "v0"),
        Compute("v5", F32, "mul", ("v0", "v4")),
        Reduce("v6", F32, "max", "v0"),
        Reduce("v7", F32, "sum_exp", "v0"),
        Reduce("v8", F32, "min", "v5"),
        Compute("v9", F32, "mul", ("v5", "v2")),
        Compute("v10", F32, "add", ("v9", "v3")),
        Compute("v11", F32, "add", ("v10", "v6")),
        Compute("v12", F32, "sub", ("v11", "v8")),
        Compute("v13", F32, "div", ("v12", "v7")),
        Store("b2", index, "v13"),
        Reduce("v14", F32, "mean", "v0"),
        Compute("v15", F32, "add", ("v3", "v14")),
        Store("b3", i, "v15"),
    ]
    dtypes = (F32, BF16, F32, F32)
    params = tuple(
        Param(f"b{n}", dtype, "read" if n < 2 else "write") for n, dtype in enumerate(dtypes)
    )
    kernel = LoopKernel("cuda", params, (), (Axis(i, rows),), axes, tuple(body))
    count = rows * high * low
    made = [torch.randn(count), torch.randn(high).to(BF16), torch.zeros(count), torch.zeros(rows)]
    return case(f"row_tiles-{rows}x{high}x{low}-{tiling}", kernel, made, (), 1e-4, tiling)
