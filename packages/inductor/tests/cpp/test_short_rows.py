"""Results in short rows, as `stack` along a last dim makes them: one pass over the result, the same
values as the reference evaluator's at every ISA level.
"""

from __future__ import annotations

import dataclasses

import pytest
import run_cpp
import torch
from run_cpp import I0, I1, I2, K0, Library, axes, params

from flambeau_inductor.codegen.cpp import streaming_stores
from flambeau_inductor.codegen.cpp.backend import write_source
from flambeau_inductor.codegen.cpp.short_rows import unroll_short_rows
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Compute, Constant, IndexValue, Load, LoopKernel, Store
from flambeau_runtime.build import isa

F32, F64, I8, I16, I64, BOOL = (
    torch.float32, torch.float64, torch.int8, torch.int16, torch.int64, torch.bool
)  # fmt: skip


def stacked(parts: int, dtype=F32, size=K0) -> LoopKernel:
    """b{parts}[i0, i1] is b{i1}[i0], turned."""
    body = [IndexValue("at", I64, I1)]
    value = ""
    for number in reversed(range(parts)):
        body.append(Load(f"x{number}", dtype, f"b{number}", I0))
        body.append(Compute(f"y{number}", dtype, "neg", (f"x{number}",)))
        if value:
            body.append(Constant(f"c{number}", I64, number + 1))
            body.append(Compute(f"m{number}", BOOL, "lt", ("at", f"c{number}")))
            chosen = (f"m{number}", f"y{number}", value)
            body.append(Compute(f"w{number}", dtype, "where", chosen))
        value = f"w{number}" if value else f"y{number}"
    body.append(Store(f"b{parts}", parts * I0 + I1, value))
    described = params(*[(dtype, "read")] * parts, (dtype, "write"))
    sizes = (size,) if size is K0 else ()
    return LoopKernel("cpu", described, sizes, axes((I0, size), (I1, parts)), (), tuple(body))


def biased(channels: int) -> LoopKernel:
    """An image of so many channels, the last dim, with a number added to each channel."""
    at = channels * I0 + I1
    body = (
        Load("v0", F32, "b0", at), Load("v1", F32, "b1", I1),
        Compute("v2", F32, "add", ("v0", "v1")), Store("b2", at, "v2"),
    )  # fmt: skip
    described = params((F32, "read"), (F32, "read"), (F32, "write"))
    return LoopKernel("cpu", described, (K0,), axes((I0, K0), (I1, channels)), (), body)


def repeated(dtype=F32) -> LoopKernel:
    """Each row twice, and each element of it twice."""
    i3 = symbol("i3")
    body = (
        Load("v0", dtype, "b0", 40 * I0 + I2),
        Store("b1", 160 * I0 + 80 * I1 + 2 * I2 + i3, "v0"),
    )
    outer = axes((I0, K0), (I1, 2), (I2, 40), (i3, 2))
    return LoopKernel("cpu", params((dtype, "read"), (dtype, "write")), (K0,), outer, (), body)


def joined(rows: int, width: int, dtype=F32) -> LoopKernel:
    """Three times so many rows: those of b0, twice those, and those of b0 again."""
    first, second = Constant("v1", I64, rows), Constant("v5", I64, 2 * rows)
    at = width * I0 + I1
    body = (
        IndexValue("v0", I64, I0), first, second,
        Compute("v2", BOOL, "lt", ("v0", "v1")), Load("v3", dtype, "b0", at, "v2"),
        Compute("v4", BOOL, "ge", ("v0", "v1")), Compute("v6", BOOL, "lt", ("v0", "v5")),
        Compute("v7", BOOL, "bitwise_and", ("v4", "v6")),
        Load("v8", dtype, "b0", at - width * rows, "v7"),
        Compute("v10", dtype, "add", ("v8", "v8")), Compute("v11", BOOL, "ge", ("v0", "v5")),
        Load("v12", dtype, "b0", at - 2 * width * rows, "v11"),
        Compute("v13", dtype, "where", ("v7", "v10", "v12")),
        Compute("v14", dtype, "where", ("v2", "v3", "v13")), Store("b1", at, "v14"),
    )  # fmt: skip
    outer = axes((I0, 3 * rows), (I1, width))
    return LoopKernel("cpu", params((dtype, "read"), (dtype, "write")), (), outer, (), body)


