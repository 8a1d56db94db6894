"""C++ kernels of every shape of loop nest, against the reference evaluator; long sums against
float64; golden texts.
"""

from __future__ import annotations

import dataclasses
import math
import time
from fractions import Fraction

import pytest
import run_cpp
import torch
from run_cpp import I0, I1, I2, K0, K1, R0, R1, Library, axes, params

from flambeau_inductor.codegen.cpp.backend import write_source
from flambeau_inductor.codegen.cpp.plan import choose_plan
from flambeau_inductor.indexing.expressions import FloorDiv, Mod, symbol
from flambeau_inductor.ir import (
    CheckIndex,
    Compute,
    Constant,
    IndexValue,
    Load,
    LoopKernel,
    Reduce,
    Store,
)
from flambeau_runtime.build import isa

F32, F64, I64, BOOL, BF16, F16 = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.bool,
    torch.bfloat16,
    torch.float16,
)
ZERO = I0 * 0
READ, WRITE = (F32, "read"), (F32, "write")


def softmax(columns) -> LoopKernel:
    sizes = (K0,) if isinstance(columns, int) else (K0, K1)
    body = (
        Load("v0", F32, "b0", columns * I0 + R0),
        Reduce("v1", F32, "max", "v0"),
        Compute("v2", F32, "sub", ("v0", "v1")),
        Compute("v3", F32, "exp", ("v2",)),
        Reduce("v4", F32, "sum", "v3"),
        Compute("v5", F32, "div", ("v3", "v4")),
        Store("b1", columns * I0 + R0, "v5"),
    )
    return LoopKernel("cpu", params(READ, WRITE), sizes, axes((I0, K0)), axes((R0, columns)), body)


def reduction(dtype, kinds, outer, inner, index, sizes=()) -> LoopKernel:
    """One Reduce of each kind of the same load; each stored to its own buffer along the last outer
    axis, if any.
    """
    place = outer[-1][0] if outer else ZERO
    results = [I64 if kind.startswith("arg") else dtype for kind in kinds]
    described = [(dtype, "read"), *((result, "write") for result in results)]
    body = [Load("v0", dtype, "b0", index)]
    for n, (kind, result) in enumerate(zip(kinds, results, strict=True), 1):
        body += [Reduce(f"v{n}", result, kind, "v0")]
    for n in range(1, len(kinds) + 1):
        body += [Store(f"b{n}", place, f"v{n}")]
    return LoopKernel("cpu", params(*described), sizes, axes(*outer), axes(*inner), tuple(body))


def standardize(outer, inner, index, count) -> LoopKernel:
    """(x - mean) / sqrt(var + eps): three loops, two reductions, row values between them."""
    body = (
        Load("v0", F32, "b0", index),
        Reduce("v1", F32, "sum", "v0"),
        IndexValue("v2", F32, count),
        Compute("v3", F32, "div", ("v1", "v2")),
        Compute("v4", F32, "sub", ("v0", "v3")),
        Compute("v5", F32, "mul", ("v4", "v4")),
        Reduce("v6", F32, "sum", "v5"),
        Compute("v7", F32, "div", ("v6", "v2")),
        Constant("v8", F32, 1e-5),
        Compute("v9", F32, "add", ("v7", "v8")),
        Compute("v10", F32, "rsqrt", ("v9",)),
        Compute("v11", F32, "mul", ("v4", "v10")),
        Store("b1", index, "v11"),
        Store("b2", outer[-1][0], "v10"),
    )
    sizes = (K0, K1)
    return LoopKernel("cpu", params(READ, WRITE, WRITE), sizes, axes(*outer), axes(*inner), body)


def whole_and_back() -> LoopKernel:
    """Everything reduced to one point, then each element compared with it: threads must meet in
    between.
    """
    body = (
        Load("v0", F32, "b0", R0),
        Reduce("v1", F32, "sum", "v0"),
        Reduce("v2", F32, "max", "v0"),
        Reduce("v6", I64, "argmax", "v0"),
        Compute("v3", F32, "sub", ("v0", "v2")),
        Store("b1", R0, "v3"),
        Compute("v4", F32, "add", ("v1", "v2")),
        Store("b2", ZERO, "v4"),
        Store("b3", ZERO, "v6"),
    )
    return LoopKernel(
        "cpu", params(READ, WRITE, WRITE, (I64, "write")), (K0,), (), axes((R0, K0)), body
    )


