"""Special functions: of the error function's, the gamma function's and Bessel's families.

Smooth parts are Chebyshev series (`special_tables.py`), as many terms as the dtype feels; what is
not smooth (logarithms, phases, exponents, poles) is computed beside them. The forms are those of
Abramowitz and Stegun, Handbook of Mathematical Functions, chapters 6, 7, 9 and 10.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.pointwise import overloads
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.decompositions.special_tables import SERIES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.graph import Value

    Unary = Callable[[Builder, Value], Value]

aten = torch.ops.aten


def _special(*names: str) -> Callable[[Unary], Unary]:
    """Register a function of one float for operators; integers are taken as floats."""

    def register(function: Unary) -> Unary:
        def decomposed(b: Builder, x: Value) -> Value:
            (x,) = b.promote([x], to_float=True)
            return function(b, x)

        for name in names:
            decomposition(*overloads(name, "default"))(decomposed)
        return function

    return register


def series(b: Builder, x: Value, name: str) -> Value:
    """The Chebyshev series of this name at x, by Clenshaw's recurrence."""
    low, high, numbers = SERIES[name]
    numbers = _felt(numbers, x.spec.dtype)
    t = b.div(b.sub(x, (low + high) / 2), (high - low) / 2)
    twice = b.mul(t, 2.0)
    last: Any = b.tensor(numbers[-1], x.spec)
    before: Any = 0.0
    for number in reversed(numbers[1:-1]):
        last, before = b.add(b.sub(b.mul(twice, last), before), number), last
    return b.add(b.sub(b.mul(t, last), before), numbers[0])


def _felt(numbers: tuple[float, ...], dtype: torch.dtype) -> tuple[float, ...]:
    """The coefficients down to what a dtype feels."""
    if dtype is torch.float64:
        return numbers
    least = max(map(abs, numbers)) * 2.0**-27
    return numbers[: max(k for k, number in enumerate(numbers) if abs(number) >= least) + 1]


def polynomial(b: Builder, x: Value, numbers: Sequence[float]) -> Value:
    """numbers[0] + numbers[1] x + ... , by Horner's rule."""
    y: Any = b.tensor(numbers[-1], x.spec)
    for number in reversed(numbers[:-1]):
        y = b.add(b.mul(y, x), number)
    return y


# 1. The error function's family


def _erfinv_over_x(b: Builder, w: Value, *, far: bool = False) -> Value:
    """erfinv(x) / x from w = -ln(1 - x**2); `far`: x may be nearer to 1 than a number is."""
    s = b.sqrt(w)
    beyond = series(b, s, "erfinv_middle")
    if far:
        beyond = b.where(b.lt(s, 6.2), beyond, series(b, s, "erfinv_far"))
    return b.where(b.lt(w, 5.0), series(b, w, "erfinv_near"), beyond)


@_special("erfinv", "special_erfinv")
def erfinv(b: Builder, x: Value) -> Value:
    """The inverse of erf; infinite at -1 and 1, NaN beyond."""
    w = b.neg(b.log(b.mul(b.sub(1.0, x), b.add(x, 1.0))))
    inside = b.mul(x, _erfinv_over_x(b, w))
    return b.where(b.eq(b.abs(x), 1.0), b.mul(x, math.inf), inside)


@_special("special_ndtri")
def ndtri(b: Builder, p: Value) -> Value:
    """The inverse of the normal distribution function."""
    w = b.neg(b.add(b.log(b.mul(p, 4.0)), b.log1p(b.neg(p))))
    inside = b.mul(
        b.mul(b.sub(p, 0.5), math.sqrt(8.0)), _erfinv_over_x(b, b.maximum(w, 0.0), far=True)
    )
    end = b.where(b.eq(p, 0.0), b.tensor(-math.inf, p.spec), math.inf)
    at_end = b.bitwise_or(b.eq(p, 0.0), b.eq(p, 1.0))
    known = b.bitwise_and(b.ge(p, 0.0), b.le(p, 1.0))
    return b.where(known, b.where(at_end, end, inside), math.nan)


def _erfcx_positive(b: Builder, x: Value) -> Value:
    """exp(x**2) erfc(x), x >= 0."""
    t = b.sub(1.0, b.div(6.0, b.add(x, 3.0)))
    return b.div(series(b, t, "erfcx"), b.add(b.mul(x, 2.0), 1.0))


