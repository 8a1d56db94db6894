"""Shape rules of loss functions and their backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.promotion import dtype_name, result_type
from flambeau_prims.rules.copy import clone
from flambeau_prims.rules.pointwise import elementwise, refuse
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import eq
from flambeau_prims.spec import Spec
from flambeau_prims.strides import broadcast_shapes, is_contiguous, same_shape

if TYPE_CHECKING:
    from flambeau_prims.spec import Size

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2
"""ATen's codes of reductions."""


def _fresh(like: Spec, shape: tuple[Size, ...]) -> Spec:
    return Spec.of(shape, dtype=like.dtype, device=like.device)


def _promoted(*operands: Spec) -> Spec:
    dtype = result_type(operands)
    return elementwise(operands, dtype, dtype)


# 1. Elementwise losses


@rule(aten.mse_loss.default, aten.smooth_l1_loss.default, aten.soft_margin_loss.default)
def elementwise_loss(
    self: Spec, target: Spec, reduction: int = MEAN, *_options: Any, **_named: Any
) -> Spec:
    """A loop over both, reduced unless `reduction` is none."""
    loss = _promoted(self, target)
    return loss if reduction == NONE else _fresh(loss, ())


@rule(aten.huber_loss.default)
def huber_loss(self: Spec, target: Spec, reduction: int = MEAN, delta: float = 1.0) -> Spec:
    """Like self, reduced unless `reduction` is none."""
    if not same_shape(broadcast_shapes(self.shape, target.shape), self.shape):
        raise RuntimeError(
            f"huber_loss: target {list(target.shape)} does not broadcast to input "
            f"{list(self.shape)}"
        )
    return clone(self) if reduction == NONE else _fresh(self, ())


@rule(
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
)
def elementwise_loss_backward(
    grad_output: Spec, self: Spec, target: Spec, reduction: int, *_options: Any
) -> Spec:
    """Self's shape, row-major."""
    broadcast_shapes(self.shape, target.shape, grad_output.shape)
    return _fresh(self, self.shape)


