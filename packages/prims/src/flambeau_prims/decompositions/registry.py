"""The registry of decompositions.

    @decomposition(aten.silu.default)
    def silu(b: Builder, x: Value) -> Value: ...

A decomposition is called with the Builder and the ATen arguments (Values, Sizes, numbers, dtypes,
lists of these). It appends primitives and returns a Value for each result (a tuple or list for
several, None where the operator returns no tensor); results may be in the compute dtype of the
declared one (float32 for bfloat16): the caller casts them and settles their strides. It returns
NotImplemented for arguments that it leaves to ATen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from flambeau_prims.decompositions import load_all, load_library

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

Decomposition = TypeVar("Decomposition", bound="Callable[..., Any]")

_DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {}


def decomposition(*ops: OpOverload) -> Callable[[Decomposition], Decomposition]:
    """Register the decorated function for these overloads; ValueError for a second one."""

    def register(function: Decomposition) -> Decomposition:
        for op in ops:
            if op in _DECOMPOSITIONS:
                raise ValueError(f"{op} has a decomposition already: {_DECOMPOSITIONS[op]}")
            _DECOMPOSITIONS[op] = function
        return function

    return register


def decomposition_for(op: OpOverload) -> Callable[..., Any] | None:
    """The decomposition of an overload, or None."""
    load_all()
    load_library(op.namespace)
    return _DECOMPOSITIONS.get(op)


def registered() -> tuple[OpOverload, ...]:
    """Every overload that has a decomposition."""
    load_all()
    return tuple(_DECOMPOSITIONS)