@_special("special_erfcx")
def erfcx(b: Builder, x: Value) -> Value:
    """exp(x**2) erfc(x)."""
    above = _erfcx_positive(b, b.abs(x))
    below = b.sub(b.mul(b.exp(b.mul(x, x)), 2.0), above)
    return b.where(b.lt(x, 0.0), below, above)


@_special("special_log_ndtr")
def log_ndtr(b: Builder, x: Value) -> Value:
    """The logarithm of the normal distribution function."""
    t = b.mul(x, math.sqrt(0.5))
    tail = b.sub(b.log(b.mul(_erfcx_positive(b, b.neg(t)), 0.5)), b.mul(t, t))
    return b.where(b.lt(x, -1.0), tail, b.log1p(b.mul(b.erfc(t), -0.5)))


# 2. The gamma function's family

_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""B(2k) / 2k, k = 1, 2, ...: Abramowitz and Stegun 6.3.18."""


@_special("digamma", "special_digamma", "special_psi")
def digamma(b: Builder, x: Value) -> Value:
    """The logarithmic derivative of gamma: by reflection below 0, from 10 on an asymptotic series,
    and up to there by recurrence.
    """
    negative = b.lt(x, 0.0)
    y = b.where(negative, b.sub(1.0, x), x)
    total: Any = 0.0
    for _ in range(10):
        small = b.lt(y, 10.0)
        total = b.sub(total, b.where(small, b.reciprocal(y), 0.0))
        y = b.where(small, b.add(y, 1.0), y)
    z = b.reciprocal(b.mul(y, y))
    tail = b.mul(z, polynomial(b, z, _DIGAMMA))
    result = b.sub(b.sub(b.add(total, b.log(y)), b.div(0.5, y)), tail)
    angle = b.mul(b.sub(x, b.round(x)), math.pi)
    reflected = b.sub(result, b.div(math.pi, b.tan(angle)))
    result = b.where(negative, reflected, result)
    pole = b.bitwise_and(negative, b.eq(x, b.trunc(x)))
    zero = b.copysign(b.tensor(math.inf, x.spec), b.neg(x))
    return b.where(b.eq(x, 0.0), zero, b.where(pole, math.nan, result))


def trigamma(b: Builder, x: Value) -> Value:
    """The second derivative of ln gamma."""
    reflected = b.lt(x, 0.5)
    y = b.where(reflected, b.sub(1.0, x), x)
    total: Any = 0.0
    for _ in range(6):
        total = b.add(total, b.reciprocal(b.mul(y, y)))
        y = b.add(y, 1.0)
    z = b.reciprocal(b.mul(y, y))
    tail = b.add(b.mul(z, polynomial(b, z, (1 / 6, -1 / 30, 1 / 42))), b.div(0.5, y))
    total = b.add(total, b.div(b.add(tail, 1.0), y))
    whole = b.round(x)
    # At a pole eager's sine is what rounding leaves of it.
    turn = b.where(b.eq(x, whole), x, b.sub(x, whole))
    sine = b.sin(b.mul(turn, math.pi))
    below = b.sub(b.div(math.pi**2, b.mul(sine, sine)), total)
    return b.where(reflected, below, total)


@decomposition(aten.polygamma.default)
def polygamma(b: Builder, n: int, x: Value) -> Any:
    """Derivatives of digamma; beyond the first, Hurwitz' zeta function times a factorial."""
    (x,) = b.promote([x], to_float=True)
    if n == 0:
        return digamma(b, x)
    if n == 1:
        return trigamma(b, x)
    if not 1 < n <= _HIGHEST_DERIVATIVE:
        return NotImplemented
    # Above 1/2; below by the derivatives of digamma(1 - x) - digamma(x) = pi / tan(pi x).
    reflected = b.lt(x, 0.5)
    above = b.mul(
        _hurwitz_zeta(b, n + 1, b.where(reflected, b.sub(1.0, x), x)),
        (-1.0) ** (n + 1) * math.factorial(n),
    )
    turn = b.sub(x, b.round(x))
    steep = polynomial(b, b.reciprocal(b.tan(b.mul(turn, math.pi))), _cotangent_derivative(n))
    below = b.sub(b.mul(above, (-1.0) ** n), b.mul(steep, math.pi ** (n + 1)))
    pole = b.bitwise_and(b.le(x, 0.0), b.eq(x, b.trunc(x)))
    return b.where(pole, (-1.0) ** (n + 1) * math.inf, b.where(reflected, below, above))


