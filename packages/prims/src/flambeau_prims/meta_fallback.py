"""Shapes by running an operator on meta tensors: the way out for rare operators without a rule.

Torch's meta kernels can differ from the real ones in strides (a channels_last convolution on CPU is
one case) and take no symbolic sizes, so every operator of note has its own rule and this file
serves only the long tail. Symbolic sizes are specialised: guards hold them to their values on the
traced call, and `SizeEnv.specialised` says for what operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.size_floats import Condition, FloatExpr, as_float
from flambeau_prims.sizes import Expr, Size, as_int, known_eq
from flambeau_prims.spec import Spec
from flambeau_prims.unsupported import NoRule

if TYPE_CHECKING:
    from torch._ops import OpOverload

_META = torch.device("meta")


def infer_on_meta(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The Specs of `op`'s results, from running it on meta tensors; raises `NoRule` if that cannot
    be done.

    Symbolic sizes and numbers are specialised, with guards; `DataDependentSize` for those that are
    in the data.
    """
    device: list[torch.device] = []
    meta_args = [_to_meta(arg, op, device) for arg in args]
    meta_kwargs = {name: _to_meta(arg, op, device) for name, arg in kwargs.items()}
    if isinstance(kwargs.get("device"), torch.device):
        device.insert(0, kwargs["device"])
        meta_kwargs["device"] = _META
    try:
        with torch.no_grad():
            result = op(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        raise NoRule(f"{op} has neither a shape rule nor a meta kernel", op) from error
    return _to_specs(result, device[0] if device else torch.device("cpu"))


def _to_meta(arg: Any, op: OpOverload, device: list[torch.device]) -> Any:
    if isinstance(arg, Spec):
        if not device or (device[0].type == "cpu" and arg.ndim > 0):
            device[:] = [arg.device]
        spec = specialised(arg, f"{op} has no shape rule for symbolic sizes")
        return torch.empty(_extent(spec), dtype=spec.dtype, device=_META).as_strided(
            ints(spec.shape), ints(spec.stride), as_int(spec.offset)
        )
    if isinstance(arg, Expr):
        return specialised_int(arg, f"{op} has no shape rule for symbolic sizes")
    if isinstance(arg, FloatExpr):
        arg.env.specialised.setdefault(arg, f"{op} has no shape rule for symbolic numbers")
        return as_float(arg)
    if isinstance(arg, Condition):
        return arg.ask()
    if isinstance(arg, (tuple, list)):
        return [_to_meta(item, op, device) for item in arg]
    return arg


def specialised(spec: Spec, reason: str) -> Spec:
    """The Spec with ints for its sizes; guards hold them to their values on the traced call."""
    if spec.env is None:
        return spec
    shape = [specialised_int(size, reason) for size in spec.shape]
    return Spec.of(
        shape,
        stride=[specialised_int(step, reason) for step in spec.stride],
        dtype=spec.dtype,
        device=spec.device,
        offset=specialised_int(spec.offset, reason),
    )


def specialised_int(size: Size, reason: str) -> int:
    """The size as an int, with a guard; `SizeEnv.specialised` notes why."""
    if isinstance(size, Expr) and not known_eq(size, size.hint):
        size.env.specialised.setdefault(size, reason)
    return as_int(size)


def _extent(spec: Spec) -> int:
    """Number of elements of storage that a Spec with int sizes spans, offset included."""
    offset = as_int(spec.offset)
    if spec.numel == 0:
        return offset
    return (
        offset
        + 1
        + sum(
            (size - 1) * stride
            for size, stride in zip(ints(spec.shape), ints(spec.stride), strict=True)
        )
    )


def ints(sizes: tuple[Size, ...]) -> list[int]:
    """Sizes that are known to be ints, as such."""
    return [as_int(size) for size in sizes]


def _to_specs(result: Any, device: torch.device) -> Any:
    if isinstance(result, torch.Tensor):
        return Spec.of(
            result.shape,
            stride=result.stride(),
            dtype=result.dtype,
            device=device,
            offset=int(result.storage_offset()),
        )
    if isinstance(result, (tuple, list)):
        return tuple(_to_specs(item, device) for item in result)
    return result
