"""Reductions with several accumulators in C++: in rows, columns and shared out to threads, against
float64.
"""

from __future__ import annotations

import math

import pytest
import torch
from run_cpp import I0, R0, R1, Library, axes, params

from flambeau_inductor.ir import Load, LoopKernel, Reduce, Store
from flambeau_prims.primitives import PRIMS

F32, F64, I64, U8, BOOL = (
    torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool,
)  # fmt: skip
ROWS = 3
LENGTHS = (1, 65, 1057, 5003)
POSITIONS = ("argmax", "argmin")
PRIMITIVES = {"max": "amax", "sum": "sum"}


def kernel(kinds, dtype, outer, inner, index) -> LoopKernel:
    """A Reduce of each kind of the same load, stored to its own buffer."""
    place = outer[-1][0] if outer else I0 * 0
    results = [I64 if kind in POSITIONS else dtype for kind in kinds]
    reduces = [Reduce(f"v{n}", r, k, "v0") for n, (k, r) in enumerate(zip(kinds, results), 1)]  # noqa: B905
    stores = [Store(f"b{n}", place, f"v{n}") for n in range(1, len(kinds) + 1)]
    body = (Load("v0", dtype, "b0", index), *reduces, *stores)
    described = [(dtype, "read"), *((result, "write") for result in results)]
    return LoopKernel("cpu", params(*described), (), axes(*outer), axes(*inner), body)


def rows(kinds, dtype, length) -> LoopKernel:
    return kernel(kinds, dtype, [(I0, ROWS)], [(R0, length)], length * I0 + R0)


def columns(kinds, dtype, length) -> LoopKernel:
    return kernel(kinds, dtype, [(I0, 40)], [(R0, length)], 40 * R0 + I0)


def whole(kinds, dtype, high, low) -> LoopKernel:
    return kernel(kinds, dtype, [], [(R0, high), (R1, low)], low * R0 + R1)


@pytest.fixture(scope="module")
def library() -> Library:
    kernels = {}
    for dtype in (F32, F64):
        kernels[f"means_{dtype.itemsize}"] = columns(("mean",), dtype, 700)
        for length in LENGTHS:
            kernels[f"mean_{dtype.itemsize}_{length}"] = rows(("mean",), dtype, length)
            kernels[f"moments_{dtype.itemsize}_{length}"] = rows(
                ("sum_exp", "squared_deviations", "mean", "sum", "max"), dtype, length
            )
        kernels[f"columns_{dtype.itemsize}"] = columns(
            ("sum_exp", "squared_deviations", "mean", *POSITIONS), dtype, 700
        )
        kernels[f"whole_{dtype.itemsize}"] = whole(
            ("sum_exp", "squared_deviations", "mean", *POSITIONS), dtype, 300, 1111
        )
    for dtype in (F32, F64, I64, U8, BOOL):
        for length in LENGTHS[:3]:
            name = str(dtype).removeprefix("torch.")
            kernels[f"positions_{name}_{length}"] = rows((*POSITIONS, "max"), dtype, length)
    return Library(kernels)


def run(library, name, x, kinds, count) -> dict[str, torch.Tensor]:
    results = {k: torch.zeros(count, dtype=I64 if k in POSITIONS else x.dtype) for k in kinds}
    assert library.run(name, [x, *results.values()]) == 0
    return results


def expected(kind: str, x: torch.Tensor) -> torch.Tensor:
    """The primitive on float64 rows."""
    if kind in POSITIONS:
        x = x.to(U8) if x.dtype is BOOL else x
        return getattr(torch, kind)(x, 1)
    wide = x.double() if x.dtype.is_floating_point else x
    return PRIMS[PRIMITIVES.get(kind, kind)].reference(wide, (1,))


def check(results: dict[str, torch.Tensor], x: torch.Tensor, rtol: float) -> None:
    for kind, ours in results.items():
        theirs = expected(kind, x).to(ours.dtype)
        exact = kind in (*POSITIONS, "max")
        torch.testing.assert_close(
            ours, theirs, rtol=0 if exact else rtol, atol=0 if exact else rtol, equal_nan=True
        )


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("offset", [0, 1000, -1e5])
def test_rows(library, dtype, length, offset):
    torch.manual_seed(0)
    x = torch.randn(ROWS, length, dtype=dtype) * 3 + offset
    kinds = ("sum_exp", "squared_deviations", "mean", "sum", "max")
    results = run(library, f"moments_{dtype.itemsize}_{length}", x, kinds, ROWS)
    check(results, x, 3e-6 if dtype is F32 else 1e-11)