_HIGHEST_DERIVATIVE = 10
"""Higher derivatives of digamma stay ATen's: the tail of their sum would need more terms."""
_TERMS = 9
"""Terms of the sum of zeta before its tail."""
_BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
    -174611 / 330, 854513 / 138, -236364091 / 2730,
)  # fmt: skip
"""B(2k), k = 1, 2, ..."""


def _hurwitz_zeta(b: Builder, s: int, q: Value) -> Value:
    """The sum of (q + k)**-s over k >= 0, q > 0: Abramowitz and Stegun 23.1.30 for its tail."""
    total: Any = 0.0
    for k in range(_TERMS):
        total = b.add(total, _power(b, b.reciprocal(b.add(q, float(k))), s))
    w = b.add(q, float(_TERMS))
    r = b.reciprocal(w)
    kept = _BERNOULLI if q.spec.dtype is torch.float64 else _BERNOULLI[:6]
    numbers = [
        number * math.perm(s + 2 * k, 2 * k + 1) / math.factorial(2 * k + 2)
        for k, number in enumerate(kept)
    ]
    inner = b.mul(r, polynomial(b, b.mul(r, r), numbers))
    tail = b.add(b.add(b.div(w, float(s - 1)), 0.5), inner)
    return b.add(total, b.mul(_power(b, r, s), tail))


