"""Resampling by weighted neighbours: linear, bilinear, trilinear, bicubic, and antialiased.

    upsample_linear1d(x, [2 * n])  ->  low, high, fraction = of (i + 0.5) / 2 - 0.5 for i < 2 * n
                                       x[low] * (1 - fraction) + x[high] * fraction

The gradient is gathered: the places that read an element are neighbours, so each element adds up
the gradients of a window of places, weighted as these read it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import primitives, sizes
from flambeau_prims.builder import compute_dtype
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.decompositions.windows import LARGEST_UNROLLED
from flambeau_prims.size_floats import FloatExpr, as_float, float_of
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.graph import Value
    from flambeau_prims.spec import Size, Spec

aten = torch.ops.aten

LARGEST_AT_ONCE = 16
"""On a GPU, gradients of more places than this are added up dim by dim, through memory; on a CPU
all are, since the first of these steps goes along contiguous rows.
"""

CUBIC = -0.75
"""The coefficient of cubic convolution; antialiased, it is -0.5."""

ANTIALIASED_CUBIC = -0.5


@dataclass(frozen=True)
class Resampling:
    """How one dim of `size` elements is resampled to `wanted` places.

    `ratio`: elements per place. `corners`: the first and last places are the first and last
    elements; else places and elements are intervals of one line. `kind`: "linear", "cubic",
    "antialiased_linear" or "antialiased_cubic". `kept`: each place is its element, and no neighbour
    is read, whose nan would spread.
    """

    kind: str
    size: Size
    wanted: Size
    ratio: float | FloatExpr
    corners: bool
    dtype: torch.dtype
    kept: bool = False

    @property
    def is_symbolic(self) -> bool:
        """Whether it depends on symbolic sizes."""
        return any(isinstance(item, (Expr, FloatExpr)) for item in vars(self).values())


Tap = tuple[Any, Any]
"""Where a place reads an element, and the weight of that element (None for 1): tensors, or Values
of a graph.
"""


def resamplings(
    kind: str, shape: Sequence[Size], wanted: Sequence[Size], corners: bool,
    scales: Sequence[Any], like: Spec, per_dim: bool,
) -> list[Resampling]:  # fmt: skip
    """A Resampling for each dim of the image. `per_dim`: eager copies a dim that keeps its size,
    whatever its scale is.
    """
    result = []
    dtype = compute_dtype(like.dtype)
    for d, (size, new) in enumerate(zip(shape, wanted, strict=True)):
        scale = scales[d] if d < len(scales) else None
        kept = per_dim and sizes.eq(size, new)
        if kept:
            scale = None
        ratio: Any
        if corners:
            ratio = float_of("/", size - 1, new - 1) if sizes.gt(new, 1) else 0.0
        elif scale is not None and (isinstance(scale, FloatExpr) or scale > 0):
            ratio = float_of("/", 1.0, scale)
        else:
            ratio = float_of("/", size, new)
        if not isinstance(ratio, FloatExpr):
            ratio = torch.tensor(ratio, dtype=dtype).item()
        result.append(Resampling(kind, size, new, ratio, corners, dtype, kept))
    return result


def _is_copy(dims: Sequence[Resampling]) -> bool:
    """Whether the image keeps its size."""
    return all(sizes.eq(dim.size, dim.wanted) for dim in dims)


# 1. What a place reads


def taps(ops: Any, dim: Resampling, position: Any) -> list[Tap]:
    """What the places at `position` read. `ops`: a Builder, or the primitives on real tensors."""
    if dim.kind.startswith("antialiased"):
        return _antialiased_taps(ops, dim, position)
    if dim.kept:
        # As eager multiplies: inf * 0 is nan.
        part = ops.mul(ops.cast(position, dim.dtype), 0.0)
        return [(position, ops.sub(1.0, part)), (position, part)]
    source = _source(ops, dim, position)
    if dim.kind == "linear":
        last = dim.size - 1
        low = inside(ops, ops.cast(ops.floor(source), torch.int64), dim)
        part = ops.sub(source, ops.cast(low, dim.dtype))
        part = ops.minimum(ops.maximum(part, 0.0), 1.0)
        high = ops.minimum(ops.add(low, 1), last)
        return [(low, ops.sub(1.0, part)), (high, part)]
    begin = ops.floor(source)
    part = ops.sub(source, begin)
    first = ops.sub(ops.cast(begin, torch.int64), 1)
    return [
        (inside(ops, ops.add(first, k) if k else first, dim), weight)
        for k, weight in enumerate(cubic_weights(ops, part))
    ]


def _source(ops: Any, dim: Resampling, position: Any) -> Any:
    """Where places lie on the line of elements."""
    position = ops.cast(position, dim.dtype)
    if dim.corners:
        return ops.mul(position, dim.ratio)
    source = ops.sub(ops.mul(ops.add(position, 0.5), dim.ratio), 0.5)
    return ops.maximum(source, 0.0) if dim.kind == "linear" else source


def inside(ops: Any, place: Any, dim: Resampling) -> Any:
    """A place, or the nearest element."""
    return ops.minimum(ops.maximum(place, 0), dim.size - 1)


def cubic_weights(ops: Any, part: Any) -> list[Any]:
    """Keys' cubic convolution at 1 + t, t, 1 - t and 2 - t."""
    rest = ops.sub(1.0, part)
    return [
        _cubic_far(ops, ops.add(part, 1.0), CUBIC), _cubic_near(ops, part, CUBIC),
        _cubic_near(ops, rest, CUBIC), _cubic_far(ops, ops.add(rest, 1.0), CUBIC),
    ]  # fmt: skip


