"""Sampling an image or a volume at the points of a grid, its gradients, and affine grids.

    grid_sampler_2d(x, grid, bilinear, zeros)
      ->  column, row = of grid's points in [-1, 1], in elements
          sum over the four corners of x[n, c, row', column'] * weight, 0 outside of the image

Points are data, so the gradient of the image is a scatter; that of the grid sums over channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.decompositions.interpolate import cubic_weights
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)

NOWHERE = -100.0
"""The coordinate of a point that is no number, or too far away for an index."""

FAR = 2.0**31 - 1024


@dataclass(frozen=True)
class Line:
    """One dim of the image: its size, what becomes of points outside, whether -1 and 1 are the
    middles of its first and last elements or their outer edges.
    """

    size: int
    padding: int
    corners: bool

    @property
    def scale(self) -> float:
        """Elements per unit of the grid."""
        return (self.size - 1 if self.corners else self.size) / 2

    def place(self, b: Builder, point: Value) -> Value:
        """A point of [-1, 1] in elements, as eager rounds."""
        point = b.add(point, 1.0)
        if self.corners:
            return b.mul(b.mul(point, 0.5), float(self.size - 1))
        return b.mul(b.sub(b.mul(point, float(self.size)), 1.0), 0.5)

    def padded(self, b: Builder, place: Value) -> Value:
        """Where a point outside of the image is read; NaN reads the first element."""
        if self.padding == ZEROS:
            near = b.lt(b.abs(place), FAR)
            return b.where(near, place, NOWHERE)
        if self.padding == REFLECTION:
            place = self.reflected(b, place)
        return self.clipped(b, place)

    def clipped(self, b: Builder, place: Value) -> Value:
        """Into the image."""
        return b.minimum(b.where(b.gt(place, 0.0), place, 0.0), float(self.size - 1))

    def reflected(self, b: Builder, place: Value) -> Value:
        """Mirrored at the middles of the outer elements, or at their outer edges."""
        span = float(self.size - 1 if self.corners else self.size)
        if span == 0.0:
            return b.mul(place, 0.0)
        low = 0.0 if self.corners else -0.5
        distance = b.abs(b.sub(place, low))
        rest, turns = b.fmod(distance, span), b.floor(b.div(distance, span))
        even = b.eq(b.remainder(turns, 2.0), 0.0)
        return b.where(even, b.add(rest, low), b.add(b.sub(span, rest), low))

    def slope(self, b: Builder, place: Value) -> Value | None:
        """The derivative of `padded`; None for 1."""
        if self.padding == ZEROS:
            return None
        sign: Any = 1.0
        if self.padding == REFLECTION:
            span = float(self.size - 1 if self.corners else self.size)
            if span == 0.0:
                return b.mul(place, 0.0)
            low = 0.0 if self.corners else -0.5
            offset = b.sub(place, low)
            turns = b.floor(b.div(b.abs(offset), span))
            flipped = b.ne(b.lt(offset, 0.0), b.ne(b.remainder(turns, 2.0), 0.0))
            sign = b.where(flipped, b.tensor(-1.0, place.spec), 1.0)
            place = self.reflected(b, place)
        inside = b.bitwise_and(b.gt(place, 0.0), b.lt(place, float(self.size - 1)))
        return b.where(inside, b.mul(b.tensor(1.0, place.spec), sign), 0.0)

    def element(self, b: Builder, place: Value) -> tuple[Value, Value]:
        """A whole place as an index that is safe to read, and whether it is in the image."""
        inside = b.bitwise_and(b.ge(place, 0.0), b.le(place, float(self.size - 1)))
        index = b.cast(b.where(inside, place, 0.0), torch.int64)
        return b.minimum(b.maximum(index, 0), self.size - 1), inside


@dataclass(frozen=True)
class Tap:
    """What points read along one dim: an index, whether it is in the image, its weight (None for
    1), and the weight's derivative.
    """

    index: Value
    inside: Value
    weight: Value | None
    slope: float | None = None


def taps(b: Builder, line: Line, place: Value, mode: int) -> list[Tap]:
    """The elements along one dim that points read."""
    if mode == NEAREST:
        return [Tap(*line.element(b, b.round(line.padded(b, place))), None)]
    if mode == BILINEAR:
        place = line.padded(b, place)
        low = b.floor(place)
        high = b.add(low, 1.0)
        return [
            Tap(*line.element(b, low), b.sub(high, place), -1.0),
            Tap(*line.element(b, high), b.sub(place, low), 1.0),
        ]
    low = b.floor(place)
    weights = cubic_weights(b, b.sub(place, low))
    return [
        Tap(*line.element(b, line.padded(b, b.add(low, k - 1.0))), weight)
        for k, weight in enumerate(weights)
    ]


class Sampling:
    """The points of one call, spread over the channels of the result."""

    def __init__(
        self, b: Builder, x: Value, grid: Value, mode: int, padding: int, corners: bool
    ) -> None:
        n, channels, *space = x.spec.shape
        self.b, self.x = b, x
        self.shape = (n, channels, *grid.spec.shape[1:-1])
        self.lines = [Line(sizes.as_int(size), padding, corners) for size in space]
        grid = b.widen(grid)
        kept = (0, *range(2, grid.spec.ndim))
        # The grid's last dim names the innermost dim of the image first.
        self.places = [
            b.along(line.place(b, b.select(grid, grid.spec.ndim - 1, len(space) - 1 - d)), kept,
                    self.shape)
            for d, line in enumerate(self.lines)
        ]  # fmt: skip
        self.taps = [
            taps(b, line, place, mode) for line, place in zip(self.lines, self.places, strict=True)
        ]
        device = x.spec.device
        self.outer = [
            b.along(b.iota(size, 0, 1, torch.int64, device), (d,), self.shape)
            for d, size in enumerate((n, channels))
        ]

    def read(self, chosen: Sequence[Tap]) -> Value:
        """The image at one tap a dim, 0 outside."""
        b = self.b
        element = b.widen(b.index(self.x, [*self.outer, *(tap.index for tap in chosen)]))
        return b.where(self.inside(chosen), element, 0.0)

    def inside(self, chosen: Sequence[Tap]) -> Value:
        """Whether all taps are in the image."""
        result = chosen[0].inside
        for tap in chosen[1:]:
            result = self.b.bitwise_and(result, tap.inside)
        return result

    def corners(self) -> list[tuple[Tap, ...]]:
        """All choices of one tap a dim."""
        return list(product(*self.taps))

    def weighted(self, value: Value, chosen: Sequence[Tap], but: int = -1) -> Value:
        """A value times the weights of taps, but one."""
        for d, tap in enumerate(chosen):
            if d != but and tap.weight is not None:
                value = self.b.mul(value, tap.weight)
        return value


def _is_sampled(x: Value, grid: Value) -> bool:
    """Whether loops are made of a call: sizes of the image are known, and its device computes index
    arithmetic sooner than it waits for memory.
    """
    known = all(isinstance(size, int) and size > 0 for size in x.spec.shape[2:])
    return known and pays(x.spec.device) and x.spec.device == grid.spec.device


def pays(device: torch.device) -> bool:
    """Whether loops beat eager's kernels, which on a CPU share a point's work among channels."""
    return device.type != "cpu"


@decomposition(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(b: Builder, x: Value, grid: Value, mode: int, padding: int, corners: bool) -> Any:
    """The image at the points of the grid."""
    if not _is_sampled(x, grid):
        return NotImplemented
    points = Sampling(b, x, grid, mode, padding, corners)
    total = None
    for chosen in points.corners():
        share = points.weighted(points.read(chosen), chosen)
        total = share if total is None else b.add(total, share)
    return total


@decomposition(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    b: Builder, grad: Value, x: Value, grid: Value, mode: int, padding: int, corners: bool,
    output_mask: Sequence[bool],
) -> Any:  # fmt: skip
    """The gradients of the image, scattered, and of the grid, summed over channels. Where both are
    wanted eager's kernel, which reads the image once for both, is faster.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    if mode == BICUBIC or deterministic or not _is_sampled(x, grid):
        return NotImplemented
    if output_mask[1] and mode == BILINEAR:
        return NotImplemented
    points = Sampling(b, x, grid, mode, padding, corners)
    grad = b.widen(grad)
    image = _image_gradient(points, grad) if output_mask[0] else None
    return image, _grid_gradient(points, grad, grid, mode)


