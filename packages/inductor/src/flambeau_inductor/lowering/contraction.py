"""Lower a call of a matrix product, or of a 1x1 convolution, to a loop nest, for kernels of our own
in place of a library's.

buf0 = extern aten.addmm.out(b, x, w)
->  nest addmm (i0 < 512, i1 < 768 | r0 < 64) { v0 = load x[64*i0 + r0]; v1 = cast v0 :f32; ...
    v4 = mul v1 v3; v5 = reduce sum v4; v6 = load b[i1]; ...; store buf0[768*i0 + i1] v9 }

The nest sums in float32 (int8 in int32), as libraries do, and rounds once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.indexing.expressions import int_if_known, linear, symbol
from flambeau_inductor.ir import Axis
from flambeau_inductor.lowering.body_builder import BodyBuilder
from flambeau_inductor.lowering.product import Product
from flambeau_inductor.lowering.row_groups import search_group
from flambeau_inductor.lowering.scaled_products import (
    ARGUMENTS,
    INT8_WEIGHTS,
    product_with_int8_weights,
    product_with_scales_or_groups,
)
from flambeau_inductor.lowering.split_axes import split_axes
from flambeau_inductor.nodes import Buffer, LoopNest, TensorRef
from flambeau_prims.sizes import hint_of
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.lowering.packing import PackedFactor
    from flambeau_inductor.nodes import ExternCall, Lowered

SUM_DTYPES = {
    torch.float32: torch.float32, torch.float16: torch.float32, torch.bfloat16: torch.float32,
    torch.int8: torch.int32, torch.float8_e4m3fn: torch.float32, torch.float8_e5m2: torch.float32,
}  # fmt: skip


def product_of_call(call: ExternCall) -> Product | None:
    """What the call multiplies, if kernels can multiply it; else None."""
    match call.op, call.args:
        case ("aten.mm.out" | "aten.bmm.out" | "aten._int_mm.default" as op, (left, right)):
            product = Product(op.split(".")[1].lstrip("_"), left, right, None, (-1, -2))
        case ("aten.mm.dtype_out", (left, right, _)):
            product = Product("mm", left, right, None, (-1, -2))
        case ("aten.addmm.out" | "aten.baddbmm.out" as op, (added, left, right)):
            product = Product(op.split(".")[1], left, right, added, (-1, -2))
        case (
            "aten.convolution.default",
            (left, TensorRef() as right, added, stride, padding, _, False, _, 1),
        ) if all(size == 1 for size in right.spec.shape[2:]) and not any(padding):
            spread = tuple(stride) * (len(right.spec.shape) - 2 if len(stride) == 1 else 1)
            product = Product("convolution", left, right, added, (1, 1), spread)
        case (str() as op, _) if op == INT8_WEIGHTS:
            int8 = product_with_int8_weights(call)
            if int8 is None:
                return None
            product = int8
        case (str() as op, _) if op in ARGUMENTS:
            scaled = product_with_scales_or_groups(call)
            if scaled is None:
                return None
            product, call = scaled, replace(call, kwargs={})
        case _:
            return None
    return product if _is_supported(call, product) else None


def _is_supported(call: ExternCall, product: Product) -> bool:
    left, right = product.factors
    scales = (call.kwargs.get(key, 1) for key in ("alpha", "beta"))
    dtype = left.spec.dtype
    if dtype not in SUM_DTYPES:
        return False
    if dtype is not right.spec.dtype and call.op != INT8_WEIGHTS:
        return False
    if call.kwargs.keys() - {"alpha", "beta"}:
        return False
    if product.stride is not None and dtype is torch.float32:
        return False  # whether cuDNN rounds to TF32 is a setting that nobody guards
    if not all(isinstance(scale, (int, float)) for scale in scales):
        return False
    sizes = (*left.spec.shape, *right.spec.shape)
    return left.spec.shape[product.depth[0]] != 1 and not any(
        isinstance(size, int) and size == 0 for size in sizes
    )


def product_result(call: ExternCall) -> str:
    """The buffer that a product is written to."""
    name = call.out[0][1] if call.out else call.results[0]
    assert name is not None
    return name


def contraction_nest(
    call: ExternCall, lowered: Lowered, packed: PackedFactor | None = None
) -> LoopNest:
    """The loop nest that computes what the call does, from a `packed` right factor if given."""
    return _Contraction(call, lowered, packed).nest()


def split_contraction(
    call: ExternCall, lowered: Lowered, parts: int, name: str
) -> tuple[LoopNest, LoopNest, Buffer]:
    """Two loop nests that compute what the call does, and the buffer `name` between them, which
    holds the sums of so many parts of the inner axis. The parts must be of one length.
    """
    return _Contraction(call, lowered).split(parts, name)


class _Contraction:
    def __init__(
        self, call: ExternCall, lowered: Lowered, packed: PackedFactor | None = None
    ) -> None:
        product = product_of_call(call)
        self.packed = packed
        assert product is not None
        self.call = call
        self.what = product
        self.lowered = lowered
        self.sizes = lowered.sizes
        self.builder = BodyBuilder()
        self.result = product_result(call)
        spec = lowered.buffers[self.result].spec
        self.spec = spec
        self.total = SUM_DTYPES[product.left.spec.dtype]
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
        return self.sizes.convert(self.what.left.spec.shape[self.what.depth[0]])

    def product(self, depth: sympy.Expr) -> str:
        """The product of a pair of elements, at a point of the inner axis."""
        stride = self.what.stride
        if stride is None:
            batch, (row, lane) = self.index[:-2], self.index[-2:]
            places = (*batch, row, depth), (*batch, depth, lane)
            if self.what.bounds is not None:
                places = (row, depth), (self.group(self.what.bounds, row), depth, lane)
        else:
            place, channel, *rest = self.index
            moved = (i * step for i, step in zip(rest, stride, strict=True))
            places = (place, depth, *moved), (channel, depth, *(sympy.S.Zero for _ in rest))
        multiplied = self.what.left.spec.dtype
        factors = [
            self.builder.cast(self.builder.cast(self.load(ref, index), multiplied), self.total)
            for ref, index in zip(self.what.factors, places, strict=True)
        ]
        if self.packed is not None:
            loaded = self.packed.load(self.builder, places[1])
            factors[1] = self.builder.cast(loaded, self.total)
        return self.builder.pointwise("mul", *factors)

    def scale(self, ref: TensorRef) -> str:
        """A factor's scale: of the tensor, or of this point's row or lane."""
        if self.what.bounds is None:
            return self.added(ref)
        row, lane = self.index
        is_rows = len(ref.spec.shape) == 1
        place = (row,) if is_rows else (self.group(self.what.bounds, row), lane)
        return self.load(ref, place)

    def group(self, bounds: TensorRef, row: sympy.Expr) -> sympy.Expr:
        """The group of a row."""
        count = bounds.spec.shape[0]
        assert isinstance(count, int)
        start = self.lowered.buffers[bounds.buffer].spec.offset
        offset = self.sizes.convert(bounds.spec.offset - start)
        return symbol(search_group(self.builder, bounds.buffer, count, row, offset))

    def finish(self, value: str, length: sympy.Expr) -> LoopNest:
        """What is done with a sum over the inner axis: scale, add, store."""
        builder, call = self.builder, self.call
        for scale in self.what.scales:
            value = builder.pointwise("mul", value, self.scale(scale))
        if self.what.scales and self.what.added is not None:
            value = builder.pointwise("add", value, self.added(self.what.added))
        elif self.what.added is not None:
            value = self.scaled(value, call.kwargs.get("alpha", 1))
            beta = call.kwargs.get("beta", 1)
            if beta != 0:  # at 0, NaNs of what is added do not count
                added = self.scaled(self.added(self.what.added), beta)
                value = builder.pointwise("add", value, added)
        address = linear(tuple(self.index), self.sizes.convert_all(self.spec.stride), sympy.S.Zero)
        builder.store(self.result, address, builder.cast(value, self.spec.dtype))
        inner = (Axis(symbol("r0"), int_if_known(length)),)
        return self.make(self.outer, inner, self.what.name)

    def make(self, outer: tuple[Axis, ...], inner: tuple[Axis, ...], label: str) -> LoopNest:
        """The nest of what was built."""
        call = self.call
        body = self.builder.finish()
        if self.packed is None:  # a code generator walks over panels itself
            outer, inner, body = split_axes(outer, inner, body)
        # A factor that the kernel computes is rounded as the graph says: so it is multiplied.
        return LoopNest(
            call.order, call.device, outer, inner, body, label, call.where, keeps_casts=True,
            computes=call.computes,
        )  # fmt: skip

    def added(self, ref: TensorRef) -> str:
        """An element of what is added, broadcast: to a convolution, one of each channel."""
        index = self.index[len(self.index) - len(ref.spec.shape) :]
        if self.what.stride is not None:
            index = self.index[1:2]
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
