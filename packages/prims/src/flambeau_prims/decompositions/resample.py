"""Nearest-neighbour resampling and its gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten


@decomposition(
    aten.upsample_nearest1d.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest3d.default,
)
def upsample_nearest(
    b: Builder, x: Value, output_size: Sequence[Size], *scales: float | None
) -> Any:
    """Each place repeated when sizes grow by whole factors; else read at floor(place * scale), computed as eager does."""
    factors = _whole_factors(x.spec.shape[2:], output_size, scales)
    if factors is not None:
        return _repeated(b, x, factors)
    shape = tuple(output_size)
    places = []
    for d, (size, wanted) in enumerate(zip(x.spec.shape[2:], shape, strict=True)):
        if not isinstance(size, int) or not isinstance(wanted, int):
            return NotImplemented
        given = scales[d] if d < len(scales) else None
        ratio = torch.tensor(1.0 / given if given else size / wanted, dtype=torch.float32).item()
        at = b.cast(b.iota(wanted, 0, 1, torch.int64, x.spec.device), torch.float32)
        at = b.minimum(b.cast(b.floor(b.mul(at, ratio)), torch.int64), size - 1)
        places.append(b.along(at, (d,), shape))
    return b.index(x, [None, None, *places])


def _whole_factors(
    shape: Sequence[Size], wanted: Sequence[Size], scales: Sequence[float | None]
) -> list[int] | None:
    """How often each place is repeated, or None when that is not one whole number per dim."""
    factors = []
    for d, (size, new) in enumerate(zip(shape, wanted, strict=True)):
        factor = new // size if not isinstance(size, int) or size > 0 else 0
        given = scales[d] if d < len(scales) else None
        if not isinstance(factor, int) or (factor * size is not new and factor * size != new):
            return None
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
    """The sum over each place's repetitions, for whole factors."""
    factors = _whole_factors(input_size[2:], output_size, scales)
    if factors is None:
        return NotImplemented
    n, channels, *space = input_size
    wide = [size for pair in zip(space, factors, strict=True) for size in pair]
    return b.sum(
        b.reshape(b.widen(grad), (n, channels, *wide)), tuple(3 + 2 * i for i in range(len(space)))
    )
