"""Scans and sorts in C++, against the reference evaluator."""

from __future__ import annotations

import dataclasses

import pytest
import run_cpp
import torch
from run_cpp import I0, I1, K0, R0, R1, Library, axes, params

from flambeau_inductor.ir import (
    Compute,
    Constant,
    IndexValue,
    Load,
    LoopKernel,
    Reduce,
    Scan,
    Sort,
    Store,
)
from flambeau_runtime.build import isa

F32, F64, I64, I32, U8, BOOL = (
    torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip
KINDS = {
    "sum": (F32, F64, I64, I32),
    "prod": (F32, I64),
    "max": (F32, F64, I32, U8, BOOL),
    "min": (F32, I64),
    "logaddexp": (F32, F64),
}


def sample(dtype: torch.dtype, count: int) -> torch.Tensor:
    if dtype is BOOL:
        return torch.rand(count) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 5, (count,), dtype=dtype)
    x = torch.randn(count, dtype=dtype)
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")], dtype=dtype)
    x[count // 2 : count // 2 + 5] = special
    return x


def scans(rows, row, index, size):
    """y[index] = scan over r of x[index], every kind, both ways."""
    kernels, tensors = {}, {}
    for kind, dtypes in KINDS.items():
        for dtype in dtypes:
            for reverse in (False, True):
                body = (
                    Load("v0", dtype, "b0", index),
                    Scan("v1", dtype, kind, "v0", reverse),
                    Store("b1", index, "v1"),
                )
                name = f"{kind}_{str(dtype)[6:]}_{'down' if reverse else 'up'}"
                described = params((dtype, "read"), (dtype, "write"))
                kernels[name] = LoopKernel("cpu", described, (), rows, row, body)
                x = sample(dtype, size)
                tensors[name] = [x, torch.zeros_like(x)]
    return kernels, tensors


@pytest.mark.parametrize(
    ("rows", "row", "index", "size"),
    [
        (axes((I0, 5)), axes((R0, 37)), 37 * I0 + R0, 5 * 37),
        (axes((I0, 70)), axes((R0, 33)), 70 * R0 + I0, 70 * 33),  # columns side by side
        (axes((I0, 3), (I1, 40)), axes((R0, 4), (R1, 5)), 800 * I0 + 200 * R0 + 40 * R1 + I1, 2400),
        ((), axes((R0, 200001)), R0, 200001),  # one row that no thread can share
        (axes((I0, 0)), axes((R0, 4)), 4 * I0 + R0, 10),
    ],
    ids=["rows", "columns", "two axes", "one row", "empty"],
)
def test_scans(rows, row, index, size):
    torch.manual_seed(0)
    kernels, tensors = scans(rows, row, index, size)
    library = Library(kernels)
    for name, buffers in tensors.items():
        library.check(name, buffers)


def test_beside_reductions_and_kept_rows():
    """y = exp(x - max) scanned, less its last sum: three loops, two of which scan."""
    index = 50 * I0 + R0
    body = (
        Load("v0", F32, "b0", index),
        Reduce("v1", F32, "max", "v0"),
        Compute("v2", F32, "sub", ("v0", "v1")),
        Compute("v3", F32, "exp", ("v2",)),
        Scan("v4", F32, "sum", "v3"),
        Reduce("v5", F32, "max", "v4"),
        Reduce("v6", F32, "sum", "v4"),
        Reduce("v9", I64, "argmax", "v4"),
        Compute("v7", F32, "sub", ("v4", "v5")),
        Compute("v8", F32, "div", ("v7", "v6")),
        Store("b1", index, "v8"),
        Store("b2", I0, "v9"),
    )
    described = params((F32, "read"), (F32, "write"), (I64, "write"))
    kernel = LoopKernel("cpu", described, (K0,), axes((I0, K0)), axes((R0, 50)), body)
    library = Library({"k": kernel})
    buffers = [torch.randn(9 * 50), torch.zeros(9 * 50), torch.zeros(9, dtype=I64)]
    library.check("k", buffers, (9,))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("row", [5, 64, 200])
def test_vector_loops_around_scans(row, reverse):
    """y = exp of the scan of the products of a scan of exp(x), which a later loop reads again."""
    index = row * I0 + R0
    body = (
        Load("v0", F32, "b0", index),
        Compute("v1", F32, "exp", ("v0",)),
        Scan("v2", F32, "sum", "v1", reverse),
        Compute("v3", F32, "sin", ("v2",)),
        Scan("v4", F32, "max", "v3", reverse),
        Compute("v5", F32, "sub", ("v4", "v1")),
        Store("b1", index, "v5"),
        Compute("v6", BOOL, "gt", ("v5", "v0")),
        Compute("v7", I32, "cast", ("v6",)),
        Scan("v8", I32, "sum", "v7", reverse),
        Reduce("v9", F32, "sum", "v5"),
        Reduce("v10", I32, "max", "v8"),
        Compute("v11", I32, "sub", ("v8", "v10")),
        Store("b2", index, "v11"),
        Store("b3", I0, "v9"),
    )
    described = params((F32, "read"), (F32, "write"), (I32, "write"), (F32, "write"))
    kernel = LoopKernel("cpu", described, (), axes((I0, 9)), axes((R0, row)), body)
    size = 9 * row
    buffers = [torch.randn(size), torch.zeros(size), torch.zeros(size, dtype=I32), torch.zeros(9)]
    Library({"k": kernel}).check("k", buffers, rtol=1e-4, atol=1e-4)


def test_a_constant_is_scanned_in_columns():
    body = (
        Constant("v0", F32, 1.5),
        Scan("v1", F32, "sum", "v0"),
        Store("b0", 64 * R0 + I0, "v1"),
    )
    kernel = LoopKernel("cpu", params((F32, "write")), (), axes((I0, 64)), axes((R0, 9)), body)
    Library({"k": kernel}).check("k", [torch.zeros(64 * 9)])


@pytest.mark.parametrize("row", [2, 7, 8, 9, 100, 1000])
def test_sorts(row):
    """The row sorted, the first two positions, and the sum of what is above the middle."""
    torch.manual_seed(0)
    kernels, tensors = {}, {}
    halves = (torch.float16, torch.bfloat16)
    for dtype in (F32, F64, *halves, I64, I32, U8, torch.int8, BOOL):
        for descending in (False, True):
            name = f"{str(dtype)[6:]}_{'down' if descending else 'up'}"
            body = (
                Load("v0", dtype, "b0", row * I0 + R0),
                Sort("v1", dtype, "values", "v0", descending),
                Store("b1", row * I0 + R0, "v1"),
                Sort("v2", I64, "positions", "v0", descending),
                IndexValue("v3", I64, R0),
                Constant("v4", I64, 2),
                Compute("v5", BOOL, "lt", ("v3", "v4")),
                Store("b2", 2 * I0 + R0, "v2", mask="v5"),
                Reduce("v6", I64, "sum", "v2"),
                Store("b3", I0, "v6"),
            )
            described = params((dtype, "read"), (dtype, "write"), (I64, "write"), (I64, "write"))
            kernels[name] = LoopKernel("cpu", described, (), axes((I0, 11)), axes((R0, row)), body)
            x = sample(dtype, 11 * row + 10)[: 11 * row].clone()
            tensors[name] = [
                x, torch.zeros_like(x), torch.zeros(22, dtype=I64), torch.zeros(11, dtype=I64),
            ]  # fmt: skip
    library = Library(kernels)
    for name, buffers in tensors.items():
        library.check(name, buffers)


@pytest.mark.parametrize("level", isa.LEVELS)
@pytest.mark.parametrize("reverse", [False, True])
def test_sums_of_floats_in_double(level, reverse):
    """Sums four at a time: as exact as one by one, and infinite or NaN from the first such on."""
    if isa.LEVELS.index(level) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {level}")
    index = 523 * I0 + R0
    body = (
        Load("v0", F32, "b0", index),
        Compute("v1", F64, "cast", ("v0",)),
        Scan("v2", F64, "sum", "v1", reverse),
        Scan("v3", F32, "sum", "v0", reverse),
        Store("b1", index, "v2"),
        Store("b2", index, "v3"),
    )
    described = params((F32, "read"), (F64, "write"), (F32, "write"))
    kernel = LoopKernel("cpu", described, (), axes((I0, 7)), axes((R0, 523)), body)
    library = Library({"k": kernel}, dataclasses.replace(run_cpp.OPTIONS, isa=level))
    assert library.text.count("scan_sum<") == 2 and "_block" not in library.text
    x = torch.randn(7, 523)
    x[1, 100], x[1, 300], x[2, 257], x[3] = float("inf"), -float("inf"), float("nan"), 1e30
    wide, narrow = torch.zeros(7, 523, dtype=F64), torch.zeros(7, 523)
    library.run("k", [x, wide, narrow])
    flip = (lambda t: t.flip(1)) if reverse else (lambda t: t)
    want = flip(flip(x.double()).cumsum(1))
    torch.testing.assert_close(wide, want, rtol=1e-13, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(narrow, want.float(), rtol=2e-7, atol=1e-12, equal_nan=True)


def sums_beside(*statements):
    """y = sums of x along rows of 261, with more statements."""
    index = 261 * I0 + R0
    body = (
        Load("v0", F32, "b0", index),
        Scan("v1", F32, "sum", "v0"),
        Store("b1", index, "v1"),
        *statements,
    )
    described = params((F32, "read"), (F32, "write"), (F32, "write"))
    return LoopKernel("cpu", described, (), axes((I0, 5)), axes((R0, 261)), body)


def test_sums_in_memory_beside_other_uses_of_their_rows():
    """The operand and the sums are read again; a value is scanned twice; both directions."""
    index = 261 * I0 + R0
    double = Compute("v2", F32, "add", ("v0", "v1"))
    square = Compute("v2", F32, "mul", ("v0", "v0"))
    kernels = {
        "both": sums_beside(double, Store("b2", index, "v2")),
        "operand": sums_beside(square, Store("b2", index, "v2")),
        "squares": sums_beside(square, Scan("v3", F32, "sum", "v2"), Store("b2", index, "v3")),
        "again": sums_beside(Scan("v2", F32, "sum", "v1"), Store("b2", index, "v2")),
        "largest": sums_beside(Reduce("v2", F32, "max", "v1"), Store("b2", I0, "v2")),
        "shifted": sums_beside(Load("v2", F32, "b0", index + 1), Scan("v3", F32, "sum", "v2"),
                               Store("b2", index, "v3")),
        "twice": sums_beside(Store("b2", index, "v1")),
    }  # fmt: skip
    library = Library(kernels)
    for name in kernels:
        size = 5 * 261
        library.check(name, [torch.randn(size + 1), torch.zeros(size), torch.zeros(size)])


@pytest.mark.parametrize("reverse", [False, True])
def test_sums_over_their_operand(reverse):
    """A buffer that is read and written has arrays of blocks between."""
    index = 261 * I0 + R0
    body = (
        Load("v0", F32, "b0", index),
        Scan("v1", F32, "sum", "v0", reverse),
        Store("b0", index, "v1"),
    )
    kernel = LoopKernel("cpu", params((F32, "update")), (), axes((I0, 5)), axes((R0, 261)), body)
    library = Library({"k": kernel})
    assert "scan_sum" in library.text and "v0_block" in library.text
    library.check("k", [torch.randn(5 * 261)])


def test_strided_sums_use_arrays():
    """Neither what is read nor what is written lies side by side."""
    body = (
        Load("v0", F32, "b0", 600 * I0 + 2 * R0),
        Scan("v1", F32, "sum", "v0"),
        Store("b1", 900 * I0 + 3 * R0, "v1"),
    )
    described = params((F32, "read"), (F32, "write"))
    kernel = LoopKernel("cpu", described, (), axes((I0, 3)), axes((R0, 300)), body)
    library = Library({"k": kernel})
    assert "scan_sum<false>(v0_block, v1_block" in library.text
    library.check("k", [torch.randn(1800), torch.zeros(2700)])
