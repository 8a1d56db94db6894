"""Which torch calls compute the loop of each ufunc.

A kernel takes the tape, the loop's operands (tensors of the loop's dtypes, or Python numbers) and
the loop's dtypes, and gives the result; where torch's own function differs from NumPy's loop, the
kernel makes up for it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.numpy.layout import torch_dtype, unsupported
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.numpy.arrays import Arrays

KERNELS: dict[str, Callable[..., Any]] = {}


class Loop:
    """The tape, and the dtypes of one loop."""

    def __init__(self, arrays: Arrays, name: str, dtypes: tuple[Any, ...]) -> None:
        self.arrays, self.name, self.dtypes = arrays, name, dtypes

    @property
    def kind(self) -> str:
        """The kind of the first operand: b, i, u, f or c."""
        return self.dtypes[0].kind  # type: ignore[no-any-return]

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A torch function on the tape."""
        return self.arrays.record(function, *args, **kwargs)

    def tensor(self, value: Any, at: int = 0) -> torch.Tensor:
        """An operand as a tensor."""
        if isinstance(value, torch.Tensor):
            return value
        return self.arrays.full(value, torch_dtype(self.dtypes[at]))

    def unsupported(self) -> GraphBreak:
        """The break for a loop without a kernel."""
        names = ", ".join(str(dtype) for dtype in self.dtypes)
        return GraphBreak("numpy-unsupported", f"np.{self.name} of {names}")


_ORDERED = frozenset(
    {"less", "less_equal", "greater", "greater_equal", "maximum", "minimum", "fmax", "fmin", "rint"}
)
"""ufuncs that order complex numbers, which torch does not."""


def compute(arrays: Arrays, ufunc: Any, operands: list[Any], dtypes: Any) -> list[torch.Tensor]:
    """The results of one loop."""
    loop = Loop(arrays, ufunc.__name__, dtypes)
    kernel = KERNELS.get(ufunc.__name__)
    if kernel is None or (loop.kind == "c" and ufunc.__name__ in _ORDERED):
        raise loop.unsupported()
    if any(dtype.kind == "u" and dtype.itemsize > 1 for dtype in dtypes):
        raise loop.unsupported()
    if not any(isinstance(operand, torch.Tensor) for operand in operands):
        operands = [loop.tensor(operand, at) for at, operand in enumerate(operands)]
    result = kernel(loop, *operands)
    return list(result) if isinstance(result, tuple) else [result]


