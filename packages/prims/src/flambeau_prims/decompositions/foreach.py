"""Operators on lists of tensors, as optimizers call them: the operator on each tensor."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.pointwise import overloads
from flambeau_prims.decompositions.registry import decomposition, decomposition_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._ops import OpOverload

    from flambeau_prims.builder import Builder

aten = torch.ops.aten


def _on_each(
    b: Builder, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], **kwargs: Any
) -> Any:
    """The result of each call, `b.results` being that of the one tensor meanwhile."""
    specs, result = b.results, []
    for spec, args in zip(specs, calls, strict=True):
        b.results = (spec,)
        result.append(function(b, *args, **kwargs))
    b.results = specs
    return NotImplemented if any(item is NotImplemented for item in result) else result


def for_each(b: Builder, *args: Any, per_tensor: OpOverload, **kwargs: Any) -> Any:
    """`per_tensor` on the i-th entries of all list arguments; what is no list is shared."""
    function = decomposition_for(per_tensor)
    assert function is not None
    calls = [
        tuple(arg[i] if isinstance(arg, (list, tuple)) else arg for arg in args)
        for i in range(len(b.results))
    ]
    return _on_each(b, function, calls, **kwargs)


def _register(name: str, per_tensor: OpOverload, *which: str) -> None:
    for op in overloads(f"_foreach_{name}", *which):
        decomposition(op)(partial(for_each, per_tensor=per_tensor))


for _name in (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor",
    "frac", "lgamma", "log", "log10",
    "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh",
    "sqrt", "tan", "tanh", "trunc",
):  # fmt: skip
    _register(_name, getattr(aten, _name).default, "default")
_register("zero", aten.zero.default, "default")
_register("clone", aten.clone.default, "default")
_register("max", aten.max.default, "default")
for _name in ("add", "sub", "mul", "div"):
    _register(_name, getattr(aten, _name).Tensor, "Scalar", "List", "ScalarList", "Tensor")
for _name, _per_tensor in (
    ("maximum", aten.clamp_min.Tensor), ("clamp_min", aten.clamp_min.Tensor),
    ("minimum", aten.clamp_max.Tensor), ("clamp_max", aten.clamp_max.Tensor),
):  # fmt: skip
    _register(_name, _per_tensor, "Scalar", "List", "ScalarList")
_register("lerp", aten.lerp.Scalar, "Scalar", "List", "ScalarList")
_register("pow", aten.pow.Tensor_Scalar, "Scalar", "ScalarList")
_register("pow", aten.pow.Tensor_Tensor, "List", "ScalarAndTensor")
_register("norm", aten.linalg_vector_norm.default, "Scalar")
_register("copy", aten.copy.default, "default")


def add_scaled(
    b: Builder, x: Any, first: Any, second: Any, value: Any = 1, *, per_tensor: OpOverload
) -> Any:
    """addcmul and addcdiv, whose scale is positional here and keyword-only there."""
    function = decomposition_for(per_tensor)
    assert function is not None
    scales = value if isinstance(value, (list, tuple)) else [value] * len(x)

    def scaled(b: Builder, *args: Any) -> Any:
        return function(b, *args[:3], value=args[3])

    return _on_each(b, scaled, list(zip(x, first, second, scales, strict=True)))


for _name in ("addcmul", "addcdiv"):
    for _op in overloads(f"_foreach_{_name}", "Scalar", "ScalarList"):
        decomposition(_op)(partial(add_scaled, per_tensor=getattr(aten, _name).default))
