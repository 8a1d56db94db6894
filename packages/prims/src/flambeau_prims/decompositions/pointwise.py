"""Elementwise arithmetic, comparisons, logic and selection. (Activations: activation.py; casts and
copies: copy.py.)

Every operator here promotes and broadcasts its operands as eager does, computes in the compute
dtype, and is rounded once.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.builder import is_float, is_int
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

    from flambeau_prims.builder import Builder, Operand

aten = torch.ops.aten


def overloads(name: str, *which: str) -> list[OpOverload]:
    """The overloads `which` of aten.<name>, those of them that this torch has."""
    packet = getattr(aten, name, None)
    if packet is None:
        return []
    return [getattr(packet, overload) for overload in which if overload in packet.overloads()]


# Unary operators that are one primitive

FLOAT_UNARY = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin",
    "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "erfc", "lgamma",
)  # fmt: skip
"""Integers are taken in the default floating dtype."""

ROUNDING = ("floor", "ceil", "round", "trunc")
"""Nothing happens to integers."""


def float_unary(b: Builder, x: Value, *, primitive: str) -> Value:
    """One float primitive."""
    (x,) = b.promote([x], to_float=True)
    return getattr(b, primitive)(x)


def rounding(b: Builder, x: Value, *, primitive: str) -> Value:
    """floor, ceil, round, trunc."""
    return x if is_int(x) else getattr(b, primitive)(b.widen(x))


for _name in FLOAT_UNARY:
    decomposition(getattr(aten, _name).default)(partial(float_unary, primitive=_name))
for _name in ROUNDING:
    decomposition(getattr(aten, _name).default)(partial(rounding, primitive=_name))


@decomposition(aten.neg.default)
def neg(b: Builder, x: Value) -> Value:
    """-x."""
    return b.neg(b.widen(x))


@decomposition(aten.abs.default)
def abs(b: Builder, x: Value) -> Value:
    """|x|; bool stays."""
    return x if x.spec.dtype is torch.bool else b.abs(b.widen(x))


@decomposition(aten.sign.default, aten.sgn.default)
def sign(b: Builder, x: Value) -> Value:
    """-1, 0 or 1; bool stays."""
    return x if x.spec.dtype is torch.bool else b.sign(b.widen(x))


@decomposition(aten.positive.default, aten._conj_physical.default)
def positive(b: Builder, x: Value) -> Value:
    """x."""
    return x


@decomposition(aten.square.default)
def square(b: Builder, x: Value) -> Value:
    """x * x."""
    return pow_scalar(b, x, 2)


@decomposition(aten.frac.default)
def frac(b: Builder, x: Value) -> Value:
    """x - trunc(x)."""
    x = b.widen(x)
    return b.sub(x, b.trunc(x))


def _times(b: Builder, x: Value, *, factor: float) -> Value:
    (x,) = b.promote([x], to_float=True)
    return b.mul(x, factor)


decomposition(aten.deg2rad.default)(partial(_times, factor=math.pi / 180.0))
decomposition(aten.rad2deg.default)(partial(_times, factor=180.0 / math.pi))


@decomposition(aten.sinc.default)
def sinc(b: Builder, x: Value) -> Value:
    """sin(pi x) / (pi x), 1 at 0 and beside it: a GPU's sine takes subnormal numbers for 0."""
    (x,) = b.promote([x], to_float=True)
    angle = b.mul(x, math.pi)
    return b.where(b.lt(b.abs(x), 1e-30), 1.0, b.div(b.sin(angle), angle))


@decomposition(aten.bitwise_not.default)
def bitwise_not(b: Builder, x: Value) -> Value:
    """~x."""
    return b.bitwise_not(x)


@decomposition(aten.logical_not.default)
def logical_not(b: Builder, x: Value) -> Value:
    """x == 0."""
    return b.bitwise_not(x) if x.spec.dtype is torch.bool else b.eq(b.widen(x), 0)