def _power(b: Builder, x: Value, exponent: int) -> Value:
    """x**exponent, exponent > 0, by squaring."""
    if exponent == 1:
        return x
    half = _power(b, x, exponent // 2)
    square = b.mul(half, half)
    return b.mul(square, x) if exponent % 2 else square


def _cotangent_derivative(n: int) -> list[float]:
    """The coefficients of the n-th derivative of cot as a polynomial of cot."""
    numbers = [0.0, 1.0]
    for _ in range(n):
        slope = [k * number for k, number in enumerate(numbers)][1:]
        numbers = [-(a + c) for a, c in zip([*slope, 0.0, 0.0], [0.0, 0.0, *slope], strict=True)]
    return numbers


@decomposition(aten.mvlgamma.default)
def mvlgamma(b: Builder, x: Value, p: int) -> Value:
    """ln of the multivariate gamma function of dimension p."""
    (x,) = b.promote([x], to_float=True)
    total: Any = b.lgamma(b.sub(x, (p - 1) / 2))
    for k in range(p - 2, -1, -1):
        total = b.add(total, b.lgamma(b.sub(x, k / 2)))
    return b.add(total, p * (p - 1) / 4 * math.log(math.pi))


# 3. Modified Bessel functions


def _scaled_i(b: Builder, x: Value, order: int) -> tuple[Value, Value]:
    """exp(-x) I(x) for x >= 0 up to 8 (over x, of order 1), and beyond times sqrt(x)."""
    return series(b, x, f"i{order}e_near"), series(b, b.reciprocal(x), f"i{order}e_far")


@_special("special_i0e")
def i0e(b: Builder, x: Value) -> Value:
    """exp(-|x|) I0(x)."""
    x = b.abs(x)
    near, far = _scaled_i(b, x, 0)
    return b.where(b.le(x, 8.0), near, b.div(far, b.sqrt(x)))


@_special("i0", "special_i0", "special_modified_bessel_i0")
def i0(b: Builder, x: Value) -> Value:
    """I0."""
    x = b.abs(x)
    near, far = _scaled_i(b, x, 0)
    grown = b.exp(x)
    return b.where(b.le(x, 8.0), b.mul(grown, near), b.div(b.mul(grown, far), b.sqrt(x)))


@_special("special_i1e")
def i1e(b: Builder, x: Value) -> Value:
    """exp(-|x|) I1(x)."""
    y = b.abs(x)
    near, far = _scaled_i(b, y, 1)
    size = b.where(b.le(y, 8.0), b.mul(near, y), b.div(far, b.sqrt(y)))
    return b.where(b.lt(x, 0.0), b.neg(size), size)


@_special("special_i1", "special_modified_bessel_i1")
def i1(b: Builder, x: Value) -> Value:
    """I1."""
    y = b.abs(x)
    near, far = _scaled_i(b, y, 1)
    grown = b.exp(y)
    far = b.div(b.mul(grown, far), b.sqrt(y))
    size = b.where(b.le(y, 8.0), b.mul(b.mul(grown, near), y), far)
    return b.where(b.lt(x, 0.0), b.neg(size), size)


def _k(b: Builder, x: Value, *, order: int, scaled: bool) -> Value:
    """K of order 0 or 1, times exp(x) if `scaled`; infinite at 0, NaN below."""
    z = b.mul(x, x)
    grown = b.mul(b.sub(b.log(x), math.log(2.0)), series(b, z, f"i{order}_small"))
    near = series(b, z, f"k{order}_near")
    near = b.sub(near, grown) if order == 0 else b.add(b.div(near, x), b.mul(grown, x))
    far = b.div(series(b, b.reciprocal(x), f"k{order}_far"), b.sqrt(x))
    growth = b.exp(x if scaled else b.neg(x))
    near, far = (b.mul(near, growth), far) if scaled else (near, b.mul(far, growth))
    inside = b.where(b.le(x, 2.0), near, far)
    return b.where(b.eq(x, 0.0), math.inf, b.where(b.lt(x, 0.0), math.nan, inside))


for _order in (0, 1):
    _special(f"special_modified_bessel_k{_order}")(partial(_k, order=_order, scaled=False))
    _special(f"special_scaled_modified_bessel_k{_order}")(partial(_k, order=_order, scaled=True))


# 4. Bessel functions

_ZEROS = {
    0: (5.783185962946784, 30.471262343662086),
    1: (14.681970642123893, 49.218456321694603),
}
"""The squares of the first positive zeros of J0 and J1."""


def _j_near(b: Builder, x: Value, order: int) -> Value:
    """J(x) for |x| <= 5, with the sign of x of order 1."""
    z = b.mul(x, x)
    first, second = _ZEROS[order]
    y = b.mul(b.mul(b.sub(z, first), b.sub(z, second)), series(b, z, f"j{order}_near"))
    return y if order == 0 else b.mul(y, x)


def _wave(b: Builder, x: Value, order: int, *, second_kind: bool) -> Value:
    """J, or Y, for x > 5: Abramowitz and Stegun 9.2.5 and 9.2.6."""
    ratio = b.div(5.0, x)
    w = b.mul(ratio, ratio)
    even = series(b, w, f"bessel{order}_even")
    odd = b.div(series(b, w, f"bessel{order}_odd"), x)
    angle = b.sub(x, math.pi / 4 + order * math.pi / 2)
    cos, sin = b.cos(angle), b.sin(angle)
    if second_kind:
        sum_ = b.add(b.mul(even, sin), b.mul(odd, cos))
    else:
        sum_ = b.sub(b.mul(even, cos), b.mul(odd, sin))
    return b.div(b.mul(sum_, math.sqrt(2 / math.pi)), b.sqrt(x))


def _j(b: Builder, x: Value, *, order: int) -> Value:
    """The Bessel function of the first kind."""
    y = b.abs(x)
    far = _wave(b, y, order, second_kind=False)
    far = far if order == 0 else b.where(b.lt(x, 0.0), b.neg(far), far)
    return b.where(b.le(y, 5.0), _j_near(b, x, order), far)


def _y(b: Builder, x: Value, *, order: int) -> Value:
    """The Bessel function of the second kind; -inf at 0, NaN below."""
    near = series(b, b.mul(x, x), f"y{order}_near")
    near = near if order == 0 else b.mul(near, x)
    rest = b.mul(b.log(x), _j_near(b, x, order))
    rest = rest if order == 0 else b.sub(rest, b.reciprocal(x))
    near = b.add(near, b.mul(rest, 2 / math.pi))
    inside = b.where(b.le(x, 5.0), near, _wave(b, x, order, second_kind=True))
    return b.where(b.eq(x, 0.0), -math.inf, b.where(b.lt(x, 0.0), math.nan, inside))


for _order in (0, 1):
    _special(f"special_bessel_j{_order}")(partial(_j, order=_order))
    _special(f"special_bessel_y{_order}")(partial(_y, order=_order))


@_special("special_spherical_bessel_j0")
def spherical_bessel_j0(b: Builder, x: Value) -> Value:
    """sin(x) / x, 0 for infinities."""
    z = b.mul(x, x)
    terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(8)]
    inside = b.where(b.lt(b.abs(x), 0.5), polynomial(b, z, terms), b.div(b.sin(x), x))
    return b.where(b.isinf(x), 0.0, inside)
