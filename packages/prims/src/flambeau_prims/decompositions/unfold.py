"""The windows of an image as columns of a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.registry import decomposition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.graph import Value
    from flambeau_prims.spec import Size

aten = torch.ops.aten


@decomposition(aten.im2col.default)
def im2col(
    b: Builder, x: Value, kernel_size: Sequence[Size], dilation: Sequence[Size],
    padding: Sequence[Size], stride: Sequence[Size],
) -> Any:  # fmt: skip
    """[n, c * kernel, blocks]: for each place of the kernel, its element in every window."""
    arguments = (*kernel_size, *dilation, *padding, *stride)
    if x.spec.dtype.is_complex or not all(isinstance(size, int) for size in arguments):
        return NotImplemented
    lead = x.spec.ndim - 2
    counts = [
        (size + 2 * pad - step * (extent - 1) - 1) // jump + 1
        for size, extent, step, pad, jump in zip(
            x.spec.shape[lead:], kernel_size, dilation, padding, stride, strict=True
        )
    ]
    ends = (*[0] * lead, *padding)
    x = b.pad(x, ends, ends, False if x.spec.dtype is torch.bool else 0)
    shape = (*kernel_size, *counts)
    places = []
    for d in range(2):
        first = b.iota(kernel_size[d], 0, dilation[d], torch.int64, x.spec.device)
        begin = b.iota(counts[d], 0, stride[d], torch.int64, x.spec.device)
        places.append(b.add(b.along(first, (d,), shape), b.along(begin, (2 + d,), shape)))
    return b.reshape(b.index(x, [*[None] * lead, *places]), b.result.shape)