def _of_floats(b: Builder, x: Value, *, predicate: Callable[[Builder, Value], Value]) -> Value:
    """A predicate that integers never satisfy."""
    return b.tensor(False, x.spec, torch.bool) if is_int(x) else predicate(b, b.widen(x))


for _op, _predicate in {
    aten.isnan.default: lambda b, x: b.isnan(x),
    aten.isinf.default: lambda b, x: b.isinf(x),
    aten.isposinf.default: lambda b, x: b.eq(x, math.inf),
    aten.isneginf.default: lambda b, x: b.eq(x, -math.inf),
}.items():
    decomposition(_op)(partial(_of_floats, predicate=_predicate))


@decomposition(aten.signbit.default)
def signbit(b: Builder, x: Value) -> Value:
    """The sign bit."""
    return b.tensor(False, x.spec) if x.spec.dtype is torch.bool else b.signbit(b.widen(x))


@decomposition(aten.nan_to_num.default)
def nan_to_num(
    b: Builder, x: Value, nan: float | None = None, posinf: float | None = None,
    neginf: float | None = None,
) -> Value:  # fmt: skip
    """NaN and infinities replaced; by 0 and the greatest and least number by default."""
    if is_int(x):
        return x
    limits = torch.finfo(x.spec.dtype)
    x = b.widen(x)
    y = b.where(b.isnan(x), 0.0 if nan is None else nan, x)
    y = b.where(b.eq(x, math.inf), limits.max if posinf is None else posinf, y)
    return b.where(b.eq(x, -math.inf), limits.min if neginf is None else neginf, y)


@decomposition(aten.round.decimals)
def round_decimals(b: Builder, x: Value, *, decimals: int) -> Value:
    """Rounded to a number of decimal places (or of tens, when negative)."""
    if is_int(x):
        return NotImplemented
    if decimals == 0:
        return b.round(b.widen(x))
    x, scale = b.widen(x), 10.0 ** math.fabs(decimals)
    if decimals > 0:
        return b.div(b.round(b.mul(x, scale)), scale)
    return b.mul(b.round(b.div(x, scale)), scale)


@decomposition(aten.special_entr.default)
def special_entr(b: Builder, x: Value) -> Value:
    """-x ln x; 0 at 0, -inf below."""
    (x,) = b.promote([x], to_float=True)
    inside = b.neg(b.mul(x, b.log(x)))
    y = b.where(b.gt(x, 0.0), inside, b.where(b.eq(x, 0.0), b.tensor(0.0, x.spec), -math.inf))
    return b.where(b.isnan(x), x, y)


# Sums and products


@decomposition(aten.add.Tensor, aten.add.Scalar)
def add(b: Builder, x: Operand, y: Operand, alpha: Any = 1) -> Value:
    """x + alpha * y; "or" of bool."""
    x, y = b.promote([x, y])
    if _dtype(x, y) is torch.bool:
        return b.bitwise_or(x, y if alpha else False)
    return b.add(x, _scaled(b, y, alpha, x))


@decomposition(aten.sub.Tensor, aten.sub.Scalar)
def sub(b: Builder, x: Operand, y: Operand, alpha: Any = 1) -> Value:
    """x - alpha * y."""
    x, y = b.promote([x, y])
    return b.sub(x, _scaled(b, y, alpha, x))


