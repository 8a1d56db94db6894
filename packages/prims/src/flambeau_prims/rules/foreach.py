"""Shape rules of operators over lists of tensors: _foreach_* and the fused optimizers.

A _foreach operator is its pointwise operator on each tensor.  In-place ones return nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.rules import pointwise, reduction
from flambeau_prims.rules.copy import clone
from flambeau_prims.rules.registry import infer, rule
from flambeau_prims.sizes import likely_eq
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_dense

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten

_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 "
    "neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)
_BINARY = "add sub mul div maximum minimum clamp_min clamp_max pow"
_TERNARY = "addcmul addcdiv"


def _each(self: Sequence[Spec], other: Any) -> list[Any]:
    """One second operand for each tensor: a list is taken item by item, else the same for all."""
    if isinstance(other, tuple):
        if len(other) != len(self):
            raise RuntimeError(
                f"Tensor lists must have the same number of tensors, got {len(self)} and "
                f"{len(other)}"
            )
        return list(other)
    return [other] * len(self)


def _overload(name: str, *operands: Any) -> Any:
    """The pointwise overload that fits these operands."""
    packet = getattr(aten, name)
    if name == "pow":
        base, exponent = (isinstance(operand, Spec) for operand in operands)
        return (
            packet.Tensor_Tensor
            if base and exponent
            else packet.Tensor_Scalar
            if base
            else packet.Scalar
        )
    if name in ("clamp_min", "clamp_max"):
        return packet.Tensor if isinstance(operands[1], Spec) else packet.default
    if name in ("maximum", "minimum"):
        return packet.default
    return packet.Tensor


def _unary(name: str) -> Callable[..., Any]:
    op = getattr(aten, name).default

    def foreach_unary(self: Sequence[Spec]) -> list[Spec]:
        return [infer(op, (spec,)) for spec in self]

    return foreach_unary


def _binary(name: str) -> Callable[..., Any]:
    def foreach_binary(self: Any, other: Any, **options: Any) -> list[Spec]:
        if not isinstance(self, tuple):  # _foreach_pow.ScalarAndTensor
            return [infer(_overload(name, self, spec), (self, spec)) for spec in other]
        return [
            _bounded(name, spec, operand, options)
            for spec, operand in zip(self, _each(self, other), strict=True)
        ]

    return foreach_binary


def _bounded(name: str, self: Spec, other: Any, options: dict[str, Any]) -> Spec:
    if name in ("maximum", "minimum") and not isinstance(other, Spec):
        return infer(
            getattr(aten, f"clamp_{'min' if name == 'maximum' else 'max'}").default, (self, other)
        )
    return infer(_overload(name, self, other), (self, other), options)


def _ternary(name: str) -> Callable[..., Any]:
    function = getattr(pointwise, name)

    def foreach_ternary(
        self: Sequence[Spec],
        tensor1: Sequence[Spec],
        tensor2: Sequence[Spec],
        value: Any = 1,
        **_named: Any,
    ) -> list[Spec]:
        firsts, seconds = _each(self, tensor1), _each(self, tensor2)
        return [function(*specs) for specs in zip(self, firsts, seconds, strict=True)]

    return foreach_ternary


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    def foreach_in_place(self: Sequence[Spec], *args: Any, **options: Any) -> tuple[()]:
        function(self, *args, **options)
        return ()

    return foreach_in_place


def _as_one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, and strides as in the first list where one CUDA kernel computes all: those of
    dims of size 1 are kept, too.
    """

    def foreach(self: Any, *args: Any, **options: Any) -> list[Spec]:
        results: list[Spec] = function(self, *args, **options)
        lists = [one for one in (self, *args) if isinstance(one, tuple)]
        if not isinstance(self, tuple) or not _is_one_kernel(results, lists):
            return results
        return [
            result.replace(stride=spec.stride) for result, spec in zip(results, self, strict=True)
        ]

    return foreach


def _is_one_kernel(results: Sequence[Spec], lists: Sequence[Sequence[Any]]) -> bool:
    """Whether tensors have one dtype, are dense on a GPU, and lie alike across lists."""
    specs = [spec for one in lists for spec in one if isinstance(spec, Spec)]
    if any(spec.device.type != "cuda" or spec.dtype is not specs[0].dtype for spec in specs):
        return False
    return all(
        result.dtype is spec.dtype
        and result.ndim == spec.ndim
        and is_dense(spec)
        and all(
            likely_eq(size, wanted) and (likely_eq(size, 1) or likely_eq(step, kept))
            for size, wanted, step, kept in zip(
                spec.shape, result.shape, spec.stride, result.stride, strict=True
            )
        )
        for one in lists
        for result, spec in zip(results, one, strict=False)
        if isinstance(spec, Spec)
    )


def _declare(name: str, function: Callable[..., Any]) -> None:
    for suffix, chosen in (("", _as_one_kernel(function)), ("_", _in_place(function))):
        packet = getattr(aten, f"_foreach_{name}{suffix}", None)
        if packet is not None:
            overloads = [
                getattr(packet, overload)
                for overload in packet.overloads()
                if "out" not in overload
            ]
            rule(*overloads)(chosen)


for _name in _UNARY.split():
    _declare(_name, _unary(_name))
for _name in _BINARY.split():
    _declare(_name, _binary(_name))
for _name in _TERNARY.split():
    _declare(_name, _ternary(_name))


def lerp(self: Sequence[Spec], tensors1: Sequence[Spec], weight: Any) -> list[Spec]:
    """One weight for all, or one a tensor."""
    ends, weights = _each(self, tensors1), _each(self, weight)
    return [pointwise.lerp(*operands) for operands in zip(self, ends, weights, strict=True)]


_declare("lerp", lerp)
_declare("clone", lambda self, **options: [clone(spec) for spec in self])
_declare("zero", lambda self: [clone(spec) for spec in self])


@rule(aten._foreach_copy_.default)
def foreach_copy_(self: Sequence[Spec], src: Sequence[Spec]) -> tuple[()]:
    """Nothing is returned."""
    _each(self, src)
    return ()


@rule(aten._foreach_norm.Scalar)
def foreach_norm(self: Sequence[Spec], dtype: torch.dtype | None) -> list[Spec]:
    """The norm of each tensor."""
    return [reduction.vector_norm(spec, dtype=dtype) for spec in self]


@rule(aten._foreach_max.default)
def foreach_max(self: Sequence[Spec]) -> list[Spec]:
    """The maximum of each tensor."""
    return [reduction.largest(spec) for spec in self]


# 2. Fused optimizers


def _fused_overloads(suffix: str) -> list[Any]:
    packets = [
        getattr(aten, f"_fused_{name}{suffix}") for name in ("adam", "adamw", "sgd", "adagrad")
    ]
    return [
        getattr(packet, name)
        for packet in packets
        for name in packet.overloads()
        if "out" not in name
    ]


@rule(*_fused_overloads("_"))
def fused_optimizer_(self: Sequence[Spec], grads: Sequence[Spec]) -> tuple[()]:
    """Parameters and state are updated in place; nothing is returned."""
    for parameter, grad in zip(self, _each(self, grads), strict=True):
        if parameter.shape != grad.shape:
            raise RuntimeError(
                f"fused optimizer: a parameter of shape {list(parameter.shape)} has a "
                f"gradient of shape {list(grad.shape)}"
            )
    return ()
