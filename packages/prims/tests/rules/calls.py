"""One random call for each ATen operator under test: `CALLS[name](rng)` gives (op, args, kwargs).

A call may be invalid now and then (a size that does not match, a dtype the kernel lacks): then rule and eager must both
raise.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from flambeau_prims.overloads import overloads
from rules.tensors import ALL, COMPLEX, FLOATS, INTEGERS, broadcastable, index_tensor, shape, tensor

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

aten = torch.ops.aten

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
CALLS: dict[str, Callable[[random.Random], Call]] = {}


def calls(*ops: Any) -> Callable[..., Any]:
    """Register a generator of (args, kwargs) for these overloads."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            name = str(op)
            if name in CALLS:
                raise ValueError(f"{name} is listed twice")
            CALLS[name] = partial(_call, op, function)
        return function

    return register


def _call(op: Any, function: Callable[..., Any], rng: random.Random) -> Call:
    made = function(rng)
    args, kwargs = made if len(made) == 2 and isinstance(made[1], dict) else (made, {})
    return op, args, kwargs


def every(*names: str) -> list[Any]:
    """Every overload of these names, in-place twins included, except those of their own kind below."""
    return [op for name in " ".join(names).split() for op in overloads(name)]


def dim_of(rng: random.Random, ndim: int, wrong: float = 0.03) -> int:
    """A dimension, negative half the time, out of range now and then."""
    if rng.random() < wrong:
        return ndim + 2
    extent = max(ndim, 1)
    return rng.randrange(-extent, extent)


def floating(rng: random.Random, sizes: Any, layout: str | None = None) -> torch.Tensor:
    """float32 mostly, some other floating dtype else."""
    dtype = torch.float32 if rng.random() < 0.6 else rng.choice(FLOATS)
    return tensor(rng, sizes, dtype, layout)


def anything(rng: random.Random, sizes: Any) -> torch.Tensor:
    """Any dtype."""
    return tensor(rng, sizes, rng.choice(ALL) if rng.random() < 0.5 else torch.float32)


# 1. Pointwise

_UNARY = (
    "acos acosh asin asinh atan atanh cos cosh sin sinh tan tanh exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal"
    " sigmoid erf erfc erfinv lgamma digamma sinc i0 special_i0e special_i1 special_i1e special_entr special_erfcx"
    " special_log_ndtr special_ndtri neg bitwise_not ceil floor trunc sign relu sgn frac silu gelu mish hardswish"
    " hardsigmoid elu celu softplus softshrink hardshrink leaky_relu isinf isposinf isneginf signbit logical_not abs angle"
    " hardtanh log_sigmoid_forward deg2rad rad2deg conj_physical positive logit fill_zero isnan"
)


@calls(*every(_UNARY), *every(*(f"{name}_" for name in _UNARY.split())), aten.round.default, aten.round_.default)
def _unary(rng: random.Random) -> Any:
    return (anything(rng, shape(rng)),)


_BINARY = (
    "add sub mul div atan2 xlogy copysign special_xlog1py pow bitwise_and bitwise_or bitwise_xor bitwise_left_shift"
    " bitwise_right_shift gcd lcm maximum minimum fmax fmin hypot nextafter logaddexp logaddexp2 igamma igammac eq ne lt le gt"
    " ge logical_and logical_or logical_xor rsub floor_divide remainder fmod heaviside __lshift__ __rshift__"
)
_WITH_MODE = ("Tensor_mode", "Scalar_mode")


def _binary(op: Any) -> Callable[[random.Random], Any]:
    in_place = op._schema.arguments[0].alias_info is not None
    takes_tensor = ["Tensor" in str(arg.type) for arg in op._schema.arguments[:2]]

    def make(rng: random.Random) -> Any:
        sizes = shape(rng)
        exact = in_place or rng.random() < 0.5
        shapes = (sizes if exact else broadcastable(rng, sizes), broadcastable(rng, sizes))
        operands = [
            anything(rng, wanted) if is_tensor else rng.choice((2, 1.5, True, 3))
            for wanted, is_tensor in zip(shapes, takes_tensor, strict=True)
        ]
        if in_place and 0 in operands[0].stride():
            operands[0] = operands[0].clone()
        if op._overloadname in _WITH_MODE:
            return tuple(operands), {"rounding_mode": rng.choice(("floor", "trunc", None))}
        return tuple(operands)

    return make


