"""Nearest-neighbour resampling and its gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.decompositions.windows import LARGEST_UNROLLED
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size, Spec

aten = torch.ops.aten


@decomposition(
    aten.upsample_nearest1d.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest3d.default,
)
def upsample_nearest(
    b: Builder, x: Value, output_size: Sequence[Size], *scales: float | None
) -> Any:
    """Elements repeated for whole factors, else read at floor(index * scale), as eager does."""
    factors = _whole_factors(x.spec.shape[2:], output_size, scales, x.spec.device)
    if factors is not None:
        return _repeated(b, x, factors)
    shape = tuple(output_size)
    places = []
    for d, (size, wanted) in enumerate(zip(x.spec.shape[2:], shape, strict=True)):
        if not isinstance(size, int) or not isinstance(wanted, int):
            return NotImplemented
        position = b.iota(wanted, 0, 1, torch.int64, x.spec.device)
        places.append(
            b.along(
                _source(b, position, _ratio(size, wanted, scales, d, b.result.device), size),
                (d,),
                shape,
            )
        )
    return b.index(x, [None, None, *places])


def _ratio(
    size: int, wanted: int, scales: Sequence[float | None], d: int, device: torch.device
) -> float:
    """Source elements per element of the result; a float32 number, as in eager."""
    given = scales[d] if d < len(scales) and not _ignores_scale(size, wanted, device) else None
    return torch.tensor(1.0 / given if given else size / wanted, dtype=torch.float32).item()


def _ignores_scale(size: Size, wanted: Size, device: torch.device) -> bool:
    """On a CPU a dim that keeps or doubles its size ignores the scale."""
    return device.type == "cpu" and (
        sizes.known_eq(wanted, size) or sizes.known_eq(wanted, 2 * size)
    )


def _source(b: Builder, position: Value, ratio: float, size: int) -> Value:
    """Where places of the result are read in a source dim of this size."""
    scaled = b.mul(b.cast(position, torch.float32), ratio)
    return b.minimum(b.cast(b.floor(scaled), torch.int64), size - 1)


def _whole_factors(
    shape: Sequence[Size],
    wanted: Sequence[Size],
    scales: Sequence[float | None],
    device: torch.device,
) -> list[int] | None:
    """How often each place is repeated, or None when that is not one whole number per dim."""
    factors = []
    for d, (size, new) in enumerate(zip(shape, wanted, strict=True)):
        factor = new // size if not isinstance(size, int) or size > 0 else 0
        given = scales[d] if d < len(scales) else None
        if not isinstance(factor, int) or (factor * size is not new and factor * size != new):
            return None
        if _ignores_scale(size, new, device):
            given = None
        if factor < 1 or (given is not None and not math.isclose(given, factor, rel_tol=1e-6)):
            return None
        factors.append(factor)
    return factors


def _repeated(b: Builder, x: Value, factors: Sequence[int]) -> Value:
    n, channels, *space = x.spec.shape
    dims = [3 + 2 * i for i in range(len(space))]
    wide = [size for pair in zip(space, factors, strict=True) for size in pair]
    y = b.expand(b.restore(x, dims), (n, channels, *wide))
    return b.reshape(
        y, (n, channels, *(size * factor for size, factor in zip(space, factors, strict=True)))
    )


@decomposition(
    aten.upsample_nearest1d_backward.default,
    aten.upsample_nearest2d_backward.default,
    aten.upsample_nearest3d_backward.default,
)
def upsample_nearest_backward(
    b: Builder,
    grad: Value,
    output_size: Sequence[Size],
    input_size: Sequence[Size],
    *scales: float | None,
) -> Any:
    """The sum over each place's repetitions."""
    factors = _whole_factors(input_size[2:], output_size, scales, grad.spec.device)
    grad = b.widen(grad)
    if factors is not None:
        n, channels, *space = input_size
        wide = [size for pair in zip(space, factors, strict=True) for size in pair]
        folded = tuple(3 + 2 * i for i in range(len(space)))
        return b.sum(b.reshape(grad, (n, channels, *wide)), folded)
    if not _gather_pays(b.result, output_size):
        return NotImplemented
    for d, (size, wanted) in enumerate(zip(input_size[2:], output_size, strict=True)):
        if not isinstance(size, int) or not isinstance(wanted, int):
            return NotImplemented
        total = _folded_back(b, grad, 2 + d, size, _ratio(size, wanted, scales, d, b.result.device))
        if total is None:
            return NotImplemented
        grad = total
        grad.spec = grad.spec.replace(stride=_in_order_of(b.result, grad.spec.shape))
    return grad


def _gather_pays(result: Spec, output_size: Sequence[Size]) -> bool:
    """Whether gathering beats eager's scatter: not for shrunk contiguous rows on a CPU."""
    in_rows = sizes.known_eq(result.stride[-1], 1)
    shrinks = sizes.known_lt(output_size[-1], result.shape[-1])
    return result.device.type != "cpu" or not in_rows or not shrinks


def _in_order_of(like: Spec, shape: Sequence[Size]) -> tuple[Size, ...]:
    """Dense strides whose dims lie in memory as those of `like` do."""
    stride: list[Size] = [1] * len(shape)
    step: Size = 1
    for d in sorted(range(len(shape)), key=lambda d: (sizes.hint_of(like.stride[d]), -d)):
        stride[d] = step
        step = step * shape[d]
    return tuple(stride)


def _folded_back(b: Builder, grad: Value, dim: int, size: int, ratio: float) -> Value | None:
    """One dim of a gradient summed over the places that each of `size` places was read at; None if
    those are many.

    They are neighbours: from floor(place / ratio) on, give or take what rounding does, which is
    found out here.
    """
    wanted = sizes.as_int(grad.spec.shape[dim])
    inverse = torch.tensor(1.0 / ratio, dtype=torch.float32)
    read = (torch.arange(wanted, dtype=torch.float32) * ratio).floor().long().clamp(max=size - 1)
    begins = (torch.arange(size, dtype=torch.float32) * inverse).floor().long()
    distance = torch.arange(wanted) - begins[read]
    if not wanted or int(distance.max() - distance.min()) >= LARGEST_UNROLLED:
        return None
    shape = (*grad.spec.shape[:dim], size, *grad.spec.shape[dim + 1 :])
    places = b.iota(size, 0, 1, torch.int64, grad.spec.device)
    begin = b.cast(b.floor(b.mul(b.cast(places, torch.float32), inverse.item())), torch.int64)
    total = None
    for step in range(int(distance.min()), int(distance.max()) + 1):
        position = b.maximum(b.minimum(b.add(begin, step), wanted - 1), 0)
        reads = b.bitwise_and(
            b.eq(_source(b, position, ratio, size), places), b.eq(position, b.add(begin, step))
        )
        share = b.index(grad, [*[None] * dim, position])
        share = b.where(b.along(reads, (dim,), shape), share, 0.0)
        total = share if total is None else b.add(total, share)
    return total
