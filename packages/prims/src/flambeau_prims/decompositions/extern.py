"""Operators that stay calls of ATen, and why.

Together with the decompositions this covers every operator that has a shape rule; a test asserts
that. An operator on complex tensors stays ATen's whatever this table says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_prims.kernel_launches import NAMESPACE

if TYPE_CHECKING:
    from torch._ops import OpOverload

REASONS: dict[str, tuple[str, ...]] = {
    "matrix product: a library's or a template's kernel": (
        "mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot",
        "vdot", "linear", "_trilinear", "_scaled_mm", "_scaled_mm_v2", "_grouped_mm",
        "_scaled_grouped_mm", "_scaled_grouped_mm_v2", "_int_mm", "_weight_int8pack_mm",
        "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu",
    ),
    "convolution: a library's kernel": ("convolution", "convolution_backward", "_convolution"),
    "factorisations and solvers under their older names: a library's kernels": (
        "cholesky", "cholesky_inverse", "cholesky_solve", "geqrf", "lu_unpack", "ormqr",
        "triangular_solve",
    ),
    "copies of views as complex numbers, or as the parts of these": (
        "view_as_complex_copy", "view_as_real_copy",
    ),
    "fused attention: a library's kernel": (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
        "_efficient_attention_forward",
        "_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
    ),
    "recurrent network: a library's kernel": (
        "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "_cudnn_rnn", "_cudnn_rnn_backward",
        "_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl", "_thnn_fused_gru_cell",
        "_thnn_fused_gru_cell_backward",
    ),
    "batch norm of a library, chosen by name or by what it kept": (
        "batch_norm_backward",
        "cudnn_batch_norm",
        "cudnn_batch_norm_backward",
        "miopen_batch_norm",
    ),
    "draws random numbers, in eager's order and stream": (
        "bernoulli", "random", "normal", "cauchy", "log_normal", "geometric", "multinomial",
        "poisson", "_standard_gamma", "randperm", "randint_like",
        "rrelu_with_noise", "rrelu_with_noise_functional", "rrelu_with_noise_backward", "binomial",
        "_sample_dirichlet",
    ),
    "scatters that do more than store or add": (
        "scatter", "scatter_reduce",
        "index_reduce", "masked_scatter",
        "as_strided_scatter",
        "unfold_backward", "_unsafe_masked_index_put_accumulate", "take_backward", "bincount",
        "histc", "histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts",
        "_histogramdd_from_bin_tensors", "segment_reduce", "_segment_reduce_backward",
        "masked_scatter_backward",
    ),
    "windows: rare": (
        "col2im",
        "fractional_max_pool2d", "fractional_max_pool3d", "fractional_max_pool2d_backward",
        "fractional_max_pool3d_backward",
    ),
    "interpolates between places": (


        "_upsample_lanczos2d_aa",
        "_upsample_lanczos2d_aa_backward",





    ),
    "sorts or selects by rank": (
        "mode", "unique", "_unique2", "isin",
    ),
    "parts of eager's cummax and cummin, which write their results": (
        "_cummax_helper", "_cummin_helper",
    ),
    "special function without a primitive": (
        "special_airy_ai", "nextafter", "frexp",
    ),
    "special function whose iterations are counted by its arguments": (
        "polygamma", "special_zeta", "igamma", "igammac", "gcd", "lcm",
        "special_chebyshev_polynomial_t",
        "special_chebyshev_polynomial_u", "special_chebyshev_polynomial_v",
        "special_chebyshev_polynomial_w", "special_hermite_polynomial_h",
        "special_hermite_polynomial_he", "special_laguerre_polynomial_l",
        "special_legendre_polynomial_p", "special_shifted_chebyshev_polynomial_t",
        "special_shifted_chebyshev_polynomial_u", "special_shifted_chebyshev_polynomial_v",
        "special_shifted_chebyshev_polynomial_w",
    ),
    "complex numbers": (
        "_conj", "_neg_view", "view_as_real", "view_as_complex", "complex", "polar",
        "real", "imag",
    ),
    "reads memory as another dtype": ("view",),
    "shape depends on the data": (
        "nonzero", "masked_select", "nonzero_static", "_unique", "unique_dim", "unique_consecutive",
        "unique_dim_consecutive",
    ),
    "a list of scales in one tensor": ("_foreach_addcdiv", "_foreach_addcmul"),
    "the lengths of bags are in the data": (
        "_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_backward",
        "_embedding_bag_per_sample_weights_backward",
    ),
    "rare, and no faster as loops": (
        "hash_tensor",
        "fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask",
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", "tril_indices",
        "triu_indices", "_masked_softmax", "_masked_softmax_backward",
        "_fw_primal", "cross", "_cdist_forward", "_cdist_backward",
        "_pdist_forward", "_pdist_backward", "_euclidean_dist",
        "multi_margin_loss_backward", "multilabel_margin_loss_backward", "ctc_loss", "_ctc_loss",
        "multi_margin_loss", "multilabel_margin_loss_forward",
        "_assert_async",
        "_local_scalar_dense", "item", "equal", "is_same_size", "_has_same_storage_numel",
        "_new_zeros_with_same_feature_meta", "sym_size", "sym_stride", "sym_numel",
        "sym_storage_offset", "size", "stride", "numel", "storage_offset", "record_stream",
    ),
}  # fmt: skip
"""Operators by name without overload, by reason."""

_REASON_OF = {name: reason for reason, names in REASONS.items() for name in names}


def reason_for(op: OpOverload) -> str | None:
    """Why this operator stays a call of ATen, or None if the table does not say."""
    namespace, _, name = op._schema.name.partition("::")
    if namespace == NAMESPACE:
        return "a Triton kernel of the program, which Triton launches"
    if namespace != "aten":
        return f"an operator of {namespace}, not of ATen"
    if name.startswith(("linalg_", "_linalg_", "fft_", "_fft_")) and name not in (
        "linalg_vector_norm",
    ):
        return "linear algebra and Fourier transforms: a library's kernels"
    functional = name.removesuffix("_")  # updates are called in place, on a copy if need be
    return _REASON_OF.get(name) or _REASON_OF.get(functional)
