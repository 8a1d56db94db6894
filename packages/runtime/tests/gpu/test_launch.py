"""Programs with Triton kernels, run on a GPU through the C executor."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from flambeau_runtime import RuntimeOptions, load
from flambeau_runtime.program import (
    Allocate,
    Extern,
    Free,
    Kernel,
    Launch,
    Program,
    Ref,
    Source,
    Symbol,
    Tensor,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def sin_plus_cos(b0, b1, k0, XBLOCK: tl.constexpr):
    x = tl.program_id(0).to(tl.int64) * XBLOCK + tl.arange(0, XBLOCK)
    mask = x < k0
    v = tl.load(b0 + x, mask)
    tl.store(b1 + x, tl.sin(v) + tl.cos(v), mask)
"""


def program(dims: int = 1) -> Program:
    """sin(x) + cos(x) on a GPU, any length (or a 0-dim tensor)."""
    meta: dict[str, Any] = {
        "signature": {"b0": "*fp32", "b1": "*fp32", "k0": "i64"},
        "constants": {"XBLOCK": 1024},
        "num_warps": 4,
        "num_stages": 2,
        "divisible_by_16": ["b0", "b1"],
    }
    shape: tuple[str, ...] = ("s0",) * dims
    stride = (1,) * dims
    length = "s0" if dims else 1
    return Program(
        name="program",
        inputs=("x",),
        tensors=(
            Tensor("x", shape, stride, "float32", "cuda:0"),
            Tensor("y", shape, stride, "float32", "cuda:0"),
        ),
        symbols=(Symbol("s0", 0, 0),) * dims,
        sources=(Source("triton", SOURCE),),
        kernels=(Kernel("sin_plus_cos", 0, meta),),
        steps=(
            Allocate("y"),
            Launch("sin_plus_cos", ("x", "y"), (length,), (f"({length} + 1023) // 1024",)),
        ),
        outputs=("y",),
    )


@pytest.fixture
def options(tmp_path: Path) -> RuntimeOptions:
    return RuntimeOptions(cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("length", [0, 1, 7, 1024, 100_003])
def test_equals_eager(length: int, options: RuntimeOptions) -> None:
    x = torch.randn(length, device="cuda")
    torch.testing.assert_close(load(program(), options)(x)[0], x.sin() + x.cos())


def test_zero_dimensional(options: RuntimeOptions) -> None:
    x = torch.randn((), device="cuda")
    torch.testing.assert_close(load(program(0), options)(x)[0], x.sin() + x.cos())


def test_unaligned_pointers_get_their_own_variant(options: RuntimeOptions) -> None:
    run = load(program(), options)
    x = torch.randn(1000, device="cuda")
    for start in (0, 1, 2, 3, 4):
        torch.testing.assert_close(run(x[start:])[0], x[start:].sin() + x[start:].cos())


def test_the_present_stream_is_used(options: RuntimeOptions) -> None:
    run = load(program(), options)
    x = torch.randn(1 << 22, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(2.0)
        (y,) = run(x)
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(y, torch.full_like(y, 2.0).sin() + torch.full_like(y, 2.0).cos())


def test_many_threads(options: RuntimeOptions) -> None:
    run = load(program(), options)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for _ in range(50):
                x = torch.randn(seed * 100 + 3, device="cuda")
                torch.testing.assert_close(run(x)[0], x.sin() + x.cos())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_a_cached_kernel_is_taken(options: RuntimeOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    load(program(), options)
    monkeypatch.setattr("flambeau_runtime.cuda.build_cubin", None)
    x = torch.randn(10, device="cuda")
    torch.testing.assert_close(load(program(), options)(x)[0], x.sin() + x.cos())


def test_matrix_product_into_a_planned_buffer(options: RuntimeOptions) -> None:
    matrix = Program(
        name="matrix",
        inputs=("a", "b"),
        tensors=tuple(Tensor(name, (64, 64), (64, 1), "float32", "cuda:0") for name in "abcd"),
        symbols=(),
        sources=(),
        kernels=(),
        steps=(
            Allocate("c"),
            Extern("aten.mm.out", (Ref("a"), Ref("b")), out=(("out", "c"),)),
            Allocate("d"),
            Extern("aten.mm.out", (Ref("c"), Ref("b")), out=(("out", "d"),)),
            Free("c"),
        ),
        outputs=("d",),
    )
    a, b = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    torch.testing.assert_close(load(matrix, options)(a, b)[0], a @ b @ b)
