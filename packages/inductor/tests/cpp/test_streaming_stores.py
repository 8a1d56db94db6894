"""Large results are stored around the caches: the same values at every ISA level, and nothing next
to them.
"""

from __future__ import annotations

import dataclasses

import pytest
import run_cpp
import torch
from run_cpp import I0, I1, K0, K1, Library, axes, params

from flambeau_inductor.codegen.cpp import streaming_stores
from flambeau_inductor.codegen.cpp.backend import write_source
from flambeau_inductor.ir import Compute, Load, LoopKernel, Store
from flambeau_runtime.build import isa

F32, F64, BF16, U8 = torch.float32, torch.float64, torch.bfloat16, torch.uint8


def flat(size=K0, dtype=F32, op: str = "neg") -> LoopKernel:
    body = (Load("v0", dtype, "b0", I0), Compute("v1", dtype, op, ("v0",)), Store("b1", I0, "v1"))
    sizes = (K0,) if size is K0 else ()
    return LoopKernel(
        "cpu", params((dtype, "read"), (dtype, "write")), sizes, axes((I0, size)), (), body
    )


def rows() -> LoopKernel:
    """Each row is written twice, as floats and as bfloat16."""
    at = I0 * K1 + I1
    body = (
        Load("v0", F32, "b0", at), Load("v1", F32, "b1", I1),
        Compute("v2", F32, "add", ("v0", "v1")), Store("b2", at, "v2"),
        Compute("v3", BF16, "cast", ("v2",)), Store("b3", at, "v3"),
    )  # fmt: skip
    described = ((F32, "read"), (F32, "read"), (F32, "write"), (BF16, "write"))
    return LoopKernel("cpu", params(*described), (K0, K1), axes((I0, K0), (I1, K1)), (), body)


def transposing(height: int, width: int, dtype=F32) -> LoopKernel:
    """b1 of (height, width) is b0 of (width, height), turned."""
    op = "bitwise_not" if dtype is U8 else "neg"
    body = (
        Load("v0", dtype, "b0", I1 * height + I0), Compute("v1", dtype, op, ("v0",)),
        Store("b1", I0 * width + I1, "v1"),
    )  # fmt: skip
    outer = axes((I0, height), (I1, width))
    return LoopKernel("cpu", params((dtype, "read"), (dtype, "write")), (), outer, (), body)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of any size are streamed."""
    monkeypatch.setattr(streaming_stores, "STREAM_LEAST", 0)
    monkeypatch.setattr(streaming_stores, "SHORTEST_ROW", 0)


@pytest.mark.parametrize("level", isa.LEVELS)
def test_values(level: str, always: None) -> None:
    if isa.LEVELS.index(level) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {level}")
    torch.manual_seed(0)
    options = dataclasses.replace(run_cpp.OPTIONS, isa=level, cxx_flags=("-DCACHE_BYTES=0",))
    kernels = {"f32": flat(), "f64": flat(dtype=F64), "u8": flat(dtype=U8, op="bitwise_not")}
    library = Library(kernels | {"rows": rows()}, options)
    assert library.text.count("stream_line(b") == 5
    for name, dtype in (("f32", F32), ("f64", F64), ("u8", U8)):
        for count in (0, 1, 63, 64, 129, 1000, 4133):
            for skipped in (0, 1, 5):
                x = (torch.randn(count) * 50).to(dtype)
                memory = torch.full((count + skipped + 40,), 7, dtype=dtype)
                library.run(name, [x, memory[skipped : skipped + count]], (count,))
                want = torch.full_like(memory, 7)
                want[skipped : skipped + count] = ~x if dtype is U8 else -x
                assert torch.equal(memory, want)
    for lines, width in ((1, 64), (3, 1027), (70, 96), (5, 16), (0, 8)):
        x, bias = torch.randn(lines, width), torch.randn(width)
        tensors = [x, bias, torch.empty_like(x), torch.empty(lines, width, dtype=BF16)]
        library.check("rows", tensors, (lines, width))


@pytest.mark.parametrize("level", isa.LEVELS)
def test_tiles(level: str, always: None) -> None:
    """Of rows of whole lines of memory; the buffer may begin anywhere."""
    if isa.LEVELS.index(level) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {level}")
    options = dataclasses.replace(run_cpp.OPTIONS, isa=level, cxx_flags=("-DCACHE_BYTES=0",))
    sizes = {
        "f32": (641, 592, F32), "f64": (577, 1000, F64), "last": (49, 64, F32),
        "bytes": (70, 64, U8), "thirds": (100, 96, F32), "odd": (640, 577, F32),
    }  # fmt: skip
    library = Library({name: transposing(*size) for name, size in sizes.items()}, options)
    assert "b1_streams" not in library.text[library.text.index("odd_part") :]
    assert library.text.count("const bool b1_streams") == 5
    for name, (height, width, dtype) in sizes.items():
        for skipped in (0, 3):
            x = (torch.randn(width, height) * 50).to(dtype)
            memory = torch.full((height * width + skipped + 16,), 7, dtype=dtype)
            want = memory.clone()
            changed = ~x if dtype is U8 else -x
            want[skipped : skipped + x.numel()] = changed.t().flatten()
            library.run(name, [x, memory[skipped : skipped + x.numel()]])
            assert torch.equal(memory, want)


def test_threads(always: None) -> None:
    """Shares of threads begin anywhere."""
    options = dataclasses.replace(run_cpp.OPTIONS, cxx_flags=("-DCACHE_BYTES=0",))
    library = Library({"f32": flat()}, options)
    x = torch.randn(3_000_017)
    got = torch.empty_like(x)
    library.run("f32", [x, got], (x.numel(),))
    assert torch.equal(got, -x)


def test_which_results() -> None:
    """Those of many bytes that cheap loops compute of what they read in order."""
    large = 1 << 24
    gathered = (
        Load("v0", torch.int64, "b0", I0),
        Load("v1", F32, "b1", run_cpp.symbol("v0")),
        Store("b2", I0, "v1"),
    )
    described = ((torch.int64, "read"), (F32, "read"), (F32, "write"))
    gather = LoopKernel("cpu", params(*described), (), axes((I0, large)), (), gathered)
    updated = dataclasses.replace(flat(large), params=params((F32, "read"), (F32, "update")))
    cases = {
        "large": (flat(large), True), "small": (flat(1 << 16), False), "updated": (updated, False),
        "dear": (flat(large, op="erf"), False), "gathered": (gather, False),
    }  # fmt: skip
    for name, (kernel, streams) in cases.items():
        assert ("stream_line" in write_source([(kernel, "k")])) is streams, name
