"""float16 rows, converted by instructions: every half, every rounding, in place, of lengths that do
not fill a vector.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from run_cpp import I0, I1, K0, OPTIONS, Library, axes, params

from flambeau_inductor.codegen.cpp.float16_rows import on_rows
from flambeau_inductor.ir import Compute, Load, LoopKernel, Store
from flambeau_runtime.build import isa

F16, F32 = torch.float16, torch.float32

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
