"""Which tiles a kernel gets."""

from __future__ import annotations

from cases import softmax, weight_gradient

from flambeau_inductor.codegen.cpp.plan import choose_plan
from flambeau_inductor.codegen.triton.tiling import COLUMN_TILE, choose_tiling


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
    kept, longer = (choose_tiling(softmax(8, row).kernel) for row in (32768, 32769))
    assert kept.persistent and kept.warps == 32
    assert not longer.persistent and longer.warps == 32
