"""Which operators may raise because of what is in their tensors: an index out of bounds, a matrix that has no factor, a zero to divide by.

    aten.mm.default         raises for shapes, dtypes and devices only: a rule has checked them          -> False
    aten.gather.default     on a CPU looks at its indices                                                -> True
    aten.fmod.Tensor        of integers                                                                  -> True
    mylib.op.default        may do anything                                                              -> True

An operator that nothing is known of may raise.  Running out of memory does not count.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.graph import Value
from flambeau_prims.operator_facts import is_check
from flambeau_prims.rules.registry import aliasing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._ops import OpOverload

_NEVER = frozenset(
    {
        "adaptive_avg_pool2d", "adaptive_avg_pool2d_backward", "adaptive_avg_pool3d", "adaptive_avg_pool3d_backward",
        "adaptive_max_pool2d", "adaptive_max_pool3d", "add_relu", "addbmm", "addmm", "addmm_activation", "addmv", "addr", "all", "amax",
        "amin", "aminmax", "any", "arange", "argmax", "argmin", "avg_pool2d", "avg_pool2d_backward", "avg_pool3d",
        "avg_pool3d_backward", "baddbmm", "batch_norm_backward", "batch_norm_no_update", "batch_norm_with_update",
        "batch_norm_with_update_functional", "bmm", "cat", "complex", "constant_pad_nd", "convolution", "convolution_backward", "copy",
        "count_nonzero", "cudnn_batch_norm", "cudnn_batch_norm_backward", "cummax", "cummin", "cumprod", "cumsum", "dot", "dropout",
        "elu_backward", "empty", "empty_like", "empty_permuted", "empty_strided", "eye", "fill", "flip", "full", "full_like",
        "fused_rms_norm", "fused_rms_norm_backward", "gelu", "glu", "glu_backward", "hardsigmoid_backward", "hardswish",
        "hardswish_backward", "hardtanh_backward", "huber_loss", "huber_loss_backward", "isin", "leaky_relu_backward", "lift",
        "lift_fresh", "linalg_vector_norm", "linear", "linear_backward", "linspace", "log_sigmoid_backward", "log_sigmoid_forward",
        "log_softmax", "log_softmax_backward_data", "logcumsumexp", "logspace", "logsumexp", "masked_fill", "matmul",
        "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "max_pool3d_with_indices", "max_pool3d_with_indices_backward",
        "mean", "median", "mish_backward", "mm", "mse_loss", "mse_loss_backward", "mv", "nansum", "native_batch_norm",
        "native_batch_norm_backward", "native_batch_norm_legit", "native_batch_norm_legit_functional",
        "native_batch_norm_legit_no_training", "native_dropout", "native_group_norm", "native_group_norm_backward", "native_layer_norm",
        "native_layer_norm_backward", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "nonzero", "norm", "ones",
        "ones_like", "pixel_shuffle", "pixel_unshuffle", "prelu_kernel", "prelu_kernel_backward", "prod", "rand", "rand_like",
        "randint", "randint_like", "randn", "randn_like", "randperm", "reflection_pad1d", "reflection_pad1d_backward",
        "reflection_pad2d", "reflection_pad2d_backward", "repeat", "replication_pad1d", "replication_pad2d", "roll", "rot90",
        "safe_softmax", "scalar_tensor", "scaled_dot_product_cudnn_attention", "scaled_dot_product_cudnn_attention_backward",
        "scaled_dot_product_efficient_attention", "scaled_dot_product_efficient_attention_backward",
        "scaled_dot_product_flash_attention", "scaled_dot_product_flash_attention_backward",
        "scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_flash_attention_for_cpu_backward", "select_backward",
        "select_scatter", "slice_backward", "slice_scatter", "smooth_l1_loss", "smooth_l1_loss_backward", "softmax",
        "softmax_backward_data", "softplus_backward", "sort", "split_with_sizes_copy", "stack", "std", "std_mean", "sum",
        "thnn_fused_lstm_cell", "to_copy", "topk", "tril", "triu", "unfold_backward", "uniform", "unsafe_view", "upsample_bicubic2d",
        "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest2d_backward",
        "upsample_nearest3d", "upsample_trilinear3d", "var", "var_mean", "vdot", "zero", "zeros", "zeros_like",
    }
)  # fmt: skip
"""Stems of operators that are neither views nor tagged pointwise, and do not look at what decides whether they raise."""

_DIVISIONS = frozenset({"div", "divide", "floor_divide", "fmod", "remainder"})
_POINTWISE_THAT_CHECK = frozenset({"binary_cross_entropy", "igamma", "igammac"})


def can_raise(op: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether a call may raise for what its tensors hold.  `args` may have graph Values in their place."""
    kind = _kind(op)
    if kind == "never":
        return False
    if kind == "always":
        return True
    tensors = list(_tensors(args))
    if all(tensor.device.type != "cpu" for tensor in tensors):
        return False  # an accelerator does not wait for what it finds
    if kind == "division":
        return not any(t.dtype.is_floating_point or t.dtype.is_complex for t in tensors) and (
            len(tensors) > 1 or any(not isinstance(arg, bool) and arg == 0 for arg in args[1:2])
        )
    return True


@cache
def _kind(op: OpOverload) -> str:
    namespace, _, name = op._schema.name.partition("::")
    if namespace != "aten" or is_check(op):
        return "always"
    stem = name.strip("_")
    if stem in _DIVISIONS:
        modes = ("Tensor_mode", "Scalar_mode")
        divides = stem not in ("div", "divide") or op._overloadname in modes
        return "division" if divides else "never"
    if stem in _NEVER or aliasing(op).view:
        return "never"
    functional = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") else None
    tagged = torch.Tag.pointwise in op.tags or (
        functional is not None
        and any(torch.Tag.pointwise in getattr(functional, o).tags for o in functional.overloads())
    )
    return "never" if tagged and stem not in _POINTWISE_THAT_CHECK else "data"


def _tensors(args: Any) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, (list, tuple)):
            yield from _tensors(arg)
        elif isinstance(arg, Value):
            yield arg.spec
        elif isinstance(arg, torch.Tensor):
            yield arg
