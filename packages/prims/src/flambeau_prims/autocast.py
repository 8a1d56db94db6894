"""Autocast for programs on a GPU: kernels of a dispatch key that fakes for a GPU have.

To C++ such a fake is on `meta`, for which torch has no autocast. So the fakes have a key of their
own, and while a program runs under `torch.autocast("cuda")` its calls pass kernels of this module,
which cast what torch's kernels would, in every operator that has one in this torch, also where C++
calls it. The lists below say how an operator casts, as those of ATen/autocast_mode.h do:

    mm(x: f32, y: f32)  ->  mm(x.to(bf16), y.to(bf16))
    sum(x: bf16)        ->  sum(x, dtype=f32)

Not cached: a parameter that a program uses twice is cast twice, which common subexpressions of the
graph make one.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.autocast_key import AUTOCAST_DEVICE, AUTOCAST_KEY
from flambeau_prims.fake import AUTOCAST_KEYS, FakeTensor
from flambeau_prims.unsupported import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TO_LOWER = frozenset([
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution",
    "cudnn_convolution", "cudnn_convolution_transpose", "prelu", "addmm", "addmv", "addr",
    "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm",
    "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
])  # fmt: skip
"""Computed in the autocast dtype."""

_TO_FLOAT32 = frozenset([
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p",
    "reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "softplus", "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim",
    "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div",
    "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss",
    "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp",
    "linalg_matrix_sqrth", "upsample_nearest1d", "_upsample_nearest_exact1d",
    "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_nearest3d",
    "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
])  # fmt: skip
"""Computed in float32."""

_RESULT_FLOAT32 = frozenset([
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum",
    "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum",
    "sum.dim_IntList",
])  # fmt: skip
"""Given `dtype=float32` where the call names none."""

_WITH_DTYPE = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
"""Another overload is called, which takes the dtype."""

_TO_WIDEST = frozenset([
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler",
    "index_put", "tensordot", "scatter_add",
])  # fmt: skip
"""Computed in the widest dtype among the arguments."""

_REFUSED = frozenset({"binary_cross_entropy"})

_lock = threading.Lock()
_libraries: list[torch.library.Library] = []
_installed: set[str] = set()


def install() -> None:
    """Give each operator that torch casts on a GPU its kernel here, custom operators too.

    Cheap when nothing is new. Called where a trace begins: operators may be registered at any time.
    """
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")  # type: ignore[attr-defined]
    if _installed.issuperset(registered):
        return
    with _lock:
        if not _libraries:
            other = torch.library.Library("_", "IMPL")
            other.fallback(torch.library.fallthrough_kernel, AUTOCAST_KEY)
            _libraries.append(other)
        for name in registered:
            if name not in _installed and _operator(name) is not None:
                _install(name)
                _installed.add(name)


def _operator(qualified: str) -> Any:
    """The overload "namespace::name.overload"; None where nobody has defined it yet."""
    namespace, _, name = qualified.partition("::")
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return getattr(found, overload or "default", None)


def _install(qualified: str) -> None:
    namespace, _, name = qualified.partition("::")
    library = torch.library.Library(namespace, "IMPL")
    kernel = _kernel_of_torch if namespace == "aten" else _kernel_of_the_program
    library.impl(name, kernel(qualified), AUTOCAST_KEY)
    _libraries.append(library)


def _kernel_of_torch(qualified: str) -> Callable[..., Any]:
    operator = _operator(qualified)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction(), torch._C._ExcludeDispatchKeyGuard(AUTOCAST_KEYS):
            cast, args, kwargs = as_cast(operator, args, kwargs)
            return cast(*args, **kwargs)

    return kernel


def _kernel_of_the_program(qualified: str) -> Callable[..., Any]:
    """The operator's own kernel for autocast on GPUs. The operator is the one that then has the
    name: a program may define it again.
    """

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction(), torch._C._ExcludeDispatchKeyGuard(AUTOCAST_KEYS):
            return _operator(qualified).redispatch(_CUDA_KEYS, *args, **kwargs)

    return kernel


_CUDA_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


def as_cast(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The call that `torch.autocast("cuda")` makes of a call of an operator of ATen.

    Raises RuntimeError for what torch refuses there, Unsupported for what this module does not
    know.
    """
    name = operator._schema.name.partition("::")[2]
    if operator._schema.overload_name:
        name = f"{name}.{operator._schema.overload_name}"
    if name in _TO_LOWER:
        dtype = torch.get_autocast_dtype("cuda")
    elif name in _TO_FLOAT32:
        dtype = torch.float32
    elif name in _TO_WIDEST:
        dtype = _widest(args, kwargs)
    elif name in _RESULT_FLOAT32:
        return operator, *_with_dtype(operator, args, kwargs)
    elif name in _WITH_DTYPE:
        packet, _, overload = _WITH_DTYPE[name].partition(".")
        dtype = torch.float32 if _is_eligible(args[0]) else args[0].dtype
        if overload == "ScalarOpt_dim_dtype" and len(args) == 3:
            args = (*args, False)  # keepdim, which has no default there
        return getattr(getattr(torch.ops.aten, packet), overload), args, {**kwargs, "dtype": dtype}
    elif name in _REFUSED:
        raise RuntimeError(
            f"torch.nn.functional.{name} is unsafe to autocast; use "
            f"binary_cross_entropy_with_logits, which is safe"
        )
    else:
        raise Unsupported(f"{operator} under autocast, of which this torch has a kernel", operator)
    return operator, _cast(args, dtype), _cast(kwargs, dtype)


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """The kernels for fakes on or off, for a block."""
    before = torch.is_autocast_enabled(AUTOCAST_DEVICE)
    torch.set_autocast_enabled(AUTOCAST_DEVICE, on)
    try:
        yield
    finally:
        torch.set_autocast_enabled(AUTOCAST_DEVICE, before)


def is_current() -> bool:
    """Whether the kernels for fakes are on exactly if autocast on GPUs is."""
    return torch.is_autocast_enabled("cuda") == torch.is_autocast_enabled(AUTOCAST_DEVICE)


def _widest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    lower = widest = torch.get_autocast_dtype("cuda")
    for tensor in _eligible((args, kwargs)):
        if torch.float32 in (widest, tensor.dtype):
            widest = torch.float32
        elif tensor.dtype is not lower:
            raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return widest


def _with_dtype(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with `dtype=float32`, if they name none and the first is to be cast."""
    position = [argument.name for argument in operator._schema.arguments].index("dtype")
    given = args[position] if position < len(args) else kwargs.get("dtype")
    if given is not None or not _is_eligible(args[0]):
        return args, kwargs
    return args[:position], {**kwargs, "dtype": torch.float32}


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
