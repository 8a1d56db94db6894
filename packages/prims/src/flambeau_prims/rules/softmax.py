"""Shape rules of softmax, log_softmax, and their backwards."""

from __future__ import annotations

import torch

from flambeau_prims.rules.pointwise import not_implemented
from flambeau_prims.rules.registry import rule
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_empty, preserved_stride, same_shape, wrap_dim

aten = torch.ops.aten


@rule(aten._softmax.default, aten._log_softmax.default)
def softmax(self: Spec, dim: int, half_to_float: bool) -> Spec:
    """Row-major."""
    wrap_dim(dim, self.ndim)
    if not self.dtype.is_floating_point and not is_empty(self.shape):
        raise not_implemented("softmax_kernel_impl", self.dtype)
    if half_to_float:
        if self.device.type == "cpu" or self.dtype != torch.float16:
            raise RuntimeError("softmax with half to float conversion is not supported on CPU")
        return self.fresh(dtype=torch.float32)
    return self.fresh()


@rule(aten._safe_softmax.default)
def safe_softmax(self: Spec, dim: int, dtype: torch.dtype | None = None) -> Spec:
    """Softmax that gives zeros, not NaN, on rows of -inf."""
    wrap_dim(dim, self.ndim)
    return self.fresh(dtype=self.dtype if dtype is None else dtype)


@rule(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def softmax_backward(grad_output: Spec, output: Spec, dim: int, input_dtype: torch.dtype) -> Spec:
    """Row-major, in the input's dtype."""
    if not same_shape(grad_output.shape, output.shape):
        raise RuntimeError("softmax backward: the gradient and the output differ in shape")
    wrap_dim(dim, grad_output.ndim)
    return grad_output.fresh(dtype=input_dtype)


@rule(aten._masked_softmax.default)
def masked_softmax(self: Spec) -> Spec:
    """As self."""
    return self.fresh(stride=preserved_stride(self))