def _cubic_near(ops: Any, x: Any, a: float) -> Any:
    """((a + 2) * x - (a + 3)) * x * x + 1, for x <= 1."""
    inner = ops.sub(ops.mul(x, a + 2), a + 3)
    return ops.add(ops.mul(ops.mul(inner, x), x), 1.0)


def _cubic_far(ops: Any, x: Any, a: float) -> Any:
    """((a * x - 5 * a) * x + 8 * a) * x - 4 * a, for 1 < x < 2."""
    inner = ops.add(ops.mul(ops.sub(ops.mul(x, a), 5 * a), x), 8 * a)
    return ops.sub(ops.mul(inner, x), 4 * a)


def _support(dim: Resampling) -> float:
    radius = 1.0 if dim.kind == "antialiased_linear" else 2.0
    return radius * max(as_float(dim.ratio), 1.0)


def _antialiased_taps(ops: Any, dim: Resampling, position: Any) -> list[Tap]:
    """The elements under the filter, which is as wide as a place, and their normed weights."""
    support, ratio = _support(dim), as_float(dim.ratio)
    center = ops.mul(ops.add(ops.cast(position, dim.dtype), 0.5), ratio)
    begin = ops.cast(ops.add(ops.sub(center, support), 0.5), torch.int64)
    end = ops.cast(ops.add(ops.add(center, support), 0.5), torch.int64)
    begin, end = ops.maximum(begin, 0), ops.minimum(end, dim.size)
    weights, places = [], []
    total = None
    for k in range(math.ceil(support) * 2 + 1):
        place = ops.add(begin, k) if k else begin
        x = ops.add(ops.sub(ops.cast(place, dim.dtype), center), 0.5)
        weight = _filter(ops, dim.kind, ops.abs(ops.mul(x, 1.0 / max(ratio, 1.0))))
        weight = ops.where(ops.lt(place, end), weight, 0.0)
        total = weight if total is None else ops.add(total, weight)
        weights.append(weight)
        places.append(inside(ops, place, dim))
    return [(place, ops.div(weight, total)) for place, weight in zip(places, weights, strict=True)]


def _filter(ops: Any, kind: str, x: Any) -> Any:
    """The weight at distance x >= 0."""
    if kind == "antialiased_linear":
        return ops.maximum(ops.sub(1.0, x), 0.0)
    near = _cubic_near(ops, x, ANTIALIASED_CUBIC)
    far = ops.where(ops.lt(x, 2.0), _cubic_far(ops, x, ANTIALIASED_CUBIC), 0.0)
    return ops.where(ops.lt(x, 1.0), near, far)


# 2. Forward