def _kernel(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def declare(kernel: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in KERNELS:
                raise ValueError(f"ufunc {name} has two kernels")
            KERNELS[name] = kernel
        return kernel

    return declare


def _direct(name: str, function: Any) -> None:
    """A ufunc that is one torch function of tensors."""
    _kernel(name)(
        lambda loop, *operands: loop.call(
            function, *[loop.tensor(operand, at) for at, operand in enumerate(operands)]
        )
    )


def _by_operator(name: str, function: Any) -> None:
    """A ufunc that is an operator, which takes Python numbers on either side."""
    _kernel(name)(lambda loop, *operands: loop.call(function, *operands))


OPERATORS: dict[str, Any] = {
    "subtract": operator.sub, "multiply": operator.mul, "equal": operator.eq,
    "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge, "bitwise_and": operator.and_,
    "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
}  # fmt: skip
for _name, _function in OPERATORS.items():
    _by_operator(_name, _function)

_SAME_NAMES = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "square", "sin", "cos",
    "tan", "sinh", "cosh", "tanh", "hypot", "ldexp", "maximum", "minimum", "fmax", "fmin",
    "isnan", "isinf", "isfinite", "signbit", "copysign", "nextafter", "logaddexp",
    "logaddexp2", "heaviside", "logical_and", "logical_or", "logical_xor", "logical_not",
    "gcd", "lcm", "rad2deg", "deg2rad", "matmul",
)  # fmt: skip
_RENAMED: dict[str, Any] = {
    "arcsin": torch.asin, "arccos": torch.acos, "arctan": torch.atan, "arctan2": torch.atan2,
    "arcsinh": torch.asinh, "arccosh": torch.acosh, "arctanh": torch.atanh, "fabs": torch.abs,
    "degrees": torch.rad2deg, "radians": torch.deg2rad, "invert": torch.bitwise_not,
    "left_shift": torch.bitwise_left_shift, "right_shift": torch.bitwise_right_shift,
    "negative": torch.neg, "positive": torch.clone,
}  # fmt: skip
for _name, _function in (
    *((name, getattr(torch, name)) for name in _SAME_NAMES),
    *_RENAMED.items(),
):
    _direct(_name, _function)


@_kernel("add")
def _add(loop: Loop, left: Any, right: Any) -> Any:
    return loop.call(operator.or_ if loop.kind == "b" else operator.add, left, right)


@_kernel("divide", "true_divide")
def _divide(loop: Loop, left: Any, right: Any) -> Any:
    if not isinstance(left, torch.Tensor):  # torch multiplies a number by the reciprocal
        left = loop.tensor(left, 0)
    if type(right) in (int, float) and right == 0:
        right = loop.tensor(right, 1)
    return loop.call(torch.div, left, right)


@_kernel("power", "float_power")
def _power(loop: Loop, left: Any, right: Any) -> Any:
    if loop.kind in "iu" and not isinstance(right, int):
        raise unsupported("an integer array raised to an integer array")
    if loop.kind in "iu" and right < 0:
        raise ValueError("Integers to negative integer powers are not allowed.")
    if loop.kind == "c":
        left, right = loop.tensor(left, 0), loop.tensor(right, 1)
    return loop.call(torch.pow, left, right)


@_kernel("floor_divide")
def _floor_divide(loop: Loop, left: Any, right: Any) -> Any:
    left, right = loop.tensor(left, 0), loop.tensor(right, 1)
    if loop.kind not in "iu":
        return loop.call(torch.div, left, right, rounding_mode="floor")
    zero = loop.call(torch.eq, right, 0)
    safe = loop.call(torch.where, zero, 1, right)
    found = loop.call(torch.div, left, safe, rounding_mode="floor")
    return loop.call(torch.where, zero, 0, found)


def _modulo(function: Any) -> Callable[..., Any]:
    def kernel(loop: Loop, left: Any, right: Any) -> Any:
        left, right = loop.tensor(left, 0), loop.tensor(right, 1)
        if loop.kind not in "iu":
            return loop.call(function, left, right)
        zero = loop.call(torch.eq, right, 0)
        safe = loop.call(torch.where, zero, 1, right)
        return loop.call(torch.where, zero, 0, loop.call(function, left, safe))

    return kernel


_kernel("remainder", "mod")(_modulo(torch.remainder))
_kernel("fmod")(_modulo(torch.fmod))


@_kernel("divmod")
def _divmod(loop: Loop, left: Any, right: Any) -> Any:
    return KERNELS["floor_divide"](loop, left, right), KERNELS["remainder"](loop, left, right)


@_kernel("modf")
def _modf(loop: Loop, value: Any) -> Any:
    whole = loop.call(torch.trunc, value)
    part = loop.call(
        torch.where, loop.call(torch.isinf, value), 0.0, loop.call(torch.sub, value, whole)
    )
    return loop.call(torch.copysign, part, value), whole


@_kernel("absolute")
def _absolute(loop: Loop, value: Any) -> Any:
    return loop.call(torch.clone if loop.kind in "bu" else torch.abs, value)


@_kernel("conjugate", "conj")
def _conjugate(loop: Loop, value: Any) -> Any:
    if loop.kind != "c":
        return loop.call(torch.clone, value)
    return loop.call(torch.conj_physical, value)


@_kernel("sign")
def _sign(loop: Loop, value: Any) -> Any:
    if loop.kind == "c":
        return loop.call(torch.sgn, value)
    found = loop.call(torch.sign, value)
    if loop.kind == "f":
        found = loop.call(torch.where, loop.call(torch.isnan, value), value, found)
    return found


def _rounding(function: Any) -> Callable[..., Any]:
    def kernel(loop: Loop, value: Any) -> Any:
        return loop.call(torch.clone if loop.kind in "biu" else function, value)

    return kernel


for _name, _function in (
    ("floor", torch.floor), ("ceil", torch.ceil), ("trunc", torch.trunc), ("rint", torch.round),
):  # fmt: skip
    _kernel(_name)(_rounding(_function))


@_kernel("reciprocal")
def _reciprocal(loop: Loop, value: Any) -> Any:
    if loop.kind in "biu":
        raise loop.unsupported()
    return loop.call(torch.reciprocal, value)


@_kernel("cbrt")
def _cbrt(loop: Loop, value: Any) -> Any:
    root = loop.call(torch.pow, loop.call(torch.abs, value), 1 / 3)
    return loop.call(torch.copysign, root, value)


@_kernel("clip")
def _clip(loop: Loop, value: Any, low: Any, high: Any) -> Any:
    value = loop.tensor(value, 0)
    if loop.kind in "bc":
        raise loop.unsupported()
    if all(type(bound) in (int, float) and not math.isnan(bound) for bound in (low, high)):
        return loop.call(torch.clamp, value, low, high)
    found = loop.call(torch.maximum, value, loop.tensor(low, 1))
    return loop.call(torch.minimum, found, loop.tensor(high, 2))


@_kernel("vecdot")
def _vecdot(loop: Loop, left: Any, right: Any) -> Any:
    if loop.kind == "c":
        left = loop.call(torch.conj_physical, left)
    return loop.call(
        torch.sum, loop.call(operator.mul, left, right), -1, dtype=torch_dtype(loop.dtypes[0])
    )