def copy_of(shape, index, dtype=F32) -> LoopKernel:
    """out[i] = in[index], out contiguous."""
    names = (I0, I1, I2)[: len(shape)]
    place = ZERO
    for name, size in zip(names, shape, strict=True):
        place = place * size + name
    body = (Load("v0", dtype, "b0", index), Store("b1", place.expand(), "v0"))
    return LoopKernel(
        "cpu",
        params((dtype, "read"), (dtype, "write")),
        (),
        axes(*zip(names, shape, strict=True)),
        (),
        body,
    )


def embedding(dynamic: bool) -> LoopKernel:
    rows = K1 if dynamic else 100
    body = (
        Load("v0", I64, "b1", I0),
        CheckIndex("v0", rows),
        Load("v1", F32, "b0", symbol("v0") * 64 + I1),
        Store("b2", 64 * I0 + I1, "v1"),
    )
    sizes = (K0, K1) if dynamic else (K0,)
    return LoopKernel(
        "cpu", params(READ, (I64, "read"), WRITE), sizes, axes((I0, K0), (I1, 64)), (), body
    )


def pad_low_high() -> LoopKernel:
    """A row of K0 elements with 3 before and 2 after it."""
    body = (
        IndexValue("v0", I64, I0 - 3),
        Constant("v1", I64, 0),
        IndexValue("v2", I64, K0),
        Compute("v3", BOOL, "ge", ("v0", "v1")),
        Compute("v4", BOOL, "lt", ("v0", "v2")),
        Compute("v5", BOOL, "bitwise_and", ("v3", "v4")),
        Load("v6", F32, "b0", I0 - 3, "v5"),
        Constant("v7", F32, 9.0),
        Compute("v8", F32, "where", ("v5", "v6", "v7")),
        Store("b1", I0, "v8"),
    )
    return LoopKernel("cpu", params(READ, WRITE), (K0,), axes((I0, K0 + 5)), (), body)


def update_and_two_outputs() -> LoopKernel:
    """b0 += 1 in place; its old value and whether it was positive to other buffers."""
    body = (
        Load("v0", F32, "b0", I0),
        Constant("v1", F32, 1.0),
        Constant("v4", F32, 0.0),
        Compute("v2", F32, "add", ("v0", "v1")),
        Compute("v3", BOOL, "gt", ("v0", "v4")),
        Store("b0", I0, "v2"),
        Store("b1", I0, "v0"),
        Store("b2", I0, "v3"),
    )
    return LoopKernel(
        "cpu", params((F32, "update"), WRITE, (BOOL, "write")), (K0,), axes((I0, K0)), (), body
    )


def unflatten() -> LoopKernel:
    """A gather by division and modulus of the loop axis."""
    body = (Load("v0", F32, "b0", Mod(I0, K1) * K0 + FloorDiv(I0, K1)), Store("b1", I0, "v0"))
    return LoopKernel("cpu", params(READ, WRITE), (K0, K1), axes((I0, K0 * K1)), (), body)


