"""Loops over several inner axes: merged, in another order, or in tiles, phase by phase; against the
reference evaluator.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from run_cpp import I0, I1, K0, OPTIONS, R0, R1, Library, axes, params

from flambeau_inductor.codegen.cpp.loop_nests import Nest, nest_of, transposed
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import (
    Axis,
    Compute,
    Constant,
    IndexValue,
    Load,
    LoopKernel,
    Reduce,
    Store,
)
from flambeau_inductor.scheduler.phases import split_phases
from flambeau_runtime.build import isa

BF16, F16, F32, I64 = torch.bfloat16, torch.float16, torch.float32, torch.int64
R2 = symbol("r2")


def normalised(dtype: torch.dtype, rows: int, columns: int, *, outer: int = 1) -> LoopKernel:
    """Images read by channels last, of mean 0 and by their sums of squares; the result is stored
    with channels first, and each place's exponential as it was read.
    """
    size = rows * columns
    start = size * I0 if outer == 1 else size * outer * I0 + size * I1
    place = start + columns * R0 + R1
    wide = [Load("v0", dtype, "b0", place)]
    wide += [Compute("v1", F32, "cast", ("v0",))] if dtype is not F32 else []
    x, small = wide[-1].name, dtype is not F32
    body = (
        *wide,
        Reduce("v2", F32, "sum", x),
        Reduce("v3", F32, "squared_deviations", x),
        Constant("v4", F32, float(size)),
        Compute("v5", F32, "div", ("v2", "v4")),
        Compute("v6", F32, "div", ("v3", "v4")),
        Compute("v7", F32, "sub", (x, "v5")),
        Compute("v8", F32, "exp", ("v7",)),
        Reduce("v9", F32, "sum", "v8"),
        Compute("v10", F32, "mul", ("v7", "v6")),
        Compute("v11", F32, "div", ("v10", "v9")),
        *((Compute("v12", dtype, "cast", ("v11",)),) if small else ()),
        Store("b1", start + R0 + rows * R1, "v12" if small else "v11"),
        Compute("v13", F32, "div", ("v8", "v9")),
        Store("b2", place, "v13"),
    )
    described = params((dtype, "read"), (dtype, "write"), (F32, "write"))
    around = axes((I0, K0)) if outer == 1 else axes((I0, K0), (I1, outer))
    return LoopKernel("cpu", described, (K0,), around, axes((R0, rows), (R1, columns)), body)


def whole_sum(sizes: tuple[int, ...], strides: tuple[int, ...], kind: str = "sum") -> LoopKernel:
    """A reduction to one number, of elements at any strides, weighted by their positions."""
    inner = tuple(Axis(name, size) for name, size in zip((R0, R1, R2), sizes, strict=False))
    names = [axis.symbol for axis in inner]
    place = sum(step * name for step, name in zip(strides, names, strict=True))
    number = sum(math.prod(sizes[n + 1 :]) * name for n, name in enumerate(names))
    dtype = I64 if kind.startswith("arg") else F32
    body = (
        Load("v0", F32, "b0", place),
        IndexValue("v1", F32, number),
        Constant("v2", F32, 1e-3),
        Compute("v3", F32, "mul", ("v1", "v2")),
        Compute("v4", F32, "sin", ("v3",)),
        Compute("v5", F32, "mul", ("v0", "v4")),
        Reduce("v6", dtype, kind, "v5"),
        Store("b1", 0 * R0, "v6"),
    )
    return LoopKernel("cpu", params((F32, "read"), (dtype, "write")), (), (), inner, body)


def any_length(columns: int) -> LoopKernel:
    """Sums over a symbolic number of rows, merged with their columns."""
    body = (
        Load("v0", F32, "b0", columns * K0 * I0 + columns * R0 + R1),
        Reduce("v1", F32, "sum", "v0"),
        Reduce("v2", F32, "max", "v0"),
        Store("b1", I0, "v1"),
        Store("b2", I0, "v2"),
    )
    described = params((F32, "read"), (F32, "write"), (F32, "write"))
    inner = axes((R0, K0), (R1, columns))
    return LoopKernel("cpu", described, (K0,), axes((I0, 5)), inner, body)


IMAGES = [(3, 5), (64, 64), (100, 33), (300, 40), (2000, 64), (17, 16), (16, 130)]
WHOLE = {
    "flat": ((7, 60, 50), (3000, 50, 1)),
    "last_two": ((7, 60, 50), (1, 350, 7)),
    "middle": ((7, 60, 50), (3000, 1, 60)),
    "first": ((50, 8, 60), (1, 50, 400)),
    "two": ((300, 40), (1, 300)),
}


def kernels() -> dict[str, LoopKernel]:
    result = {}
    for dtype in (F32, F16, BF16):
        for rows, columns in IMAGES:
            result[f"norm_{dtype.itemsize}_{dtype is F16:d}_{rows}"] = normalised(
                dtype, rows, columns
            )
    result["norm_of_two"] = normalised(F32, 64, 40, outer=3)
    for name, (sizes, strides) in WHOLE.items():
        for kind in ("sum", "max", "argmax", "argmin"):
            result[f"{name}_{kind}"] = whole_sum(sizes, strides, kind)
    for columns in (3, 64):
        result[f"any_{columns}"] = any_length(columns)
    return result


@pytest.fixture(scope="module", params=isa.LEVELS)
def library(request) -> Library:
    if isa.LEVELS.index(request.param) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {request.param}")
    return Library(kernels(), dataclasses.replace(OPTIONS, isa=request.param))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize(("rows", "columns"), IMAGES)
def test_normalised_images(library, dtype, rows, columns):
    torch.manual_seed(rows)
    count = 2 * rows * columns
    x = torch.randn(count).to(dtype)
    tensors = [x, torch.zeros(count, dtype=dtype), torch.zeros(count)]
    tolerance = {"rtol": 2e-5 if dtype is F32 else 1e-2, "atol": 1e-6}
    library.check(f"norm_{dtype.itemsize}_{dtype is F16:d}_{rows}", tensors, (2,), **tolerance)


def test_images_of_two_outer_axes(library):
    torch.manual_seed(0)
    count = 2 * 3 * 64 * 40
    tensors = [torch.randn(count), torch.zeros(count), torch.zeros(count)]
    library.check("norm_of_two", tensors, (2,), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("kind", ["sum", "max", "argmax", "argmin"])
def test_whole_reductions(library, name, kind):
    torch.manual_seed(1)
    x = torch.randn(math.prod(WHOLE[name][0]))
    x[torch.randperm(len(x))[: len(x) // 2]] = 0.0  # equals, of which the first counts
    result = torch.zeros(1, dtype=I64 if kind.startswith("arg") else F32)
    library.check(f"{name}_{kind}", [x, result], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [3, 64])
@pytest.mark.parametrize("rows", [1, 2, 11, 100, 400])
def test_symbolic_rows(library, rows, columns):
    x = torch.randn(5 * rows * columns)
    library.check(
        f"any_{columns}", [x, torch.zeros(5), torch.zeros(5)], (rows,), rtol=1e-4, atol=1e-4
    )


def test_special_values(library):
    x = torch.randn(2, 64, 64)
    x[0, 3, 5], x[1, 60, 63] = math.nan, math.inf
    tensors = [x.flatten(), torch.zeros(2 * 64 * 64), torch.zeros(2 * 64 * 64)]
    library.check("norm_4_0_64", tensors, (2,), rtol=2e-5, atol=1e-6)


def test_phases_have_their_own_loops():
    kernel = normalised(F32, 3000, 64)
    phases = split_phases(kernel)
    (first, *_, last) = phases
    rows, columns = kernel.inner
    nest = nest_of(kernel, first)
    assert (nest.outer, nest.merged, nest.row) == ((), (rows,), columns)
    assert transposed(kernel, first) is None
    store = dataclasses.replace(last, inner=tuple(s for s in last.inner if s != kernel.body[-1]))
    _, plan = transposed(kernel, store)
    assert plan.vector == rows and plan.tile == columns


def test_order_and_merging():
    weighted = whole_sum(*WHOLE["middle"])
    load, reduce, store = weighted.body[0], weighted.body[-2], weighted.body[-1]
    plain = dataclasses.replace(
        weighted, body=(load, dataclasses.replace(reduce, value="v0"), store)
    )
    r0, r1, r2 = plain.inner
    (phase, *_) = split_phases(plain)
    assert nest_of(plain, phase) == Nest((), (r0, r2), r1)
    # The row's positions are read: the order changes, but the axes stay apart.
    (phase, *_) = split_phases(weighted)
    assert nest_of(weighted, phase) == Nest((r0, r2), (), r1)
    # The first of equals is wanted: the order stays.
    first = whole_sum(*WHOLE["middle"], "argmax")
    (phase, *_) = split_phases(first)
    assert nest_of(first, phase) == Nest((r0, r1), (), r2)
