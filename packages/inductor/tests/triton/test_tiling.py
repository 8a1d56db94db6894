"""Which tiles a kernel gets."""

from __future__ import annotations

from cases import F32, softmax, weight_gradient

from flambeau_inductor.codegen.cpp.plan import choose_plan
from flambeau_inductor.codegen.triton.kernel import write_kernel
from flambeau_inductor.codegen.triton.tiling import COLUMN_TILE, choose_tiling
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, Compute, Load, LoopKernel, Param, Reduce, Store


def test_vectors_along_a_column_do_not_decide_its_direction() -> None:
    """Half of the reads are contiguous along the reduced axis, but those of the matrices across."""
    tiling = choose_tiling(weight_gradient(2048, 768).kernel)
    assert (tiling.xblock, tiling.rblock) == COLUMN_TILE
    assert choose_plan(weight_gradient(2048, 768, device="cpu").kernel).kind == "columns"


def test_what_is_the_same_along_a_column_tile_is_one_value() -> None:
    assert choose_tiling(weight_gradient(2048, 768).kernel).apart
    assert not choose_tiling(weight_gradient(2048, 48).kernel).apart


def test_rows_that_are_read_again_are_kept_if_they_fit() -> None:
    """16 or 32 elements a thread; else many threads a row, so that few rows share the cache."""
    short, kept, longer, longest = (
        choose_tiling(softmax(8, row).kernel) for row in (768, 32768, 32769, 131072)
    )
    assert short.persistent and (short.xblock, short.warps) == (1, 2)
    assert kept.persistent and kept.warps == 32
    assert not longer.persistent and longer.warps < longest.warps


def test_operands_are_loaded_before_the_first_reduction() -> None:
    """Where threads meet, loads that are written behind would begin only there."""
    i, r = symbol("i0"), symbol("r0")
    body = (
        Load("v0", F32, "b0", 96 * i + r),
        Reduce("v1", F32, "sum", "v0"),
        Load("v2", F32, "b1", r),
        Compute("v3", F32, "mul", ("v1", "v2")),
        Store("b2", 96 * i + r, "v3"),
    )
    params = (*(Param(f"b{n}", F32, "read") for n in range(2)), Param("b2", F32, "write"))
    kernel = LoopKernel("cuda", params, (), (Axis(i, 40),), (Axis(r, 96),), body)
    source = write_kernel(kernel, "generated", choose_tiling(kernel))
    assert source.index("tl.load(b1") < source.index("tl.sum")


def pointwise(points: int) -> LoopKernel:
    i = symbol("i0")
    body = (Load("v0", F32, "b0", i), Compute("v1", F32, "exp", ("v0",)), Store("b1", i, "v1"))
    params = (Param("b0", F32, "read"), Param("b1", F32, "write"))
    return LoopKernel("cuda", params, (), (Axis(i, points),), (), body)


def test_points_are_spread_over_the_threads_that_a_gpu_holds() -> None:
    """As few a thread as fill the GPU once; then more, but half of these under a mask."""
    few, adam, many, odd = (
        choose_tiling(pointwise(points)) for points in (100_000, 525_312, 1 << 25, 33_554_467)
    )
    per_thread = [tiling.xblock // (32 * tiling.warps) for tiling in (few, adam, many, odd)]
    assert per_thread == [1, 2, 8, 4]
