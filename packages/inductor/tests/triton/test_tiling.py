"""Which tiles a kernel gets."""

from __future__ import annotations

import functools
from dataclasses import replace
from functools import partial

import pytest
import torch
from cases import (
    BF16,
    F32,
    Case,
    column_scan,
    first_sorted,
    padded,
    resampled,
    softmax,
    sort_cases,
    transposed,
    weight_gradient,
)
from ragged_cases import bounded, gapped, mixed, ragged
from repeat_cases import resized_channels

from flambeau_inductor import compile_graph
from flambeau_inductor.codegen.cpp.plan import choose_plan
from flambeau_inductor.codegen.triton.first_sorted import first_count
from flambeau_inductor.codegen.triton.kernel import write_kernel
from flambeau_inductor.codegen.triton.tiling import NARROW_COLUMN_TILE, Tiling, choose_tiling, grid
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, Compute, Load, LoopKernel, Param, Reduce, Store
from flambeau_inductor.options import InductorOptions
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Value
from flambeau_prims.spec import Spec

CUDA = torch.device("cuda:0")


def test_vectors_along_a_column_do_not_decide_its_direction() -> None:
    """Half of the reads are contiguous along the reduced axis, but those of the matrices across."""
    tiling = choose_tiling(weight_gradient(2048, 768).kernel)
    assert (tiling.xblock, tiling.rblock) == NARROW_COLUMN_TILE
    assert choose_plan(weight_gradient(2048, 768, device="cpu").kernel).kind == "columns"


def test_what_is_the_same_along_a_column_tile_is_one_value() -> None:
    assert choose_tiling(weight_gradient(2048, 768).kernel).apart
    assert not choose_tiling(weight_gradient(2048, 48).kernel).apart


def test_rows_that_are_read_again_are_kept_if_they_fit() -> None:
    """16 or 32 elements a thread; else many threads a row, so that few rows share the cache."""
    short, kept, longer, longest = (
        choose_tiling(softmax(8, row).kernel) for row in (768, 32768, 49152, 131072)
    )
    parts = choose_tiling(softmax(8, 40961).kernel)
    assert parts.persistent and parts.tiles == 11
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


def row_sum(row: int, kind: str, dtype: torch.dtype = F32) -> LoopKernel:
    i, r = symbol("i0"), symbol("r0")
    body = (
        Load("v0", dtype, "b0", row * i + r),
        Compute("v1", F32, "cast", ("v0",)),
        Reduce("v2", F32, kind, "v1"),
        Store("b1", i, "v2"),
    )
    params = (Param("b0", dtype, "read"), Param("b1", F32, "write"))
    return LoopKernel("cuda", params, (), (Axis(i, 4096),), (Axis(r, row),), body)


