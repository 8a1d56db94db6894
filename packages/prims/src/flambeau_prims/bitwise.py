"""Which pointwise operators primitives compute bit for bit as eager does: with strict numerics
(`decompose(strict=True)`) the others stay calls of ATen.

    aten.mul.Tensor(x, y)            one IEEE operation: primitives
    aten.add.Tensor(x, y, alpha=3)   eager contracts alpha * y + x in its vector loops: ATen
    aten.exp.default(x)              eager has polynomials, which differ between vectors and the
                                     rest of a row: ATen

The tables list what was measured to be equal, on a CPU with each of ATen's code paths
(ATEN_CPU_CAPABILITY default, avx2, avx512); tests measure it again. Equal are operators of one IEEE
operation, of a choice between operands, and formulas without a product that a compiler contracts
with a sum. Left out are `maximum` and its like, since eager's choice between 0.0 and -0.0 depends
on the place in the row, and `sqrt`, which a library rounds in its own way. On a GPU, where nothing
was measured, the list is shorter: single IEEE operations and choices.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.registry import decomposition_for
from flambeau_prims.graph import Value
from flambeau_prims.primitives import Prim
from flambeau_prims.promotion import is_integral, result_type

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from flambeau_prims.graph import Node

_FAMILIES = frozenset({"activation", "foreach", "loss", "pointwise", "special"})
"""The modules of decompositions that the tables speak of."""

_HALVES = frozenset({torch.float16, torch.bfloat16})

_CHOICES = frozenset({"where", "masked_fill"})
"""Operators that compute nothing: their operands may differ in dtype."""

_ANYWHERE = _CHOICES | frozenset({
    "abs", "add", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "__and__", "__or__",
    "__xor__", "ceil", "eq", "floor", "ge", "gt", "isinf", "isnan", "le", "logical_and",
    "logical_not", "logical_or", "logical_xor", "lt", "mul", "ne", "neg", "positive", "rsub", "sub",
    "threshold", "threshold_backward", "trunc",
})  # fmt: skip

_OF_FLOATS = _ANYWHERE | frozenset({
    "_conj_physical", "_prelu_kernel", "_prelu_kernel_backward", "clamp", "clamp_max", "clamp_min",
    "copysign", "deg2rad", "div", "frac", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
    "heaviside", "isneginf", "isposinf", "leaky_relu", "leaky_relu_backward", "nan_to_num", "pow",
    "rad2deg", "reciprocal", "relu", "relu6", "round", "sgn", "sign", "signbit", "square",
    "true_divide",
})  # fmt: skip

_OF_SINGLES = _OF_FLOATS | frozenset({"addcdiv", "rsqrt", "sigmoid_backward"})
"""In float32 and float64."""

_OF_INTEGERS = _OF_FLOATS | frozenset({
    "bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__", "floor_divide", "fmod",
    "max", "maximum", "min", "minimum", "remainder",
})  # fmt: skip

_POWERS = (0, 1, 2, -1)
"""Exponents for which eager computes one product or quotient."""


def is_bitwise_equal(node: Node) -> bool:
    """Whether the decomposition of an ATen node gives eager's bits. Of operators that are not
    pointwise (reductions, views, ...) nothing is said: true.
    """
    op: Any = node.op
    if isinstance(op, Prim) or not _is_pointwise(op):
        return True
    tensors = [arg for arg in node.args if isinstance(arg, Value)]
    if not tensors or any(_is_nan(arg) for arg in (*node.args, *node.kwargs.values())):
        return False
    name = op._schema.name.partition("::")[2]
    numbers = [arg for arg in node.args if _is_number(arg)]
    dtype = result_type([*(value.spec for value in tensors), *numbers])
    return (
        name in _table(node, dtype)
        and _fits(name, node, tensors)
        and (dtype not in _HALVES or name in _CHOICES or _in_halves(tensors, numbers, dtype))
    )


@cache
def _is_pointwise(op: OpOverload) -> bool:
    """Whether the tables speak of an overload."""
    function = decomposition_for(op)
    while isinstance(function, partial):
        function = function.func
    return function is not None and function.__module__.rpartition(".")[2] in _FAMILIES


def _table(node: Node, dtype: torch.dtype) -> frozenset[str]:
    """The operators whose primitives give eager's bits in a dtype."""
    if any(out is not None and out.spec.device.type != "cpu" for out in node.outputs):
        return _ANYWHERE
    if dtype in _HALVES:
        return _OF_FLOATS
    return _OF_INTEGERS if is_integral(dtype) else _OF_SINGLES


def _fits(name: str, node: Node, tensors: list[Value]) -> bool:
    """Whether the arguments beside the operands let an operator be one operation or choice."""
    args, kwargs = node.args, node.kwargs
    if name in ("add", "sub", "rsub"):
        alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
        return isinstance(alpha, (int, float)) and alpha == 1
    if name == "pow":
        return isinstance(args[0], Value) and args[1] in _POWERS
    if name == "addcdiv":
        return bool(kwargs.get("value", 1) == 1)
    if name == "div":
        return kwargs.get("rounding_mode") is None
    if name in ("clamp", "clamp_min", "clamp_max"):
        return len(tensors) == 1
    return True


def _in_halves(tensors: list[Value], numbers: list[Any], dtype: torch.dtype) -> bool:
    """Whether operands are numbers of a half dtype: eager rounds others to it in some operators,
    and takes them as they are in others.
    """
    return all(value.spec.dtype is dtype for value in tensors) and all(
        isinstance(number, (int, float)) and _holds(dtype, number) for number in numbers
    )


@cache
def _holds(dtype: torch.dtype, number: float) -> bool:
    wide = torch.tensor(number, dtype=torch.float64, device="cpu")
    return bool(wide.to(dtype).item() == number)


def _is_number(arg: Any) -> bool:
    return arg is not None and not isinstance(arg, (Value, bool, str, torch.dtype, list, tuple))


def _is_nan(arg: Any) -> bool:
    return isinstance(arg, float) and math.isnan(arg)