KINDS = ("sum", "prod", "max", "min", "argmax", "argmin")
KERNELS = {
    "softmax_static": softmax(513),
    "softmax_dynamic": softmax(K1),
    "softmax_long": softmax(100_000),
    "rows": reduction(F32, KINDS, [(I0, K0)], [(R0, K1)], K1 * I0 + R0, (K0, K1)),
    "rows_two_inner": reduction(
        F32, KINDS, [(I0, K0)], [(R0, 3), (R1, K1)], 3 * K1 * I0 + K1 * R0 + R1, (K0, K1)
    ),
    "rows_outside_in": reduction(
        F32, KINDS, [(I0, K0)], [(R0, 3), (R1, K1)], K1 * K0 * R0 + K1 * I0 + R1, (K0, K1)
    ),
    "columns": reduction(F32, KINDS, [(I0, K0)], [(R0, K1)], K0 * R0 + I0, (K0, K1)),
    "columns_static": reduction(
        F32, KINDS, [(I0, 300)], [(R0, 9), (R1, K1)], 300 * (K1 * R0 + R1) + I0, (K0, K1)
    ),
    "columns_double": reduction(F64, KINDS, [(I0, K0)], [(R0, K1)], K0 * R0 + I0, (K0, K1)),
    "short_rows": reduction(F32, KINDS, [(I0, K0)], [(R0, 3)], 3 * I0 + R0, (K0, K1)),
    "rows_int": reduction(I64, KINDS, [(I0, K0)], [(R0, K1)], K1 * I0 + R0, (K0, K1)),
    "columns_int": reduction(I64, KINDS, [(I0, K0)], [(R0, K1)], K0 * R0 + I0, (K0, K1)),
    "rows_bool": reduction(
        BOOL, ("any", "all", "max", "min"), [(I0, K0)], [(R0, K1)], K1 * I0 + R0, (K0, K1)
    ),
    "columns_bool": reduction(
        BOOL, ("any", "all", "max", "min"), [(I0, K0)], [(R0, K1)], K0 * R0 + I0, (K0, K1)
    ),
    "whole_float": reduction(F32, KINDS, [], [(R0, K0), (R1, K1)], K1 * R0 + R1, (K0, K1)),
    "whole_int": reduction(I64, KINDS, [], [(R0, K0), (R1, K1)], K1 * R0 + R1, (K0, K1)),
    "whole_bool": reduction(BOOL, ("any", "all"), [], [(R0, K0), (R1, K1)], K1 * R0 + R1, (K0, K1)),
    "standardize_rows": standardize([(I0, K0)], [(R0, K1)], K1 * I0 + R0, K1),
    "standardize_columns": standardize([(I0, K0)], [(R0, K1)], K0 * R0 + I0, K1),
    "whole_and_back": whole_and_back(),
    "transpose": copy_of((7, 33, 65), I0 * 2145 + I2 * 33 + I1),
    "transpose_large": copy_of((1025, 513), I1 * 1025 + I0),
    "transpose_half": copy_of((64, 48), I1 * 64 + I0, BF16),
    "reversed": copy_of((7, 33), I0 * 33 + 32 - I1),
    "broadcast": copy_of((7, 33, 5), I1),
    "point": copy_of((), ZERO),
    "embedding": embedding(False),
    "embedding_dynamic": embedding(True),
    "pad": pad_low_high(),
    "update": update_and_two_outputs(),
    "unflatten": unflatten(),
}


@pytest.fixture(scope="module")
def library():
    return Library(KERNELS)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", ["softmax_static", "softmax_dynamic", "softmax_long"])
@pytest.mark.parametrize("rows", [0, 1, 7, 300])
def test_softmax(library, name, rows):
    columns = {"softmax_static": 513, "softmax_dynamic": 1000, "softmax_long": 100_000}[name]
    rows = min(rows, 7) if columns > 1000 else rows
    x = torch.randn(rows, columns) * 5
    ints = [rows, columns] if name == "softmax_dynamic" else [rows]
    y = torch.empty_like(x)
    library.run(name, [x, y], ints)
    exact = x.double().softmax(1)
    theirs = (x.softmax(1).double() - exact).abs().max() if rows else 0
    assert rows == 0 or (y.double() - exact).abs().max() <= 2 * theirs + 2**-22 * exact.max()


SIZES = [(1, 1), (5, 7), (300, 3), (3, 300), (129, 65), (1000, 400), (2, 5000), (0, 5), (5, 0)]


@pytest.mark.parametrize(("k0", "k1"), SIZES)
@pytest.mark.parametrize("name", [n for n in KERNELS if n.startswith(("rows", "columns", "short"))])
def test_reductions(library, name, k0, k1):
    kernel = KERNELS[name]
    dtype = kernel.params[0].dtype
    outer = 300 if name == "columns_static" else k0
    count = outer * {
        "rows_two_inner": 3 * k1,
        "rows_outside_in": 3 * k1,
        "columns_static": 9 * k1,
        "short_rows": 3,
    }.get(name, k1)
    inner = count // outer if outer else 0
    if inner == 0 and outer:
        pytest.skip("an extreme of nothing has no value; see test_empty_sums")
    x = values(dtype, count)
    check_reductions(library, name, x, outer, [k0, k1])


def values(dtype, count) -> torch.Tensor:
    if dtype == BOOL:
        return torch.rand(count) > 0.3
    if dtype == I64:
        return torch.randint(-3, 4, (count,))
    return (
        torch.randint(-900, 900, (count,)).to(dtype) / 512 + 1
    )  # many ties; near 1, so that products stay finite


