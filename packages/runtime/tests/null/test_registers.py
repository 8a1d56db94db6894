"""Kernels are built again where values are on the stack, with a stand-in for the compiler."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flambeau_runtime import cuda
from flambeau_runtime.build.triton import Cubin
from flambeau_runtime.build.triton_compiler import _frames
from flambeau_runtime.options import RuntimeOptions
from flambeau_runtime.program import Kernel, Launch, Program, Source, Tensor
from flambeau_runtime.tuning import cuda_bench

NEEDED = 600
"""Registers that the values of one warp take; more warps share them."""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`cuda.cubin` for a kernel that needs `NEEDED` registers, of which `ptxas` gives 80 if no
    bound is named; and what was asked of the compiler.
    """
    asked: list[tuple[int, int | None]] = []

    def compiled(text: str, name: str, meta: dict[str, Any], capability: int, *, aligned: bool):
        warps, bound = meta["num_warps"], meta.get("registers")
        asked.append((warps, bound))
        used = min(NEEDED // warps, bound or 80)
        stack = 4 * max(0, NEEDED // warps - used)
        return Cubin(b"\x7fELF", name, 0, warps, registers=used, stack=stack + 32, frames=32)

    monkeypatch.setattr(cuda, "build_cubin", compiled)
    monkeypatch.setattr(cuda, "_triton_version", lambda: "")
    options = RuntimeOptions(cache_dir=tmp_path)

    def built(**meta: Any) -> Cubin:
        meta = {"signature": {}, "constants": {}, "num_stages": 1} | meta
        return partial(cuda.cubin, "", Kernel("k", 0, meta), 90, options)(aligned=True)

    return built, asked


def test_all_registers_of_a_thread_come_before_more_warps(build) -> None:
    built, asked = build
    made = built(num_warps=4, most_warps=8)
    assert asked == [(4, None), (4, 255)]
    assert (made.warps, made.registers, made.spills) == (4, 150, False)


def test_more_warps_come_next(build) -> None:
    built, asked = build
    made = built(num_warps=1, most_warps=8)
    assert asked == [(1, None), (1, 255), (2, None), (2, 255), (4, None), (4, 255)]
    assert (made.warps, made.spills) == (4, False)


def test_a_kernel_that_does_not_fit_is_built_all_the_same(build) -> None:
    built, asked = build
    assert built(num_warps=1).spills
    assert len(asked) == 2
    assert built(num_warps=1).stack == 4 * (NEEDED - 255) + 32  # from the cache
    assert len(asked) == 2


@pytest.mark.parametrize("trusted", [True, False])
def test_a_candidate_that_spills_is_refused(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spilled = Cubin(b"", "k", 0, 4, registers=255, stack=80)
    monkeypatch.setattr(cuda, "cubin", lambda *_, **__: spilled)
    monkeypatch.setattr(cuda, "capability", lambda device: 90)
    monkeypatch.setattr(cuda.native, "core", lambda: SimpleNamespace(GpuKernel=dict))
    options = RuntimeOptions(cache_dir=tmp_path)
    load = lambda program, options: cuda.begin_kernels(program, options)()  # noqa: E731
    monkeypatch.setattr(cuda_bench, "load", load)
    program = Program(
        inputs=("x",),
        tensors=(Tensor("x", (4,), (1,), "float32", "cuda:0"),),
        symbols=(),
        sources=(Source("triton", ""),),
        kernels=(Kernel("k", 0, {}),),
        steps=(Launch("k", ("x",), (), (1,)),),
        outputs=("x",),
    )
    bench = cuda_bench.CudaBench(options)
    if trusted:
        assert list(bench.build(program, trusted=True)) == ["k"]  # type: ignore[call-overload]
    else:
        with pytest.raises(ValueError, match="80 bytes of a thread are spilled"):
            bench.build(program, trusted=False)


def test_sixteen_warps_share_what_a_multiprocessor_has(build) -> None:
    made = Cubin(b"", "k", 0, 16, registers=80, stack=0)
    assert made.most_registers == 128


def test_arrays_of_the_math_library_are_no_spills() -> None:
    text = """
	.local .align 4 .b8 	__local_depot0[28];
	.local.b32 	[%r195], %r51;
.func  (.param .align 16 .b8 func_retval0[16]) __internal_trig_reduction_slowpathd(
	.local .align 8 .b8 	__local_depot1[40];
"""
    assert _frames(text) == 32 + 40 + 16
    assert not Cubin(b"", "k", 0, 4, registers=40, stack=48, frames=_frames(text)).spills
