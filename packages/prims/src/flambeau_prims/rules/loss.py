"""Shape rules of loss functions and their backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.promotion import dtype_name, result_type
from flambeau_prims.rules.copy import clone
from flambeau_prims.rules.overloads import written_to_self
from flambeau_prims.rules.pointwise import elementwise, not_implemented, refuse, refuse_bools
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import eq, gt
from flambeau_prims.spec import Spec
from flambeau_prims.strides import (
    broadcast_shapes,
    is_contiguous,
    preserved_stride,
    same_shape,
)

if TYPE_CHECKING:
    from flambeau_prims.spec import Size

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2
"""ATen's codes of reductions."""


def _promoted(*operands: Spec) -> Spec:
    dtype = result_type(operands)
    return elementwise(operands, dtype, dtype)


_promoted_in_place = written_to_self(_promoted)


# 1. Elementwise losses


@rule(aten.mse_loss.default, aten.smooth_l1_loss.default, aten.soft_margin_loss.default)
def elementwise_loss(self: Spec, target: Spec, reduction: int) -> Spec:
    """A loop over both, reduced unless `reduction` is none."""
    loss = _promoted(self, target)
    return loss if reduction == NONE else loss.fresh(())


@rule(aten.huber_loss.default)
def huber_loss(self: Spec, target: Spec, reduction: int) -> Spec:
    """Like self, reduced unless `reduction` is none."""
    if not same_shape(broadcast_shapes(self.shape, target.shape), self.shape):
        raise RuntimeError(
            f"huber_loss: target {list(target.shape)} does not broadcast to input "
            f"{list(self.shape)}"
        )
    return clone(self) if reduction == NONE else self.fresh(())


@rule(
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
)
def elementwise_loss_backward(grad_output: Spec, self: Spec, target: Spec) -> Spec:
    """Self's shape, row-major."""
    broadcast_shapes(self.shape, target.shape, grad_output.shape)
    return self.fresh()