for _op in every(_BINARY, *(f"{_name}_" for _name in _BINARY.split() if "__" not in _name)):
    calls(_op)(_binary(_op))


def _pair(rng: random.Random) -> Any:
    sizes = shape(rng)
    dtype = rng.choice(FLOATS)
    return tensor(rng, sizes, dtype), tensor(rng, sizes, dtype)


@calls(
    *every(
        "sigmoid_backward tanh_backward silu_backward hardswish_backward hardsigmoid_backward mish_backward gelu_backward"
    )
)
def _activation_backward(rng: random.Random) -> Any:
    return _pair(rng)


@calls(aten.threshold_backward.default, aten.hardshrink_backward.default, aten.softshrink_backward.default)
def _activation_backward_number(rng: random.Random) -> Any:
    return (*_pair(rng), 0.5)


calls(aten.hardtanh_backward.default, aten.softplus_backward.default)(lambda rng: (*_pair(rng), -1, 1))
calls(aten.leaky_relu_backward.default)(lambda rng: (*_pair(rng), 0.1, False))


@calls(aten.elu_backward.default)
def _elu_backward(rng: random.Random) -> Any:
    grad, saved = _pair(rng)
    return grad, 1, 1, 1, False, saved


@calls(aten.where.self)
def _where(rng: random.Random) -> Any:
    sizes = shape(rng)
    condition = tensor(rng, broadcastable(rng, sizes), torch.bool)
    return condition, anything(rng, broadcastable(rng, sizes)), anything(rng, broadcastable(rng, sizes))


@calls(aten.clamp.default, aten.clamp_.default)
def _clamp(rng: random.Random) -> Any:
    return anything(rng, shape(rng)), rng.choice((None, 1, 0.5)), rng.choice((None, 2, 2.5))


@calls(aten.clamp.Tensor)
def _clamp_tensor(rng: random.Random) -> Any:
    sizes = shape(rng)
    low = anything(rng, broadcastable(rng, sizes)) if rng.random() < 0.7 else None
    high = anything(rng, broadcastable(rng, sizes)) if rng.random() < 0.7 else None
    return anything(rng, broadcastable(rng, sizes)), low, high


@calls(aten.clamp_min.default, aten.clamp_max.default, aten.clamp_min_.default)
def _clamp_one(rng: random.Random) -> Any:
    return anything(rng, shape(rng)), rng.choice((1, 0.5, True))


@calls(aten.clamp_min.Tensor, aten.clamp_max.Tensor)
def _clamp_one_tensor(rng: random.Random) -> Any:
    sizes = shape(rng)
    return anything(rng, sizes), anything(rng, broadcastable(rng, sizes))


@calls(aten.addcmul.default, aten.addcdiv.default)
def _addcmul(rng: random.Random) -> Any:
    sizes = shape(rng)
    return tuple(anything(rng, broadcastable(rng, sizes)) for _ in range(3))


@calls(aten.lerp.Tensor, aten.lerp.Scalar)
def _lerp(rng: random.Random) -> Any:
    sizes = shape(rng)
    start, end, weight = (floating(rng, broadcastable(rng, sizes)) for _ in range(3))
    return start, end, weight


CALLS["aten.lerp.Scalar"] = lambda rng: (aten.lerp.Scalar, (*_lerp(rng)[:2], 0.3), {})


@calls(aten.masked_fill.Scalar, aten.masked_fill_.Scalar)
def _masked_fill(rng: random.Random) -> Any:
    sizes = shape(rng)
    self = anything(rng, broadcastable(rng, sizes))
    mask = tensor(rng, broadcastable(rng, sizes), torch.bool)
    return self, mask, rng.choice((1, 2.5))


@calls(aten.fill.Scalar, aten.full_like.default)
def _fill(rng: random.Random) -> Any:
    return anything(rng, shape(rng)), 2


@calls(aten.native_dropout.default)
def _native_dropout(rng: random.Random) -> Any:
    return floating(rng, shape(rng)), rng.choice((0.0, 0.3, 1.0)), rng.choice((True, False))


@calls(aten.glu.default)
def _glu(rng: random.Random) -> Any:
    self = floating(rng, shape(rng))
    return self, dim_of(rng, self.ndim)


