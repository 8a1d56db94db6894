"""Which operators must have a rule, and that the list of rule modules is whole."""

from __future__ import annotations

import pytest
import torch

from flambeau_prims.rules.registry import registered, rule, rule_for

TWELVE_MODELS = """
    mul.Tensor add.Tensor clone mul.Scalar pow.Tensor_Scalar div.Scalar tanh where.self rsqrt
    relu neg _to_copy bitwise_and.Tensor sub.Tensor ge.Tensor div.Tensor minimum eq.Tensor
    ne.Scalar log lt.Scalar cos le.Tensor sin gt.Scalar exp ge.Scalar abs native_batch_norm
    native_batch_norm_backward threshold_backward native_layer_norm native_layer_norm_backward
    sigmoid_backward tanh_backward _softmax_backward_data _safe_softmax cat gelu_backward gelu
    constant_pad_nd stack hardswish_backward roll silu slice_backward silu_backward _softmax
    native_group_norm_backward native_group_norm hardsigmoid_backward hardsigmoid
    max_pool2d_with_indices_backward max_pool2d_with_indices select_backward
    upsample_nearest2d_backward upsample_nearest2d sum.dim_IntList mean.dim cumsum index.Tensor
    index_put embedding embedding_dense_backward gather view t transpose.int _unsafe_view detach
    expand permute unsqueeze slice.Tensor select.int squeeze.dim unsafe_split.Tensor unbind.int
    alias split.Tensor as_strided empty.memory_format empty_like scalar_tensor arange new_empty
    new_zeros zeros new_ones full_like zeros_like add_.Tensor bernoulli_.float relu_ div_.Scalar
    sigmoid_ tanh_ div_.Tensor hardswish_ as_strided_ mul_.Tensor copy_ mm bmm addmm convolution
    convolution_backward _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward mkldnn_rnn_layer
    mkldnn_rnn_layer_backward
"""
"""Every overload that the forward and backward of the twelve model kinds call (".default" left
out).
"""

NEEDED_SOON = """
    native_dropout native_dropout_backward _thnn_fused_lstm_cell
    _thnn_fused_lstm_cell_backward_impl _cudnn_rnn cudnn_batch_norm cudnn_batch_norm_backward
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
    _fused_rms_norm _grouped_mm _scaled_mm _scaled_mm_v2 _scaled_grouped_mm
    _weight_int8pack_mm _weight_int4pack_mm_for_cpu
    _scaled_grouped_mm_v2 _log_softmax _log_softmax_backward_data
    nll_loss_forward nll_loss_backward mse_loss mse_loss_backward smooth_l1_loss
    binary_cross_entropy_with_logits _foreach_add.List addcmul_ addcdiv_ lerp_.Scalar sqrt
    scatter.src scatter.value scatter_add index_select index_add masked_fill.Scalar
    slice_scatter select_scatter as_strided_scatter diagonal flip repeat tril triu sort topk
    argmax argmin max.dim min.dim nonzero masked_select _unique2 amax amin prod any all
    var.correction var_mean.correction logsumexp avg_pool2d avg_pool2d_backward
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward max_pool3d_with_indices
    upsample_bilinear2d upsample_bilinear2d_backward grid_sampler_2d im2col col2im
"""


@pytest.mark.parametrize("name", (TWELVE_MODELS + NEEDED_SOON).split())
def test_operator_has_a_rule(name: str) -> None:
    """Rules, not meta kernels, answer for these."""
    packet, _, overload = name.partition(".")
    assert rule_for(getattr(getattr(torch.ops.aten, packet), overload or "default")) is not None


def test_a_second_rule_for_an_operator_is_refused() -> None:
    """Two declarations of one operator are a mistake."""
    assert torch.ops.aten.mm.default in registered()
    with pytest.raises(ValueError, match="has a rule already"):
        rule(torch.ops.aten.mm.default)(lambda self, mat2: self)