@pytest.mark.parametrize("length", [65, 1057])
def test_infinities_and_nan(library, length):
    x = torch.randn(ROWS, length)
    x[0] = -math.inf
    x[1, ::3] = -math.inf
    x[1, 5] = 90.0
    x[2, 40] = math.inf
    kinds = ("sum_exp", "squared_deviations", "mean", "sum", "max")
    check(run(library, f"moments_4_{length}", x, kinds, ROWS), x, 3e-6)
    x = torch.randn(ROWS, length)
    x[1, 33] = math.nan
    x[2, 33:] = torch.arange(length - 33.0)  # a new greatest element at each step
    check(run(library, f"moments_4_{length}", x, kinds, ROWS), x, 3e-6)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_columns_and_threads(library, dtype):
    kinds = ("sum_exp", "squared_deviations", "mean", *POSITIONS)
    rtol = 3e-6 if dtype is F32 else 1e-11
    x = torch.randn(700, 40, dtype=dtype) + 7
    x[33, 5], x[33:, 6], x[300, 7], x[450, 7] = math.inf, -math.inf, math.nan, math.nan
    check(run(library, f"columns_{dtype.itemsize}", x, kinds, 40), x.t(), rtol)
    x = torch.randn(300, 1111, dtype=dtype) + 7
    results = run(library, f"whole_{dtype.itemsize}", x, kinds, 1)
    check(results, x.reshape(1, -1), rtol)


@pytest.mark.parametrize("dtype", [F32, F64, I64, U8, BOOL])
@pytest.mark.parametrize("length", LENGTHS[:3])
def test_positions(library, dtype, length):
    """Ties, NaN, and rows of the least value only."""
    name = f"positions_{str(dtype).removeprefix('torch.')}_{length}"
    kinds = (*POSITIONS, "max")
    for trial in range(4):
        x = torch.randint(0, 2 if dtype is BOOL else 9, (ROWS, length)).to(dtype)
        if dtype.is_floating_point:
            if trial == 1:
                x[1, length // 2 :] = math.nan
            if trial == 2:
                x = torch.randn(ROWS, length, dtype=dtype)
                x[0] = -math.inf
                x[1] = math.inf
            if trial == 3:
                x[:] = math.nan
        elif dtype is not BOOL and trial == 1:
            x[0] = torch.iinfo(dtype).min
        check(run(library, name, x, kinds, ROWS), x, 0)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("value", [0.1, -3.7, 100.3, 1e-30, 7e30])
def test_the_mean_of_equal_numbers(library, dtype, value):
    """Is that number, alone and beside what shares its accumulators."""
    kinds = ("sum_exp", "squared_deviations", "mean", "sum", "max")
    for length in LENGTHS:
        x = torch.full((ROWS, length), value, dtype=dtype)
        (alone,) = run(library, f"mean_{dtype.itemsize}_{length}", x, ("mean",), ROWS).values()
        beside = run(library, f"moments_{dtype.itemsize}_{length}", x, kinds, ROWS)
        assert (alone == x[:, 0]).all() and (beside["mean"] == x[:, 0]).all()
        assert (beside["squared_deviations"] == 0).all()
    x = torch.full((700, 40), value, dtype=dtype)
    (means,) = run(library, f"means_{dtype.itemsize}", x, ("mean",), 40).values()
    assert (means == x[0]).all()


@pytest.mark.parametrize("length", [65, 1057])
@pytest.mark.parametrize("position", [0, 40, 64, -1])
def test_an_infinity_anywhere(library, length, position):
    """Of a row with one, squared deviations and mean are NaN, in the last lane or behind it."""
    x = torch.randn(ROWS, length)
    x[1, position], x[2, position] = math.inf, -math.inf
    kinds = ("sum_exp", "squared_deviations", "mean", "sum", "max")
    results = run(library, f"moments_4_{length}", x, kinds, ROWS)
    for kind in ("squared_deviations", "mean"):
        assert results[kind].isnan().tolist() == [False, True, True]