def upsample(
    b: Builder, x: Value, output_size: Sequence[Size], corners: bool, *scales: Any, kind: str
) -> Any:
    """The image at every place."""
    if not x.spec.dtype.is_floating_point:
        return NotImplemented
    on_cpu = x.spec.device.type == "cpu"
    per_dim = on_cpu and kind != "cubic"
    dims = resamplings(kind, x.spec.shape[2:], output_size, corners, scales, x.spec, per_dim)
    antialiased = kind.startswith("antialiased")
    if _is_copy(dims) and (antialiased or not on_cpu):
        return b.clone(x)
    if not antialiased:
        return _sampled(b, x, dims, 2)
    if on_cpu and sizes.eq(output_size[-1], 1):
        return NotImplemented  # eager reads other rows there, depending on the strides
    if any(dim.is_symbolic or _support(dim) * 2 > LARGEST_UNROLLED for dim in dims):
        return NotImplemented
    x = b.widen(x)
    for d in reversed(range(len(dims))):
        if not dims[d].kept:
            x = _sampled(b, x, dims[d : d + 1], 2 + d)
    return x


def _sampled(b: Builder, x: Value, dims: Sequence[Resampling], first: int) -> Value:
    """x resampled along the dims from `first` on: inner dims first, as eager adds up."""
    wanted = tuple(dim.wanted for dim in dims)
    shape = (*x.spec.shape[:first], *wanted, *x.spec.shape[first + len(dims) :])
    read = []
    for d, dim in enumerate(dims):
        place = b.iota(dim.wanted, 0, 1, torch.int64, x.spec.device)
        read.append([
            (b.along(index, (d,), wanted), b.along(weight, (first + d,), shape))
            for index, weight in taps(b, dim, place)
        ])  # fmt: skip

    def total(chosen: tuple[Value, ...]) -> Value:
        if len(chosen) == len(dims):
            return b.widen(b.index(x, [*[None] * first, *chosen]))
        parts = [b.mul(total((*chosen, index)), weight) for index, weight in read[len(chosen)]]
        if dims[len(chosen)].kind.startswith("antialiased"):
            # Elements that are not under the filter may be inf or nan.
            weights = [weight for _, weight in read[len(chosen)]]
            parts = [
                b.where(b.eq(weight, 0.0), 0.0, part)
                for weight, part in zip(weights, parts, strict=True)
            ]
        result = parts[0]
        for part in parts[1:]:
            result = b.add(result, part)
        return result

    return total(())


# 3. Backward


def upsample_backward(
    b: Builder, grad: Value, output_size: Sequence[Size], input_size: Sequence[Size],
    corners: bool, *scales: Any, kind: str,
) -> Any:  # fmt: skip
    """For each element the gradients of the places that read it."""
    on_cpu = grad.spec.device.type == "cpu"
    per_dim = on_cpu and kind == "linear"
    dims = resamplings(kind, input_size[2:], output_size, corners, scales, grad.spec, per_dim)
    if any(dim.is_symbolic for dim in dims) or sizes.eq(grad.spec.numel, 0):
        return NotImplemented
    if _is_copy(dims) and not (on_cpu and kind.startswith("antialiased")):
        return b.clone(grad)
    return gathered(b, grad, dims)


def gathered(b: Builder, grad: Value, dims: Sequence[Any], read_by: Any = taps) -> Any:
    """The gradient of a resampling of the last dims; `read_by` as `taps`. NotImplemented where an
    element is read by many places.
    """
    readers = [Readers.of(dim, read_by) for dim in dims]
    if any(reader.count > LARGEST_UNROLLED for reader in readers):
        return NotImplemented
    first = grad.spec.ndim - len(dims)
    grad = b.widen(grad)
    at_once = LARGEST_AT_ONCE if grad.spec.device.type != "cpu" else 1
    if math.prod(reader.count for reader in readers) <= at_once:
        return _gathered_along(b, grad, readers, first)
    for d, reader in enumerate(readers):
        grad = _gathered_along(b, grad, [reader], first + d)
        grad.spec = grad.spec.replace(stride=in_order_of(b.result.stride, grad.spec.shape))
    return grad


