"""Shape rules of quantization: fake, with a mask of what is within the range; linear layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.rules.pointwise import not_implemented
from flambeau_prims.rules.registry import rule
from flambeau_prims.strides import preserved_stride

if TYPE_CHECKING:
    from flambeau_prims.spec import Spec

aten = torch.ops.aten


def _rounded(self: Spec, kernel: str) -> Spec:
    if not self.dtype.is_floating_point:
        raise not_implemented(kernel, self.dtype)
    return self.replace(shape=self.shape, stride=preserved_stride(self), offset=0)


@rule(
    aten.fake_quantize_per_tensor_affine_cachemask.default,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default,
)
def fake_quantize_per_tensor(self: Spec) -> tuple[Spec, Spec]:
    """The rounded values, and the mask."""
    rounded = _rounded(self, "fake_quantize_tensor_cachemask_kernel_type_handling")
    return rounded, rounded.replace(shape=rounded.shape, stride=rounded.stride, dtype=torch.bool)


@rule(aten.fake_quantize_per_channel_affine_cachemask.default)
def fake_quantize_per_channel(self: Spec) -> tuple[Spec, Spec]:
    """As per tensor, with a scale and a zero point for each index of `axis`."""
    rounded = _rounded(self, "fake_quantize_channel_cachemask_cpu_type_handling")
    return rounded, rounded.replace(shape=rounded.shape, stride=rounded.stride, dtype=torch.bool)


def linear_on_packed_weight(X: Spec, W_prepack: Any) -> Spec:
    """Rows of `X` times a packed weight [out, in], which says its own sizes."""
    weight, _ = W_prepack.unpack()
    return X.fresh((*X.shape[:-1], weight.shape[0]))


for _name in (
    "linear_dynamic",
    "linear_dynamic_fp16",
    "linear_relu_dynamic",
    "linear_relu_dynamic_fp16",
):
    if hasattr(torch.ops.quantized, _name):
        rule(getattr(torch.ops.quantized, _name).default)(linear_on_packed_weight)
