"""Loops over short rows are cut into whole vectors; what is computed is the same at each length."""

from __future__ import annotations

import pytest
import torch
from run_cpp import I0, K0, OPTIONS, R0, Library, axes, params

from flambeau_inductor.codegen.cpp.accumulation_loops import LONGEST_BODY, _vector_parts
from flambeau_inductor.ir import Compute, Load, LoopKernel, Reduce, Store

F32 = torch.float32
LENGTHS = (1, 3, 7, 8, 9, 15, 16, 17, 24, 31, 49, 56, 63, 65, 77, 100, 127)


def load(dtype: torch.dtype) -> Load:
    return Load("v0", dtype, "b0", R0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("begin", [0, 64])
def test_parts_are_whole_vectors(dtype: torch.dtype, begin: int) -> None:
    for length in range(1, 140):
        parts = _vector_parts(str(begin), str(begin + length), (load(dtype),))
        numbers = [(int(first), int(last)) for first, last in parts]
        covered = [place for first, last in numbers for place in range(first, last)]
        assert covered == list(range(begin, begin + length))
        sizes = [last - first for first, last in numbers]
        assert sizes == sorted(sizes, reverse=True)
        widest = 64 // dtype.itemsize
        assert all(size % 8 == 0 for size in sizes[:-1]) and sum(sizes[1:]) < widest


def test_other_loops_are_one() -> None:
    assert _vector_parts("0", "n", (load(F32),)) == [("0", "n")]
    assert _vector_parts("0", "0", (load(F32),)) == [("0", "0")]
    assert _vector_parts("0", "20", (load(F32),) * (LONGEST_BODY + 1)) == [("0", "20")]


def softmax(length: int) -> LoopKernel:
    """Exponentials of a row less its maximum, their sum, and their quotients."""
    index = length * I0 + R0
    body = (
        Load("v0", F32, "b0", index), Reduce("v1", F32, "max", "v0"),
        Compute("v2", F32, "sub", ("v0", "v1")), Compute("v3", F32, "exp", ("v2",)),
        Reduce("v4", F32, "sum", "v3"), Compute("v5", F32, "div", ("v3", "v4")),
        Store("b1", index, "v5"), Store("b2", I0, "v1"),
    )  # fmt: skip
    described = params((F32, "read"), (F32, "write"), (F32, "write"))
    return LoopKernel("cpu", described, (K0,), axes((I0, K0)), axes((R0, length)), body)


def test_rows_of_every_length() -> None:
    library = Library({f"rows_of_{length}": softmax(length) for length in LENGTHS}, OPTIONS)
    assert "r0 = 48; r0 < 56;" in library.text
    for length in LENGTHS:
        x = torch.randn(5, length)
        x[1, length // 2] = torch.inf
        x[2, -1] = torch.nan
        x[3] = -torch.inf
        got, most = torch.zeros_like(x), torch.zeros(5)
        library.run(f"rows_of_{length}", [x, got, most], (5,))
        torch.testing.assert_close(most, x.amax(1), equal_nan=True)
        wanted = x.double().softmax(1).float()
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7, equal_nan=True)
