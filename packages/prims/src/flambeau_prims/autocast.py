"""Autocast for programs on a GPU, function by function.

PyTorch casts in kernels of a dispatch key that tensors on `meta`, which fakes for a GPU are to C++,
do not have. So while `torch.autocast("cuda")` is on, the function table casts the arguments by the
documented lists (https://pytorch.org/docs/stable/amp.html#autocast-op-reference): float tensors on
the GPU, float64 excepted, go to the autocast dtype, to float32, or to the widest dtype among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

TO_LOWER = frozenset([
    "matmul", "rmatmul", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul",
    "multi_dot", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "conv_tbc", "convolution", "linear", "mm", "mv", "prelu", "gru_cell",
    "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention", "einsum",
])  # fmt: skip
"""Computed in the autocast dtype.  `einsum` is a composition of bmm, which is what eager casts."""

TO_FLOAT32 = frozenset([
    "pow", "rpow", "rdiv", "rtruediv", "acos", "asin", "binary_cross_entropy_with_logits",
    "cosh", "cosine_embedding_loss", "cdist", "cosine_similarity", "cross_entropy",
    "cross_entropy_loss", "cumprod", "cumsum", "dist", "erfinv", "exp", "expm1", "group_norm",
    "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "layer_norm", "log", "log10",
    "log_softmax", "log1p", "log2", "logsumexp", "margin_ranking_loss", "mse_loss",
    "multilabel_margin_loss", "multi_margin_loss", "nll_loss", "nll_loss2d", "nll_loss_nd",
    "norm", "nuclear_norm", "normalize", "pdist", "poisson_nll_loss", "prod", "reciprocal",
    "renorm", "rsqrt", "sinh", "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin",
    "softplus", "square", "sum", "tan", "trapezoid", "trapz", "cumulative_trapezoid",
    "pairwise_distance", "triplet_margin_loss", "frobenius_norm", "native_layer_norm",
    "fft_fft", "fft_ifft", "fft_fft2", "fft_ifft2", "fft_fftn", "fft_ifftn", "fft_rfft",
    "fft_irfft", "fft_rfft2", "fft_irfft2", "fft_rfftn", "fft_irfftn",
])  # fmt: skip
"""Computed in float32. Some consist of others, of which eager casts one: squares are powers."""

TO_WIDEST = frozenset([
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sample", "grid_sampler",
    "index_put", "scatter_add", "tensordot", "vdot",
])  # fmt: skip
"""Computed in the widest dtype among the arguments."""

_REFUSED = frozenset({"binary_cross_entropy", "binary_cross_entropy_loss"})


def cast_arguments(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a torch function as autocast casts them."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        name = name.strip("_")
    if name in TO_LOWER:
        dtype = torch.get_autocast_dtype("cuda")
    elif name in TO_FLOAT32:
        dtype = torch.float32
    elif name in TO_WIDEST:
        present = {tensor.dtype for tensor in _eligible((args, kwargs))}
        dtype = torch.float32 if torch.float32 in present else torch.get_autocast_dtype("cuda")
    elif name in _REFUSED:
        raise RuntimeError(
            f"torch.nn.functional.{name} is unsafe to autocast; use "
            f"binary_cross_entropy_with_logits, which is safe"
        )
    else:
        return args, kwargs
    return _cast(args, dtype), _cast(kwargs, dtype)


def _is_eligible(arg: Any) -> bool:
    return (
        isinstance(arg, FakeTensor)
        and arg.is_cuda
        and arg.is_floating_point()
        and arg.dtype is not torch.float64
    )


def _eligible(arg: Any) -> Iterator[FakeTensor]:
    if _is_eligible(arg):
        yield arg
    elif isinstance(arg, (tuple, list)):
        for item in arg:
            yield from _eligible(item)
    elif isinstance(arg, dict):
        for item in arg.values():
            yield from _eligible(item)


def _cast(arg: Any, dtype: torch.dtype) -> Any:
    if isinstance(arg, torch.Tensor):
        return arg.to(dtype) if _is_eligible(arg) and arg.dtype is not dtype else arg
    if type(arg) is tuple or type(arg) is list:
        return type(arg)(_cast(item, dtype) for item in arg)
    if type(arg) is dict:
        return {key: _cast(item, dtype) for key, item in arg.items()}
    return arg
