"""Extern calls: operators by name, and their arguments as Python values."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from flambeau_runtime import cpu_draws
from flambeau_runtime.program import (
    Device,
    Dtype,
    Extern,
    Float,
    Layout,
    MemoryFormat,
    Ref,
    SizeExpr,
)

Marker = TypeVar("Marker", Ref, SizeExpr, Float)

_LAYOUTS: dict[str, torch.layout] = {
    "strided": torch.strided,
    "sparse_coo": torch.sparse_coo,
    "sparse_csr": torch.sparse_csr,
    "_mkldnn": torch._mkldnn,  # type: ignore[attr-defined]
}


def overload_of(name: str) -> Any:
    """The OpOverload named "aten.mm.out" ("namespace.operator.overload")."""
    try:
        namespace, operator, overload = name.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), operator), overload)
    except (AttributeError, ValueError) as error:
        raise ValueError(f"there is no operator overload {name!r} in this torch") from error


def find_operator(name: str) -> Callable[..., Any]:
    """What calls an overload with the least overhead."""
    result = overload_of(name)
    # OpOverload.__call__ only forwards to _op: one Python frame less a call.
    return getattr(result, "_op", result)


def operator_of(step: Extern) -> Callable[..., Any]:
    """What makes a step's call with the least overhead."""
    operator = REPLACED.get(step.op) or find_operator(step.op)
    mode = grad_mode_of(step)
    return operator if mode is None else _with_grad_mode(operator, mode)


REPLACED: dict[str, Callable[..., Any]] = {"aten.bernoulli.p": cpu_draws.bernoulli}
"""Functions that give what an operator gives, sooner."""


BACKWARD_DATA = {"aten.mkldnn_rnn_layer.default": 3}
"""Operators that make data for their backward only while grad mode is on (oneDNN's workspace, and
with it a slower form of the layer), and which of their results holds them."""


def grad_mode_of(step: Extern) -> bool | None:
    """The grad mode that a step's call needs; None if any does."""
    position = BACKWARD_DATA.get(step.op)
    return None if position is None else step.outputs[position] is not None


def _with_grad_mode(operator: Callable[..., Any], mode: bool) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(mode):
            return operator(*args, **kwargs)

    return call


def is_random(step: Extern) -> bool:
    """Whether a call advances a random number generator. Attention's backward does not, though
    torch says so of some: it is passed the seed.
    """
    overload = overload_of(step.op)
    if torch.Tag.nondeterministic_seeded not in overload.tags:
        return False
    if any(argument.name == "philox_seed" for argument in overload._schema.arguments):
        return False
    return "attention" not in step.op or has_dropout(step)


def has_dropout(step: Extern) -> bool:
    """Whether a call of attention has dropout."""
    return argument_of(step, "dropout_p") not in (None, 0.0)


def argument_of(step: Extern, name: str) -> Any:
    """An argument of a call by its name in the operator's schema; None if it has none such."""
    for position, argument in enumerate(overload_of(step.op)._schema.arguments):
        if argument.name == name:
            given = step.args[position] if position < len(step.args) else argument.default_value
            return step.kwargs.get(name, given)
    return None


def constant(arg: Any) -> Any:
    """A marker as the torch object it stands for; other constants as they are."""
    if isinstance(arg, Dtype):
        return getattr(torch, arg.name)
    if isinstance(arg, Device):
        return torch.device(arg.name)
    if isinstance(arg, Layout):
        return _LAYOUTS[arg.name]
    if isinstance(arg, MemoryFormat):
        return getattr(torch, arg.name)
    return arg


def is_constant(arg: Any) -> bool:
    """Does a (nested) argument hold no tensor and no symbolic number?"""
    if isinstance(arg, (list, tuple)):
        return all(is_constant(item) for item in arg)
    return not isinstance(arg, (Ref, SizeExpr, Float))


def markers_in(arg: Any, kind: type[Marker]) -> list[Marker]:
    """The markers of one kind (Ref, SizeExpr, Float) in a (nested) argument, in order."""
    if isinstance(arg, kind):
        return [arg]
    if isinstance(arg, dict):
        arg = arg.values()
    elif not isinstance(arg, (list, tuple)):
        return []
    return [result for item in arg for result in markers_in(item, kind)]


def refs_of(arg: Any) -> list[str]:
    """The tensors named in a (nested) argument."""
    return [ref.name for ref in markers_in(arg, Ref)]


def map_argument(arg: Any, fn: Callable[[Ref | SizeExpr | Float], Any]) -> Any:
    """A nested argument with Refs, SizeExprs and Floats mapped by `fn`, markers by torch's."""
    if isinstance(arg, (Ref, SizeExpr, Float)):
        return fn(arg)
    if isinstance(arg, list):
        return [map_argument(item, fn) for item in arg]
    if isinstance(arg, tuple):
        return tuple(map_argument(item, fn) for item in arg)
    return constant(arg)


def bits_of(number: float) -> int:
    """The 64 bits of a float as an int64."""
    return int(struct.unpack("q", struct.pack("d", number))[0])


def float_of(bits: int) -> float:
    """The float with these bits."""
    return float(struct.unpack("d", struct.pack("q", bits))[0])


def view_of(
    base: torch.Tensor, dtype: torch.dtype, shape: list[int], stride: list[int], offset: int
) -> torch.Tensor:
    """A tensor on `base`'s storage; the offset (elements of `dtype`) counts from `base`'s start."""
    start = base.storage_offset() * base.element_size() // dtype.itemsize + offset
    return torch.empty(0, dtype=dtype, device=base.device).set_(
        base.untyped_storage(), start, shape, stride
    )


def out_of_bounds(kernel: str) -> str:
    """What an IndexError says when a checked kernel met an index outside its tensor."""
    return (
        f"index out of bounds in {kernel}: "
        "an index tensor holds a value that is not within the indexed dimension"
    )
