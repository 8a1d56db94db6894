"""How a matrix product is cut into tiles for Triton, and operands as tensor descriptors see them.

4096 x 4096 x 4096 bf16  ->  tiles of 128x256, in steps of 64, 8 warps, 3 stages
load b0[1024*i0 + r0]    ->  a matrix of stride 1024 from offset 0 on, along its rows
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from flambeau_inductor.indexing.expressions import linear_parts
from flambeau_inductor.ir import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sympy
    import torch

    from flambeau_inductor.codegen.contraction import Contraction, Operand
    from flambeau_inductor.ir import Axis, LoopKernel

SMALL_TILE = 64 * 64
"""Points of a tile that a product with few points is cut into."""

DESCRIPTOR_BYTES = 128
"""Scratch memory of one tensor descriptor."""


@dataclass(frozen=True)
class MatmulTiling:
    """Tiles of XBLOCK rows by RBLOCK lanes, summed in steps of KBLOCK.

    `height`: how many tiles of one column follow one another, for the L2 cache. `tf32`: round
    float32 operands. `rough`: keep sums of float8 products as the matrix units do. `programs`: so
    many programs take tiles in turn; 0: one program a tile. `descriptors`: read operands through
    tensor descriptors (the copy engine of sm_90); `described_stores`: write results so, too, where
    they are aligned.
    """

    xblock: int
    rblock: int
    kblock: int
    warps: int = 4
    stages: int = 3
    height: int = 8
    tf32: bool = False
    programs: int = 0
    descriptors: bool = False
    described_stores: bool = False
    rough: bool = False

    def __str__(self) -> str:
        text = f"{self.xblock}x{self.rblock}x{self.kblock} warps={self.warps} stages={self.stages}"
        text += f" height={self.height}" if self.height != 8 else ""
        text += f" persistent={self.programs}" if self.programs else ""
        text += " tma" if self.descriptors else ""
        return text + (" tma-store" if self.described_stores else "")


@dataclass(frozen=True)
class Description:
    """A matrix in memory as a tensor descriptor sees it: its offset, the stride of the slower dim,
    and whether the inner axes are the slower one.
    """

    offset: int
    stride: int
    inner_is_slow: bool


def describe(operand: Operand, axes: Sequence[Axis], inner: Sequence[Axis]) -> Description | None:
    """An operand over outer `axes` and the inner axes as a matrix; None if it is computed, or lies
    in memory as the copy engine cannot read it.
    """
    load = operand.load
    return None if load is None else describe_access(load.index, operand.dtype, axes, inner)


def describe_access(
    index: sympy.Expr, dtype: torch.dtype, axes: Sequence[Axis], inner: Sequence[Axis]
) -> Description | None:
    """What an index expression walks over, as a matrix; None if it is none whose rows start at
    multiples of 16 bytes.
    """
    if not axes or not all(isinstance(axis.size, int) for axis in (*axes, *inner)):
        return None
    names = frozenset(axis.symbol.name for axis in (*axes, *inner))
    parts = linear_parts(index, names)
    if parts is None or not parts[1].is_Integer:
        return None
    across, along = _flat_step(axes, parts[0]), _flat_step(inner, parts[0])
    if across is None or along is None or 1 not in (across, along):
        return None
    slow = 0 if along == 1 else 1
    stride, offset = (across, along)[slow], int(parts[1])
    fast_extent = prod(int(axis.size) for axis in (inner, axes)[slow])
    itemsize = dtype.itemsize
    if stride * itemsize % 16 or offset * itemsize % 16 or stride < fast_extent:
        return None
    return Description(offset, stride, slow == 1)


def described_stores(kernel: LoopKernel, contraction: Contraction) -> dict[str, Description]:
    """The results, by buffer, that tensor descriptors can write: rows of two-byte elements. Wider
    ones would take too much shared memory on their way.
    """
    dtypes = {param.name: param.dtype for param in kernel.params}
    result = {}
    for statement in contraction.epilogue:
        if isinstance(statement, Store) and statement.mask is None:
            dtype = dtypes[statement.buffer]
            description = describe_access(
                statement.index, dtype, contraction.rows, contraction.lanes
            )
            if description and not description.inner_is_slow and dtype.itemsize == 2:
                result[statement.buffer] = description
    return result


def _flat_step(axes: Sequence[Axis], coefficients: dict[str, object]) -> int | None:
    """The stride of some axes taken as one; None if they cannot be."""
    step = None
    expected = None
    for axis in reversed(axes):
        own = coefficients.get(axis.symbol.name)
        if own is None or not getattr(own, "is_Integer", False) or not isinstance(axis.size, int):
            return None
        own = int(own)  # type: ignore[call-overload]
        if expected is not None and own != expected:
            return None
        step = own if step is None else step
        expected = own * axis.size
    return step
