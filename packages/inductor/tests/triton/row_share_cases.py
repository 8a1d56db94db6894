"""Kernels that reduce rows and columns at once, in shares of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.codegen.triton.tiling import Tiling
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import (
    SHARE,
    Axis,
    ColumnReduce,
    Compute,
    Load,
    LoopKernel,
    Param,
    Reduce,
    Store,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

F32, BF16 = torch.float32, torch.bfloat16


def row_share_cases(case: Callable[..., Any]) -> Iterator[Any]:
    """Rows that fill their tiles and others, more shares than rows, no rows, several kinds."""
    for rows, row, shares in ((64, 32, 8), (13, 37, 4), (3, 20, 5), (1030, 7, 16), (0, 9, 3)):
        yield gradients(case, rows, row, shares)
    yield gradients(case, 13, 32, 4, Tiling(1, 32, True))
    yield gradients(case, 13, 32, 4, Tiling(4, 32, True, stages=2))
    yield gradients(case, 12, 32, 3, Tiling(2, 32, True, stages=3))
    yield gradients(case, 300, 8192, 64)
    yield gradients(case, 600, 1000, 256)
    yield extremes(case, 33, 19, 4)
    yield extremes(case, 33, 19, 4, Tiling(1, 32, True))
    yield gradients(case, 13, 37, 4, symbolic=True)


def joined_shares(kernel: LoopKernel, buffers: list[torch.Tensor]) -> list[torch.Tensor]:
    """The buffers with the partial results of shares joined: which rows make a share is up to the
    code generator.
    """
    columns = {s.name: s.kind for s in kernel.body if isinstance(s, ColumnReduce)}
    stored = {
        s.buffer: columns[s.value]
        for s in kernel.body
        if isinstance(s, Store) and s.value in columns
    }
    joins = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}
    return [
        joins[stored[param.name]](buffer.reshape(kernel.shares, -1), 0)
        if param.name in stored
        else buffer
        for param, buffer in zip(kernel.params, buffers, strict=True)
    ]


def gradients(
    case: Callable[..., Any], rows: int, row: int, shares: int, tiling: Tiling | None = None,
    symbolic: bool = False,
) -> Any:  # fmt: skip
    """Each row times a weight, less its sum; the columns of that, of the operand and of both."""
    i, r, k = symbol("i0"), symbol("r0"), symbol("k0")
    index, place = row * i + r, row * SHARE + r
    body = (
        Load("v0", F32, "b0", index),
        Load("v1", BF16, "b1", r),
        Compute("v2", F32, "cast", ("v1",)),
        Compute("v3", F32, "mul", ("v0", "v2")),
        Reduce("v4", F32, "sum", "v3"),
        Compute("v5", F32, "sub", ("v3", "v4")),
        Store("b2", index, "v5"),
        ColumnReduce("v6", F32, "sum", "v5"),
        Store("b3", place, "v6"),
        ColumnReduce("v7", F32, "sum", "v0"),
        Store("b4", place, "v7"),
    )
    dtypes = (F32, BF16, F32, F32, F32)
    params = tuple(
        Param(f"b{n}", dtype, "read" if n < 2 else "write") for n, dtype in enumerate(dtypes)
    )
    axis = Axis(i, k if symbolic else rows)
    sizes = (k,) if symbolic else ()
    kernel = LoopKernel("cuda", params, sizes, (axis,), (Axis(r, row),), body, shares=shares)
    # Multiples of an eighth and a quarter: float32 adds up their products without rounding.
    x, weight = torch.randint(-8, 9, (rows * row,)) / 8, torch.randint(-4, 5, (row,)) / 4
    made = [x, weight.to(BF16), torch.full((rows * row,), 7.0)]
    made += [torch.full((shares * row,), 7.0) for _ in range(2)]
    name = f"row_shares-{rows}x{row}-{shares}-{tiling}{'-symbolic' if symbolic else ''}"
    return case(name, kernel, made, (rows,) if symbolic else (), 1e-6, tiling)


def extremes(
    case: Callable[..., Any], rows: int, row: int, shares: int, tiling: Tiling | None = None
) -> Any:
    """The greatest element of each row, the greatest and the least of columns, NaN among them."""
    i, r = symbol("i0"), symbol("r0")
    place = row * SHARE + r
    body = (
        Load("v0", F32, "b0", row * i + r),
        Reduce("v1", F32, "max", "v0"),
        Store("b1", i, "v1"),
        ColumnReduce("v2", F32, "max", "v0"),
        Store("b2", place, "v2"),
        ColumnReduce("v3", F32, "min", "v0"),
        Store("b3", place, "v3"),
    )
    params = tuple(Param(f"b{n}", F32, "read" if n < 1 else "write") for n in range(4))
    kernel = LoopKernel("cuda", params, (), (Axis(i, rows),), (Axis(r, row),), body, shares=shares)
    x = torch.randn(rows * row)
    x[5] = torch.nan
    made = [x, torch.full((rows,), 7.0), *(torch.full((shares * row,), 7.0) for _ in range(2))]
    return case(f"row_shares-extremes-{tiling}", kernel, made, (), 1e-5, tiling)