@calls(aten.glu_backward.default)
def _glu_backward(rng: random.Random) -> Any:
    sizes = [2 * rng.randint(1, 3) for _ in range(rng.randint(1, 4))]
    dim = rng.randrange(len(sizes))
    halved = [size // 2 if d == dim else size for d, size in enumerate(sizes)]
    return tensor(rng, halved), tensor(rng, sizes), dim


# 2. Copies and factories


@calls(aten.clone.default, aten.empty_like.default, aten.zeros_like.default, aten._to_copy.default)
def _clone(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    formats = [None, torch.preserve_format, torch.contiguous_format]
    if self.ndim == 4:
        formats.append(torch.channels_last)
    if self.ndim == 5:
        formats.append(torch.channels_last_3d)
    return (self,), {"memory_format": rng.choice(formats)}


@calls(aten.copy.default, aten.copy_.default)
def _copy(rng: random.Random) -> Any:
    sizes = shape(rng)
    return anything(rng, sizes).clone(), anything(rng, broadcastable(rng, sizes))


@calls(aten.arange.default)
def _arange(rng: random.Random) -> Any:
    return (rng.choice((0, 1, 7, 3.5)),), {"dtype": rng.choice((None, torch.float32, torch.int64, torch.int32))}


@calls(aten.arange.start_step)
def _arange_step(rng: random.Random) -> Any:
    return rng.choice((0, -2, 1.5)), rng.choice((5, 7.25, -9, 0)), rng.choice((1, 2, -3, 0.5))


@calls(aten.linspace.default)
def _linspace(rng: random.Random) -> Any:
    return 0, 1.5, rng.randint(0, 6)


@calls(aten.full.default)
def _full(rng: random.Random) -> Any:
    return list(shape(rng)), rng.choice((1, 1.5, True))


@calls(aten.eye.m, aten.tril_indices.default, aten.triu_indices.default)
def _two_sizes(rng: random.Random) -> Any:
    return rng.randint(0, 5), rng.randint(0, 5)


@calls(aten.scalar_tensor.default)
def _scalar_tensor(rng: random.Random) -> Any:
    return (rng.choice((1, 1.5, True)),), {"dtype": rng.choice((None, torch.int64, torch.bfloat16))}


@calls(aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default)
def _new(rng: random.Random) -> Any:
    return anything(rng, shape(rng)), list(shape(rng))


@calls(aten.empty_permuted.default)
def _empty_permuted(rng: random.Random) -> Any:
    sizes = shape(rng)
    return list(sizes), rng.sample(range(len(sizes)), len(sizes))


# 3. Views


@calls(aten.view.default)
def _view(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, _regrouped(rng, list(self.shape))


def _regrouped(rng: random.Random, sizes: list[int]) -> list[int]:
    out = list(sizes)
    for _ in range(rng.randint(0, 3)):
        move = rng.random()
        if move < 0.4 and len(out) > 1:
            at = rng.randrange(len(out) - 1)
            out[at : at + 2] = [out[at] * out[at + 1]]
        elif move < 0.6 and out:
            at = rng.randrange(len(out))
            if out[at] % 2 == 0:
                out[at : at + 1] = [2, out[at] // 2]
        elif move < 0.8:
            out.insert(rng.randint(0, len(out)), 1)
        elif out and -1 not in out:
            out[rng.randrange(len(out))] = -1
    return out


@calls(aten.expand.default)
def _expand(rng: random.Random) -> Any:
    sizes = shape(rng)
    self = anything(rng, broadcastable(rng, sizes))
    return self, [-1 if rng.random() < 0.1 else size for size in sizes]


@calls(aten.transpose.int)
def _transpose(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim), dim_of(rng, self.ndim)


@calls(aten.t.default, aten.squeeze.default, aten.detach.default, aten.alias.default)
def _whole(rng: random.Random) -> Any:
    return (anything(rng, shape(rng, 0, 3)),)


@calls(aten.permute.default)
def _permute(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    order = rng.sample(range(self.ndim), self.ndim)
    return self, order if rng.random() < 0.95 else [0, *order]


@calls(aten.unsqueeze.default, aten.squeeze.dim, aten.unbind.int)
def _one_dim(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim)


@calls(aten.squeeze.dims)
def _squeeze_dims(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, rng.sample(range(self.ndim), rng.randint(0, self.ndim))


@calls(aten.diagonal.default)
def _diagonal(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 2, 4))
    return self, rng.randint(-4, 4), dim_of(rng, self.ndim), dim_of(rng, self.ndim)


@calls(aten.slice.Tensor)
def _slice(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    bounds = (None, -9, -2, 0, 1, 3, 2**63 - 1)
    return self, dim_of(rng, self.ndim), rng.choice(bounds), rng.choice(bounds), rng.choice((1, 2, 3))


@calls(aten.select.int)
def _select(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim), rng.randint(-4, 4)


@calls(aten.split.Tensor, aten.unsafe_split.Tensor)
def _split(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, rng.randint(0, 4), dim_of(rng, self.ndim)


@calls(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def _split_with_sizes(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 1, 4))
    dim = rng.randrange(self.ndim)
    first = rng.randint(0, self.shape[dim])
    return self, [first, self.shape[dim] - first], dim


@calls(aten.unfold.default)
def _unfold(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim), rng.randint(1, 3), rng.randint(1, 3)


@calls(aten.as_strided.default)
def _as_strided(rng: random.Random) -> Any:
    return tensor(rng, (4, 5, 6), layout="contiguous"), [2, 3], [rng.randint(0, 9), rng.randint(0, 9)], rng.choice((None, 4))


@calls(aten.view.dtype)
def _view_dtype(rng: random.Random) -> Any:
    return anything(rng, shape(rng)), rng.choice((torch.int32, torch.float64, torch.uint8, torch.bfloat16))


@calls(aten.view_as_real.default)
def _view_as_real(rng: random.Random) -> Any:
    return (tensor(rng, shape(rng), rng.choice(COMPLEX)),)


@calls(aten.view_as_complex.default)
def _view_as_complex(rng: random.Random) -> Any:
    return (tensor(rng, (*shape(rng, 0, 3), 2)),)


def _packed(rng: random.Random, low: int) -> torch.Tensor:
    """Without gaps and offset: eager's view_scatters would copy these too, the rules do not."""
    return tensor(rng, shape(rng, low, 4, empty=False), torch.float32, rng.choice(("contiguous", "permuted")))


@calls(aten.slice_scatter.default)
def _slice_scatter(rng: random.Random) -> Any:
    self = _packed(rng, 1)
    dim = rng.randrange(self.ndim)
    part = self.narrow(dim, 0, self.shape[dim] // 2)
    return self, tensor(rng, part.shape, self.dtype), dim, 0, self.shape[dim] // 2


@calls(aten.select_scatter.default)
def _select_scatter(rng: random.Random) -> Any:
    self = _packed(rng, 1)
    dim = rng.randrange(self.ndim)
    return self, tensor(rng, self.select(dim, 0).shape, self.dtype), dim, 0


@calls(aten.diagonal_scatter.default)
def _diagonal_scatter(rng: random.Random) -> Any:
    self = _packed(rng, 2)
    return self, tensor(rng, self.diagonal().shape, self.dtype)


@calls(aten.slice_backward.default)
def _slice_backward(rng: random.Random) -> Any:
    sizes = shape(rng, 1, 4, empty=False)
    return tensor(rng, (sizes[0] // 2, *sizes[1:])), list(sizes), 0, 0, sizes[0] // 2, 1


@calls(aten.select_backward.default)
def _select_backward(rng: random.Random) -> Any:
    sizes = shape(rng, 1, 4, empty=False)
    return floating(rng, sizes[1:]), list(sizes), 0, 0


# 4. Reductions


def _dims(rng: random.Random, ndim: int) -> Any:
    if rng.random() < 0.03:
        return [ndim + 1]
    return [d - ndim if rng.random() < 0.5 else d for d in rng.sample(range(ndim), rng.randint(0, ndim))]


@calls(aten.sum.default, aten.any.default, aten.all.default, aten.prod.default, aten.nansum.default)
def _reduce_all(rng: random.Random) -> Any:
    return (anything(rng, shape(rng)),)


@calls(aten.mean.default, aten.max.default, aten.min.default, aten.var.default, aten.std.default, aten.norm.Scalar)
def _reduce_all_floating(rng: random.Random) -> Any:
    return (anything(rng, shape(rng, empty=False)),)


@calls(aten.sum.dim_IntList, aten.mean.dim)
def _sum(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    args = (self, _dims(rng, self.ndim), rng.random() < 0.5)
    return args, {"dtype": rng.choice((None, None, torch.float64, torch.int32))}


@calls(aten.amax.default, aten.amin.default, aten.logsumexp.default, aten.any.dims, aten.all.dims)
def _amax(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, _dims(rng, self.ndim), rng.random() < 0.5


@calls(aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction)
def _var(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    dims = rng.choice((None, _dims(rng, self.ndim)))
    return (self, dims), {"correction": rng.choice((None, 0, 1)), "keepdim": rng.random() < 0.5}


@calls(aten.linalg_vector_norm.default)
def _vector_norm(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, empty=False))
    return self, rng.choice((2, 1, 0.5)), rng.choice((None, _dims(rng, self.ndim))), rng.random() < 0.5


@calls(aten.norm.ScalarOpt_dim)
def _norm(rng: random.Random) -> Any:
    self = floating(rng, shape(rng, empty=False))
    return self, rng.choice((None, 2, 1)), _dims(rng, self.ndim), rng.random() < 0.5


@calls(
    aten.max.dim,
    aten.min.dim,
    aten.median.dim,
    aten.argmax.default,
    aten.argmin.default,
    aten.any.dim,
    aten.all.dim,
    aten.prod.dim_int,
    aten.mode.default,
)
def _along(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim), rng.random() < 0.5


@calls(aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default, aten.cummax.default, aten.cummin.default)
def _scan(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim)


@calls(aten.cumsum_.default)
def _scan_in_place(rng: random.Random) -> Any:
    self = anything(rng, shape(rng)).clone()
    return self, dim_of(rng, self.ndim)


# 5. Matrix products


def _matrix(rng: random.Random, *sizes: int) -> torch.Tensor:
    return tensor(rng, sizes, torch.float32 if rng.random() < 0.9 else torch.float64)


@calls(aten.mm.default)
def _mm(rng: random.Random) -> Any:
    m, k, n = (rng.randint(0, 4) for _ in range(3))
    return _matrix(rng, m, k), _matrix(rng, k + (rng.random() < 0.05), n)


@calls(aten.addmm.default)
def _addmm(rng: random.Random) -> Any:
    m, k, n = (rng.randint(1, 4) for _ in range(3))
    return _matrix(rng, *broadcastable(rng, (m, n))), _matrix(rng, m, k), _matrix(rng, k, n)


@calls(aten.bmm.default)
def _bmm(rng: random.Random) -> Any:
    b, m, k, n = (rng.randint(1, 4) for _ in range(4))
    return _matrix(rng, b, m, k), _matrix(rng, b, k, n)


@calls(aten.baddbmm.default)
def _baddbmm(rng: random.Random) -> Any:
    b, m, k, n = (rng.randint(1, 4) for _ in range(4))
    return _matrix(rng, *broadcastable(rng, (b, m, n))), _matrix(rng, b, m, k), _matrix(rng, b, k, n)


@calls(aten.mv.default)
def _mv(rng: random.Random) -> Any:
    m, k = rng.randint(1, 4), rng.randint(1, 4)
    return _matrix(rng, m, k), _matrix(rng, k)


@calls(aten.dot.default)
def _dot(rng: random.Random) -> Any:
    k = rng.randint(0, 4)
    return _matrix(rng, k), _matrix(rng, k)


# 6. Convolutions


def convolution_arguments(rng: random.Random) -> Any:
    """Arguments of aten.convolution, transposed or not, of 1 to 3 spatial dimensions."""
    spatial = rng.choice((1, 2, 2, 2, 3))
    groups = rng.choice((1, 1, 2))
    channels, out = groups * rng.randint(1, 3), groups * rng.randint(1, 3)
    kernel = [rng.choice((1, 2, 3)) for _ in range(spatial)]
    sizes = [rng.randint(4, 8) for _ in range(spatial)]
    transposed = rng.random() < 0.25
    dtype = rng.choice((torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16))
    self = tensor(rng, (rng.randint(1, 3), channels, *sizes), dtype)
    first, second = (channels, out // groups) if transposed else (out, channels // groups)
    layout = rng.choice(("contiguous", "contiguous", "channels_last"))
    weight = tensor(rng, (first, second, *kernel), dtype, layout)
    bias = tensor(rng, (out,), dtype) if rng.random() < 0.5 else None
    stride = [rng.randint(1, 2) for _ in range(spatial)]
    padding = [rng.randint(0, 1) for _ in range(spatial)]
    dilation = [rng.choice((1, 1, 2)) for _ in range(spatial)]
    return self, weight, bias, stride, padding, dilation, transposed, [0] * spatial, groups


@calls(aten.convolution.default)
def _convolution(rng: random.Random) -> Any:
    return convolution_arguments(rng)


@calls(aten.convolution_backward.default)
def _convolution_backward(rng: random.Random) -> Any:
    while True:
        self, weight, bias, *rest = convolution_arguments(rng)
        try:
            out = aten.convolution.default(self, weight, bias, *rest)
            break
        except RuntimeError:  # the kernel is larger than the input: draw again
            continue
    # Eager computes the weight's gradient even unasked, in odd shapes; so it is always asked for.
    mask = [rng.random() < 0.8, True, rng.random() < 0.8]
    grad = tensor(rng, out.shape, out.dtype, rng.choice(("contiguous", "channels_last", "expanded")))
    return grad, self, weight, [out.shape[1]], *rest, mask


# 7. Norms and softmax


def _parameters(rng: random.Random, sizes: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    if dtype in (torch.bfloat16, torch.float16) and rng.random() < 0.5:
        dtype = torch.float32
    if rng.random() < 0.2:
        return None, None
    return tensor(rng, sizes, dtype, "contiguous"), tensor(rng, sizes, dtype, "contiguous")


@calls(aten.native_batch_norm.default)
def _native_batch_norm(rng: random.Random) -> Any:
    self = floating(rng, shape(rng, 2, 5, empty=False))
    weight, bias = _parameters(rng, (self.shape[1],), self.dtype)
    dtype = self.dtype if weight is None else weight.dtype
    mean, var = (tensor(rng, (self.shape[1],), dtype, "contiguous") for _ in range(2))
    return self, weight, bias, mean, var, rng.random() < 0.5, 0.1, 1e-5


@calls(aten.native_batch_norm_backward.default)
def _native_batch_norm_backward(rng: random.Random) -> Any:
    self, weight, bias, mean, var, train, momentum, eps = _native_batch_norm(rng)
    out, saved, invstd = aten.native_batch_norm.default(self, weight, bias, mean, var, train, momentum, eps)
    grad = tensor(rng, out.shape, out.dtype)
    return grad, self, weight, mean, var, saved, invstd, train, eps, [rng.random() < 0.8 for _ in range(3)]


@calls(aten.native_layer_norm.default)
def _native_layer_norm(rng: random.Random) -> Any:
    self = floating(rng, shape(rng, 1, 4, empty=False))
    sizes = list(self.shape[rng.randrange(self.ndim) :])
    return self, sizes, *_parameters(rng, sizes, self.dtype), 1e-5


@calls(aten.native_layer_norm_backward.default)
def _native_layer_norm_backward(rng: random.Random) -> Any:
    self, sizes, weight, bias, eps = _native_layer_norm(rng)
    out, mean, rstd = aten.native_layer_norm.default(self, sizes, weight, bias, eps)
    mask = [True, weight is not None, bias is not None]
    return tensor(rng, out.shape, out.dtype), self, sizes, mean, rstd, weight, bias, mask


@calls(aten.native_group_norm.default)
def _native_group_norm(rng: random.Random) -> Any:
    group = rng.randint(1, 3)
    sizes = (rng.randint(1, 3), group * rng.randint(1, 2), *(rng.randint(1, 4) for _ in range(rng.randint(1, 3))))
    self = floating(rng, sizes, rng.choice(("contiguous", "channels_last")) if len(sizes) == 4 else "contiguous")
    count = self.numel() // (sizes[0] * sizes[1])
    return self, *_parameters(rng, (sizes[1],), self.dtype), sizes[0], sizes[1], count, group, 1e-5


@calls(aten.native_group_norm_backward.default)
def _native_group_norm_backward(rng: random.Random) -> Any:
    self, weight, bias, n, c, count, group, eps = _native_group_norm(rng)
    _, mean, rstd = aten.native_group_norm.default(self, weight, bias, n, c, count, group, eps)
    grad = torch.ones_like(self)
    return grad, self, mean, rstd, weight, n, c, count, group, [True, weight is not None, weight is not None]


@calls(aten._softmax.default, aten._log_softmax.default)
def _softmax(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim), False


@calls(aten._safe_softmax.default)
def _safe_softmax(rng: random.Random) -> Any:
    self = floating(rng, shape(rng))
    return self, dim_of(rng, self.ndim)


@calls(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(rng: random.Random) -> Any:
    grad, out = _pair(rng)
    return grad, out, dim_of(rng, grad.ndim), grad.dtype


@calls(aten._fused_rms_norm.default)
def _fused_rms_norm(rng: random.Random) -> Any:
    self, sizes, weight, _, _ = _native_layer_norm(rng)
    return self, sizes, None if weight is None else weight.to(self.dtype), 1e-5


# 8. Indexing


@calls(aten.gather.default)
def _gather(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, empty=False))
    dim = dim_of(rng, self.ndim)
    at = dim % max(self.ndim, 1)
    sizes = [rng.randint(0, 3) if d == at else rng.randint(1, size) for d, size in enumerate(self.shape)]
    return self, dim, index_tensor(rng, sizes, self.shape[at] if at < self.ndim else 1)


@calls(aten.scatter.src, aten.scatter_add.default, aten.scatter.value, aten.scatter_reduce.two)
def _scatter(rng: random.Random) -> Any:
    self = tensor(rng, shape(rng, empty=False))
    dim = dim_of(rng, self.ndim, wrong=0)
    at = dim % max(self.ndim, 1)
    sizes = [rng.randint(0, size) if d == at else rng.randint(1, size) for d, size in enumerate(self.shape)]
    return self, dim, index_tensor(rng, sizes, self.shape[at] if self.ndim else 1), tensor(rng, self.shape)


CALLS["aten.scatter.value"] = lambda rng: (aten.scatter.value, (*_scatter(rng)[:3], 1.5), {})
CALLS["aten.scatter_reduce.two"] = lambda rng: (aten.scatter_reduce.two, (*_scatter(rng), "amax"), {})


@calls(aten.index.Tensor)
def _index(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 1, 4, empty=False))
    sizes = shape(rng, 0, 3, empty=False)
    indices = [
        index_tensor(rng, broadcastable(rng, sizes), size) if rng.random() < 0.6 else None for size in self.shape
    ]
    while indices and indices[-1] is None:
        indices.pop()
    return self, indices


@calls(aten.index_put.default)
def _index_put(rng: random.Random) -> Any:
    self, indices = _index(rng)
    if not indices:
        indices = [index_tensor(rng, (2,), self.shape[0])]
    shaped = aten.index.Tensor(self, indices)
    return self, indices, tensor(rng, broadcastable(rng, shaped.shape), self.dtype), rng.random() < 0.5


@calls(aten.index_select.default)
def _index_select(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 1, 4, empty=False))
    dim = rng.randrange(self.ndim)
    return self, dim, index_tensor(rng, (rng.randint(0, 4),), self.shape[dim])


@calls(aten.index_add.default, aten.index_copy.default)
def _index_add(rng: random.Random) -> Any:
    self = tensor(rng, shape(rng, 1, 4, empty=False))
    dim = rng.randrange(self.ndim)
    count = rng.randint(0, 4)
    source = tensor(rng, [count if d == dim else size for d, size in enumerate(self.shape)])
    return self, dim, index_tensor(rng, (count,), self.shape[dim]), source


@calls(aten.index_fill.int_Scalar)
def _index_fill(rng: random.Random) -> Any:
    self, dim, index, _ = _index_add(rng)
    return self, dim, index, 1.5


@calls(aten.take.default)
def _take(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, empty=False))
    return self, index_tensor(rng, shape(rng), self.numel())


@calls(aten.embedding.default)
def _embedding(rng: random.Random) -> Any:
    return tensor(rng, (5, 3)), index_tensor(rng, shape(rng, 0, 3), 5)


@calls(aten.embedding_dense_backward.default)
def _embedding_dense_backward(rng: random.Random) -> Any:
    indices = index_tensor(rng, shape(rng, 1, 3), 5)
    return tensor(rng, (*indices.shape, 4)), indices, 5, -1, False


@calls(aten.cat.default)
def _cat(rng: random.Random) -> Any:
    sizes = shape(rng, 1, 5)
    dim = rng.randrange(len(sizes))
    pieces = [
        anything(rng, [rng.randint(1, 3) if d == dim else size for d, size in enumerate(sizes)])
        for _ in range(rng.randint(1, 3))
    ]
    if rng.random() < 0.1:
        pieces.append(torch.empty(0))
    return pieces, dim


@calls(aten.stack.default)
def _stack(rng: random.Random) -> Any:
    sizes = shape(rng, 0, 4)
    return [anything(rng, sizes) for _ in range(rng.randint(1, 3))], dim_of(rng, len(sizes) + 1)


@calls(aten.constant_pad_nd.default)
def _constant_pad_nd(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, [rng.randint(-1, 2) for _ in range(2 * rng.randint(0, self.ndim))], 1


@calls(aten.roll.default)
def _roll(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 1, 4))
    dims = rng.sample(range(self.ndim), rng.randint(0, self.ndim))
    return self, [rng.randint(-3, 3) for _ in dims] or [1], dims


@calls(aten.flip.default)
def _flip(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, rng.sample(range(self.ndim), rng.randint(0, self.ndim))


@calls(aten.rot90.default)
def _rot90(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 2, 4))
    return self, rng.randint(-1, 4), rng.sample(range(self.ndim), 2)


@calls(aten.repeat.default)
def _repeat(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, [rng.randint(0, 3) for _ in range(self.ndim + rng.randint(0, 2))]


@calls(aten.repeat_interleave.self_int)
def _repeat_interleave(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 1, 3))
    return self, rng.randint(0, 3), rng.choice((None, 0, -1))


@calls(aten.tril.default, aten.triu.default)
def _tril(rng: random.Random) -> Any:
    return anything(rng, shape(rng, 1, 4)), rng.randint(-2, 2)


@calls(aten.diag_embed.default)
def _diag_embed(rng: random.Random) -> Any:
    return anything(rng, shape(rng, 1, 3)), rng.randint(-2, 2)


@calls(aten.masked_scatter.default)
def _masked_scatter(rng: random.Random) -> Any:
    sizes = shape(rng)
    self = tensor(rng, broadcastable(rng, sizes))
    return self, tensor(rng, broadcastable(rng, sizes), torch.bool), torch.ones(2000)


# 9. Attention


def attention_operands(rng: random.Random) -> Any:
    """query, key and value as models make them: contiguous, or heads split off a projection."""
    b, h, d = rng.randint(1, 3), rng.randint(1, 3), rng.choice((4, 8))
    queries, keys = rng.randint(1, 5), rng.randint(1, 5)
    dtype = rng.choice((torch.float32, torch.float64, torch.bfloat16))

    def operand(length: int) -> torch.Tensor:
        if rng.random() < 0.5:
            return tensor(rng, (b, h, length, d), dtype, "contiguous")
        return tensor(rng, (b, length, h, d), dtype, "contiguous").transpose(1, 2)

    return operand(queries), operand(keys), operand(keys)


@calls(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _flash_for_cpu(rng: random.Random) -> Any:
    return attention_operands(rng)


@calls(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _flash_for_cpu_backward(rng: random.Random) -> Any:
    query, key, value = attention_operands(rng)
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu.default(query, key, value)
    grad = tensor(rng, out.shape, out.dtype)
    return grad, query, key, value, out, logsumexp, 0.0, False


# 10. Pooling and resampling


@calls(aten.max_pool2d_with_indices.default)
def _max_pool2d(rng: random.Random) -> Any:
    sizes = (rng.randint(1, 3), rng.randint(1, 3), rng.randint(3, 9), rng.randint(3, 9))[rng.randint(0, 1) :]
    self = floating(rng, sizes)
    kernel = [rng.randint(1, 3), rng.randint(1, 3)]
    stride = rng.choice(([], [2], [1, 2]))
    return self, kernel, stride, [rng.randint(0, 1)], [rng.randint(1, 2)], rng.random() < 0.5


@calls(aten.max_pool2d_with_indices_backward.default)
def _max_pool2d_backward(rng: random.Random) -> Any:
    args = _max_pool2d(rng)
    while True:
        try:
            out, indices = aten.max_pool2d_with_indices.default(*args)
            break
        except RuntimeError:
            args = _max_pool2d(rng)
    return tensor(rng, out.shape, out.dtype), *args, indices


INTEGER_DTYPES = INTEGERS
