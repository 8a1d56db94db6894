"""Kernels of the loop IR over rows and points that are no whole number of vectors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.codegen.triton.tiling import Tiling
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import (
    Axis,
    Compute,
    Constant,
    IndexValue,
    Load,
    LoopKernel,
    Param,
    Reduce,
    Store,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

F32, BF16, I64, I32 = torch.float32, torch.bfloat16, torch.int64, torch.int32


def ragged_cases(case: Callable[..., Any]) -> Iterator[Any]:
    """Rows that are shifted or divided by a number each, and points."""
    for row, block in ((13, 32), (37, 64), (130, 256), (3, 16)):
        for tiling in (
            Tiling(1, block, True),
            Tiling(2, block, True),
            Tiling(2, 16),
            Tiling(1, 32),
        ):
            yield shifted(case, 7, row, replace(tiling, vectors=True))
    for row, stride in ((37, 40), (64, 72), (21, 24), (5, 8)):
        for tiling in (Tiling(1, 32), Tiling(2, 16, group=8), Tiling(1, 64, True)):
            yield gapped(case, 5, row, stride, replace(tiling, vectors=row % 8 != 0))
    yield gapped(case, 6, 37, 37, Tiling(1, 16, vectors=True, group=8))
    yield gapped(case, 3, 50257, 50304, None)
    for rows, length, stride in ((6, 37, 40), (3, 8, 24), (2, 1, 8), (9, 60, 64)):
        for block in (16, 64):
            tiling = Tiling(1, block, lanes=("i1",), lane_first=True, vectors=True)
            yield bounded(case, rows, length, stride, tiling)
    yield bounded(case, 3, 9001, 9008, None)
    yield divided(case, 20, Tiling(1, 32, True))
    yield divided(case, 20, Tiling(1, 8))
    yield divided(case, 20, Tiling(4, 32, True))
    yield mixed(case, 5, 37, Tiling(1, 16, vectors=True))
    yield mixed(case, 5, 37, Tiling(2, 64, True, vectors=True))
    yield ragged(case, 5, 13)
    yield ragged(case, 1, 1030)


def gapped(
    case: Callable[..., Any], rows: int, row: int, stride: int, tiling: Tiling | None
) -> Any:
    """Sums of exponentials of rows of bfloat16 that begin where vectors do; NaN between them."""
    i, r = symbol("i0"), symbol("r0")
    body = (
        Load("v0", BF16, "b0", stride * i + r),
        Compute("v1", F32, "cast", ("v0",)),
        Reduce("v2", F32, "max", "v1"),
        Reduce("v3", F32, "sum_exp", "v1"),
        Store("b1", i, "v2"),
        Store("b2", i, "v3"),
    )
    params = (Param("b0", BF16, "read"), Param("b1", F32, "write"), Param("b2", F32, "write"))
    kernel = LoopKernel("cuda", params, (), (Axis(i, rows),), (Axis(r, row),), body)
    x = torch.full((rows, stride), math.nan)
    x[:, :row] = torch.randn(rows, row) * 3
    x[0, : row // 2] = -math.inf
    made = [x.to(BF16).reshape(-1), torch.zeros(rows), torch.zeros(rows)]
    return case(f"ragged-gapped-{row}-{stride}-{tiling}", kernel, made, (), 1e-4, tiling)


def bounded(
    case: Callable[..., Any], rows: int, length: int, stride: int, tiling: Tiling | None
) -> Any:
    """Rows of bfloat16, NaN behind their ends, less a number each, times another; then zeros."""
    i, j = symbol("i0"), symbol("i1")
    body = (
        IndexValue("v0", I32, j),
        Constant("v1", I32, length),
        Compute("v2", torch.bool, "lt", ("v0", "v1")),
        Load("v3", BF16, "b0", stride * i + j, "v2"),
        Compute("v4", F32, "cast", ("v3",)),
        Load("v5", F32, "b1", i),
        Compute("v6", F32, "sub", ("v4", "v5")),
        Load("v7", F32, "b2", i),
        Compute("v8", F32, "mul", ("v6", "v7")),
        Constant("v9", F32, 0.0),
        Compute("v10", F32, "where", ("v2", "v8", "v9")),
        Store("b3", stride * i + j, "v10"),
        Store("b4", stride * i + j, "v4"),
    )
    kinds = {"b0": BF16, "b1": F32, "b2": F32, "b3": F32, "b4": F32}
    params = tuple(
        Param(name, dtype, "read" if name < "b3" else "write") for name, dtype in kinds.items()
    )
    kernel = LoopKernel("cuda", params, (), (Axis(i, rows), Axis(j, stride)), (), body)
    x = torch.full((rows, stride), math.nan)
    x[:, :length] = torch.randn(rows, length)
    made = [x.to(BF16).reshape(-1), torch.randn(rows), torch.randn(rows)]
    made += [torch.full((rows * stride,), 7.0) for _ in range(2)]
    return case(f"ragged-bounded-{length}-{stride}-{tiling}", kernel, made, (), 1e-5, tiling)


def divided(case: Callable[..., Any], row: int, tiling: Tiling) -> Any:
    """Rows divided by a number each, by their greatest element and by a constant: of all kinds."""
    special = torch.tensor([0.0, math.inf, math.nan, 1e-40, 1e38, -7e-20, 3.0, -1e-20, 127.0])
    i, r, rows = symbol("i0"), symbol("r0"), len(special)
    index = row * i + r
    body = (
        Load("v0", F32, "b0", index),
        Load("v1", F32, "b1", i),
        Compute("v2", F32, "div", ("v0", "v1")),
        Store("b2", index, "v2"),
        Reduce("v3", F32, "max", "v0"),
        Compute("v4", F32, "div", ("v0", "v3")),
        Constant("v5", F32, -11.0),
        Compute("v6", F32, "div", ("v4", "v5")),
        Store("b3", index, "v6"),
    )
    params = tuple(Param(f"b{n}", F32, "read" if n < 2 else "write") for n in range(4))
    kernel = LoopKernel("cuda", params, (), (Axis(i, rows),), (Axis(r, row),), body)
    x = torch.randn(rows * row)
    x[::5] = special.repeat(row)[: len(x[::5])]
    x[: 2 * row] = 0.0
    buffers = [x, special, torch.zeros(rows * row), torch.zeros(rows * row)]
    form = f"{tiling.xblock}x{tiling.rblock}"
    return case(f"divided-{form}", kernel, buffers, (), 1e-6, tiling)


def mixed(case: Callable[..., Any], rows: int, row: int, tiling: Tiling) -> Any:
    """Sums of rows of bfloat16 and of float32, whose vectors hold half as many."""
    i, r = symbol("i0"), symbol("r0")
    index = row * i + r
    body = (
        Load("v0", BF16, "b0", index),
        Compute("v1", F32, "cast", ("v0",)),
        Load("v2", F32, "b1", index),
        Compute("v3", F32, "add", ("v1", "v2")),
        Reduce("v4", F32, "sum", "v3"),
        Store("b2", i, "v4"),
    )
    params = (Param("b0", BF16, "read"), Param("b1", F32, "read"), Param("b2", F32, "write"))
    kernel = LoopKernel("cuda", params, (), (Axis(i, rows),), (Axis(r, row),), body)
    x = torch.randn(rows * row)
    buffers = [x.to(BF16), x.flip(0), torch.zeros(rows)]
    form = "persistent" if tiling.persistent else "looped"
    return case(f"mixed-{row}-{form}", kernel, buffers, (), 1e-5, tiling)


def ragged(case: Callable[..., Any], rows: int, columns: int) -> Any:
    """Rows of bfloat16 plus a vector for each column; the last points are less than a vector."""
    i, j = symbol("i0"), symbol("i1")
    axes = (Axis(i, rows), Axis(j, columns)) if rows > 1 else (Axis(j, columns),)
    index = columns * i + j if rows > 1 else j
    body = (
        Load("v0", BF16, "b0", index),
        Compute("v1", F32, "cast", ("v0",)),
        Load("v2", F32, "b1", j),
        Compute("v3", F32, "add", ("v1", "v2")),
        Store("b2", index, "v3"),
        Compute("v4", BF16, "cast", ("v3",)),
        Store("b3", index, "v4"),
    )
    kinds = {"b0": BF16, "b1": F32, "b2": F32, "b3": BF16}
    params = tuple(
        Param(name, dtype, "read" if name < "b2" else "write") for name, dtype in kinds.items()
    )
    kernel = LoopKernel("cuda", params, (), axes, (), body)
    points = rows * columns
    buffers = [
        torch.randn(columns if name == "b1" else points).to(dtype) for name, dtype in kinds.items()
    ]
    return case(f"ragged-{points}", kernel, buffers, (), 1e-5, Tiling(64, warps=1, vectors=True))


def shifted(case: Callable[..., Any], rows: int, row: int, tiling: Tiling) -> Any:
    """Rows of bfloat16 that begin between vectors, read and written; a vector of the lanes, the
    place of the greatest element, and rows in float32 beside them.
    """
    i, r = symbol("i0"), symbol("r0")
    index = row * i + r
    body = (
        Load("v0", BF16, "b0", index),
        Compute("v1", F32, "cast", ("v0",)),
        Load("v2", F32, "b1", r),
        Compute("v3", F32, "mul", ("v1", "v2")),
        Reduce("v4", I64, "argmax", "v3"),
        Store("b2", i, "v4"),
        Reduce("v5", F32, "sum", "v3"),
        Compute("v6", F32, "sub", ("v3", "v5")),
        Store("b3", index, "v6"),
        Compute("v7", BF16, "cast", ("v6",)),
        Store("b4", index, "v7"),
    )
    kinds = {"b0": BF16, "b1": F32, "b2": I64, "b3": F32, "b4": BF16}
    params = tuple(
        Param(name, dtype, "read" if name < "b2" else "write") for name, dtype in kinds.items()
    )
    kernel = LoopKernel("cuda", params, (), (Axis(i, rows),), (Axis(r, row),), body)
    counts = (rows * row, row, rows, rows * row, rows * row)
    buffers = [
        (torch.randn(count) * 9).to(dtype)
        for count, dtype in zip(counts, kinds.values(), strict=True)
    ]
    form = "persistent" if tiling.persistent else "looped"
    name = f"shifted-{row}-{tiling.xblock}x{tiling.rblock}-{form}"
    return case(name, kernel, buffers, (), 1e-3, tiling)