JOINED = {
    f"joined{rows}_{width}_{dtype.itemsize}": joined(rows, width, dtype)
    for rows in (1, 5, 6, 9, 13, 15, 16, 40)
    for width in (2, 3, 4)
    for dtype in (F32, F64, I8)
}

KERNELS = {
    **{f"stacked{parts}": stacked(parts) for parts in (2, 3, 4, 5)},
    "doubles": stacked(2, F64), "shorts": stacked(2, I16), "bytes": stacked(4, I8),
    "biased3": biased(3), "biased2": biased(2), "repeated": repeated(),
    "repeated_bytes": repeated(I8),
}  # fmt: skip


def random(count: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(count) * 50).to(dtype)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("level", isa.LEVELS)
def test_values(level: str, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if isa.LEVELS.index(level) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {level}")
    if streamed:
        monkeypatch.setattr(streaming_stores, "STREAM_LEAST", 0)
        monkeypatch.setattr(streaming_stores, "SHORTEST_ROW", 0)
    flags = ("-DCACHE_BYTES=0",) if streamed else ()
    options = dataclasses.replace(run_cpp.OPTIONS, isa=level, cxx_flags=flags)
    library = Library(KERNELS, options)
    assert ("stream_line(b2_line, b2_to, 2 * (line_end - line)" in library.text) == streamed
    torch.manual_seed(0)
    for name, kernel in KERNELS.items():
        *read, written = (param.dtype for param in kernel.params)
        for count in (0, 1, 15, 64, 131, 4133):
            rows = 160 if name.startswith("repeated") else int(kernel.outer[-1].size)
            for skipped in (0, 1):
                tensors = [random(max(40, rows) * (count + 1), dtype) for dtype in read]
                memory = torch.full((rows * count + skipped + 70,), 7, dtype=written)
                library.check(name, [*tensors, memory[skipped:]], (count,))
                assert (memory[:skipped] == 7).all()


@pytest.mark.parametrize("level", isa.LEVELS)
def test_rows_joined_of_several(level: str) -> None:
    if isa.LEVELS.index(level) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {level}")
    library = Library(JOINED, dataclasses.replace(run_cpp.OPTIONS, isa=level))
    for name, kernel in JOINED.items():
        read, written = (param.dtype for param in kernel.params)
        rows, width = (int(axis.size) for axis in kernel.outer)
        size = rows * width
        library.check(name, [random(size // 3, read), torch.full((size,), 7, dtype=written)], ())


def test_rows_of_three_have_no_masks_in_vectors() -> None:
    """GCC 12 computes wrong ones; longer parts become loops without."""
    for rows in (6, 15):
        short = joined(rows, 3)
        assert unroll_short_rows(short) is short
    long = joined(16, 3)
    assert unroll_short_rows(long) is not long
    assert "? b0[" not in write_source([(long, "k")])


def test_one_loop_writes_the_rows() -> None:
    text = write_source([(stacked(2, size=4096), "k")])
    assert "i1" not in text[text.index("static void k_part") :]
    assert "b2[2*i0] =" in text and "b2[2*i0 + 1] =" in text


def test_what_is_no_short_row_is_left_alone() -> None:
    kernel = stacked(5)
    assert unroll_short_rows(kernel) is kernel
    short = stacked(2, size=8)
    assert unroll_short_rows(short) is short
    apart = dataclasses.replace(
        stacked(2), body=(*stacked(2).body[:-1], Store("b2", 3 * I0 + I1, "w0"))
    )
    assert unroll_short_rows(apart) is apart
