"""Write short rows of a result in full at each step of a long loop.

    outer i0 < 1048576, i1 < 2;  store b2[2*i0 + i1] (where (lt i1 1) (load b0[i0]) (load b1[i0]))
    ->  outer i0 < 1048576;      store b2[2*i0] (load b0[i0]);  store b2[2*i0 + 1] (load b1[i0])

A loop along i1 is shorter than a vector, and one along i0 for each i1 goes through the memory of
the result as often. GCC interleaves the vectors of neighbouring stores. Conditions on i1 are known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.codegen.cpp.masks import Conditions, simplify_masks
from flambeau_inductor.codegen.cpp.plan import hinted_size, stride_along
from flambeau_inductor.codegen.cpp.segments import cut
from flambeau_inductor.codegen.cpp.unroll_and_jam import MOST_STATEMENTS, jam
from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import Compute, Constant, IndexValue, Load, Store, index_of

if TYPE_CHECKING:
    from flambeau_inductor.ir import Axis, Body, LoopKernel

SIZES = (2, 3, 4)
"""Rows of so many elements: GCC interleaves as many vectors."""

LEAST = 16
"""Shorter loops beside them are no vector."""


def unroll_short_rows(kernel: LoopKernel) -> LoopKernel:
    """The kernel without the axis of short rows that it stores; the same kernel if it has none."""
    if kernel.inner or kernel.shares != 0 or not _is_plain(kernel.body):
        return kernel
    short = _short_axis(kernel)
    if short is None or len(kernel.body) * int(short.size) > MOST_STATEMENTS:
        return kernel
    points = [sympy.Integer(place) for place in range(int(short.size))]
    body = jam(kernel.body, short, points)
    outer = tuple(axis for axis in kernel.outer if axis is not short)
    body = simplify_masks(body, Conditions(body).decided())
    if short.size == 3 and _has_masks(body) and not any(_is_cut(body, axis) for axis in outer):
        return kernel
    return replace(kernel, outer=outer, body=body)


def _has_masks(body: Body) -> bool:
    return any(isinstance(s, Load) and s.mask is not None for s in body)


def _is_cut(body: Body, axis: Axis) -> bool:
    """Whether the loop along an axis is cut into segments without masks. GCC 12 computes wrong
    masks for groups of three loads in vectors of AVX-512.
    """
    parts = cut(body, axis)
    return parts is not None and not any(_has_masks(part) for _, part in parts)


def _short_axis(kernel: LoopKernel) -> Axis | None:
    """The axis along which each store writes rows of a few elements, one after another along a
    longer axis.
    """
    stores = [s for s in kernel.body if isinstance(s, Store)]
    for short in kernel.outer:
        if short.size not in SIZES:
            continue
        rows = (
            any(
                stride_along(store.index, axis) == short.size and hinted_size(axis, kernel) >= LEAST
                for axis in kernel.outer
            )
            for store in stores
        )
        if all(stride_along(store.index, short) is sympy.S.One for store in stores) and all(rows):
            return short
    return None


def _is_plain(body: Body) -> bool:
    """Whether each point stores what it computes, at places that do not depend on data."""
    defined = {s.name for s in body if hasattr(s, "name")}
    for statement in body:
        index = index_of(statement)
        if index is not None and not free_names(index).isdisjoint(defined):
            return False
        if isinstance(statement, Store) and (statement.mode or statement.mask):
            return False
        if not isinstance(statement, (Constant, IndexValue, Compute, Load, Store)):
            return False
    return True
