"""Rows of bfloat16 in words of two: every rounding, NaN, in place, at odd places, of any length;
the bits are those of single elements.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from run_cpp import I0, I1, K0, OPTIONS, R0, Library, axes, params

from flambeau_inductor.codegen.cpp import accumulation_loops, bfloat16_words, streaming_stores
from flambeau_inductor.codegen.cpp.bfloat16_words import in_words
from flambeau_inductor.ir import Axis, Compute, Constant, Load, LoopKernel, Reduce, Store
from flambeau_runtime.build import isa

BF16, F32, F64, I32, BOOL = (
    torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.bool
)  # fmt: skip


def cast(name: str, dtype: torch.dtype, value: str) -> Compute:
    return Compute(name, dtype, "cast", (value,))


SUM = (
    Load("v0", BF16, "b0", I0), cast("v1", F32, "v0"), Load("v2", BF16, "b1", I0),
    cast("v3", F32, "v2"), Compute("v4", F32, "add", ("v1", "v3")), cast("v5", BF16, "v4"),
    Store("b2", I0, "v5"),
)  # fmt: skip
TWICE = (  # rounded between; both are stored, one over the operand
    Load("v0", BF16, "b0", 37 * I0 + I1), cast("v1", F32, "v0"),
    Constant("v2", F32, 1.001), Compute("v3", F32, "mul", ("v1", "v2")), cast("v4", BF16, "v3"),
    cast("v5", F32, "v4"), Compute("v6", F32, "mul", ("v5", "v2")), cast("v7", BF16, "v6"),
    Store("b0", 37 * I0 + I1, "v4"), Store("b1", 37 * I0 + I1, "v7"),
)  # fmt: skip
SELECTED = (  # with a row that is the same for all, integers, and an element of each row
    Load("v0", BF16, "b0", 165 * I0 + I1), cast("v1", F32, "v0"), Load("v2", BF16, "b1", I0),
    cast("v3", F32, "v2"), Compute("v4", BOOL, "lt", ("v1", "v3")), cast("v5", I32, "v4"),
    cast("v6", F32, "v5"), Compute("v7", F32, "where", ("v4", "v6", "v1")), cast("v8", BF16, "v7"),
    Store("b2", 165 * I0 + I1, "v8"),
)  # fmt: skip
KNOWN = (  # conditions that are the same along a row, one of a bool, one of an element of it
    Load("v0", BOOL, "b1", I0), Load("v1", BF16, "b0", 165 * I0 + I1), cast("v2", F32, "v1"),
    Load("v3", BF16, "b0", 165 * I0), cast("v4", F32, "v3"), Constant("v5", F32, -0.0),
    Compute("v6", BOOL, "lt", ("v4", "v5")), Compute("v7", F32, "where", ("v0", "v2", "v5")),
    Compute("v8", F32, "where", ("v6", "v5", "v2")), Compute("v9", F32, "mul", ("v7", "v8")),
    Compute("v10", F32, "where", ("v0", "v9", "v2")), cast("v11", BF16, "v10"),
    Store("b2", 165 * I0 + I1, "v11"),
)  # fmt: skip


def kernels() -> dict[str, LoopKernel]:
    three = params((BF16, "read"), (BF16, "read"), (BF16, "write"))
    two = params((BF16, "update"), (BF16, "write"))
    with_bools = params((BF16, "read"), (BOOL, "read"), (BF16, "write"))
    return {
        "sum": LoopKernel("cpu", three, (K0,), axes((I0, K0)), (), SUM),
        "twice": LoopKernel("cpu", two, (K0,), axes((I0, K0), (I1, 37)), (), TWICE),
        "selected": LoopKernel("cpu", three, (K0,), axes((I0, K0), (I1, 165)), (), SELECTED),
        "known": LoopKernel("cpu", with_bools, (K0,), axes((I0, K0), (I1, 165)), (), KNOWN),
    }


@pytest.fixture(scope="module", params=isa.LEVELS)
def library(request) -> Library:
    if isa.LEVELS.index(request.param) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {request.param}")
    library = Library(kernels(), dataclasses.replace(OPTIONS, isa=request.param))
    assert library.text.count(" = load_word(") == 5
    return library


def bits(x: torch.Tensor) -> torch.Tensor:
    """For comparisons of NaN and signs of zeros."""
    return x.view(torch.int16)


def every() -> torch.Tensor:
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(BF16)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 31, 32, 33, 255, 65536])
@pytest.mark.parametrize("begin", [0, 1])
def test_every_rounding(library, length, begin) -> None:
    """Sums of every bfloat16 and one that is far smaller: all ties, and what is next to them."""
    length -= begin and length == 65536
    for scale in (0.0, 2.0**-9, -(2.0**-9), 2.0**-8 * 1.5, 2.0**-9 * 1.01, 1.0):
        x = every()[torch.randperm(65536)]
        y = (x.float() * scale).to(BF16)
        got = torch.full((65538,), 5.0, dtype=BF16)
        x, y, out = x[begin:], y[begin:], got[begin : begin + length]
        library.run("sum", [x, y, got[begin:]], (length,))
        total = x[:length].float() + y[:length].float()
        want = bits(total.to(BF16)).masked_fill(total.isnan(), -1)
        assert torch.equal(bits(out), want)
        assert (got[begin + length :] == 5).all()


@pytest.mark.parametrize("skipped", [0, 1, 5])
def test_lines_around_the_caches(monkeypatch: pytest.MonkeyPatch, skipped: int) -> None:
    monkeypatch.setattr(streaming_stores, "STREAM_LEAST", 0)
    monkeypatch.setattr(streaming_stores, "SHORTEST_ROW", 0)
    options = dataclasses.replace(OPTIONS, cxx_flags=("-DCACHE_BYTES=0",))
    library = Library({"sum": kernels()["sum"]}, options)
    assert "stream_line(" in library.text and "store_word(b2_line" in library.text
    for length in (0, 1, 63, 129, 1000, 4133):
        x, y = torch.randn(length).to(BF16), torch.randn(length).to(BF16)
        memory = torch.full((length + skipped + 40,), 7, dtype=BF16)
        want = memory.clone()
        want[skipped : skipped + length] = x + y
        library.run("sum", [x, y, memory[skipped:]], (length,))
        assert torch.equal(memory, want)


@pytest.mark.parametrize("name", ["twice", "selected"])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_rows(library, name, rows) -> None:
    size = 165 * max(rows, 1)
    x, y = torch.randn(size).to(BF16), torch.randn(size).to(BF16)
    buffers = [x, y, torch.zeros(size, dtype=BF16)][: 2 if name == "twice" else 3]
    library.check(name, buffers, (rows,), rtol=0, atol=0)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_conditions_known_before_a_row(library, rows) -> None:
    """GCC leaves a loop whose elements test them as scalars; masks it does not see through."""
    assert library.text.count("= selected(v0_mask, ") == 4
    assert library.text.count("= selected(v6_mask, ") == 2
    x = torch.randn(165 * max(rows, 1)).to(BF16)
    x[3::7] = float("nan")
    buffers = [x, torch.randint(0, 2, (max(rows, 1),)).bool(), torch.zeros_like(x)]
    library.check("known", buffers, (rows,), rtol=0, atol=0)


def sums(row, dtype: torch.dtype = BF16) -> LoopKernel:
    """Rows less their means, and the products and sums of all elements, in three loops."""
    index = row * I0 + R0
    body = (
        Load("v0", dtype, "b0", index), cast("v1", F32, "v0"),
        Reduce("v2", F32, "sum", "v1"), Compute("v3", F32, "mul", ("v1", "v1")),
        Reduce("v4", F32, "sum", "v3"), Reduce("v5", F32, "prod", "v1"),
        Constant("v6", F32, 0.001), Compute("v7", F32, "mul", ("v2", "v6")),
        Compute("v8", F32, "sub", ("v1", "v7")), cast("v9", dtype, "v8"), Store("b1", index, "v9"),
        Store("b2", I0, "v2"), Store("b3", I0, "v4"), Store("b4", I0, "v5"),
    )  # fmt: skip
    described = params(
        (dtype, "read"), (dtype, "write"), (F32, "write"), (F32, "write"), (F32, "write")
    )
    sizes = () if isinstance(row, int) else (row,)
    return LoopKernel("cpu", described, sizes, axes((I0, 5)), axes((R0, row)), body)


def softmax(row, dtype: torch.dtype = BF16, *, doubled: bool = False) -> LoopKernel:
    """Exponentials are kept in halves of blocks, unless a loop reads floats beside them."""
    index = row * I0 + R0
    body = [
        Load("v0", dtype, "b0", index), cast("v1", F32, "v0"),
        Reduce("v2", F32, "max", "v1"), Compute("v3", F32, "sub", ("v1", "v2")),
        Compute("v4", F32, "exp", ("v3",)), Reduce("v5", F32, "sum", "v4"),
        Compute("v6", F32, "div", ("v4", "v5")), cast("v9", dtype, "v6"), Store("b1", index, "v9"),
        Store("b2", I0, "v5"),
    ]  # fmt: skip
    if doubled:
        body[-3:-3] = [Load("v7", F32, "b3", R0), Compute("v8", F32, "mul", ("v6", "v7"))]
        body[-3] = cast("v9", dtype, "v8")
    described = params((dtype, "read"), (dtype, "write"), (F32, "write"), (F32, "read"))
    sizes = () if isinstance(row, int) else (row,)
    return LoopKernel("cpu", described, sizes, axes((I0, 5)), axes((R0, row)), tuple(body))


ROWS = (1, 63, 64, 165, 98, 1027, 2100)


@pytest.mark.parametrize("level", isa.LEVELS)
@pytest.mark.parametrize("build", [sums, softmax])
def test_reductions_of_rows(level, build, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit what single elements give, in lanes of the same order."""
    if isa.LEVELS.index(level) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {level}")
    options = dataclasses.replace(OPTIONS, isa=level)
    rows = {f"k{row}": build(row) for row in ROWS} | {"symbolic": build(K0)}
    in_pairs = Library(rows, options)
    assert "_lanes + 16)" in in_pairs.text
    assert build is sums or "keep_v4[block + c + 16] = v4" in in_pairs.text
    monkeypatch.setattr(accumulation_loops, "in_words", lambda body, vector: None)
    monkeypatch.setattr(bfloat16_words, "in_words", lambda body, vector: None)
    single = Library(rows, options)
    assert "load_word" not in single.text
    for row in ROWS:
        x = (torch.randn(5 * row) * 0.7 + 1).to(BF16)
        for name, ints in ((f"k{row}", ()), ("symbolic", (row,))):
            results = []
            for library in (in_pairs, single):
                buffers = [x, torch.zeros_like(x), *torch.zeros(3, 5)]
                library.run(name, buffers, ints)
                results.append(buffers)
            assert all(map(torch.equal, *results))
        wide = x.view(5, row).float()
        want = wide.sum(1) if build is sums else (wide - wide.amax(1, True)).exp().sum(1)
        torch.testing.assert_close(results[0][2], want, rtol=1e-5, atol=1e-4)
        if build is softmax:
            torch.testing.assert_close(results[0][1].view(5, row), wide.softmax(1).to(BF16))


