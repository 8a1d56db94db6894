"""Values that are the same in all rows, computed once: against the reference evaluator."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from run_cpp import I0, I1, K0, K1, OPTIONS, Library, axes, params

from flambeau_inductor.codegen.cpp.plan import choose_plan
from flambeau_inductor.codegen.cpp.row_values import LONGEST, row_values
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import (
    CheckIndex,
    Compute,
    Constant,
    IndexValue,
    Load,
    LoopKernel,
    Store,
)
from flambeau_runtime.build import isa

BOOL, BF16, F16, F32, I64 = torch.bool, torch.bfloat16, torch.float16, torch.float32, torch.int64
ROWS, ROW = 64, 70


def selected(dtype: torch.dtype, size, row: int = ROW, *, masked: bool = False) -> LoopKernel:
    """Columns of a table, counted from the end if negative."""
    mask = "m" if masked else None
    at = symbol("v4")
    body = (
        *((Load("m", BOOL, "b3", I1),) if masked else ()),
        Constant("v0", I64, 0),
        Load("v1", I64, "b1", I1),
        IndexValue("v2", I64, size + 0 * K0),
        Compute("v3", I64, "add", ("v1", "v2")),
        Compute("n", BOOL, "lt", ("v1", "v0")),
        Compute("v4", I64, "where", ("n", "v3", "v1")),
        CheckIndex("v4", size, mask),
        Load("v5", dtype, "b0", size * I0 + at, mask),
        Store("b2", row * I0 + I1, "v5"),
    )
    described = params((dtype, "read"), (I64, "read"), (dtype, "write"), (BOOL, "read"))
    return LoopKernel("cpu", described, (K0, K1), axes((I0, ROWS), (I1, row)), (), body)


def scaled(dtype: torch.dtype) -> LoopKernel:
    """x / sqrt(w) of each row, with zeros where w is large."""
    wide = () if dtype is F32 else (Compute("w", F32, "cast", ("v0",)),)
    w, x = ("w", "x") if wide else ("v0", "v1")
    body = (
        Load("v0", dtype, "b0", I1),
        *wide,
        Compute("v2", F32, "rsqrt", (w,)),
        Compute("v3", F32, "sin", ("v2",)),
        Constant("v4", F32, 2.0),
        Compute("v5", BOOL, "lt", (w, "v4")),
        Load("v1", dtype, "b1", ROW * I0 + I1),
        *((Compute("x", F32, "cast", ("v1",)),) if wide else ()),
        Compute("v6", F32, "mul", (x, "v3")),
        Constant("v7", F32, 0.0),
        Compute("v8", F32, "where", ("v5", "v6", "v7")),
        *((Compute("v9", dtype, "cast", ("v8",)),) if wide else ()),
        Store("b2", ROW * I0 + I1, "v9" if wide else "v8"),
    )
    described = params((dtype, "read"), (dtype, "read"), (dtype, "write"))
    return LoopKernel("cpu", described, (), axes((I0, ROWS), (I1, ROW)), (), body)


def parts_of_rows() -> LoopKernel:
    """Rows of two tables side by side, as `cat` has them, moved by a row."""
    body = (
        IndexValue("v0", I64, I1),
        Constant("v1", I64, 32),
        Compute("v2", BOOL, "lt", ("v0", "v1")),
        Compute("v3", BOOL, "ge", ("v0", "v1")),
        IndexValue("v4", I64, I1 + 3),
        Constant("v5", I64, ROW),
        Compute("v6", BOOL, "lt", ("v4", "v5")),
        Compute("v7", BOOL, "bitwise_and", ("v3", "v6")),
        Load("v8", F32, "b0", 32 * I0 + I1, "v2"),
        Load("v9", F32, "b1", ROW * I0 + I1, "v7"),
        Compute("v10", F32, "where", ("v2", "v8", "v9")),
        Store("b2", ROW * I0 + I1, "v10"),
    )
    described = params((F32, "read"), (F32, "read"), (F32, "write"))
    return LoopKernel("cpu", described, (), axes((I0, ROWS), (I1, ROW)), (), body)


def kernels() -> dict[str, LoopKernel]:
    return {
        **{f"selected_{d}": selected(d, 50) for d in (F32, F16, BF16, torch.int8)},
        "selected_any": selected(F32, K1),
        "selected_masked": selected(F32, 50, masked=True),
        **{f"scaled_{d}": scaled(d) for d in (F32, F16, BF16)},
    }


def named(kernels: dict[str, LoopKernel]) -> dict[str, LoopKernel]:
    return {name.replace("torch.", ""): kernel for name, kernel in kernels.items()}


@pytest.fixture(scope="module", params=isa.LEVELS)
def library(request) -> Library:
    if isa.LEVELS.index(request.param) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {request.param}")
    return Library(named(kernels()), dataclasses.replace(OPTIONS, isa=request.param))


def operands(dtype: torch.dtype, size: int):
    torch.manual_seed(0)
    table = (torch.randn(ROWS * size) * 9).to(dtype)
    at = torch.randint(-size, size, (ROW,))
    return table, at, torch.zeros(ROWS * ROW, dtype=dtype), torch.rand(ROW) < 0.5


@pytest.mark.parametrize("dtype", [F32, F16, BF16, torch.int8])
def test_selected_columns(library, dtype):
    library.check(f"selected_{dtype}".replace("torch.", ""), [*operands(dtype, 50)], (0, 0))


@pytest.mark.parametrize("size", [1, 13, 100])
def test_tables_of_any_size(library, size):
    library.check("selected_any", [*operands(F32, size)], (0, size))


@pytest.mark.parametrize("bad", [50, -51, 1 << 40, -(1 << 40)])
def test_an_index_out_of_range(library, bad):
    table, at, got, mask = operands(F32, 50)
    at[ROW - 1] = bad
    assert library.run("selected_float32", [table, at, got, mask], (0, 0))


def test_an_empty_table(library):
    _, at, got, mask = operands(F32, 1)
    assert library.run("selected_any", [torch.zeros(0), at, got, mask], (0, 0))


def test_masked_indices(library):
    table, at, got, mask = operands(F32, 50)
    at[~mask] = 1 << 40
    library.check("selected_masked", [table, at, got, mask], (0, 0))
    at[mask] = 50
    assert library.run("selected_masked", [table, at, got, mask], (0, 0))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_scaled_rows(library, dtype):
    torch.manual_seed(0)
    w, x = (torch.rand(ROW) * 4).to(dtype), torch.randn(ROWS * ROW).to(dtype)
    w[3], w[4] = 0, float("nan")
    tolerance = {"rtol": 1e-5 if dtype is F32 else 1e-2, "atol": 1e-5}
    library.check(
        f"scaled_{dtype}".replace("torch.", ""), [w, x, torch.zeros_like(x)], (), **tolerance
    )


def test_what_is_computed_once():
    kernel = selected(F32, 50)
    values = row_values(kernel, choose_plan(kernel))
    assert values.names == ("v4",) and values.narrow == {"v4"}
    assert not any(isinstance(s, CheckIndex) for s in values.rest)
    assert [s.buffer for s in values.rest if isinstance(s, Load)] == ["v4_row", "b0"]
    long = selected(F32, 50, LONGEST + 1)
    assert row_values(long, choose_plan(long)) is None
    masked = selected(F32, 50, masked=True)
    assert row_values(masked, choose_plan(masked)) is None
    assert row_values(scaled(F32), choose_plan(scaled(F32))).names == ("v3", "v5")
    # One load costs no less from a row of values.
    plain = dataclasses.replace(
        kernel,
        body=(
            Load("v0", F32, "b1", I1),
            Load("v1", F32, "b0", ROW * I0 + I1),
            Compute("v2", F32, "mul", ("v0", "v1")),
            Store("b2", ROW * I0 + I1, "v2"),
        ),
    )
    assert row_values(plain, choose_plan(plain)) is None
    # Conditions by which loops are cut stay with their loops.
    parts = parts_of_rows()
    assert row_values(parts, choose_plan(parts)) is None
    # What the kernel writes is read in each row.
    written = dataclasses.replace(
        scaled(F32), params=params((F32, "update"), (F32, "read"), (F32, "write"))
    )
    assert row_values(written, choose_plan(written)) is None
