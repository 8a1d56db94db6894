"""Lower a call of a matrix product to a loop nest, for kernels of our own in place of a library's.

buf0 = extern aten.addmm.out(b, x, w)
->  nest addmm (i0 < 512, i1 < 768 | r0 < 64) { v0 = load x[64*i0 + r0]; v1 = cast v0 :f32; ...
    v4 = mul v1 v3; v5 = reduce sum v4; v6 = load b[i1]; ...; store buf0[768*i0 + i1] v9 }

The nest sums in float32 (int8 in int32), as libraries do, and rounds once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.indexing.expressions import int_if_known, linear, symbol
from flambeau_inductor.ir import Axis
from flambeau_inductor.lowering.body_builder import BodyBuilder
from flambeau_inductor.lowering.split_axes import split_axes
from flambeau_inductor.nodes import Buffer, LoopNest, TensorRef
from flambeau_prims.sizes import hint_of
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.nodes import ExternCall, Lowered

PRODUCTS = {
    # operator -> position of the first factor; before it stands what is added
    "aten.mm.out": 0, "aten.bmm.out": 0, "aten.addmm.out": 1, "aten.baddbmm.out": 1,
    "aten._int_mm.default": 0,
}  # fmt: skip

SUM_DTYPES = {
    torch.float32: torch.float32, torch.float16: torch.float32, torch.bfloat16: torch.float32,
    torch.int8: torch.int32,
}  # fmt: skip


def product_name(call: ExternCall) -> str | None:
    """ "addmm", if the call multiplies matrices that kernels can multiply; else None."""
    position = PRODUCTS.get(call.op)
    if position is None or len(call.args) != position + 2:
        return None
    if not all(isinstance(arg, TensorRef) for arg in call.args):
        return None
    first, second = (arg.spec.dtype for arg in call.args[position:])
    scales = (call.kwargs.get(key, 1) for key in ("alpha", "beta"))
    if first is not second or first not in SUM_DTYPES or call.kwargs.keys() - {"alpha", "beta"}:
        return None
    if not all(isinstance(scale, (int, float)) for scale in scales):
        return None
    return call.op.split(".")[1].lstrip("_")


def product_result(call: ExternCall) -> str:
    """The buffer that a product is written to."""
    name = call.out[0][1] if call.out else call.results[0]
    assert name is not None
    return name


def contraction_nest(call: ExternCall, lowered: Lowered) -> LoopNest:
    """The loop nest that computes what the call does."""
    return _Contraction(call, lowered).nest()


def split_contraction(
    call: ExternCall, lowered: Lowered, parts: int, name: str
) -> tuple[LoopNest, LoopNest, Buffer]:
    """Two loop nests that compute what the call does, and the buffer `name` between them, which
    holds the sums of so many parts of the inner axis. The parts must be of one length.
    """
    return _Contraction(call, lowered).split(parts, name)


class _Contraction:
    def __init__(self, call: ExternCall, lowered: Lowered) -> None:
        self.call = call
        self.lowered = lowered
        self.sizes = lowered.sizes
        self.builder = BodyBuilder()
        self.position = PRODUCTS[call.op]
        self.result = product_result(call)
        spec = lowered.buffers[self.result].spec
        self.spec = spec
        self.total = SUM_DTYPES[call.args[self.position].spec.dtype]
        shape = self.sizes.convert_all(spec.shape)
        dims = [dim for dim, size in enumerate(shape) if size is not sympy.S.One]
        dims.sort(key=lambda dim: -hint_of(spec.stride[dim]))
        self.index: list[sympy.Expr] = [sympy.S.Zero] * len(shape)
        outer = []
        for number, dim in enumerate(dims):
            self.index[dim] = symbol(f"i{number}")
            outer.append(Axis(self.index[dim], int_if_known(shape[dim])))
        self.outer = tuple(outer)

    def nest(self) -> LoopNest:
        """Factors, sum, what is added, store."""
        depth = symbol("r0")
        product = self.product(depth)
        return self.finish(self.builder.reduce("sum", product, self.total), self.length())

    def split(self, parts: int, name: str) -> tuple[LoopNest, LoopNest, Buffer]:
        """The sums of the parts, and the sum of those."""
        part, depth = symbol(f"i{len(self.outer)}"), symbol("r0")
        chunk = sympy.expand(self.length() / parts)
        spec = Spec.of((parts, *self.spec.shape), dtype=self.total, device=self.spec.device)
        strides = self.sizes.convert_all(spec.stride)
        value = self.builder.reduce("sum", self.product(part * chunk + depth), self.total)
        self.builder.store(name, linear((part, *self.index), strides, sympy.S.Zero), value)
        axes = (Axis(part, parts), *self.outer), (Axis(depth, int_if_known(chunk)),)
        first = self.make(*axes, "mm_parts")
        self.builder = BodyBuilder()
        loaded = self.builder.load(
            name, linear((depth, *self.index), strides, sympy.S.Zero), self.total
        )
        second = self.finish(self.builder.reduce("sum", loaded, self.total), sympy.Integer(parts))
        return first, second, Buffer(name, spec, "computed")

    def length(self) -> sympy.Expr:
        """The length of the inner axis."""
        return self.sizes.convert(self.call.args[self.position].spec.shape[-1])

    def product(self, depth: sympy.Expr) -> str:
        """The product of a pair of elements, at a point of the inner axis."""
        left, right = self.call.args[self.position :]
        batch, (row, lane) = self.index[:-2], self.index[-2:]
        return self.builder.pointwise(
            "mul",
            self.factor(left, (*batch, row, depth)),
            self.factor(right, (*batch, depth, lane)),
        )

    def finish(self, value: str, length: sympy.Expr) -> LoopNest:
        """What is done with a sum over the inner axis: scale, add, store."""
        builder, call = self.builder, self.call
        if self.position:
            value = self.scaled(value, call.kwargs.get("alpha", 1))
            beta = call.kwargs.get("beta", 1)
            if beta != 0:  # at 0, NaNs of what is added do not count
                value = builder.pointwise("add", value, self.scaled(self.added(call.args[0]), beta))
        address = linear(tuple(self.index), self.sizes.convert_all(self.spec.stride), sympy.S.Zero)
        builder.store(self.result, address, builder.cast(value, self.spec.dtype))
        inner = (Axis(symbol("r0"), int_if_known(length)),)
        return self.make(self.outer, inner, product_name(call) or "mm")

    def make(self, outer: tuple[Axis, ...], inner: tuple[Axis, ...], label: str) -> LoopNest:
        """The nest of what was built."""
        call = self.call
        outer, inner, body = split_axes(outer, inner, self.builder.finish())
        # A factor that the kernel computes is rounded as the graph says: so it is multiplied.
        return LoopNest(
            call.order, call.device, outer, inner, body, label, call.where, keeps_casts=True
        )

    def factor(self, ref: TensorRef, index: Sequence[sympy.Expr]) -> str:
        """An element of a factor, in the dtype of the sum."""
        return self.builder.cast(self.load(ref, index), self.total)

    def added(self, ref: TensorRef) -> str:
        """An element of what is added, broadcast."""
        index = self.index[len(self.index) - len(ref.spec.shape) :]
        shape = self.sizes.convert_all(ref.spec.shape)
        own = [
            sympy.S.Zero if size is sympy.S.One else i for i, size in zip(index, shape, strict=True)
        ]
        return self.builder.cast(self.load(ref, own), self.total)

    def load(self, ref: TensorRef, index: Sequence[sympy.Expr]) -> str:
        """An element of an operand in memory."""
        offset = self.sizes.convert(ref.spec.offset - self.lowered.buffers[ref.buffer].spec.offset)
        address = linear(tuple(index), self.sizes.convert_all(ref.spec.stride), offset)
        return self.builder.load(ref.buffer, address, ref.spec.dtype)

    def scaled(self, value: str, by: float) -> str:
        """The value times a number."""
        if by == 1:
            return value
        return self.builder.pointwise("mul", value, self.builder.constant(by, self.total))