@rule(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(grad_output: Spec, self: Spec, target: Spec, reduction: int) -> Spec:
    """A composition of elementwise operators over self, target and the gradient."""
    return _promoted(self, target, grad_output)


@rule(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    self: Spec, target: Spec, weight: Spec | None = None, reduction: int = MEAN
) -> Spec:
    """Like self, reduced unless `reduction` is none."""
    loss = (
        elementwise((self, target), self.dtype)
        if weight is None
        else _promoted(self, target, weight)
    )
    return loss if reduction == NONE else _fresh(self, ())


@rule(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    grad_output: Spec, self: Spec, target: Spec, weight: Spec | None = None, reduction: int = MEAN
) -> Spec:
    """Like self."""
    return elementwise((grad_output, self, target), self.dtype)


@rule(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    self: Spec,
    target: Spec,
    weight: Spec | None = None,
    pos_weight: Spec | None = None,
    reduction: int = MEAN,
) -> Spec:
    """A composition of elementwise operators, reduced unless `reduction` is none."""
    loss = _promoted(*(spec for spec in (self, target, pos_weight, weight) if spec is not None))
    return loss if reduction == NONE else _fresh(loss, ())


# 2. Negative log likelihood


def _check_classes(self: Spec, target: Spec, weight: Spec | None) -> Size:
    if target.dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(
            f"expected scalar type Long but found {dtype_name(target.dtype)} (nll_loss target)"
        )
    refuse("nll_loss_out_frame", self.dtype, self.device, "bic")
    classes = self.shape[-1] if self.ndim < 3 else self.shape[1]
    if weight is not None and not eq(weight.numel, classes):
        raise RuntimeError(
            f"weight tensor should be defined either for all {classes} classes or no "
            f"classes but got weight tensor of shape: "
            f"{list(weight.shape)}"
        )
    return classes


@rule(aten.nll_loss_forward.default)
def nll_loss_forward(
    self: Spec, target: Spec, weight: Spec | None, reduction: int, ignore_index: Size
) -> tuple[Spec, Spec]:
    """The loss, and the total weight it was divided by."""
    _check_nll(self, target)
    _check_classes(self, target, weight)
    total = _fresh(self, ())
    if reduction == NONE and self.ndim == 2:
        return _fresh(self, (self.shape[0],)), total
    return total, total


def _check_nll(self: Spec, target: Spec) -> None:
    if self.ndim not in (1, 2):
        raise RuntimeError("input tensor should be 1D or 2D")
    if target.ndim > 1:
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if self.ndim == 2 and not (target.ndim == 1 and eq(self.shape[0], target.shape[0])):
        raise RuntimeError(
            f"size mismatch (got input: {list(self.shape)}, target: {list(target.shape)})"
        )


@rule(aten.nll_loss_backward.default)
def nll_loss_backward(
    grad_output: Spec,
    self: Spec,
    target: Spec,
    weight: Spec | None,
    reduction: int,
    ignore_index: Size,
    total_weight: Spec,
) -> Spec:
    """Zeros, but for each row's target."""
    _check_nll(self, target)
    return _fresh(self, self.shape)


@rule(aten.multi_margin_loss.default)
def multi_margin_loss(
    self: Spec,
    target: Spec,
    p: float = 1,
    margin: float = 1,
    weight: Spec | None = None,
    reduction: int = MEAN,
) -> Spec:
    """The loss of each row, or reduced."""
    return _fresh(self, target.shape if reduction == NONE else ())


@rule(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss(self: Spec, target: Spec, reduction: int) -> tuple[Spec, Spec]:
    """The loss of each row, or reduced, and which classes are targets."""
    rows = self.shape[:-1] if self.ndim == 2 and reduction == NONE else ()
    return _fresh(self, rows), _fresh(self, target.shape)


@rule(aten.multi_margin_loss_backward.default, aten.multilabel_margin_loss_backward.default)
def margin_loss_backward(grad_output: Spec, self: Spec, target: Spec, *_options: Any) -> Spec:
    """The gradient of the scores."""
    return _fresh(self, self.shape)


@rule(aten.nll_loss2d_forward.default)
def nll_loss2d_forward(
    self: Spec, target: Spec, weight: Spec | None, reduction: int, ignore_index: Size
) -> tuple[Spec, Spec]:
    """The loss of each pixel, or reduced, and the total weight."""
    _check_nll2d(self, target)
    _check_classes(self, target, weight)
    total = _fresh(self, ())
    return (_fresh(self, target.shape) if reduction == NONE else total), total


def _check_nll2d(self: Spec, target: Spec) -> None:
    if self.ndim != 4 or target.ndim != 3:
        raise RuntimeError(
            f"only batches of spatial inputs supported (4D tensors), but got input of size "
            f"{list(self.shape)} and target of "
            f"size {list(target.shape)}"
        )
    if not same_shape((self.shape[0], *self.shape[2:]), target.shape):
        raise RuntimeError(
            f"size mismatch (got input: {list(self.shape)} , target: {list(target.shape)})"
        )


@rule(aten.nll_loss2d_backward.default)
def nll_loss2d_backward(
    grad_output: Spec,
    self: Spec,
    target: Spec,
    weight: Spec | None,
    reduction: int,
    ignore_index: Size,
    total_weight: Spec,
) -> Spec:
    """Zeros, but for each pixel's target."""
    _check_nll2d(self, target)
    if not is_contiguous(clone(self)):
        raise RuntimeError("grad_input must be contiguous")
    return _fresh(self, self.shape)


@rule(aten._cdist_forward.default)
def cdist(x1: Spec, x2: Spec, p: float, compute_mode: int | None) -> Spec:
    """Distances between the rows of two (batches of) matrices."""
    if not eq(x1.shape[-1], x2.shape[-1]):
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {x1.shape[-1]} X2: {x2.shape[-1]}"
        )
    batch = broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    return _fresh(x1, (*batch, x1.shape[-2], x2.shape[-2]))


@rule(aten._euclidean_dist.default)
def euclidean_dist(x1: Spec, x2: Spec) -> Spec:
    """cdist by a matrix product."""
    return cdist(x1, x2, 2.0, None)


@rule(aten._cdist_backward.default)
def cdist_backward(grad: Spec, x1: Spec, x2: Spec, p: float, cdist: Spec) -> Spec:
    """The gradient of x1, broadcast to the batch of both."""
    batch = broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    return _fresh(x1, (*batch, *x1.shape[-2:]))


@rule(aten._pdist_forward.default)
def pdist(self: Spec, p: float = 2) -> Spec:
    """The distances between all pairs of rows."""
    if self.ndim != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {self.ndim}D")
    rows = self.shape[0]
    return _fresh(self, (rows * (rows - 1) // 2,))


@rule(aten._pdist_backward.default)
def pdist_backward(grad: Spec, self: Spec, p: float, pdist: Spec) -> Spec:
    """Row-major."""
    return _fresh(self, self.shape)