def in_order_of(like: Sequence[Size], shape: Sequence[Size]) -> tuple[Size, ...]:
    """Dense strides whose dims lie in memory as those of `like` do."""
    stride: list[Size] = [1] * len(shape)
    step: Size = 1
    for d in sorted(range(len(shape)), key=lambda d: (sizes.hint_of(like[d]), -d)):
        stride[d] = step
        step = step * shape[d]
    return tuple(stride)


@dataclass(frozen=True)
class Readers:
    """The places that read each element of a dim: those from floor(element * inverse) + low on,
    `count` of them at most.
    """

    dim: Any
    read_by: Any
    inverse: float
    low: int
    count: int

    @staticmethod
    def of(dim: Any, read_by: Any) -> Readers:
        """The readers, found by running the forward's arithmetic on the host."""
        inverse = 1.0 / dim.ratio if dim.ratio else 0.0
        inverse = torch.tensor(inverse, dtype=dim.dtype).item()
        wanted = torch.arange(sizes.as_int(dim.wanted))
        elements = torch.arange(sizes.as_int(dim.size), dtype=dim.dtype)
        begins = (elements * inverse).floor().long()
        low, high = 2**62, -(2**62)
        for index, weight in read_by(primitives, dim, wanted):
            distance = wanted - begins[index]
            distance = distance[index >= 0 if weight is None else weight != 0.0]
            if not distance.numel():
                continue
            low, high = min(low, int(distance.min())), max(high, int(distance.max()))
        return Readers(dim, read_by, inverse, low, high - low + 1)

    def at(self, b: Builder, step: int, device: torch.device) -> tuple[Value, Value, Value | None]:
        """Of each element's reader number `step`: its place, whether it exists, its weight."""
        dim = self.dim
        elements = b.iota(dim.size, 0, 1, torch.int64, device)
        begin = b.cast(b.floor(b.mul(b.cast(elements, dim.dtype), self.inverse)), torch.int64)
        wanted = b.add(begin, self.low + step)
        place = b.minimum(b.maximum(wanted, 0), dim.wanted - 1)
        exists, weight = None, None
        for index, part in self.read_by(b, dim, place):
            reads = b.eq(index, elements)
            exists = reads if exists is None else b.bitwise_or(exists, reads)
            if part is None:
                continue
            part = b.where(reads, part, b.full(part.spec.shape, 0.0, dim.dtype, device))
            weight = part if weight is None else b.add(weight, part)
        assert exists is not None
        return place, b.bitwise_and(exists, b.eq(place, wanted)), weight


def _gathered_along(b: Builder, grad: Value, readers: Sequence[Readers], first: int) -> Value:
    """The gradient summed over the readers of some dims at once."""
    inner = tuple(reader.dim.size for reader in readers)
    shape = (*grad.spec.shape[:first], *inner, *grad.spec.shape[first + len(readers) :])
    device = grad.spec.device
    found = [[r.at(b, step, device) for step in range(r.count)] for r in readers]

    def summed(chosen: tuple[Value, ...]) -> Value:
        """The sum over the readers along the dims that are not chosen yet."""
        d = len(chosen)
        if d == len(readers):
            places = [b.along(place, (n,), inner) for n, place in enumerate(chosen)]
            return b.index(grad, [*[None] * first, *places])
        total = None
        for place, reads, weight in found[d]:
            share = summed((*chosen, place))
            if weight is not None:
                share = b.mul(share, b.along(weight, (first + d,), shape))
            share = b.where(b.along(reads, (first + d,), shape), share, 0.0)
            total = share if total is None else b.add(total, share)
        assert total is not None
        return total

    return summed(())


for _kind, _name in (
    ("linear", "upsample_linear1d"),
    ("linear", "upsample_bilinear2d"),
    ("linear", "upsample_trilinear3d"),
    ("cubic", "upsample_bicubic2d"),
    ("antialiased_linear", "_upsample_bilinear2d_aa"),
    ("antialiased_cubic", "_upsample_bicubic2d_aa"),
):
    decomposition(getattr(aten, _name).default)(partial(upsample, kind=_kind))
    decomposition(getattr(aten, f"{_name}_backward").default)(
        partial(upsample_backward, kind=_kind)
    )
