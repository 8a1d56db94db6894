"""One random call for each ATen operator under test: `CALLS[name](rng)` gives (op, args, kwargs).

A call may be invalid now and then (a size that does not match, a dtype the kernel lacks): then rule
and eager must both raise.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from rules.tensors import ALL, FLOATS, broadcastable, shape, tensor

from flambeau_prims.rules.overloads import overloads

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
    """Every overload of these names, in-place twins included, except those listed below."""
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
    "acos acosh asin asinh atan atanh cos cosh sin sinh tan tanh exp exp2 expm1 log log2 "
    "log10 log1p sqrt rsqrt reciprocal"
    " sigmoid erf erfc erfinv lgamma digamma sinc i0 special_i0e special_i1 special_i1e "
    "special_entr special_erfcx"
    " special_log_ndtr special_ndtri neg bitwise_not ceil floor trunc sign relu sgn frac "
    "silu gelu mish hardswish"
    " hardsigmoid elu celu softplus softshrink hardshrink leaky_relu isinf isposinf "
    "isneginf signbit logical_not abs angle"
    " hardtanh log_sigmoid_forward deg2rad rad2deg positive logit fill_zero isnan"
)


@calls(
    *every(_UNARY),
    *every(*(f"{name}_" for name in _UNARY.split())),
    aten.round.default,
    aten.round_.default,
)
def _unary(rng: random.Random) -> Any:
    return (anything(rng, shape(rng)),)


_BINARY = (
    "add sub mul div atan2 xlogy copysign special_xlog1py pow bitwise_and bitwise_or "
    "bitwise_xor bitwise_left_shift"
    " bitwise_right_shift gcd lcm maximum minimum fmax fmin hypot nextafter logaddexp "
    "logaddexp2 igamma igammac eq ne lt le gt"
    " ge logical_and logical_or logical_xor rsub floor_divide remainder fmod heaviside "
    "__lshift__ __rshift__"
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


def pair(rng: random.Random) -> Any:
    """A gradient and a saved tensor of one shape and dtype."""
    sizes = shape(rng)
    dtype = rng.choice(FLOATS)
    return tensor(rng, sizes, dtype), tensor(rng, sizes, dtype)


@calls(
    *every(
        "sigmoid_backward tanh_backward silu_backward hardswish_backward "
        "hardsigmoid_backward mish_backward gelu_backward"
    )
)
def _activation_backward(rng: random.Random) -> Any:
    return pair(rng)


@calls(
    aten.threshold_backward.default,
    aten.hardshrink_backward.default,
    aten.softshrink_backward.default,
)
def _activation_backward_number(rng: random.Random) -> Any:
    return (*pair(rng), 0.5)


calls(aten.hardtanh_backward.default, aten.softplus_backward.default)(
    lambda rng: (*pair(rng), -1, 1)
)
calls(aten.leaky_relu_backward.default)(lambda rng: (*pair(rng), 0.1, False))


@calls(aten.elu_backward.default)
def _elu_backward(rng: random.Random) -> Any:
    grad, saved = pair(rng)
    return grad, 1, 1, 1, False, saved


@calls(aten.where.self)
def _where(rng: random.Random) -> Any:
    sizes = shape(rng)
    condition = tensor(rng, broadcastable(rng, sizes), torch.bool)
    return (
        condition,
        anything(rng, broadcastable(rng, sizes)),
        anything(rng, broadcastable(rng, sizes)),
    )


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
    return (rng.choice((0, 1, 7, 3.5)),), {
        "dtype": rng.choice((None, torch.float32, torch.int64, torch.int32))
    }


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
