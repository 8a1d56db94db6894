"""float16 rows, converted by instructions: every half, every rounding, in place, of lengths that do
not fill a vector.
"""

from __future__ import annotations

import dataclasses

import pytest
import sympy
import torch
from run_cpp import I0, I1, K0, K1, OPTIONS, R0, Library, axes, params

from flambeau_inductor.codegen.cpp.float16_rows import converted, gathered_float16, on_rows
from flambeau_inductor.indexing.expressions import FloorDiv, symbol
from flambeau_inductor.ir import CheckIndex, Compute, Load, LoopKernel, Reduce, Scan, Store
from flambeau_runtime.build import isa

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 24, 31, 33, 56, 63, 64, 65, 100, 127, 129, 257, 300, 1061)

WIDEN = (
    Load("v0", F16, "b0", I0),
    Compute("v1", F32, "cast", ("v0",)),
    Store("b1", I0, "v1"),
)
NARROW = (
    Load("v0", F32, "b0", I0),
    Compute("v1", F16, "cast", ("v0",)),
    Store("b1", I0, "v1"),
)
TWICE = (
    Load("v0", F16, "b0", I0 * 37 + I1),
    Compute("v1", F32, "cast", ("v0",)),
    Compute("v2", F32, "add", ("v1", "v1")),
    Compute("v3", F16, "cast", ("v2",)),
    Store("b0", I0 * 37 + I1, "v3"),
    Store("b1", I0 * 37 + I1, "v0"),
)


def kernels() -> dict[str, LoopKernel]:
    row = axes((I0, K0))
    return {
        "widen": LoopKernel("cpu", params((F16, "read"), (F32, "write")), (K0,), row, (), WIDEN),
        "narrow": LoopKernel("cpu", params((F32, "read"), (F16, "write")), (K0,), row, (), NARROW),
        "twice": LoopKernel(
            "cpu",
            params((F16, "update"), (F16, "write")),
            (K0,),
            axes((I0, K0), (I1, 37)),
            (),
            TWICE,
        ),
    }


@pytest.fixture(scope="module", params=["baseline", "avx2", "avx512"])
def library(request) -> Library:
    levels = ("baseline", "avx2", "avx512")
    if levels.index(request.param) > levels.index(isa.detect()):
        pytest.skip(f"this machine has no {request.param}")
    return Library(kernels(), dataclasses.replace(OPTIONS, isa=request.param))


def floats() -> torch.Tensor:
    """Floats around every half, halfway to the next one, and a hair to either side; out of range,
    NaN, subnormal.
    """
    halves = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(F16).float()
    middle = (halves[:-1] + halves[1:]) / 2
    some = torch.cat([halves, middle, middle.nextafter(halves[1:]), middle.nextafter(halves[:-1])])
    return torch.cat([some, torch.tensor([65519.0, 65520.0, 1e30, -1e30, 2**-25, 2**-26, 1e-40])])


def test_every_half(library) -> None:
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(F16)
    for length in (65536, 1, 15, 31, 257, 1000):
        y = torch.zeros(length)
        library.run("widen", [x[-length:].contiguous(), y], (length,))
        torch.testing.assert_close(y, x[-length:].float(), rtol=0, atol=0, equal_nan=True)


def test_every_rounding(library) -> None:
    x = floats()
    y = torch.zeros(len(x), dtype=F16)
    library.run("narrow", [x, y], (len(x),))
    torch.testing.assert_close(y, x.half(), rtol=0, atol=0, equal_nan=True)
    numbers = ~x.isnan()
    assert torch.equal(y[numbers].signbit(), x[numbers].signbit())


def test_in_place(library) -> None:
    """A value that is stored as it was loaded stays in halves, beside the row."""
    x, y = torch.randn(5 * 37).half(), torch.zeros(5 * 37, dtype=F16)
    before = x.clone()
    library.run("twice", [x, y], (5,))
    assert torch.equal(y, before)
    torch.testing.assert_close(x, (before.float() * 2).half(), rtol=0, atol=0)


def test_what_goes_on_rows() -> None:
    (axis,) = axes((I0, K0))
    halves = on_rows(WIDEN, axis)
    assert [row.buffer for row in halves.widened] == ["b0"] and not halves.narrowed
    halves = on_rows(NARROW, axis)
    assert [row.buffer for row in halves.narrowed] == ["b1"] and not halves.widened
    strided = (Load("v0", F16, "b0", 2 * I0), *WIDEN[1:])
    masked = (Load("v0", F16, "b0", I0, "m"), *WIDEN[1:])
    moved = (Load("v0", F16, "b0", I0), Store("b1", I0, "v0"))
    assert all(on_rows(body, axis) is None for body in (strided, masked, moved))


