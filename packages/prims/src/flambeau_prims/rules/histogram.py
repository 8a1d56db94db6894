"""Shape rules of histograms and of reductions over segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.promotion import dtype_name
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import eq
from flambeau_prims.spec import Spec
from flambeau_prims.strides import wrap_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.promotion import Number
    from flambeau_prims.spec import Size, Sizes

aten = torch.ops.aten


def _check(self: Spec, weight: Spec | None) -> None:
    if self.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"\"histogramdd\" not implemented for '{dtype_name(self.dtype)}'")
    if weight is not None and weight.dtype != self.dtype:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor "
            f"should have the same dtype, but got input(dtype: {dtype_name(self.dtype)}) and "
            f"weight(dtype: {dtype_name(weight.dtype)})"
        )


@rule(aten.histogram.bin_ct)
def histogram(self: Spec, bins: Size, weight: Spec | None) -> tuple[Spec, Spec]:
    """Counts, and the edges of so many bins."""
    _check(self, weight)
    return self.fresh((bins,)), self.fresh((bins + 1,))


@rule(aten.histogram.bins_tensor)
def histogram_of_edges(self: Spec, bins: Spec, weight: Spec | None) -> tuple[Spec, Spec]:
    """Counts, and the edges given, copied."""
    _check(self, weight)
    return self.fresh((bins.shape[0] - 1,)), self.fresh((bins.shape[0],))


def _check_points(self: Spec, weight: Spec | None, bins: int) -> None:
    _check(self, weight)
    if self.ndim < 2 or not eq(self.shape[-1], bins):
        raise RuntimeError(
            f"torch.histogramdd: expected {self.shape[-1] if self.shape else 1} sequences "
            f"of bin edges but got {bins}"
        )


@rule(aten._histogramdd_bin_edges.default)
def bin_edges(self: Spec, bins: Sizes, weight: Spec | None) -> list[Spec]:
    """The edges along each dimension of the points."""
    _check_points(self, weight, len(bins))
    return [self.fresh((count + 1,)) for count in bins]


@rule(aten._histogramdd_from_bin_cts.default)
def histogram_of_points(self: Spec, bins: Sizes, weight: Spec | None) -> Spec:
    """Counts: a dimension for each of the points'."""
    _check_points(self, weight, len(bins))
    return self.fresh(bins)


@rule(aten._histogramdd_from_bin_tensors.default)
def histogram_of_points_and_edges(self: Spec, bins: Sequence[Spec], weight: Spec | None) -> Spec:
    """Counts: a dimension for each of the points'."""
    _check_points(self, weight, len(bins))
    shape = [edges.shape[0] - 1 for edges in bins]
    return self.fresh(shape)


@rule(aten.segment_reduce.default)
def segment_reduce(
    data: Spec,
    reduce: str,
    *,
    lengths: Spec | None = None,
    indices: Spec | None = None,
    offsets: Spec | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
) -> Spec:
    """Row-major; along the axis, one place for each segment."""
    axis = wrap_dim(axis, data.ndim)
    if lengths is None and offsets is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    segments = lengths if offsets is None else offsets
    assert segments is not None
    if not data.dtype.is_floating_point or segments.ndim != axis + 1:
        raise RuntimeError(
            "segment_reduce(): data must be floating, and the segments as deep as the axis"
        )
    count = segments.shape[-1] if offsets is None else segments.shape[-1] - 1
    shape = (*segments.shape[:-1], count, *data.shape[axis + 1 :])
    return data.fresh(shape)


@rule(aten._segment_reduce_backward.default)
def segment_reduce_backward(grad: Spec, data: Spec) -> Spec:
    """Row-major, with the shape of the data."""
    return grad.fresh(data.shape)
