"""Rows that an index names: asked for ahead, stored around the caches, and the same values."""

from __future__ import annotations

import dataclasses

import pytest
import run_cpp
import torch
from run_cpp import I0, I1, I2, K0, K1, R0, Library, axes, params

from flambeau_inductor.codegen.cpp import gathered_rows, streaming_stores
from flambeau_inductor.codegen.cpp.backend import write_source
from flambeau_inductor.codegen.cpp.plan import choose_plan
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import CheckIndex, Compute, Constant, Load, LoopKernel, Reduce, Store
from flambeau_runtime.build import isa

F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64
V0, V3 = symbol("v0"), symbol("v3")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of any length are asked for, and results of any size streamed."""
    monkeypatch.setattr(gathered_rows, "SPREAD_LEAST", 0)
    monkeypatch.setattr(gathered_rows, "SHORTEST", 0)
    monkeypatch.setattr(streaming_stores, "STREAM_LEAST", 0)
    monkeypatch.setattr(streaming_stores, "SHORTEST_ROW", 0)


@pytest.fixture(params=isa.LEVELS)
def options(request):
    if isa.LEVELS.index(request.param) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {request.param}")
    return dataclasses.replace(run_cpp.OPTIONS, isa=request.param, cxx_flags=("-DCACHE_BYTES=0",))


def table(rows: int, width=K1, dtype=F32) -> LoopKernel:
    """b2[i0] is -b1[b0[i0]], for negative indices, too."""
    body = (
        Load("v1", I64, "b0", I0), Constant("v2", I64, 0), Constant("v5", I64, rows),
        Compute("v4", torch.bool, "lt", ("v1", "v2")), Compute("v6", I64, "add", ("v1", "v5")),
        Compute("v3", I64, "where", ("v4", "v6", "v1")), CheckIndex("v3", rows),
        Load("v7", dtype, "b1", V3 * width + I1), Compute("v8", F32, "cast", ("v7",)),
        Compute("v9", F32, "neg", ("v8",)), Compute("v10", dtype, "cast", ("v9",)),
        Store("b2", I0 * width + I1, "v10"),
    )  # fmt: skip
    described = ((I64, "read"), (dtype, "read"), (dtype, "write"))
    return LoopKernel("cpu", params(*described), (K0, K1), axes((I0, K0), (I1, width)), (), body)


def batches() -> LoopKernel:
    """b2[i0, i1] is b1[i0, b0[i1]], whose indices are not checked."""
    body = (
        Load("v0", I64, "b0", I1), Load("v1", F32, "b1", I0 * 640 + V0 * 64 + I2),
        Store("b2", I0 * K1 * 64 + I1 * 64 + I2, "v1"),
    )  # fmt: skip
    outer = axes((I0, K0), (I1, K1), (I2, 64))
    described = ((I64, "read"), (F32, "read"), (F32, "write"))
    return LoopKernel("cpu", params(*described), (K0, K1), outer, (), body)


def added() -> LoopKernel:
    """b1[i0] is added to b2[b0[i0]]."""
    body = (
        Load("v0", I64, "b0", I0), Load("v1", F32, "b1", I0 * K1 + I1),
        Store("b2", V0 * K1 + I1, "v1", "add"),
    )  # fmt: skip
    described = ((I64, "read"), (F32, "read"), (F32, "update"))
    return LoopKernel("cpu", params(*described), (K0, K1), axes((I0, K0), (I1, K1)), (), body)


def test_values(options, always: None) -> None:
    kernels = {
        "f32": table(20), "bf16": table(20, dtype=BF16), "fixed": table(20, 100),
        "batches": batches(), "added": added(),
    }  # fmt: skip
    library = Library(kernels, options)
    for name in kernels:
        text = library.text[library.text.index(f" {name}_part") :]
        assert "__builtin_prefetch" in text[: text.index("EXPORT")], name
    assert library.text.count("const bool b2_streams") == 4
    for count in (0, 1, 2, 3, 57):
        for width in (100, 1, 16, 77, 5000):
            index = torch.randint(-20, 20, (count,))
            for name, dtype in (("f32", F32), ("bf16", BF16), ("fixed", F32)):
                if name != "fixed" or width == 100:
                    x = torch.randn(20, width, dtype=dtype)
                    got = torch.empty(count, width, dtype=dtype)
                    assert library.run(name, [index, x, got], (count, width)) == 0
                    assert torch.equal(got, -x[index])
            tensors = [index % 20, torch.randn(count, width), torch.randn(20, width)]
            library.check("added", tensors, (count, width))
        if count:
            tensors = [index % 10, torch.randn(3, 10, 64), torch.empty(3, count, 64)]
            library.check("batches", tensors, (3, count))


def test_indices_out_of_bounds(options, always: None) -> None:
    library = Library({"table": table(20)}, options)
    x, got = torch.randn(20, 70), torch.empty(9, 70)
    for place in (0, 2, 8):
        for wrong in (20, -21, 1 << 62, -(1 << 63)):
            index = torch.randint(0, 20, (9,))
            index[place] = wrong
            assert library.run("table", [index, x, got], (9, 70)) != 0


def test_which_rows() -> None:
    """Long ones, of a table or of results that no cache holds."""
    cases = {"large": (1 << 20, 100, True), "small": (20, 100, False), "short": (1 << 20, 8, False)}
    for name, (rows, width, fetched) in cases.items():
        kernel = dataclasses.replace(table(rows, width), hints=(1 << 16, width))
        assert ("__builtin_prefetch" in write_source([(kernel, "k")])) is fetched, name


def summed(width) -> LoopKernel:
    """b2[i0] is the sum of the 20 rows b1[b0[i0]]."""
    body = (
        Load("v0", I64, "b0", I0 * 20 + R0), CheckIndex("v0", 50),
        Load("v1", F32, "b1", V0 * width + I1), Reduce("v2", F32, "sum", "v1"),
        Store("b2", I0 * width + I1, "v2"),
    )  # fmt: skip
    described = ((I64, "read"), (F32, "read"), (F32, "write"))
    outer, inner = axes((I0, K0), (I1, width)), axes((R0, 20))
    return LoopKernel("cpu", params(*described), (K0, K1), outer, inner, body)


def test_sums_of_rows(options) -> None:
    """They go along the rows, of which each is read once, though its index is read along others."""
    kernels = {"fixed": summed(100), "any": summed(K1)}
    library = Library(kernels, options)
    for name, kernel in kernels.items():
        plan = choose_plan(dataclasses.replace(kernel, hints=(1 << 9, 1 << 10)))
        assert (plan.kind, plan.vector.symbol) == ("columns", I1), name
        for count in (1, 33):
            x, index = torch.randn(50, 100), torch.randint(0, 50, (count, 20))
            library.check(name, [index, x, torch.empty(count, 100)], (count, 100))
            index[-1, 7] = 50
            assert library.run(name, [index, x, torch.empty(count, 100)], (count, 100)) != 0