def softmax_gradient(dtype: torch.dtype, row: int, columns: int | None = None) -> LoopKernel:
    """g y - y sum(g y), along rows, or along columns that lie side by side."""
    place = row * I0 + R0 if columns is None else columns * row * I0 + I1 + columns * R0
    body = (
        Load("v0", dtype, "b0", place),
        Compute("v1", F32, "cast", ("v0",)),
        Load("v2", dtype, "b1", place),
        Compute("v3", F32, "cast", ("v2",)),
        Compute("v4", F32, "mul", ("v1", "v3")),
        Reduce("v5", F32, "sum", "v4"),
        Reduce("v6", F32, "max", "v1"),
        Compute("v7", F32, "mul", ("v3", "v5")),
        Compute("v8", F32, "sub", ("v4", "v7")),
        Compute("v9", dtype, "cast", ("v8",)),
        Store("b2", place, "v9"),
        Store("b3", I0 if columns is None else columns * I0 + I1, "v6"),
    )
    described = params((dtype, "read"), (dtype, "read"), (dtype, "write"), (F32, "write"))
    outer = axes((I0, K0)) if columns is None else axes((I0, K0), (I1, columns))
    return LoopKernel("cpu", described, (K0,), outer, axes((R0, row)), body)


def products(dtype: torch.dtype, row: int, reverse: bool) -> LoopKernel:
    """Running products of rows."""
    body = (
        Load("v0", dtype, "b0", row * I0 + R0),
        Compute("v1", F32, "cast", ("v0",)),
        Scan("v2", F32, "prod", "v1", reverse),
        Compute("v3", dtype, "cast", ("v2",)),
        Store("b1", row * I0 + R0, "v3"),
    )
    described = params((dtype, "read"), (dtype, "write"))
    return LoopKernel("cpu", described, (K0,), axes((I0, K0)), axes((R0, row)), body)


def doubled(place: sympy.Expr) -> tuple:
    """Statements that double what stands at v1's place."""
    return (
        Compute("v2", F32, "cast", ("v1",)),
        Compute("v3", F32, "add", ("v2", "v2")),
        Compute("v4", F16, "cast", ("v3",)),
        Store("b2", place, "v4"),
    )


AT = symbol("v0")
GATHERED = (
    Load("v0", torch.int64, "b1", I1),
    CheckIndex("v0", 50),
    Load("v1", F16, "b0", 50 * I0 + AT),
    *doubled(70 * I0 + I1),
)
LOOKED_UP = (
    Load("v0", torch.int64, "b1", I0),
    CheckIndex("v0", K1),
    Load("v1", F16, "b0", 70 * AT + I1),
    *doubled(70 * I0 + I1),
)
REPEATED = (Load("v1", F16, "b0", 35 * I0 + FloorDiv(I1, 2)), *doubled(70 * I0 + I1))


def reductions() -> dict[str, LoopKernel]:
    result = {}
    described = params((F16, "read"), (torch.int64, "read"), (F16, "write"))
    for name, body in (("gathered", GATHERED), ("looked_up", LOOKED_UP), ("repeated", REPEATED)):
        outer = axes((I0, K0), (I1, 70))
        result[name] = LoopKernel("cpu", described, (K0, K1), outer, (), body)
    for name, dtype in (("f16", F16), ("bf16", BF16)):
        for row in LENGTHS:
            result[f"rows_{name}_{row}"] = softmax_gradient(dtype, row)
            result[f"scan_{name}_{row}"] = products(dtype, row, row % 2 == 0)
        for columns in (16, 40, 64, 130, 1100):
            result[f"columns_{name}_{columns}"] = softmax_gradient(dtype, 9, columns)
    return result