def check_reductions(library, name, x, outer, ints):
    """Exact for extremes and positions; sums and products against float64, no farther than a few
    times eager's error.
    """
    kernel = KERNELS[name]
    kinds = [s.kind for s in kernel.body if isinstance(s, Reduce)]
    outs = [torch.empty(outer, dtype=param.dtype) for param in kernel.params[1:]]
    assert library.run(name, [x, *outs], ints) == 0
    if outer == 0:
        return
    rows = arrange(name, x, outer, ints)
    for kind, got in zip(kinds, outs, strict=True):
        if kind in ("sum", "prod"):
            want = getattr(rows.double() if x.dtype.is_floating_point else rows, kind)(1)
            scale = rows.double().abs().sum(1) if kind == "sum" else want.abs().double()
            slack = (
                torch.finfo(x.dtype).eps
                * (4 if kind == "sum" else 2 * math.sqrt(rows.shape[1]) + 4)
                if x.dtype.is_floating_point
                else 0
            )
            usable = (
                torch.isfinite(want.to(x.dtype)) & (want.abs().double() > 1e-30)
                if kind == "prod"
                else slice(None)
            )
            assert ((got.double() - want.double()).abs() <= slack * scale + 1e-30)[usable].all(), (
                kind
            )
        elif kind in ("argmax", "argmin"):
            assert torch.equal(got, getattr(torch, kind)(rows, 1)), kind
        else:
            name_of = {"max": "amax", "min": "amin"}.get(kind, kind)
            want = (
                getattr(torch, name_of)(rows, 1)
                if rows.dtype != BOOL or kind in ("any", "all")
                else getattr(torch, name_of)(rows.int(), 1).bool()
            )
            assert torch.equal(got.isnan(), want.isnan()) if got.is_floating_point() else True
            assert (
                torch.equal(got.nan_to_num(), want.nan_to_num())
                if got.is_floating_point()
                else torch.equal(got, want)
            ), kind


def arrange(name, x, outer, ints) -> torch.Tensor:
    """The operand as [outer, inner]."""
    if name == "rows_outside_in":
        return x.view(3, outer, -1).transpose(0, 1).reshape(outer, -1)
    return x.view(-1, outer).t() if name.startswith("columns") else x.view(outer, -1)


@pytest.mark.parametrize("name", ["rows", "columns", "columns_double", "whole_float"])
def test_nan_wins_every_extreme(library, name):
    k0, k1 = 40, 70
    for where in (0, 33, 69):
        dtype = KERNELS[name].params[0].dtype
        rows = torch.randn(k0, k1, dtype=dtype)
        rows[3, where] = math.nan
        rows[4, where] = -math.inf
        rows[5, :] = -math.inf
        rows[6, where:] = math.nan
        if name == "whole_float":
            outs = [torch.empty((), dtype=p.dtype) for p in KERNELS[name].params[1:]]
            library.run(name, [rows, *outs], [k0, k1])
            assert all(out.isnan() for out in outs[:4])
            first = int(rows.isnan().flatten().int().argmax())
            assert outs[4] == outs[5] == first
            continue
        x = (rows.t() if name.startswith("columns") else rows).contiguous()
        outs = [torch.empty(k0, dtype=p.dtype) for p in KERNELS[name].params[1:]]
        library.run(name, [x, *outs], [k0, k1])
        for kind, got in zip(KINDS[2:], outs[2:], strict=True):
            want = getattr(torch, {"max": "amax", "min": "amin"}.get(kind, kind))(rows, 1)
            assert (
                torch.equal(got, want)
                if kind.startswith("arg")
                else torch.allclose(got, want, rtol=0, atol=0, equal_nan=True)
            )


@pytest.mark.parametrize(
    ("k0", "k1"), [(1, 1), (3, 5), (1000, 1000), (1, 300_000), (300_000, 1), (7, 40_000)]
)
@pytest.mark.parametrize("name", ["whole_float", "whole_int", "whole_bool"])
def test_whole(library, name, k0, k1):
    check_reductions(library, name, values(KERNELS[name].params[0].dtype, k0 * k1), 1, [k0, k1])


def test_empty_sums(library):
    for name in ("rows", "columns"):
        outs = [torch.full((5,), 7.0) for _ in KINDS[:4]] + [torch.full((5,), 7) for _ in KINDS[4:]]
        library.run(name, [torch.empty(0), *outs], [5, 0])
        assert outs[0].eq(0).all() and outs[1].eq(1).all()