@rule(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(grad_output: Spec, self: Spec, target: Spec) -> Spec:
    """A composition of elementwise operators over self, target and the gradient."""
    return _promoted(self, target, grad_output)


@rule(aten.binary_cross_entropy.default)
def binary_cross_entropy(self: Spec, target: Spec, weight: Spec | None, reduction: int) -> Spec:
    """Like self, reduced unless `reduction` is none."""
    broadcast_shapes(self.shape, target.shape)
    loss = (
        self.fresh(stride=preserved_stride(self))
        if weight is None
        else _promoted(self, target, weight)
    )
    return loss if reduction == NONE else self.fresh(())


@rule(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(grad_output: Spec, self: Spec, target: Spec) -> Spec:
    """Like self."""
    return elementwise((grad_output, self, target), self.dtype)


@rule(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    self: Spec, target: Spec, weight: Spec | None, pos_weight: Spec | None, reduction: int
) -> Spec:
    """Like target, reduced unless `reduction` is none: eager's composition computes in place of
    `1 - target`.
    """
    for minus in (target, pos_weight):
        if minus is not None:
            refuse_bools(minus.dtype, torch.int64)
    refuse("log_sigmoid_cpu", self.dtype, self.device, "bic")
    loss = elementwise((target,), target.dtype)
    if pos_weight is not None:
        _promoted_in_place(self.fresh(), _promoted(pos_weight, target))
    _promoted_in_place(loss, self)
    if weight is not None:
        _promoted_in_place(loss, weight)
    return loss if reduction == NONE else loss.fresh(())


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
            f"weight tensor should be defined either for all {classes} classes or no classes but "
            f"got weight tensor of shape: {list(weight.shape)}"
        )
    return classes


@rule(aten.nll_loss_forward.default)
def nll_loss_forward(
    self: Spec, target: Spec, weight: Spec | None, reduction: int
) -> tuple[Spec, Spec]:
    """The loss, and the total weight it was divided by."""
    _check_nll(self, target)
    _check_classes(self, target, weight)
    total = self.fresh(())
    if reduction == NONE and self.ndim == 2:
        return self.fresh((self.shape[0],)), total
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
def nll_loss_backward(self: Spec, target: Spec) -> Spec:
    """Zeros, but for each row's target."""
    _check_nll(self, target)
    return self.fresh()


@rule(aten.multi_margin_loss.default)
def multi_margin_loss(self: Spec, target: Spec, reduction: int) -> Spec:
    """The loss of each row, or reduced."""
    return self.fresh(target.shape if reduction == NONE else ())


@rule(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss(self: Spec, target: Spec, reduction: int) -> tuple[Spec, Spec]:
    """The loss of each row, or reduced, and which classes are targets."""
    rows = self.shape[:-1] if self.ndim == 2 and reduction == NONE else ()
    return self.fresh(rows), self.fresh(target.shape)


@rule(
    aten.multi_margin_loss_backward.default,
    aten.multilabel_margin_loss_backward.default,
    aten._pdist_backward.default,
)
def gradient_of_self(self: Spec) -> Spec:
    """The gradient of self, row-major."""
    return self.fresh()


@rule(aten.nll_loss2d_forward.default)
def nll_loss2d_forward(
    self: Spec, target: Spec, weight: Spec | None, reduction: int
) -> tuple[Spec, Spec]:
    """The loss of each pixel, or reduced, and the total weight."""
    _check_nll2d(self, target)
    _check_classes(self, target, weight)
    total = self.fresh(())
    return (self.fresh(target.shape) if reduction == NONE else total), total


def _check_nll2d(self: Spec, target: Spec) -> None:
    if self.ndim != 4 or target.ndim != 3:
        raise RuntimeError(
            "only batches of spatial inputs supported (4D tensors), but got input of size "
            f"{list(self.shape)} and target of size {list(target.shape)}"
        )
    if not same_shape((self.shape[0], *self.shape[2:]), target.shape):
        raise RuntimeError(
            f"size mismatch (got input: {list(self.shape)} , target: {list(target.shape)})"
        )


@rule(aten.nll_loss2d_backward.default)
def nll_loss2d_backward(self: Spec, target: Spec) -> Spec:
    """Zeros, but for each pixel's target."""
    _check_nll2d(self, target)
    if not is_contiguous(clone(self)):
        raise RuntimeError("grad_input must be contiguous")
    return self.fresh()


@rule(aten._cdist_forward.default)
def cdist(x1: Spec, x2: Spec, p: float, compute_mode: int | None) -> Spec:
    """Distances between the rows of two (batches of) matrices. On a CPU half precision has no
    kernel, only the matrix product that computes Euclidean distances of more than 25 rows.
    """
    result = euclidean_distances(x1, x2)
    if x1.dtype in (torch.float16, torch.bfloat16) and x1.device.type == "cpu":
        rows = (x1.shape[-2], x2.shape[-2])
        by_product = compute_mode == 1 or (compute_mode != 2 and any(gt(n, 25) for n in rows))
        empty = any(eq(size, 0) for size in (*result.shape, x1.shape[-1]))
        if not empty and not (p == 2 and by_product):
            raise not_implemented("cdist", x1.dtype)
    return result


@rule(aten._euclidean_dist.default)
def euclidean_distances(x1: Spec, x2: Spec) -> Spec:
    """Euclidean distances between the rows of two (batches of) matrices."""
    if not eq(x1.shape[-1], x2.shape[-1]):
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {x1.shape[-1]} X2: {x2.shape[-1]}"
        )
    batch = broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    return x1.fresh((*batch, x1.shape[-2], x2.shape[-2]))


@rule(aten._cdist_backward.default)
def cdist_backward(x1: Spec, x2: Spec) -> Spec:
    """The gradient of x1, broadcast to the batch of both; as x1 if there is nothing to compare."""
    batch = broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    if any(eq(size, 0) for size in (*batch, *x1.shape[-2:], x2.shape[-2])):
        return clone(x1)
    return x1.fresh((*batch, *x1.shape[-2:]))


@rule(aten._pdist_forward.default)
def pdist(self: Spec) -> Spec:
    """The distances between all pairs of rows."""
    if self.ndim != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {self.ndim}D")
    rows = self.shape[0]
    return self.fresh((rows * (rows - 1) // 2,))