def test_rows_that_floats_are_read_beside_are_kept_in_order() -> None:
    library = Library({f"k{row}": softmax(row, doubled=True) for row in ROWS})
    assert "keep_v4" in library.text and "keep_v4[block" not in library.text
    for row in ROWS:
        x, y = torch.randn(5 * row).to(BF16), torch.randn(row)
        library.check(f"k{row}", [x, torch.zeros_like(x), torch.zeros(5), y], rtol=1e-2, atol=1e-4)


def test_rows_of_float16_by_instructions() -> None:
    """The loop behind a reduction converts chunks, as other loops do."""
    library = Library({f"k{row}": sums(row, torch.float16) for row in ROWS})
    assert "narrow_float16(" in library.text
    for row in ROWS:
        x = torch.randn(5 * row).half()
        library.check(f"k{row}", [x, torch.zeros_like(x), *torch.zeros(3, 5)], rtol=1e-3, atol=1e-3)


def replaced(*pairs) -> list:
    body = list(SUM)
    for number, statement in pairs:
        body[number] = statement
    return body


@pytest.mark.parametrize(
    "body",
    [
        replaced((2, Load("v2", F32, "b1", I0)), (3, cast("v3", F32, "v2"))),
        replaced((0, Load("v0", BF16, "b0", 2 * I0))),
        replaced((6, Store("b2", 3 * I0, "v5"))),
        replaced((6, Store("b2", I0, "v4"))),
        replaced((6, Store("b2", I0, "v0"))),
        replaced((4, cast("v4", F64, "v1")), (5, cast("v5", BF16, "v4"))),
        [*SUM, Compute("v6", BF16, "where", ("v9", "v5", "v0"))],
        [*SUM[:4], Store("b2", I0, "v5")],
        [Constant("v4", F32, 1.0), cast("v5", BF16, "v4"), Store("b2", I0, "v5")],
    ],
    ids=["floats", "strided", "far", "stored", "copied", "doubles", "bits", "unknown", "none"],
)  # fmt: skip
def test_other_loops_are_left_alone(body) -> None:
    assert in_words(SUM, Axis(I0, 100)) is not None
    assert in_words(body, Axis(I0, 100)) is None
