"""Nearest-neighbour resampling and its gradient.

upsample_nearest1d(x, [2 * n])  ->  x[i // 2] for i < 2 * n, as a view of repeated elements
upsample_nearest1d(x, [5]), n = 3  ->  x[floor(i * 0.6)] for i < 5
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import primitives, sizes
from flambeau_prims.decompositions.interpolate import Resampling, gathered, inside
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.size_floats import FloatExpr, float_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.graph import Value
    from flambeau_prims.spec import Size, Spec

aten = torch.ops.aten


def nearest(b: Builder, x: Value, output_size: Sequence[Size], *scales: Any, kind: str) -> Any:
    """Elements repeated for whole factors, else read at computed places."""
    if len(output_size) == 2 and kind == "nearest":
        scales = _kept_scales(x.spec.shape[2:], output_size, scales, x.spec.device)
    factors = _whole_factors(x.spec.shape[2:], output_size, scales)
    if factors is not None:
        return _repeated(b, x, factors)
    shape = tuple(output_size)
    places = []
    dims = _dims(kind, x.spec.shape[2:], shape, scales, x.spec)
    if x.spec.device.type == "cpu" and not all(map(_is_eagers, dims, scales or [None] * len(dims))):
        return NotImplemented
    for d, dim in enumerate(dims):
        position = b.iota(dim.wanted, 0, 1, torch.int64, x.spec.device)
        ((index, _),) = read_at(b, dim, position)
        places.append(b.along(index, (d,), shape))
    return b.index(x, [None, None, *places])


def _dims(
    kind: str, shape: Sequence[Size], wanted: Sequence[Size], scales: Sequence[Any], like: Spec
) -> list[Resampling]:
    """How each dim is resampled; eager computes in float32, or for exact places as it adds up."""
    wide = kind == "exact" and like.dtype is torch.float64
    dtype = torch.float64 if wide else torch.float32
    result = []
    for d, (size, new) in enumerate(zip(shape, wanted, strict=True)):
        scale: Any = scales[d] if d < len(scales) else None
        given = scale is not None and (isinstance(scale, FloatExpr) or scale > 0)
        ratio: Any = float_of("/", 1.0, scale) if given else float_of("/", size, new)
        if not isinstance(ratio, FloatExpr):
            ratio = torch.tensor(ratio, dtype=dtype).item()
        result.append(Resampling(kind, size, new, ratio, False, dtype))
    return result


def _kept_scales(
    shape: Sequence[Size], wanted: Sequence[Size], scales: Sequence[Any], device: torch.device
) -> tuple[Any, ...]:
    """The scales: on a CPU, that of a dim that keeps or doubles its size is ignored by images'
    forwards and by all backwards.
    """
    if device.type != "cpu":
        return tuple(scales)
    return tuple(
        None if sizes.known_eq(new, size) or sizes.known_eq(new, 2 * size) else scale
        for size, new, scale in zip(shape, wanted, scales, strict=False)
    )


def _is_eagers(dim: Resampling, scale: Any) -> bool:
    """Whether places are read where eager reads them: whether that rounds a product that lies
    between two elements depends on the instructions that a CPU's eager kernel uses.
    """
    if dim.kind == "nearest":
        return True
    if dim.is_symbolic or isinstance(scale, FloatExpr):
        return False
    image = torch.arange(sizes.as_int(dim.size), dtype=dim.dtype).reshape(1, 1, -1)
    theirs = aten._upsample_nearest_exact1d.default(image, [dim.wanted], scale)
    ((ours, _),) = read_at(primitives, dim, torch.arange(sizes.as_int(dim.wanted)))
    return torch.equal(theirs.flatten().long(), ours)


def read_at(ops: Any, dim: Resampling, position: Any) -> list[tuple[Any, None]]:
    """Where places read their element: at floor(i * ratio), or exactly at the middle of a place."""
    position = ops.cast(position, dim.dtype)
    if dim.kind == "exact":
        position = ops.add(position, 0.5)
    source = ops.cast(ops.floor(ops.mul(position, dim.ratio)), torch.int64)
    return [(inside(ops, source, dim), None)]


def _whole_factors(
    shape: Sequence[Size], wanted: Sequence[Size], scales: Sequence[Any]
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


def nearest_backward(
    b: Builder, grad: Value, output_size: Sequence[Size], input_size: Sequence[Size],
    *scales: Any, kind: str,
) -> Any:  # fmt: skip
    """For each element the gradients of the places that read it."""
    if kind == "nearest":
        scales = _kept_scales(input_size[2:], output_size, scales, grad.spec.device)
    factors = _whole_factors(input_size[2:], output_size, scales)
    if factors is not None:
        grad = b.widen(grad)
        n, channels, *space = input_size
        wide = [size for pair in zip(space, factors, strict=True) for size in pair]
        folded = tuple(3 + 2 * i for i in range(len(space)))
        return b.sum(b.reshape(grad, (n, channels, *wide)), folded)
    if not _gather_pays(b.result, output_size) or sizes.eq(grad.spec.numel, 0):
        return NotImplemented
    dims = _dims(kind, input_size[2:], output_size, scales, grad.spec)
    if any(dim.is_symbolic for dim in dims):
        return NotImplemented
    on_cpu = grad.spec.device.type == "cpu"
    if on_cpu and not all(map(_is_eagers, dims, scales or [None] * len(dims))):
        return NotImplemented
    return gathered(b, grad, dims, read_at)


def _gather_pays(result: Spec, output_size: Sequence[Size]) -> bool:
    """Whether gathering beats eager's scatter: not for shrunk contiguous rows on a CPU."""
    in_rows = sizes.known_eq(result.stride[-1], 1)
    shrinks = sizes.known_lt(output_size[-1], result.shape[-1])
    return result.device.type != "cpu" or not in_rows or not shrinks


for _ndim in (1, 2, 3):
    for _kind, _name in (("nearest", "upsample_nearest"), ("exact", "_upsample_nearest_exact")):
        _forward = getattr(aten, f"{_name}{_ndim}d")
        _backward = getattr(aten, f"{_name}{_ndim}d_backward")
        decomposition(_forward.default)(partial(nearest, kind=_kind))
        decomposition(_backward.default)(partial(nearest_backward, kind=_kind))
