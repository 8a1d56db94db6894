"""Rows that do not begin where a vector does: tiles that are shifted to where it does.

    x[1531*i + r]     ->     row_base = row_offset // 8 * 8         row_offset: 1531*i
                             lane = tl.arange(0, RBLOCK)
                             rindex = lane - (row_offset - row_base)
                             tl.load(x + (row_base + lane), row_touched)

Lane 0 lies at the last border of a vector before the row, so that each vector of lanes is one of
memory. A load reads all vectors that the row touches, with a few elements of its neighbours, which
`rmask` leaves out of the results. A store writes the vectors that lie inside the row at once, and
the rest element by element. Pointers must be multiples of 16 bytes: a vector that is aligned lies
in one page with the element of it that the row has. Where one is not (VECTORS is 0), only the row's
own elements are read. Wide elements beside narrow ones take several vectors where these take one:
each of their vectors is masked by itself (`row_touched_4`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flambeau_inductor.ir import Load, Reduce, Scan, Sort, Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sympy
    import torch

    from flambeau_inductor.ir import LoopKernel

VECTOR_BYTES = 16


@dataclass(frozen=True)
class VectorRows:
    """Rows of `length` elements from `offset` on, an index over the outer axes, in vectors of
    `vector` elements.
    """

    offset: sympy.Expr
    lane: sympy.Symbol
    length: int
    vector: int

    wider: tuple[int, ...] = ()
    """The elements of a vector of each wider dtype that is read along the rows."""

    @property
    def span(self) -> int:
        """How many lanes hold a row wherever it begins."""
        return self.length + self.vector - 1

    def holds(self, index: sympy.Expr) -> bool:
        """Whether an index runs along these rows."""
        return bool(index == self.offset + self.lane)

    def prologue(self, offset: str) -> list[str]:
        """Where the rows begin, given their offset as text."""
        return [
            f"row_offset = {offset}",
            f"row_base = row_offset // {self.vector} * {self.vector}",
            "row_shift = row_offset - row_base",
        ]

    def masks(self, lane: str) -> list[str]:
        """The lanes' positions in the row, and which are inside: by element, and by vector."""
        vector, length = self.vector, self.length
        return [
            f"row_lane = {lane}",
            "rindex = row_lane - row_shift",
            f"rmask = (rindex >= 0) & (rindex < {length})",
            f"row_vector = row_lane // {vector} * {vector} - row_shift",
            "row_touched = rmask",
            "if VECTORS:",
            f"    row_touched = (row_vector > -{vector}) & (row_vector < {length})",
            f"row_whole = (row_vector >= 0) & (row_vector <= {length - vector})",
            *(line for each in self.wider for line in self._wider_masks(each)),
        ]

    def _wider_masks(self, vector: int) -> list[str]:
        first = f"row_lane // {vector} * {vector} - row_shift"
        name = f"row_touched_{vector}"
        return [
            f"{name} = rmask",
            "if VECTORS:",
            f"    {name} = ({first} > -{vector}) & ({first} < {self.length})",
        ]


def flat_vector(kernel: LoopKernel, flat: sympy.Expr | None) -> int:
    """The elements of a vector of the contiguous accesses of a pointwise kernel; 0: there are none.
    The same holds for its last points as for a row.
    """
    itemsizes = [
        param.dtype.itemsize
        for s in kernel.body
        for param in kernel.params
        if isinstance(s, (Load, Store)) and s.buffer == param.name and s.index == flat
    ]
    vector = VECTOR_BYTES // min(itemsizes, default=VECTOR_BYTES)
    return vector if vector > 1 else 0


def flat_masks(points: str, vector: int, wider: Sequence[int]) -> list[str]:
    """Which points are inside, by vector."""
    lines = []
    for each in wider:
        name = f"xtouched_{each}"
        lines += [f"{name} = xmask", "if VECTORS:"]
        lines.append(f"    {name} = xindex // {each} * {each} < {points}")
    return [
        *lines,
        f"xvector = xindex // {vector} * {vector}",
        "xtouched = xmask",
        "if VECTORS:",
        f"    xtouched = xvector < {points}",
        f"xwhole = xvector + {vector} <= {points}",
    ]


def wider_vectors(kernel: LoopKernel, index: sympy.Expr | None, vector: int) -> tuple[int, ...]:
    """The elements of a vector of each dtype read at an index whose vectors hold fewer."""
    loads = [s for s in kernel.body if isinstance(s, Load) and s.index == index]
    vectors = {max(1, VECTOR_BYTES // s.dtype.itemsize) for s in loads}
    return tuple(sorted(each for each in vectors if each < vector))


def touched(name: str, dtype: torch.dtype, vector: int) -> str:
    """The mask of a load of a dtype."""
    own = max(1, VECTOR_BYTES // dtype.itemsize)
    return f"{name}_{own}" if own < vector else name


def vector_rows(kernel: LoopKernel) -> VectorRows | None:
    """The rows of a reduction that are not whole vectors, if it has such and knows their length."""
    if len(kernel.inner) != 1 or not isinstance(kernel.inner[0].size, int):
        return None
    if any(isinstance(s, (Scan, Sort)) for s in kernel.body):
        return None
    if not any(isinstance(s, Reduce) for s in kernel.body):
        return None
    lane, length = kernel.inner[0].symbol, kernel.inner[0].size
    outer = {axis.symbol for axis in kernel.outer}
    found: dict[sympy.Expr, int] = {}
    for s in kernel.body:
        if not isinstance(s, (Load, Store)) or s.index.coeff(lane) != 1:
            continue
        offset = s.index - lane
        names = offset.free_symbols
        if names and names <= outer and not getattr(s, "mode", "") and s.mask is None:
            dtype = next(param.dtype for param in kernel.params if param.name == s.buffer)
            found[offset] = min(found.get(offset, VECTOR_BYTES), dtype.itemsize)
    if not found:
        return None
    offset, itemsize = max(found.items(), key=lambda item: -item[1])
    vector = VECTOR_BYTES // itemsize
    begins = all(offset.coeff(symbol) % vector == 0 for symbol in offset.free_symbols)
    if vector < 2 or (begins and length % vector == 0):
        return None
    wider = wider_vectors(kernel, offset + lane, vector)
    return VectorRows(offset, lane, length, vector, wider)