@decomposition(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(b: Builder, x: Operand, y: Operand, alpha: Any = 1) -> Value:
    """y - alpha * x."""
    return sub(b, y, x, alpha)


@decomposition(aten.mul.Tensor, aten.mul.Scalar)
def mul(b: Builder, x: Operand, y: Operand) -> Value:
    """x * y; "and" of bool."""
    x, y = b.promote([x, y])
    return b.bitwise_and(x, y) if _dtype(x, y) is torch.bool else b.mul(x, y)


def _scaled(b: Builder, y: Operand, alpha: Any, other: Operand) -> Operand:
    if isinstance(y, Value):
        return b.mul(y, alpha)
    if _is_one(alpha):
        return y
    # Both numbers: the product is taken in the tensor's dtype, as eager takes it.
    return b.mul(b.tensor(y, other.spec), alpha)


def _is_one(alpha: Any) -> bool:
    return isinstance(alpha, (int, float)) and alpha == 1


def _dtype(*operands: Operand) -> torch.dtype:
    return next(operand.spec.dtype for operand in operands if isinstance(operand, Value))


@decomposition(aten.addcmul.default)
def addcmul(b: Builder, x: Value, a: Value, c: Value, *, value: Any = 1) -> Value:
    """x + value * a * c."""
    x, a, c = b.promote([x, a, c])
    return b.add(x, b.mul(b.mul(a, value), c))


@decomposition(aten.addcdiv.default)
def addcdiv(b: Builder, x: Value, a: Value, c: Value, *, value: Any = 1) -> Value:
    """x + value * a / c."""
    x, a, c = b.promote([x, a, c])
    return b.add(x, b.div(b.mul(a, value), c))


@decomposition(aten.addr.default)
def addr(b: Builder, x: Value, u: Value, v: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * x + alpha * outer(u, v); x counts for nothing, NaN too, when beta is 0."""
    u, v = b.unsqueeze(u, 1), b.unsqueeze(v, 0)
    if beta == 0:
        u, v = b.promote([u, v])
        return b.mul(b.mul(u, alpha), v)
    x, u, v = b.promote([x, u, v])
    if x.spec.dtype is torch.bool:
        return NotImplemented
    return b.add(b.mul(x, beta), b.mul(b.mul(u, alpha), v))


@decomposition(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: Builder, start: Value, end: Value, weight: Operand) -> Value:
    """start + weight * (end - start), written from the nearer end."""
    start, end, weight = b.promote([start, end, weight])
    span = b.sub(end, start)
    if isinstance(weight, (int, float)):
        if math.fabs(weight) < 0.5:
            return b.add(start, b.mul(span, weight))
        return b.sub(end, b.mul(span, 1.0 - weight))
    if not isinstance(weight, Value):
        weight = b.tensor(weight, start.spec)
    near_start = b.add(start, b.mul(weight, span))
    near_end = b.sub(end, b.mul(span, b.sub(1.0, weight)))
    return b.where(b.lt(b.abs(weight), 0.5), near_start, near_end)


# Quotients and remainders


@decomposition(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(b: Builder, x: Operand, y: Operand) -> Value:
    """x / y, always floating."""
    x, y = b.promote([x, y], to_float=True)
    return b.div(x, y)


def _check_divisor(b: Builder, x: Operand, y: Operand) -> None:
    """On a CPU, integers cannot be divided by 0."""
    if isinstance(y, Value):
        if is_int(y) and y.spec.device.type == "cpu":
            b.check(b.ne(y, 0))
    elif y == 0 and is_int(x) and x.spec.device.type == "cpu":
        b.check(b.full((), False, torch.bool, x.spec.device))


@decomposition(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: Builder, x: Operand, y: Operand, *, rounding_mode: str | None) -> Value:
    """x / y, or its floor or trunc."""
    if rounding_mode is None:
        return div(b, x, y)
    return floor_divide(b, x, y) if rounding_mode == "floor" else trunc_divide(b, x, y)


def trunc_divide(b: Builder, x: Operand, y: Operand) -> Value:
    """Quotient toward zero."""
    x, y = b.promote([x, y])
    if _dtype(x, y) is torch.bool:
        return NotImplemented
    _check_divisor(b, x, y)
    return b.trunc_divide(x, y)


@decomposition(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(b: Builder, x: Operand, y: Operand) -> Value:
    """Quotient toward -inf."""
    x, y = b.promote([x, y])
    if _dtype(x, y) is torch.bool:
        return NotImplemented
    _check_divisor(b, x, y)
    return b.floor_divide(x, y)


def stored_operands(b: Builder, x: Operand, y: Operand) -> list[Operand]:
    """The operands as eager reads these where it computes in their common dtype: rounded to it."""
    dtype = b.promoted_dtype([x, y])
    return b.promote([_rounded(b, op, dtype) for op in (x, y)])


def _rounded(b: Builder, op: Operand, dtype: torch.dtype) -> Operand:
    """An operand as a floating dtype holds it."""
    if isinstance(op, Value):
        return b.cast(op, dtype) if dtype in (torch.float16, torch.bfloat16) else op
    if type(op) not in (int, float) or not dtype.is_floating_point:
        return op
    return torch.tensor(op, dtype=torch.float64).to(dtype).item()


@decomposition(*overloads("remainder", "Tensor", "Scalar", "Scalar_Tensor"))
def remainder(b: Builder, x: Operand, y: Operand) -> Value:
    """Remainder with the sign of y."""
    x, y = stored_operands(b, x, y)
    _check_divisor(b, x, y)
    return b.remainder(x, y)


@decomposition(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(b: Builder, x: Operand, y: Operand) -> Value:
    """Remainder with the sign of x."""
    x, y = stored_operands(b, x, y)
    _check_divisor(b, x, y)
    return b.fmod(x, y)


# Powers, angles, signs


@decomposition(aten.pow.Tensor_Scalar)
def pow_scalar(b: Builder, x: Value, exponent: Any) -> Value:
    """x**exponent; eager computes small exponents by products and roots, and so does this."""
    (x, _) = b.promote([x, exponent])
    if x.spec.dtype is torch.bool:
        return b.where(x, True, exponent == 0)
    integral = is_int(x)
    if isinstance(exponent, (int, float)) and not (integral and exponent < 0):
        if exponent == 0:
            return b.tensor(1, x.spec)
        if exponent == 1:
            return x
        if exponent == 2:
            return b.mul(x, x)
        if exponent == 3:
            return b.mul(b.mul(x, x), x)
        if not integral and exponent in _ROOTS:
            return _ROOTS[exponent](b, x)
    return b.pow(x, exponent)


_ROOTS = {
    0.5: lambda b, x: b.sqrt(x),
    -0.5: lambda b, x: b.rsqrt(x),
    -1: lambda b, x: b.reciprocal(x),
    -2: lambda b, x: b.reciprocal(b.mul(x, x)),
}


@decomposition(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(b: Builder, x: Operand, exponent: Value) -> Value:
    """x**exponent."""
    x, exponent = b.promote([x, exponent])
    if exponent.spec.dtype is torch.bool:
        return NotImplemented
    return b.pow(x, exponent)


@decomposition(aten.atan2.default)
def atan2(b: Builder, y: Value, x: Value) -> Value:
    """Angle of (x, y)."""
    y, x = b.promote([y, x], to_float=True)
    return b.atan2(y, x)


@decomposition(aten.angle.default)
def angle(b: Builder, x: Value) -> Value:
    """pi below 0, else 0; NaN for NaN."""
    (x,) = b.promote([x], to_float=True)
    return b.where(b.isnan(x), x, b.where(b.lt(x, 0.0), b.tensor(math.pi, x.spec), 0.0))


@decomposition(aten.hypot.default)
def hypot(b: Builder, x: Value, y: Value) -> Value:
    """sqrt(x**2 + y**2) without overflow; infinite if either is."""
    x, y = b.promote([x, y])
    if not x.spec.dtype.is_floating_point:
        return NotImplemented
    x, y = b.abs(x), b.abs(y)
    long, short = b.maximum(x, y), b.minimum(x, y)
    ratio = b.div(short, long)
    length = b.mul(long, b.sqrt(b.add(b.mul(ratio, ratio), 1.0)))
    length = b.where(b.eq(long, 0.0), 0.0, length)
    return b.where(b.bitwise_or(b.isinf(x), b.isinf(y)), math.inf, length)


@decomposition(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(b: Builder, x: Value, y: Operand) -> Value:
    """|x| with the sign of y."""
    x, y = b.promote([x, y], to_float=True)
    return b.copysign(x, y)


def _x_times(b: Builder, x: Operand, y: Operand, *, function: str) -> Value:
    """x ln y or x ln(1 + y), 0 where x is 0 unless y is NaN."""
    x, y = b.promote([x, y], to_float=True)
    like = (x if isinstance(x, Value) else y).spec
    x, y = (op if isinstance(op, Value) else b.tensor(op, like) for op in (x, y))
    product = b.where(b.eq(x, 0.0), 0.0, b.mul(x, getattr(b, function)(y)))
    return b.where(b.isnan(y), math.nan, product)


decomposition(*overloads("xlogy", "Tensor", "Scalar_Other", "Scalar_Self"))(
    partial(_x_times, function="log")
)
decomposition(*overloads("special_xlog1py", "default", "other_scalar", "self_scalar"))(
    partial(_x_times, function="log1p")
)


@decomposition(aten.logaddexp.default)
def logaddexp(b: Builder, x: Value, y: Value) -> Value:
    """ln(exp x + exp y)."""
    x, y = b.promote([x, y])
    total = b.add(b.maximum(x, y), b.log1p(b.exp(b.neg(b.abs(b.sub(x, y))))))
    return b.where(b.bitwise_and(b.isinf(x), b.eq(x, y)), x, total)


@decomposition(aten.logaddexp2.default)
def logaddexp2(b: Builder, x: Value, y: Value) -> Value:
    """log2(2**x + 2**y)."""
    x, y = b.promote([x, y])
    correction = b.mul(b.log1p(b.exp2(b.neg(b.abs(b.sub(x, y))))), 1.0 / math.log(2.0))
    return b.where(b.bitwise_and(b.isinf(x), b.eq(x, y)), x, b.add(b.maximum(x, y), correction))


@decomposition(aten.heaviside.default)
def heaviside(b: Builder, x: Value, values: Value) -> Value:
    """0 below 0, `values` at 0, 1 above."""
    x, values = b.promote([x, values])
    if x.spec.dtype is torch.bool:
        return b.bitwise_or(x, values)
    return b.where(b.eq(x, 0), values, b.cast(b.gt(x, 0), x.spec.dtype))


# Extremes


def binary(b: Builder, x: Operand, y: Operand, *, primitive: str) -> Value:
    """A primitive of two operands, in their common dtype."""
    return getattr(b, primitive)(*b.promote([x, y]))


def number_extremum(b: Builder, x: Value, y: Value, *, primitive: str) -> Value:
    """The greater (less); the other one if one is NaN."""
    x, y = b.promote([x, y])
    result = getattr(b, primitive)(x, y)
    return result if is_int(x) else b.where(b.isnan(x), y, b.where(b.isnan(y), x, result))


for _name, _short in (("maximum", "max"), ("minimum", "min")):
    _packet = getattr(aten, _short)
    decomposition(getattr(aten, _name).default, _packet.other)(partial(binary, primitive=_name))
    decomposition(getattr(aten, f"f{_short}").default)(partial(number_extremum, primitive=_name))


@decomposition(aten.clamp.default)
def clamp_to_numbers(
    b: Builder, x: Value, min: Operand | None = None, max: Operand | None = None
) -> Value:
    """As `clamp`, but torch 2.11 ignores a lone bound that is NaN."""
    lone = max if min is None else min if max is None else None
    if isinstance(lone, float) and math.isnan(lone) and not _clamps_to_nan():
        return b.promote([x, lone])[0]
    return clamp(b, x, min, max)


@cache
def _clamps_to_nan() -> bool:
    return bool(torch.zeros(1, device="cpu").clamp(math.nan).isnan())


@decomposition(aten.clamp.Tensor, aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp(b: Builder, x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    """min(max(x, min), max)."""
    bounds = [bound for bound in (min, max) if bound is not None]
    x, *bounds = b.promote([x, *bounds])
    return clip(b, x, None if min is None else bounds[0], None if max is None else bounds[-1])


def clip(b: Builder, x: Value, low: Operand | None, high: Operand | None) -> Value:
    """x within bounds in its compute dtype. With strict numerics x stays where it equals a bound,
    as in eager: of zeros, the sign is that of x.
    """
    if b.strict:
        x = x if low is None else b.where(b.lt(x, low), low, x)
        return x if high is None else b.where(b.gt(x, high), high, x)
    x = x if low is None else b.maximum(x, low)
    return x if high is None else b.minimum(x, high)


@decomposition(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(b: Builder, x: Value, max: Operand) -> Value:
    """min(x, max)."""
    return clamp(b, x, None, max)


# Comparisons and logic

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def compare(b: Builder, x: Operand, y: Operand, *, primitive: str) -> Value:
    """A comparison of the operands as their common dtype holds them."""
    x, y = stored_operands(b, x, y)
    result: Value = getattr(b, primitive)(x, y)
    return result


for _name in COMPARISONS:
    decomposition(*overloads(_name, "Tensor", "Scalar"))(partial(compare, primitive=_name))
for _name, _dunder, _primitive in (
    ("bitwise_and", "__and__", "bitwise_and"),
    ("bitwise_or", "__or__", "bitwise_or"),
    ("bitwise_xor", "__xor__", "bitwise_xor"),
    ("bitwise_left_shift", "__lshift__", "shift_left"),
    ("bitwise_right_shift", "__rshift__", "shift_right"),
):
    decomposition(
        *overloads(_name, "Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor"),
        *overloads(_dunder, "Tensor", "Scalar"),
    )(partial(binary, primitive=_primitive))


def truth(b: Builder, x: Value) -> Value:
    """x != 0."""
    return b.cast(x, torch.bool)


def logical(b: Builder, x: Value, y: Value, *, primitive: str) -> Value:
    """A logical operator on the truth of any two dtypes."""
    x, y = b.broadcast([truth(b, x), truth(b, y)])
    return getattr(b, primitive)(x, y)


for _name in ("and", "or", "xor"):
    decomposition(getattr(aten, f"logical_{_name}").default)(
        partial(logical, primitive=f"bitwise_{_name}")
    )


# Selection


@decomposition(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(b: Builder, condition: Value, x: Operand, y: Operand) -> Value:
    """x where the condition holds, else y; computed in the result's own dtype."""
    dtype = b.promoted_dtype([x, y])
    return _select(b, condition, x, y, dtype)


@decomposition(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: Builder, x: Value, mask: Value, value: Operand) -> Value:
    """`value` where the mask holds."""
    return _select(b, mask, value, x, x.spec.dtype)


def _select(b: Builder, condition: Value, x: Operand, y: Operand, dtype: torch.dtype) -> Value:
    if condition.spec.dtype is not torch.bool:
        condition = b.cast(condition, torch.bool)
    if not isinstance(x, Value) and not isinstance(y, Value):
        x = b.full((), x, dtype, condition.spec.device)
    x, y = (b.cast(op, dtype) if isinstance(op, Value) else op for op in (x, y))
    condition, x, y = b.broadcast([condition, x, y])
    return b.where(condition, x, y)


@decomposition(aten.ldexp.Tensor)
def ldexp(b: Builder, x: Value, exponent: Value) -> Any:
    """x times the power of 2, which is rounded to its own dtype. By an integer, ATen moves the
    exponent of x, where the power itself may not be finite.
    """
    if not is_float(exponent):
        return NotImplemented
    dtype = exponent.spec.dtype
    (exponent,) = b.promote([exponent], to_float=True)
    power = b.cast(b.pow(b.tensor(2.0, exponent.spec), exponent), dtype)
    return b.mul(*b.promote([x, power]))
