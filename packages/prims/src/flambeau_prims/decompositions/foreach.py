"""Operators on lists of tensors, as optimizers call them: the operator on each tensor, one after the other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.pointwise import overloads
from flambeau_prims.decompositions.registry import decomposition, decomposition_for
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch._ops import OpOverload

    from flambeau_prims.builder import Builder

aten = torch.ops.aten


def _for_each(b: Builder, lists: int, each: Callable[[], Any]) -> list[Any]:
    """`each()` with `b.results` set to the one result in turn."""
    specs = b.results
    found = []
    try:
        for i in range(lists):
            b.results = (specs[i],)
            found.append(each())
    finally:
        b.results = specs
    return found


def for_each(b: Builder, *args: Any, per_tensor: OpOverload, scalars: tuple[int, ...] = (), **kwargs: Any) -> Any:
    """`per_tensor` on the i-th entries of all list arguments; what is no list is shared."""
    function = decomposition_for(per_tensor)
    assert function is not None
    args += tuple(kwargs.pop(name) for name in ("scalars",) if name in kwargs)
    length = len(args[0]) if isinstance(args[0], (list, tuple)) else len(args[1])
    entries: Iterator[tuple[Any, ...]] = iter(
        [tuple(arg[i] if isinstance(arg, (list, tuple)) else arg for arg in args) for i in range(length)]
    )
    found = _for_each(b, length, lambda: function(b, *next(entries), **kwargs))
    return NotImplemented if any(item is NotImplemented for item in found) else found


def _register(name: str, per_tensor: OpOverload, *which: str) -> None:
    for op in overloads(f"_foreach_{name}", *which):
        decomposition(op)(partial(for_each, per_tensor=per_tensor))


for _name in (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma", "log", "log10",
    "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
):  # fmt: skip
    _register(_name, getattr(aten, _name).default, "default")
_register("zero", aten.zero.default, "default")
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


def _scaled_third(b: Builder, x: Any, a: Any, c: Any, value: Any = 1, *, per_tensor: OpOverload) -> Any:
    """addcmul and addcdiv, whose scale is positional here and keyword-only there."""
    function = decomposition_for(per_tensor)
    assert function is not None
    values = value if isinstance(value, (list, tuple)) else [value] * len(x)
    entries = iter(list(zip(x, a, c, values, strict=True)))

    def each() -> Value:
        first, second, third, scale = next(entries)
        return function(b, first, second, third, value=scale)

    return _for_each(b, len(x), each)


for _name in ("addcmul", "addcdiv"):
    for _op in overloads(f"_foreach_{_name}", "Scalar", "ScalarList"):
        decomposition(_op)(partial(_scaled_third, per_tensor=getattr(aten, _name).default))
