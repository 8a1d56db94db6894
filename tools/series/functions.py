"""The smooth parts of special functions whose series decompositions evaluate, with 45 digits.

Sources of the forms: Abramowitz and Stegun, Handbook of Mathematical Functions, chapters 7, 9 and
10. The numbers are mpmath's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpmath as mp

if TYPE_CHECKING:
    from collections.abc import Callable

mp.mp.dps = 45

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {}
"""Name -> function, and the interval that its series is for."""


def _function(low: Any, high: Any) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        FUNCTIONS[function.__name__] = (function, mp.mpf(low), mp.mpf(high))
        return function

    return register


# 1. Modified Bessel functions, scaled: of x up to 8, beyond of 1 / x; K of x**2 up to 4


@_function(0, 8)
def i0e_near(x: Any) -> Any:
    """exp(-x) I0(x)."""
    return mp.exp(-x) * mp.besseli(0, x)


@_function(0, mp.mpf(1) / 8)
def i0e_far(u: Any) -> Any:
    """sqrt(x) exp(-x) I0(x), x = 1 / u."""
    return mp.exp(-1 / u) * mp.besseli(0, 1 / u) / mp.sqrt(u)


@_function(0, 8)
def i1e_near(x: Any) -> Any:
    """exp(-x) I1(x) / x."""
    return mp.exp(-x) * mp.besseli(1, x) / x


@_function(0, mp.mpf(1) / 8)
def i1e_far(u: Any) -> Any:
    """sqrt(x) exp(-x) I1(x), x = 1 / u."""
    return mp.exp(-1 / u) * mp.besseli(1, 1 / u) / mp.sqrt(u)


@_function(0, 4)
def i0_small(z: Any) -> Any:
    """I0(x), x**2 = z."""
    return mp.besseli(0, mp.sqrt(z))


@_function(0, 4)
def i1_small(z: Any) -> Any:
    """I1(x) / x, x**2 = z."""
    return mp.besseli(1, mp.sqrt(z)) / mp.sqrt(z)


@_function(0, 4)
def k0_near(z: Any) -> Any:
    """K0(x) + ln(x / 2) I0(x), x**2 = z."""
    x = mp.sqrt(z)
    return mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x)


@_function(0, mp.mpf(1) / 2)
def k0_far(u: Any) -> Any:
    """sqrt(x) exp(x) K0(x), x = 1 / u."""
    return mp.exp(1 / u) * mp.besselk(0, 1 / u) / mp.sqrt(u)


@_function(0, 4)
def k1_near(z: Any) -> Any:
    """x K1(x) - x ln(x / 2) I1(x), x**2 = z."""
    x = mp.sqrt(z)
    return x * (mp.besselk(1, x) - mp.log(x / 2) * mp.besseli(1, x))


@_function(0, mp.mpf(1) / 2)
def k1_far(u: Any) -> Any:
    """sqrt(x) exp(x) K1(x), x = 1 / u."""
    return mp.exp(1 / u) * mp.besselk(1, 1 / u) / mp.sqrt(u)


# 2. Bessel functions: of x**2 up to 25, beyond modulus and phase of (5 / x)**2

_ZEROS = {n: [mp.besseljzero(n, k) ** 2 for k in (1, 2)] for n in (0, 1)}
"""The squares of the first zeros of J0 and J1."""


@_function(0, 25)
def j0_near(z: Any) -> Any:
    """J0(x) without its first two zeros, x**2 = z."""
    return mp.besselj(0, mp.sqrt(z)) / ((z - _ZEROS[0][0]) * (z - _ZEROS[0][1]))


@_function(0, 25)
def j1_near(z: Any) -> Any:
    """J1(x) / x without its first two zeros but 0, x**2 = z."""
    x = mp.sqrt(z)
    return mp.besselj(1, x) / x / ((z - _ZEROS[1][0]) * (z - _ZEROS[1][1]))


@_function(0, 25)
def y0_near(z: Any) -> Any:
    """Y0(x) - 2 / pi ln(x) J0(x), x**2 = z."""
    x = mp.sqrt(z)
    return mp.bessely(0, x) - 2 / mp.pi * mp.log(x) * mp.besselj(0, x)


@_function(0, 25)
def y1_near(z: Any) -> Any:
    """(Y1(x) - 2 / pi (ln(x) J1(x) - 1 / x)) / x, x**2 = z."""
    x = mp.sqrt(z)
    return (mp.bessely(1, x) - 2 / mp.pi * (mp.log(x) * mp.besselj(1, x) - 1 / x)) / x


def _phase(order: int, w: Any) -> tuple[Any, Any, Any, Any, Any]:
    x = 5 / mp.sqrt(w)
    angle = x - mp.pi / 4 - order * mp.pi / 2
    size = mp.sqrt(mp.pi * x / 2)
    j, y = mp.besselj(order, x) * size, mp.bessely(order, x) * size
    return x, j, y, mp.cos(angle), mp.sin(angle)


def _even(order: int) -> Callable[[Any], Any]:
    def even(w: Any) -> Any:
        _, j, y, cos, sin = _phase(order, w)
        return j * cos + y * sin

    return even


def _odd(order: int) -> Callable[[Any], Any]:
    def odd(w: Any) -> Any:
        x, j, y, cos, sin = _phase(order, w)
        return x * (y * cos - j * sin)

    return odd


for _order in (0, 1):
    FUNCTIONS[f"bessel{_order}_even"] = (_even(_order), mp.mpf(0), mp.mpf(1))
    FUNCTIONS[f"bessel{_order}_odd"] = (_odd(_order), mp.mpf(0), mp.mpf(1))


# 3. The error function's relatives


@_function(-1, 1)
def erfcx(t: Any) -> Any:
    """(1 + 2 x) exp(x**2) erfc(x), t = (x - 3) / (x + 3)."""
    x = 3 * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def _inverse(w: Any) -> Any:
    """erfinv(x) / x, w = -ln(1 - x**2). 1 - x is what is left of the digits where w is large."""
    left = mp.exp(-w) / (1 + mp.sqrt(-mp.expm1(-w)))  # 1 - x
    y = mp.sqrt(w)
    for _ in range(60):  # Newton steps on ln erfc(y) = ln(1 - x)
        value = mp.erfc(y)
        step = value * mp.log(value / left) * mp.sqrt(mp.pi) * mp.exp(y * y) / 2
        y += step
        if abs(step) < mp.mpf(10) ** -42:
            break
    return y / (1 - left)


@_function(0, 5)
def erfinv_near(w: Any) -> Any:
    """erfinv(x) / x, w = -ln(1 - x**2)."""
    x = mp.sqrt(-mp.expm1(-w))
    return mp.erfinv(x) / x


@_function(mp.mpf("2.2"), mp.mpf("6.2"))
def erfinv_middle(s: Any) -> Any:
    """erfinv(x) / x, s**2 = -ln(1 - x**2)."""
    return _inverse(s * s)


@_function(mp.mpf("6.2"), 28)
def erfinv_far(s: Any) -> Any:
    """The same."""
    return _inverse(s * s)