@pytest.fixture(scope="module", params=["baseline", "avx2", "avx512"])
def reducing(request) -> Library:
    levels = ("baseline", "avx2", "avx512")
    if levels.index(request.param) > levels.index(isa.detect()):
        pytest.skip(f"this machine has no {request.param}")
    return Library(reductions(), dataclasses.replace(OPTIONS, isa=request.param))


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Numbers of all sizes, few of them NaN or infinite; behind them stand numbers that no kernel
    may read or write.
    """
    count = torch.Size(shape).numel()
    x = torch.randn(count + 64) * 10.0 ** torch.randint(-6, 1, (count + 64,))
    special = torch.tensor([float("nan"), float("inf"), -0.0, 6e-8])
    if count > 200:
        x[torch.randint(0, count, (4,))] = special
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("row", LENGTHS)
def test_reduced_rows(reducing, dtype, row) -> None:
    torch.manual_seed(row)
    g, y = values(dtype, 5, row), values(dtype, 5, row)
    z, most = torch.full((5 * row + 64,), 3.0, dtype=dtype), torch.full((5 + 64,), 3.0)
    name = "f16" if dtype is F16 else "bf16"
    reducing.check(f"rows_{name}_{row}", [g, y, z, most], (5,))
    assert (z[5 * row :] == 3).all() and (most[5:] == 3).all()


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("columns", [16, 40, 64, 130, 1100])
def test_reduced_columns(reducing, dtype, columns) -> None:
    torch.manual_seed(columns)
    count = 3 * 9 * columns
    g, y = values(dtype, count), values(dtype, count)
    z, most = torch.full((count + 64,), 3.0, dtype=dtype), torch.full((3 * columns + 64,), 3.0)
    name = "f16" if dtype is F16 else "bf16"
    reducing.check(f"columns_{name}_{columns}", [g, y, z, most], (3,))
    assert (z[count:] == 3).all() and (most[3 * columns :] == 3).all()


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("row", LENGTHS)
def test_running_products(reducing, dtype, row) -> None:
    torch.manual_seed(row)
    x = (torch.randn(5 * row + 64) * 0.1 + 1).to(dtype)
    z = torch.full((5 * row + 64,), 3.0, dtype=dtype)
    reducing.check(f"scan_{'f16' if dtype is F16 else 'bf16'}_{row}", [x, z], (5,))
    assert (z[5 * row :] == 3).all()


def test_rows_are_converted_by_instructions() -> None:
    """In loops that reduce, too."""
    text = Library(reductions()).text
    for kernel in ("rows_f16_56", "rows_f16_300", "columns_f16_64", "scan_f16_56"):
        body = text[text.index(f"void {kernel}_part") :].partition("EXPORT")[0]
        assert "from_float16(" not in body and "to_float16(" not in body, kernel
    body = text[text.index("void rows_bf16_56_part") :].partition("EXPORT")[0]
    assert "widen_bfloat16(" in body and "narrow_bfloat16(" in body


def test_every_bfloat16_of_short_rows(reducing) -> None:
    """All bits, and all roundings of a short row's results, as eager has them."""
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(BF16)
    x = torch.cat([bits, bits.new_zeros(64 * 1025 - 65536)])
    y = torch.ones(len(x) + 64, dtype=BF16)
    z, most = torch.zeros(len(x) + 64, dtype=BF16), torch.zeros(1025 + 64)
    reducing.check("rows_bf16_64", [x, y, z, most], (1025,))


def test_gathered_halves(reducing) -> None:
    torch.manual_seed(0)
    table, at = values(F16, 9 * 50), torch.randint(0, 50, (70,))
    got = torch.full((9 * 70 + 64,), 3.0, dtype=F16)
    reducing.check("gathered", [table, at, got], (9, 0))
    assert (got[9 * 70 :] == 3).all()
    reducing.check("repeated", [values(F16, 9 * 35), at, got], (9, 0))
    at[11] = 50
    assert reducing.run("gathered", [table, at, got], (9, 0))


def test_rows_that_an_index_names(reducing) -> None:
    torch.manual_seed(0)
    table, at = values(F16, 11 * 70), torch.randint(0, 11, (9,))
    got = torch.full((9 * 70 + 64,), 3.0, dtype=F16)
    reducing.check("looked_up", [table, at, got], (9, 11))
    assert (got[9 * 70 :] == 3).all()
    at[4] = -1
    assert reducing.run("looked_up", [table, at, got], (9, 11))
    empty = torch.zeros(0, dtype=F16)
    assert reducing.run("looked_up", [empty, at, got], (9, 0))  # no row is read


def test_how_places_that_vary_are_read() -> None:
    _, along = axes((I0, K0), (I1, 70))
    assert gathered_float16(GATHERED, along) == gathered_float16(REPEATED, along) == {"v1"}
    assert not gathered_float16(LOOKED_UP, along)
    text = Library(reductions()).text
    for kernel, way in (("gathered", "one_float16("), ("looked_up", "widen_float16(")):
        body = text[text.index(f" {kernel}_part") :].partition("EXPORT")[0]
        assert way in body and "from_float16(" not in body and "to_float16(" not in body


def test_which_rows_of_bfloat16_are_converted() -> None:
    """Those whose words fill no vectors."""
    assert converted("0", "56", in_words=True) == converted("0", "64") == (F16, BF16)
    assert converted("0", "64", in_words=True) == converted("0", "end") == (F16,)
    assert converted("0", "300") == (F16,) and converted("0", "7") == ()