def test_threads_have_few_elements_where_these_are_no_vectors_or_have_a_running_maximum() -> None:
    kernels = (
        row_sum(65536, "sum"),
        row_sum(50257, "sum"),
        row_sum(131072, "sum_exp"),
        row_sum(131072, "sum_exp", torch.bfloat16),
    )
    tilings = [choose_tiling(kernel) for kernel in kernels]
    # Where rows are whole vectors, the elements of each have one running maximum.
    assert [tiling.group for tiling in tilings] == [1, 1, 4, 8]
    assert [tiling.rblock // (32 * tiling.warps) for tiling in tilings] == [8, 4, 8, 16]


def test_rows_that_begin_between_vectors_are_shifted() -> None:
    """In loops that store, or have a running maximum: else masks of elements cost more than the
    vectors give.
    """
    rows = {row: choose_tiling(softmax(64, row).kernel) for row in (1531, 50257, 50260)}
    assert [row for row, tiling in rows.items() if tiling.vectors] == [50257]
    assert choose_tiling(row_sum(50257, "sum_exp")).vectors
    assert not choose_tiling(row_sum(50257, "sum")).vectors
    source = write_kernel(softmax(64, 50257).kernel, "generated", rows[50257])
    assert "tl.load(b0 + (row_base + row_lane), xmask & row_touched" in source
    assert source.count("tl.store") == 2


def test_wide_elements_are_read_by_their_own_vectors() -> None:
    """16 bytes of them, not the 32 beside a vector of bfloat16: the rest may not be mapped."""

    def source(name: str, kernel: LoopKernel, *rest: object) -> str:
        return write_kernel(kernel, "generated", rest[-1])  # type: ignore[arg-type]

    rows = mixed(source, 5, 37, Tiling(1, 16, vectors=True)).splitlines()
    (wide,) = (line for line in rows if "tl.load(b1" in line)
    assert "row_touched_4" in wide
    assert any(line.endswith("_touched_4 = (row_lane // 4 * 4 - row_shift > -4) & "
               "(row_lane // 4 * 4 - row_shift < 37)") for line in rows)  # fmt: skip
    points = ragged(source, 1, 1030).splitlines()
    assert any("tl.load(b1" in line and "xtouched_4" in line for line in points)
    assert any(line.endswith("xtouched_4 = xindex // 4 * 4 < 1030") for line in points)


def test_long_rows_with_gaps_are_read_in_vectors_that_have_one_maximum() -> None:
    def kernel(name: str, kernel: LoopKernel, *rest: object) -> LoopKernel:
        return kernel

    rows = gapped(kernel, 3, 50257, 50304, None)
    tiling = choose_tiling(rows)
    assert tiling.vectors and tiling.group == 8
    assert "tl.load(b0 + (row_base + row_lane), row_touched" in write_kernel(rows, "f", tiling)
    assert not choose_tiling(gapped(kernel, 3, 50304, 50304, None)).vectors


def test_programs_within_long_rows_load_once_for_each_row_is_the_same_along_it() -> None:
    def kernel(rows: int, length: int, stride: int) -> LoopKernel:
        with torch.device("meta"):  # the tensors of a case, up to gigabytes, are not read
            return bounded(lambda name, kernel, *rest: kernel, rows, length, stride, None)

    rows = kernel(64, 50257, 50304)
    tiling = choose_tiling(rows)
    assert (tiling.lanes, tiling.lane_first, tiling.vectors) == (("i1",), True, True)
    assert grid(rows, tiling, {}) == (50, 64)
    source = write_kernel(rows, "f", tiling)
    assert "v2_touched_8 = i1 // 8 * 8 < 50257" in source
    assert "tl.load(b1 + (i0_scalar))" in source
    assert choose_tiling(kernel(64, 1000, 1024)).lanes == ()
    assert not choose_tiling(kernel(64, 50256, 50304)).vectors
    assert not choose_tiling(kernel(64, 50257, 50257)).vectors
    assert choose_tiling(kernel(65536, 8193, 8200)).lanes == ()


def test_a_row_is_divided_by_a_reciprocal() -> None:
    """One division a row; where a program has several rows, one an element."""
    lone, several = (softmax(64, row).kernel for row in (1024, 16))
    assert "divide_by_row(v3, v4, False)" in write_kernel(lone, "generated", choose_tiling(lone))
    assert "divide_by" not in write_kernel(several, "generated", choose_tiling(several))


def in_bfloat16(kernel: LoopKernel) -> LoopKernel:
    """A kernel that reads and writes bfloat16 in place of float32."""
    wide = {"v0": "v0_wide"}
    body = []
    for s in kernel.body:
        if isinstance(s, Load):
            body += [replace(s, dtype=BF16), Compute("v0_wide", F32, "cast", (s.name,))]
        elif isinstance(s, Store):
            body += [Compute("v9", BF16, "cast", (s.value,)), replace(s, value="v9")]
        elif isinstance(s, Reduce):
            body.append(replace(s, value=wide.get(s.value, s.value)))
        else:
            body.append(replace(s, args=tuple(wide.get(arg, arg) for arg in s.args)))
    params = tuple(replace(param, dtype=BF16) for param in kernel.params)
    return replace(kernel, params=params, body=tuple(body))


def test_quotients_that_are_rounded_are_products() -> None:
    kernel = in_bfloat16(softmax(64, 1024).kernel)
    for strict in (False, True):
        source = write_kernel(kernel, "generated", choose_tiling(kernel), strict=strict)
        assert f"divide_by_row(v3, v4, {not strict})" in source


def test_rows_of_much_arithmetic_are_several_tiles() -> None:
    """Long ones, and those whose elements are read one by one: few threads have much of a row."""
    for row, expected in ((1024, 0), (2048, 4), (4096, 4), (16384, 4)):
        tiling = choose_tiling(softmax(64, row).kernel)
        assert tiling.tiles == expected
        assert not expected or (tiling.rblock * 4, tiling.warps) == (row, row // 1024)
    for row, warps, tiles in ((1531, 1, 3), (1530, 4, 0), (3001, 2, 3), (9999, 8, 3), (301, 2, 0)):
        tiling = choose_tiling(in_bfloat16(softmax(64, row).kernel))
        assert tiling.tiles == tiles and (not tiles or tiling.warps == warps), (row, tiling)
        assert tiles * tiling.rblock >= row or not tiles


def test_a_tile_without_an_element_is_refused() -> None:
    kernel = softmax(64, 41).kernel
    write_kernel(kernel, "generated", Tiling(1, 16, persistent=True, tiles=3))
    with pytest.raises(ValueError, match="no element in the last of 4 tiles"):
        write_kernel(kernel, "generated", Tiling(1, 16, persistent=True, tiles=4))


def test_programs_of_whole_channels_go_on_along_their_places() -> None:
    """Else the next program would be in another image."""
    n, h, c = (symbol(f"i{d}") for d in range(3))
    body = (
        Load("v0", F32, "b0", 2**20 * n + h + 2**14 * c),
        Store("b1", 2**20 * n + 64 * h + c, "v0"),
    )
    params = (Param("b0", F32, "read"), Param("b1", F32, "write"))
    axes = (Axis(n, 32), Axis(h, 2**14), Axis(c, 64))
    kernel = LoopKernel("cuda", params, (), axes, (), body)
    tiling = choose_tiling(kernel)
    assert tiling.lane_first and grid(kernel, tiling, {}) == (256, 32)
    assert not choose_tiling(transposed(256, 256).kernel).lane_first


def test_places_and_weights_are_computed_once_for_many_channels() -> None:
    large = choose_tiling(resized_channels(Case, (16, 32, 40, 64), None).kernel)
    assert large.repeats and large.lanes == ("i1", "i2", "i3")
    middle = choose_tiling(resized_channels(Case, (9, 32, 64, 64), None).kernel)
    assert middle.repeats and middle.lanes == ("i0", "i2", "i3")
    assert not choose_tiling(resized_channels(Case, (2, 3, 40, 64), None).kernel).repeats
    assert not choose_tiling(resampled(65536, 64).kernel).repeats


def test_places_that_are_read_from_memory_are_not_repeated() -> None:
    kernel = resized_channels(Case, (8, 64, 64, 64), None).kernel
    assert choose_tiling(kernel).repeats
    body = tuple(
        Load("va0", torch.int64, "b2", symbol("i2")) if getattr(s, "name", "") == "va0" else s
        for s in kernel.body
    )
    params = (*kernel.params, Param("b2", torch.int64, "read"))
    assert not choose_tiling(replace(kernel, body=body, params=params)).repeats


@pytest.mark.parametrize(("count", "selects"), [(8, True), (11, True), (12, False), (128, False)])
def test_a_few_of_a_row_are_selected_without_sorting_it(count: int, selects: bool) -> None:
    (whole,) = (c for c in sort_cases(16, 128) if c.name == "sort-torch.float32-down-16x128")
    kernel = first_sorted(whole.kernel, whole.buffers[0], 128, count).kernel
    assert first_count(kernel) == (count if selects else 0)
    source = write_kernel(kernel, "f", choose_tiling(kernel))
    assert ("tl.sort(" in source) is not selects
    assert (f"first_lanes(v1_order_keys, {count}" in source) is selects
    assert first_count(whole.kernel) == 0


def test_a_padded_load_gives_the_padding() -> None:
    kernel = padded(11, 4).kernel
    source = write_kernel(kernel, "f", choose_tiling(kernel))
    assert "other=7.0)" in source and "tl.where(" not in source
    body = tuple(replace(s, op="maximum", args=s.args[1:]) if getattr(s, "op", "") == "where" else s
                 for s in kernel.body)  # fmt: skip
    source = write_kernel(replace(kernel, body=body), "f", choose_tiling(kernel))
    assert "other=0)" in source


def test_scanned_columns_lie_in_few_threads() -> None:
    scanned = choose_tiling(column_scan(4096, 16384).kernel)
    assert (scanned.xblock, scanned.rblock, scanned.warps) == (32, 128, 2)


def test_pointers_of_contiguous_points_are_one_index() -> None:
    """Triton cannot tell from rows and columns that neighbours lie side by side."""
    i, j = symbol("i0"), symbol("i1")
    body = (
        Load("v0", F32, "b0", 4097 * i + j),
        Load("v1", F32, "b1", j),
        Load("v2", F32, "b2", i + 64 * j),
        Compute("v3", F32, "add", ("v0", "v1")),
        Compute("v4", F32, "add", ("v3", "v2")),
        Store("b3", 4097 * i + j + 5, "v4"),
    )
    params = (*(Param(f"b{n}", F32, "read") for n in range(3)), Param("b3", F32, "write"))
    kernel = LoopKernel("cuda", params, (), (Axis(i, 64), Axis(j, 4097)), (), body)
    source = write_kernel(kernel, "generated", Tiling(512))
    for pointer in ("b0 + (xindex)", "b1 + (i1)", "b2 + (i0 + 64*i1)", "(xindex + (5), [XBLOCK])"):
        assert pointer in source


def pointwise(points: int) -> LoopKernel:
    i = symbol("i0")
    body = (Load("v0", F32, "b0", i), Compute("v1", F32, "exp", ("v0",)), Store("b1", i, "v1"))
    params = (Param("b0", F32, "read"), Param("b1", F32, "write"))
    return LoopKernel("cuda", params, (), (Axis(i, points),), (), body)


def test_points_are_spread_over_the_threads_that_a_gpu_holds() -> None:
    """As few a thread as fill the GPU once; then more, in vectors that end with the points."""
    few, adam, many, odd = (
        choose_tiling(pointwise(points)) for points in (100_000, 525_312, 1 << 25, 33_554_467)
    )
    per_thread = [tiling.xblock // (32 * tiling.warps) for tiling in (few, adam, many, odd)]
    assert per_thread == [1, 2, 8, 8]
    assert odd.vectors and not many.vectors


def tile_of(
    shape: tuple[int, ...], dtype: torch.dtype, program, *more: Value
) -> tuple[int, int, bool]:
    """Points of a tile, warps, and whether neighbouring points belong to neighbouring threads."""
    x = Value("x", Spec.of(shape, dtype=dtype, device=CUDA))
    graph = Graph([x, *more])
    graph.outputs = [program(Builder(graph.nodes, ["x", *(each.name for each in more)]), x, *more)]
    compiled = compile_graph(graph, InductorOptions(debug_checks=True))
    (kernel,) = compiled.kernels
    dealt = "tl.multiple_of(xindex, 1), 1)" in compiled.sources[kernel.source].text
    return kernel.meta["constants"]["XBLOCK"], kernel.meta["num_warps"], dealt


def flipped(b: Builder, x: Value) -> Value:
    return b.flip(x, (1,))


def window(b: Builder, x: Value, count: int) -> Value:
    """The sum of so many neighbours around every second place."""
    size = x.spec.shape[0] - count
    parts = [b.slice(x, 0, first, first + size, 2) for first in range(count)]
    return functools.reduce(b.add, parts)


def test_lone_scattered_reads_leave_vectors_of_results_to_threads() -> None:
    """Sixteen bytes of a flip, or four times as many of narrow ones; four points of what is looked
    up, for indices are wide, too.
    """
    places = Value("i", Spec.of((8192, 4096), dtype=torch.int64, device=CUDA))
    for dtype, each in ((torch.float64, 2), (F32, 4), (BF16, 32), (torch.int8, 32)):
        assert tile_of((8192, 4096), dtype, flipped) == (128 * each, 4, False)
        looked_up = tile_of((8192, 4096), dtype, lambda b, x, i: b.gather(x, 1, i), places)
        assert looked_up == (512, 4, False)


def test_places_that_come_again_for_each_row_are_dealt_out() -> None:
    places = Value("i", Spec.of((4096,), dtype=torch.int64, device=CUDA))
    for dtype in (F32, BF16):
        chosen = tile_of((8192, 4096), dtype, lambda b, x, i: b.index(x, [None, i]), places)
        assert chosen == (1024, 4, True)


@pytest.mark.parametrize(("dtype", "warps"), [(F32, 16), (BF16, 8)])
def test_transposing_tiles_of_wide_elements_have_more_warps(dtype: torch.dtype, warps: int) -> None:
    def with_transposed(b: Builder, x: Value) -> Value:
        return b.add(b.cast(x, F32), b.cast(b.permute(x, (1, 0)), F32))

    assert tile_of((8192, 8192), dtype, with_transposed) == (64, warps, False)


def test_rows_that_are_looked_up_are_read_by_few_threads() -> None:
    """Sixteen elements a thread of bfloat16, of which others have eight."""
    places = Value("i", Spec.of((32768,), dtype=torch.int64, device=CUDA))
    for dtype, points in ((BF16, 2048), (F32, 1024)):
        chosen = tile_of((50257, 1024), dtype, lambda b, x, i: b.index(x, [i]), places)
        assert chosen == (points, 4, False)
    alone = tile_of((32768, 1024), BF16, lambda b, x: b.cast(b.neg(b.cast(x, F32)), BF16))
    assert alone == (1024, 4, False)


def test_a_program_has_many_points_of_windows_that_lie_anywhere() -> None:
    places = Value("i", Spec.of((1 << 25,), dtype=torch.int64, device=CUDA))

    def around(b: Builder, x: Value, i: Value) -> Value:
        parts = [b.gather(x, 0, b.remainder(b.add(i, step), 1000)) for step in range(4)]
        return functools.reduce(b.add, parts)

    assert tile_of((1 << 25,), F32, around, places) == (4096, 16, True)


def test_the_points_of_windows_are_dealt_out_to_threads() -> None:
    assert tile_of((1 << 25,), F32, partial(window, count=2)) == (512, 4, False)
    assert tile_of((1 << 25,), F32, partial(window, count=3)) == (1024, 8, True)
    assert tile_of((1 << 25,), F32, partial(window, count=9)) == (1024, 8, True)
    wide = tile_of((1 << 25,), F32, partial(window, count=300))
    assert wide == (256, 8, True), "a point of a thread has 300 values"


@pytest.mark.parametrize(("step", "dealt"), [(1, True), (3, True), (4, False), (64, False)])
def test_neighbours_under_masks_are_dealt_out_but_not_rows_of_vectors(
    step: int, dealt: bool
) -> None:
    """As pools over images read them, and over images whose channels come last."""

    def around(b: Builder, x: Value) -> Value:
        padded = b.pad(x, (step,), (step,), 0.0)
        size = x.spec.shape[0]
        parts = [b.slice(padded, 0, first, first + size, 1) for first in (0, step, 2 * step)]
        return functools.reduce(b.maximum, parts)

    assert tile_of((1 << 25,), F32, around)[2] == dealt


@pytest.mark.parametrize(
    ("dtype", "shape", "tile"),
    [
        (BF16, (32768, 1024), (1, 1024, 1)),
        (BF16, (32768, 640), (1, 1024, 1)),
        (BF16, (65536, 512), (2, 512, 1)),
        (BF16, (1024, 1024), (1, 1024, 2)),
        (BF16, (32768, 2048), (1, 2048, 4)),
        (F32, (32768, 1024), (1, 1024, 2)),
    ],
)
def test_a_warp_keeps_short_rows_of_narrow_elements(
    dtype: torch.dtype, shape: tuple[int, int], tile: tuple[int, int, int]
) -> None:
    x = Value("x", Spec.of(shape, dtype=dtype, device=CUDA))
    graph = Graph([x])
    b = Builder(graph.nodes, ["x"])
    wide = b.cast(x, F32)
    graph.outputs = [b.sub(wide, b.spread(b.amax(wide, (1,)), (1,), shape))]
    (kernel,) = compile_graph(graph, InductorOptions()).kernels
    constants = kernel.meta["constants"]
    assert (constants["XBLOCK"], constants["RBLOCK"], kernel.meta["num_warps"]) == tile


def test_few_scattered_points_are_spread_over_all_threads() -> None:
    assert tile_of((16, 1000), BF16, flipped) == (128, 4, False)
    assert tile_of((3, 7), BF16, flipped) == (32, 1, False)
