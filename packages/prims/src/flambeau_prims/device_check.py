"""Whether a call's tensors are on devices that eager accepts together.

    aten.gather(f32[8] cuda:0, 0, i64[2] cpu)   RuntimeError: Expected all tensors to be on the ...
    aten.add(f32[8] cuda:0, f32[] cpu)          accepted: elementwise loops take 0-dim tensors
    aten.index(f32[8] cuda:0, [i64[2] cpu])     accepted: the indices are copied

An operator that has a kernel for each device refuses tensors of several devices, unless
native_functions.yaml says `device_check: NoCheck` for it.  A view or an operator composed of others
has no check itself: those that it is composed of have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.per_operator import per_operator
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._ops import OpOverload

_POINTWISE_THAT_CHECK = frozenset({
    "clamp.Tensor", "clamp_max.Tensor", "clamp_min.Tensor", "equal", "gcd", "gelu_backward",
    "igamma", "igammac", "lcm", "logaddexp", "logaddexp2", "logit_backward",
    "native_dropout_backward", "nextafter", "sigmoid_backward", "silu_backward",
    "tanh_backward", "threshold_backward",
})  # fmt: skip
"""Pointwise operators without `device_check: NoCheck`."""

_OTHERS_WITHOUT_CHECK = frozenset({
    "_index_put_impl", "bernoulli", "binomial", "copysign", "fill", "floor_divide", "heaviside",
    "index", "index_fill", "is_set_to", "rsub", "set",
})  # fmt: skip
"""Operators that are not tagged pointwise and have `device_check: NoCheck`."""

_THAT_CHECK_INSIDE = frozenset({
    "binary_cross_entropy", "dist", "embedding", "logical_and", "logical_or", "logical_xor",
    "masked_fill", "mse_loss", "smooth_l1_loss", "stack",
})  # fmt: skip
"""Operators that compose others which take no tensors of several devices, even 0-dim."""

_EXEMPT = {"masked_fill.Tensor": "value"}
"""Arguments that may be a 0-dim tensor of the CPU where the others may not."""


def check_devices(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise RuntimeError, as eager does, for Specs on devices that `op` does not combine."""
    tensors = list(_tensors(op, args, kwargs))
    if len({spec.device for _, spec in tensors}) < 2 or not _checks(op):
        return
    exempt = _EXEMPT.get(_base_name(op))
    tensors = [(name, spec) for name, spec in tensors if name != exempt or spec.shape]
    if len({spec.device for _, spec in tensors}) < 2:
        return
    first = next(spec.device for _, spec in tensors if spec.device.type != "cpu")
    name, wrong = next((name, spec) for name, spec in tensors if spec.device != first)
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but got {name} is on {wrong.device}, "
        f"different from other tensors on {first} (when checking argument in {op})"
    )


def _tensors(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Spec]]:
    given = zip(op._schema.arguments, args, strict=False)
    for name, arg in (*((argument.name, arg) for argument, arg in given), *kwargs.items()):
        if isinstance(arg, Spec):
            yield name, arg
        elif isinstance(arg, (tuple, list)):
            yield from ((name, item) for item in arg if isinstance(item, Spec))


@per_operator
def _checks(op: OpOverload) -> bool:
    namespace, name = op._schema.name.split("::")
    if namespace != "aten":
        return False
    stem = name.rstrip("_")
    if stem in _THAT_CHECK_INSIDE:
        return True
    if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CPU"):
        return False
    if torch.Tag.pointwise in op.tags or torch.Tag.pointwise in _functional(op).tags:
        return _base_name(op) in _POINTWISE_THAT_CHECK
    return stem not in _OTHERS_WITHOUT_CHECK and not stem.startswith(("_foreach", "_fused"))


def _base_name(op: OpOverload) -> str:
    """ "clamp.Tensor" of aten.clamp_.Tensor, "gcd" of aten.gcd.default."""
    stem = op._schema.name.split("::")[1].rstrip("_")
    return stem if op._overloadname == "default" else f"{stem}.{op._overloadname}"


def _functional(op: OpOverload) -> OpOverload:
    """The out-of-place overload of the same name, or `op`: not every in-place form is tagged."""
    packet = getattr(torch.ops.aten, op._schema.name.split("::")[1].rstrip("_"), None)
    return getattr(packet, op._overloadname, op)
