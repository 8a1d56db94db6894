"""Which operators may raise because of what is in their tensors: an index out of bounds, a matrix
that has no factor, a zero to divide by.

    aten.mm.default         raises for shapes, dtypes and devices only: a rule has checked them
                            -> False
    aten.gather.default     on a CPU looks at its indices
                            -> True
    aten.fmod.Tensor        of integers
                            -> True
    aten.add.out            its rule does not see whether the result fits what it is written to
                            -> True
    mylib.op.default        may do anything
                            -> True

An operator that nothing is known of may raise.  Running out of memory does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.graph import Value
from flambeau_prims.kernel_launches import NAMESPACE
from flambeau_prims.operator_facts import is_check
from flambeau_prims.per_operator import per_operator
from flambeau_prims.rules.registry import aliasing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._ops import OpOverload

_NEVER = frozenset({
    "adaptive_avg_pool2d", "adaptive_avg_pool2d_backward", "adaptive_avg_pool3d",
    "adaptive_avg_pool3d_backward", "adaptive_max_pool2d", "adaptive_max_pool3d", "add_relu",
    "addbmm", "addmm", "addmm_activation", "addmv", "addr", "all", "amax", "amin", "aminmax",
    "and", "any", "arange", "argmax", "argmin", "avg_pool2d", "avg_pool2d_backward",
    "avg_pool3d", "avg_pool3d_backward", "baddbmm", "batch_norm_backward",
    "batch_norm_no_update", "batch_norm_with_update", "batch_norm_with_update_functional",
    "bmm", "cat", "clamp", "complex", "constant_pad_nd", "convolution", "convolution_backward",
    "copy", "copysign", "count_nonzero", "cudnn_batch_norm", "cudnn_batch_norm_backward",
    "cummax", "cummin", "cumprod", "cumsum", "dot", "dropout", "elu_backward", "empty",
    "empty_like", "empty_permuted", "empty_strided", "equal", "eye", "fill", "flip", "full",
    "full_like", "fused_adam", "fused_adamw", "fused_rms_norm", "fused_rms_norm_backward",
    "fused_sgd", "gelu", "gelu_backward", "glu", "glu_backward", "hardsigmoid_backward",
    "hardswish", "hardswish_backward", "hardtanh_backward", "huber_loss", "huber_loss_backward",
    "iand", "ilshift", "ior", "irshift", "is_nonzero", "is_same_size", "isin", "item", "ixor",
    "leaky_relu_backward", "lift", "lift_fresh", "linalg_vector_norm", "linear",
    "linear_backward", "linspace", "local_scalar_dense", "log_sigmoid_backward",
    "log_sigmoid_forward", "log_softmax", "log_softmax_backward_data", "logcumsumexp",
    "logspace", "logsumexp", "lshift", "masked_fill", "matmul", "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices",
    "max_pool3d_with_indices_backward", "mean", "median", "mish_backward", "mm", "mse_loss",
    "mse_loss_backward", "mv", "nansum", "native_batch_norm", "native_batch_norm_backward",
    "native_batch_norm_legit", "native_batch_norm_legit_functional",
    "native_batch_norm_legit_no_training", "native_dropout", "native_group_norm",
    "native_group_norm_backward", "native_layer_norm", "native_layer_norm_backward",
    "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "nonzero", "norm",
    "numel", "ones", "ones_like", "or", "pixel_shuffle", "pixel_unshuffle", "prelu_kernel",
    "prelu_kernel_backward", "prod", "rand", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "randperm", "reflection_pad1d", "reflection_pad1d_backward",
    "reflection_pad2d", "reflection_pad2d_backward", "repeat", "replication_pad1d",
    "replication_pad2d", "roll", "rot90", "rshift", "safe_softmax", "scalar_tensor",
    "scaled_dot_product_cudnn_attention", "scaled_dot_product_cudnn_attention_backward",
    "scaled_dot_product_efficient_attention", "scaled_dot_product_efficient_attention_backward",
    "scaled_dot_product_flash_attention", "scaled_dot_product_flash_attention_backward",
    "scaled_dot_product_flash_attention_for_cpu",
    "scaled_dot_product_flash_attention_for_cpu_backward", "select_backward", "select_scatter",
    "size", "slice_backward", "slice_scatter", "smooth_l1_loss", "smooth_l1_loss_backward",
    "softmax", "softmax_backward_data", "softplus_backward", "sort", "split_with_sizes_copy",
    "stack", "std", "std_mean", "storage_offset", "stride", "sum", "sym_numel", "sym_size",
    "sym_storage_offset", "sym_stride", "thnn_fused_lstm_cell", "to_copy", "topk", "tril",
    "triu", "unfold_backward", "uniform", "unsafe_view", "upsample_bicubic2d",
    "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest2d_backward", "upsample_nearest3d", "upsample_trilinear3d", "var",
    "var_mean", "vdot", "xor", "zero", "zeros", "zeros_like",
})  # fmt: skip
"""Stems of operators that never raise for data, and are neither views nor pointwise."""

_DIVISIONS = frozenset({"div", "divide", "floor_divide", "fmod", "remainder"})
_POINTWISE_THAT_CHECK = frozenset({"binary_cross_entropy", "igamma", "igammac"})


def can_raise(op: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether a call may raise for what its tensors hold; `args` may hold graph Values."""
    if "out" in op._overloadname:
        return True
    kind = _kind(op)
    if kind == "never":
        return False
    if kind == "always":
        return True
    tensors = list(_tensors(args))
    if all(tensor.device.type != "cpu" for tensor in tensors):
        return False  # an accelerator does not wait for what it finds
    if kind == "division":
        floats = (t.dtype.is_floating_point or t.dtype.is_complex for t in tensors)
        if any(floats) or any(isinstance(arg, float) for arg in args[:2]):
            return False
        return len(tensors) > 1 or any(map(_may_be_zero, args[1:2]))
    return True


def _may_be_zero(divisor: Any) -> bool:
    if isinstance(divisor, (Value, torch.Tensor)):
        return True
    return not isinstance(divisor, bool) and divisor == 0


@per_operator
def _kind(op: OpOverload) -> str:
    namespace, _, name = op._schema.name.partition("::")
    if namespace == NAMESPACE:
        return "never"
    if namespace != "aten" or is_check(op):
        return "always"
    stem = name.strip("_").removeprefix("foreach_")
    if stem in _DIVISIONS:
        modes = ("Tensor_mode", "Scalar_mode")
        divides = stem not in ("div", "divide") or op._overloadname in modes
        return "division" if divides else "never"
    if stem in _NEVER or aliasing(op).view:
        return "never"
    if stem in _POINTWISE_THAT_CHECK:
        return "data"
    functional = getattr(
        torch.ops.aten, stem, None
    )  # in-place forms and those of lists have no tag
    forms = [op] if functional is None else [getattr(functional, o) for o in functional.overloads()]
    return "never" if any(torch.Tag.pointwise in form.tags for form in forms) else "data"


def _tensors(args: Any) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, (list, tuple)):
            yield from _tensors(arg)
        elif isinstance(arg, Value):
            yield arg.spec
        elif isinstance(arg, torch.Tensor):
            yield arg
