"""Families of ATen overloads: one rule for the functional and in-place overloads of a name."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.promotion import can_cast, dtype_name
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import eq, gt
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_empty, same_shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

    RuleFunction = Callable[..., Any]


def overloads(name: str) -> list[OpOverload]:
    """The overloads of `aten.<name>` that take tensors and have no out=; none if unknown."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return []
    result = [getattr(packet, overload) for overload in packet.overloads()]
    return [
        op
        for op in result
        if _takes_tensors(op) and not any(arg.is_out for arg in op._schema.arguments)
    ]


def _takes_tensors(op: OpOverload) -> bool:
    return any(str(arg.type) in ("Tensor", "Optional[Tensor]") for arg in op._schema.arguments)


def declare(names: str, function: RuleFunction, *, in_place: bool = True) -> None:
    """Make `function` the rule of every functional overload of these families, and of their
    in-place twins.

    The twin `add_` returns its first argument's Spec after checking that the result fits it.
    """
    for name in names.split():
        rule(*overloads(name))(function)
        if in_place:
            rule(*overloads(f"{name}_"))(written_to_self(function))


def in_place(*ops: OpOverload) -> Callable[[RuleFunction], RuleFunction]:
    """Make the decorated rule that of these in-place operators too, whose result is self."""

    def register(function: RuleFunction) -> RuleFunction:
        @wraps(function)
        def in_place_rule(self: Spec, *args: Any, **kwargs: Any) -> Spec:
            function(self, *args, **kwargs)
            return self

        rule(*ops)(in_place_rule)
        return function

    return register


def written_to_self(function: RuleFunction) -> RuleFunction:
    """The rule of the in-place twin of an operator: checks, then self as it was."""

    @wraps(function)
    def in_place_rule(self: Spec, *args: Any, **kwargs: Any) -> Spec:
        result = function(self, *args, **kwargs)
        check_writable(self)
        if result.device != self.device:  # a loop takes 0-dim tensors of the CPU, to read them
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, "
                f"{result.device} and {self.device}!"
            )
        if not can_cast(result.dtype, self.dtype):
            raise RuntimeError(
                f"result type {dtype_name(result.dtype)} can't be cast to the desired "
                f"output type {dtype_name(self.dtype)}"
            )
        if not same_shape(result.shape, self.shape):
            raise RuntimeError(
                f"output with shape {list(self.shape)} doesn't match the broadcast shape "
                f"{list(result.shape)}"
            )
        return self

    return in_place_rule


def check_writable(self: Spec) -> None:
    """Raise if elements of self share memory, as those of an expanded tensor do."""
    if not is_empty(self.shape) and any(
        eq(step, 0) and gt(size, 1) for size, step in zip(self.shape, self.stride, strict=True)
    ):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please clone() the tensor before performing the operation."
        )