@pytest.mark.parametrize("count", [1, 1000, 1_000_003])
def test_whole_and_back(library, count):
    x, y, total, at = (
        torch.randn(count),
        torch.empty(count),
        torch.empty(1),
        torch.empty(1, dtype=I64),
    )
    library.run("whole_and_back", [x, y, total, at], [count])
    assert torch.equal(y, x - x.max()) and at.item() == x.argmax().item()
    exact = x.double().sum() + x.max().double()
    assert abs(total.item() - exact) <= 2e-7 * x.abs().double().sum()


@pytest.mark.parametrize(("k0", "k1"), [(1, 1), (3, 700), (700, 3), (130, 129), (2000, 300)])
@pytest.mark.parametrize("name", ["standardize_rows", "standardize_columns"])
def test_standardize(library, name, k0, k1):
    rows = torch.randn(k0, k1) + 3
    x = rows if name.endswith("rows") else rows.t().contiguous()
    y, scale = torch.empty_like(x), torch.empty(k0)
    library.run(name, [x, y, scale], [k0, k1])
    got = y if name.endswith("rows") else y.t()
    exact = rows.double()
    centred = exact - exact.mean(1, keepdim=True)
    want = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    eager = torch.nn.functional.layer_norm(rows, (k1,)).double()
    assert (got.double() - want).abs().max() <= 2 * (eager - want).abs().max() + 1e-6
    torch.testing.assert_close(
        scale.double(), 1 / (centred.square().mean(1) + 1e-5).sqrt(), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("length", [100_000, 5_000_000])
def test_long_sums_are_no_farther_than_eager(library, length):
    x = torch.rand(length) + 0.5
    exact = x.double().sum()
    theirs = abs(x.sum().double() - exact)
    outs = [torch.empty(1, dtype=p.dtype) for p in KERNELS["rows"].params[1:]]
    for name, ints in (
        ("rows", [1, length]),
        ("whole_float", [1, length]),
        ("columns", [1, length]),
    ):
        library.run(name, [x, *outs], ints)
        assert abs(outs[0].double() - exact) <= theirs + 1e-7 * exact, name


SUMS = {name: KERNELS[name] for name in ("rows", "columns", "whole_float", "columns_double")} | {
    "rows_double": reduction(F64, KINDS, [(I0, K0)], [(R0, K1)], K1 * I0 + R0, (K0, K1)),
    "rows_static": reduction(F32, ("sum",), [(I0, K0)], [(R0, 9_999)], 9_999 * I0 + R0, (K0, K1)),
    "sum_only": reduction(F32, ("sum",), [(I0, K0)], [(R0, K1)], K1 * I0 + R0, (K0, K1)),
    "whole_double": reduction(F64, ("sum",), [], [(R0, K0), (R1, K1)], K1 * R0 + R1, (K0, K1)),
}


def sum_by(library: Library, name: str, x: torch.Tensor) -> torch.Tensor:
    outs = [torch.empty(1, dtype=p.dtype) for p in SUMS[name].params[1:]]
    assert library.run(name, [x, *outs], [1, len(x)]) == 0
    return outs[0]


@pytest.fixture(scope="module")
def sums_by_level() -> dict[str, Library]:
    return {
        level: Library(SUMS, dataclasses.replace(run_cpp.OPTIONS, isa=level))
        for level in isa.LEVELS[isa.LEVELS.index(isa.detect()) :]
    }


@pytest.mark.every_level
@pytest.mark.parametrize("length", [1, 63, 640, 9_999, 100_000, 3_000_000])
@pytest.mark.parametrize("name", SUMS)
def test_errors_of_sums_are_bounded_at_every_isa_level(sums_by_level, name, length):
    """A few units in the last place, even where every addition is rounded the same way."""
    length = 9_999 if name == "rows_static" else length
    dtype = SUMS[name].params[0].dtype
    for x in (torch.full((length,), 0.1, dtype=dtype), torch.rand(length, dtype=dtype)):
        exact = Fraction(math.fsum(x.tolist()))
        for level, library in sums_by_level.items():
            error = abs(Fraction(sum_by(library, name, x).item()) - exact)
            assert error <= 4 * torch.finfo(dtype).eps * exact, level


@pytest.mark.every_level
@pytest.mark.parametrize("length", [320, 64_000, 1_000_000])
@pytest.mark.parametrize("name", sorted(SUMS.keys() - {"rows_static"}))
def test_sums_do_not_depend_on_the_width_of_vectors(sums_by_level, name, length):
    """Lengths that fill all lanes: the same additions in the same order."""
    x = torch.randn(length, dtype=SUMS[name].params[0].dtype)
    assert len({sum_by(library, name, x).item() for library in sums_by_level.values()}) == 1


@pytest.mark.every_level
def test_sums_of_infinities(sums_by_level):
    """The low part of a compensated total is NaN then."""
    for library in sums_by_level.values():
        for values, want in (([math.inf, 1], math.inf), ([-math.inf], -math.inf)):
            for name in ("rows_double", "columns_double", "whole_double"):
                assert sum_by(library, name, torch.tensor(values, dtype=F64)).item() == want
        assert sum_by(library, "whole_double", torch.tensor([math.inf, -math.inf]).double()).isnan()


@pytest.mark.parametrize(
    "name", [n for n in KERNELS if n.startswith(("transpose", "reversed", "broadcast", "point"))]
)
def test_copies(library, name):
    kernel = KERNELS[name]
    count = math.prod(int(axis.size) for axis in kernel.outer)
    library.check(
        name,
        [
            torch.randn(count).to(kernel.params[0].dtype),
            torch.zeros(count, dtype=kernel.params[0].dtype),
        ],
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 5000])
def test_embedding(library, dynamic, rows):
    name, ints = ("embedding_dynamic", [rows, 100]) if dynamic else ("embedding", [rows])
    table, at, out = torch.randn(100, 64), torch.randint(0, 100, (rows,)), torch.empty(rows, 64)
    assert library.run(name, [table, at, out], ints) == 0
    assert torch.equal(out, table[at])
    for wrong in (-1, 100, 2**40, -(2**63)):
        at[rows // 2] = wrong
        assert library.run(name, [table, at, out], ints) != 0


@pytest.mark.parametrize("count", [0, 1, 5, 1000, 100_000])
def test_pad_and_update(library, count):
    x = torch.randn(count)
    y = torch.empty(count + 5)
    library.run("pad", [x, y], [count])
    assert torch.equal(y, torch.nn.functional.pad(x, (3, 2), value=9.0))
    z, old, positive = x.clone(), torch.empty(count), torch.empty(count, dtype=BOOL)
    library.run("update", [z, old, positive], [count])
    assert torch.equal(z, x + 1) and torch.equal(old, x) and torch.equal(positive, x > 0)


def test_unflatten(library):
    x, y = torch.randn(7, 30), torch.empty(30 * 7)
    library.run("unflatten", [x, y], [30, 7])
    assert torch.equal(y, x.t().flatten())


def test_plans():
    kinds = {name: choose_plan(kernel).kind for name, kernel in KERNELS.items()}
    assert kinds["softmax_static"] == kinds["rows"] == kinds["rows_two_inner"] == "rows"
    assert kinds["columns"] == kinds["standardize_columns"] == kinds["short_rows"] == "columns"
    assert kinds["whole_float"] == kinds["whole_and_back"] == "whole"
    assert choose_plan(KERNELS["transpose"]).tile is not None
    assert choose_plan(KERNELS["broadcast"]).tile is None


def test_small_static_kernels_start_no_threads():
    text = write_source([(copy_of((7, 33), I0 * 33 + I1), "small")])
    assert "omp parallel" not in text and "#include" not in text


def test_threads_option():
    kernels = [(KERNELS["softmax_dynamic"], "a"), (KERNELS["whole_float"], "b")]
    assert "num_threads(3)" in write_source(kernels, threads=3)
    assert "#pragma omp parallel\n" in write_source(kernels)
    assert "#pragma omp parallel" not in write_source(kernels[:1], threads=1)


@pytest.mark.parametrize("name", ["softmax_static", "columns"])
def test_golden(golden, name):
    golden(f"cpp_{name}", write_source([(KERNELS[name], name)]))


def test_one_source_builds_fast():
    """All the kernels above in one compiler run; far above the usual time, so that a noisy machine
    does not fail it.
    """
    began = time.perf_counter()
    Library({f"{name}_again": KERNELS[name] for name in ("softmax_static", "update")})
    assert time.perf_counter() - began < 5
