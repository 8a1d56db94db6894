"""Order a matrix in panels, as a CPU's matrix products read it.

    w: f32[1024, 100] (inner axis, lanes), panels of 32 lanes
->  nest pack (i0 < 4, i1 < 1024, i2 < 32): store buf9[32768*i0 + 32*i1 + i2] w[i1, 32*i0 + i2]

Behind the last lane are zeros. With a `step` of 2, two numbers that follow one another along the
inner axis lie side by side: (i0 < 4, i1 < 512, i2 < 32, i3 < 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.indexing.expressions import FloorDiv, Mod, linear, symbol
from flambeau_inductor.ir import Axis
from flambeau_inductor.lowering.body_builder import BodyBuilder
from flambeau_inductor.nodes import Buffer, LoopNest
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.nodes import ExternCall, Lowered, TensorRef


@dataclass(frozen=True)
class PackedFactor:
    """The buffer that holds a packed matrix, or several (`batch`)."""

    name: str
    dtype: torch.dtype
    batch: tuple[int, ...]
    depth: int
    lanes: int
    width: int
    step: int
    """Numbers that follow one another along the inner axis in a word."""
    block: int = 1
    """Panels have whole blocks of so many words, with zeros behind the last number."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch, panels, steps, lanes of a panel, numbers of a step."""
        panels, blocks = -(-self.lanes // self.width), -(-self.depth // (self.step * self.block))
        return (*self.batch, panels, blocks * self.block, self.width, self.step)

    @property
    def buffer(self) -> Buffer:
        """The buffer, as it is declared."""
        return Buffer(self.name, Spec.of(self.shape, dtype=self.dtype), "computed")

    def load(self, builder: BodyBuilder, place: Sequence[sympy.Expr]) -> str:
        """The element at a place of the matrix: batch, inner axis, lane."""
        *batch, depth, lane = place
        step, width = sympy.Integer(self.shape[-1]), sympy.Integer(self.width)
        index = (*batch, FloorDiv(lane, width), FloorDiv(depth, step), Mod(lane, width),
                 Mod(depth, step))  # fmt: skip
        return builder.load(self.name, self.address(index), self.dtype)

    def address(self, index: Sequence[sympy.Expr]) -> sympy.Expr:
        """Where an element of the buffer lies."""
        strides = tuple(sympy.Integer(step) for step in self.buffer.spec.stride)
        return linear(tuple(index), strides, sympy.S.Zero)


def packing_nest(
    call: ExternCall, lowered: Lowered, factor: TensorRef, packed: PackedFactor
) -> LoopNest:
    """The nest that packs a factor of a product."""
    builder = BodyBuilder()
    shape = packed.shape
    index = [symbol(f"i{dim}") if size != 1 else sympy.S.Zero for dim, size in enumerate(shape)]
    *batch, panel, step, lane, part = index
    depth, place = step * shape[-1] + part, panel * packed.width + lane
    inside = None
    for value, size, most in (
        (depth, packed.depth, shape[-3] * shape[-1]), (place, packed.lanes, shape[-4] * shape[-2]),
    ):  # fmt: skip
        if size != most:
            bound = builder.constant(size, torch.int64)
            below = builder.pointwise("lt", builder.index_value(value, torch.int64), bound)
            inside = builder.both(inside, below)
    sizes, spec = lowered.sizes, factor.spec
    offset = sizes.convert(spec.offset - lowered.buffers[factor.buffer].spec.offset)
    address = linear((*batch, depth, place), sizes.convert_all(spec.stride), offset)
    value = builder.load(factor.buffer, address, spec.dtype, inside)
    builder.store(packed.name, packed.address(index), value)
    axes = tuple(Axis(i, size) for i, size in zip(index, shape, strict=True) if size != 1)
    return LoopNest(
        call.order, call.device, axes, (), builder.finish(), "pack", call.where,
        computes=call.computes,
    )  # fmt: skip