def _image_gradient(points: Sampling, grad: Value) -> Value:
    b, x = points.b, points.x
    total = b.full(x.spec.shape, 0.0, grad.spec.dtype, x.spec.device)
    for chosen in points.corners():
        share = b.where(points.inside(chosen), points.weighted(grad, chosen), 0.0)
        indices = [*points.outer, *(tap.index for tap in chosen)]
        total = b.index_put(total, indices, share, True)
    return total


def _grid_gradient(points: Sampling, grad: Value, grid: Value, mode: int) -> Value:
    b = points.b
    if mode == NEAREST:
        return b.full(grid.spec.shape, 0.0, grid.spec.dtype, grid.spec.device)
    parts = []
    for d, (line, place) in enumerate(zip(points.lines, points.places, strict=True)):
        total = None
        for chosen in points.corners():
            share = points.weighted(points.read(chosen), chosen, but=d)
            if total is None:
                total = share if chosen[d].slope == 1.0 else b.neg(share)
            else:
                total = (b.add if chosen[d].slope == 1.0 else b.sub)(total, share)
        assert total is not None
        total = b.mul(b.mul(total, grad), line.scale)
        slope = line.slope(b, place)
        if slope is not None:
            total = b.mul(total, slope)
        parts.append(b.unsqueeze(b.sum(total, (1,)), total.spec.ndim - 1))
    return b.cat(parts[::-1], parts[0].spec.ndim - 1)


# Affine grids


@decomposition(aten.affine_grid_generator.default)
def affine_grid_generator(
    b: Builder, theta: Value, size: Sequence[Size], align_corners: bool
) -> Any:
    """Points of the unit cube, mapped by a matrix of each image."""
    n, _, *space = size
    if not all(isinstance(extent, int) for extent in space):
        return NotImplemented
    shape = (n, *space, len(space))
    matrix = b.widen(theta)
    last = len(space)

    def coefficient(column: int) -> Value:
        return b.along(b.select(matrix, 2, column), (0, last + 1), shape)

    total = None
    for column in range(last):
        points = _line_points(b, sizes.as_int(space[last - 1 - column]), align_corners, matrix)
        part = b.mul(b.along(points, (last - column,), shape), coefficient(column))
        total = part if total is None else b.add(total, part)
    assert total is not None
    return b.add(total, coefficient(last))


def _line_points(b: Builder, count: int, align_corners: bool, like: Value) -> Value:
    """Points from -1 to 1 along one dim: the middles of elements, or to the ends."""
    dtype, device = like.spec.dtype, like.spec.device
    if count <= 1:
        return b.full((count,), 0.0, dtype, device)
    step = 2.0 / (count - 1)
    place = b.iota(count, 0, 1, torch.int64, device)
    front = b.add(b.mul(b.cast(place, dtype), step), -1.0)
    behind = b.sub(1.0, b.mul(b.cast(b.sub(count - 1, place), dtype), step))
    points = b.where(b.lt(place, count // 2), front, behind)
    return points if align_corners else b.mul(points, (count - 1) / count)
