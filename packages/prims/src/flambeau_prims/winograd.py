"""Convolutions of images on a CPU by 3x3 windows that Winograd's minimal filtering computes.

    y: f32[16, 64, 56, 56] = aten.convolution.default(x, w, None, [1, 1], [1, 1], ...)

F(2x2, 3x3) computes 2 x 2 pixels of the result from 4 x 4 of the image, with 16 products for each
pair of channels in place of 36 (Lavin and Gray 2015, "Fast Algorithms for Convolutional Neural
Networks"). On random numbers its results are nearer to the exact ones than a sum of 9 products for
each channel. The gradient of the image is such a convolution, too: transposed, by the same weights.
That of the weights is computed from the same transforms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.sizes import hint_of, known_eq

if TYPE_CHECKING:
    from flambeau_prims.graph import Node, Value
    from flambeau_prims.spec import Spec

aten = torch.ops.aten

LEAST_CHANNELS = 32
"""Channels of the image and of the result are multiples of this: two vectors of AVX-512."""

MOST_CHANNELS = 1024
"""The transformed pixels of a task stay in the second-level cache up to so many."""

WEIGHT_COST = 400
"""A weight's transform takes as long as so many products."""

LEAST_GAIN = 1.25
"""The transforms of images and results take a part of what they save."""


@dataclass(frozen=True, slots=True)
class WinogradConvolution:
    """`padding`: zeros around the image of the plain convolution that a transposed one is, too."""

    x: Value
    weight: Value
    bias: Value | None
    out: Value
    padding: tuple[int, int]
    transposed: bool


@dataclass(frozen=True, slots=True)
class WinogradGradient:
    """The gradient of the weights, `out`, from the image and the result's gradient."""

    x: Value
    gradient: Value
    out: Value
    padding: tuple[int, int]


def winograd_convolution(node: Node) -> WinogradConvolution | None:
    """The convolution that a node is, if it is worth transforming."""
    if node.op is not aten.convolution.default or node.kwargs:
        return None
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    (out,) = node.outputs
    if out is None or not _are(0, output_padding):
        return None
    margin = _margin(padding, transposed)
    if margin is None or groups != 1 or not _are(1, stride, dilation):
        return None
    if not _fits(x.spec, weight.spec, out.spec):
        return None
    return WinogradConvolution(x, weight, bias, out, margin, transposed)


def has_winograd_gradient(node: Node) -> bool:
    """Whether a node computes the gradient of an image, which is worth transforming."""
    if node.op is not aten.convolution_backward.default or node.kwargs:
        return False
    gradient, _, weight, _, stride, padding, dilation, transposed, output_padding, groups, mask = (
        node.args
    )
    out = node.outputs[0]
    if out is None or not mask[0] or not _are(0, output_padding) or groups != 1:
        return False
    if _margin(padding, not transposed) is None or not _are(1, stride, dilation):
        return False
    return _fits(gradient.spec, weight.spec, out.spec)


def winograd_gradient(node: Node, *, alone: bool = True) -> WinogradGradient | None:
    """The gradient of weights that a node computes, if it is worth transforming; `alone`: if the
    node computes nothing else.
    """
    if node.op is not aten.convolution_backward.default or node.kwargs:
        return None
    gradient, x, weight, _, stride, padding, dilation, transposed, output_padding, groups, mask = (
        node.args
    )
    out = node.outputs[1]
    if out is None or (alone and list(mask) != [False, True, False]):
        return None
    if transposed or not _are(0, output_padding) or groups != 1:
        return None
    if not _are(1, stride, dilation):
        return None
    margin = _margin(padding, transposed)
    if margin is None or not _fits(x.spec, weight.spec, gradient.spec):
        return None
    if not all(isinstance(step, int) for step in out.spec.stride):
        return None
    return WinogradGradient(x, gradient, out, margin)


def _are(value: int, *settings: Any) -> bool:
    """Whether all sizes of these settings are known to have this value."""
    return all(known_eq(size, value) for each in settings for size in each)


def _margin(padding: Any, transposed: bool) -> tuple[int, int] | None:
    """The zeros around the image, at most 2."""
    if not all(isinstance(size, int) and 0 <= size <= 2 for size in padding):
        return None
    rows, *columns = (2 - size if transposed else size for size in padding)
    return rows, columns[0] if columns else rows


def _fits(x: Spec, weight: Spec, out: Spec) -> bool:
    """Whether the kernel takes these tensors, and computes the result sooner than oneDNN."""
    specs = (x, weight, out)
    if any(spec.device.type != "cpu" or spec.dtype is not torch.float32 for spec in specs):
        return False
    if x.ndim != 4 or tuple(weight.shape[2:]) != (3, 3):
        return False
    channels = (x.shape[1], out.shape[1])
    if not all(
        isinstance(count, int) and 0 < count <= MOST_CHANNELS and count % LEAST_CHANNELS == 0
        for count in channels
    ):
        return False
    if not all(isinstance(step, int) for step in weight.stride):
        return False
    if any(not isinstance(spec.stride[1], int) or spec.stride[1] != 1 for spec in (x, out)):
        return False
    if torch._C._get_fp32_precision_getter("mkldnn", "conv") not in ("none", "ieee"):
        return False
    count, _, rows, columns = (hint_of(size) for size in out.shape)
    tiles = count * ((rows + 1) // 2) * ((columns + 1) // 2)
    return bool(9 * count * rows * columns >= LEAST_GAIN * (16 * tiles + WEIGHT_COST))
