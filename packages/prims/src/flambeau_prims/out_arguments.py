"""out= arguments: which of them a graph may write to as they are, which it creates, and which
are left to eager.

    torch.mul(x, y, out=o)           o of the result's shape    -> compiled
    torch.mul(x, y, out=empty(0))    made in the graph          -> it takes the result's shape
    torch.sum(x, out=o)              o of another dtype         -> OutArgument: eager runs it

Before eager computes, it resizes what has another shape, and refuses dtypes, devices and overlaps
by rules that differ from operator to operator. Only calls that every such rule accepts are
compiled; eager runs the others. Relies on the out= overload and its functional form having the same
arguments, as `functional_forms` of the autograd package does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.fake import FakeTensor
from flambeau_prims.sizes import known_eq
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_empty, same_shape
from flambeau_prims.unsupported import OutArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch._ops import OpOverload


def to_resize(
    op: OpOverload, outs: Sequence[Any], results: Any, operands: Any
) -> list[tuple[FakeTensor, Spec]]:
    """The out= tensors that take another shape first, each with that Spec.

    `results` are the Specs of the functional form, `operands` the call's other arguments. Raises
    OutArgument for what eager is to judge.
    """
    specs = results if isinstance(results, (tuple, list)) else (results,)
    pointwise = torch.Tag.pointwise in op.tags
    others = list(_tensors(operands))
    result = []
    for out, spec in zip(_flat(outs), _flat(specs), strict=True):
        if not isinstance(out, FakeTensor) or not isinstance(spec, Spec):
            raise OutArgument(f"{op} writes to {out!r}, which is no tensor of the graph", op)
        _check_kind(op, out.spec, spec)
        if not same_shape(out.spec.shape, spec.shape):
            result.append((out, _resized(op, out, spec)))
        elif _overlaps_itself(out.spec) or not (pointwise or _same_layout(out.spec, spec)):
            # Some operators write rows whatever the strides are.
            raise OutArgument(f"{op} of {spec!r} writes to {out!r}, of another layout", op)
        for other in others:
            if other.storage_record is not out.storage_record:
                continue
            if not (pointwise and _same_place(other.spec, out.spec)):
                raise OutArgument(f"{op} writes to memory that it reads: {other!r}", op)
        others.append(out)
    return result


def _check_kind(op: OpOverload, out: Spec, result: Spec) -> None:
    """Operators cast to the dtype of out=, compute in it, or refuse one that differs."""
    if out.dtype != result.dtype:
        raise OutArgument(f"{op} of {result!r} writes to {out!r}, of another dtype", op)
    if out.device != result.device:
        raise OutArgument(f"{op} of {result!r} writes to {out!r}, on another device", op)


def _resized(op: OpOverload, out: FakeTensor, result: Spec) -> Spec:
    """The Spec that an empty tensor of the graph takes: no one outside sees it change."""
    input = out.storage_record.given or (out.value is not None and out.value.producer is None)
    fresh = out.spec.fresh(result.shape)
    # Where the functional result is not in rows, operators differ in the strides that they give.
    if input or not is_empty(out.spec.shape) or fresh.stride != result.stride:
        raise OutArgument(f"{op} would resize its out= argument {out!r} to {result!r}", op)
    return fresh


def _same_layout(one: Spec, other: Spec) -> bool:
    """Whether two Specs of one shape have the same strides where these count."""
    return all(
        known_eq(a, b) or known_eq(size, 1)
        for size, a, b in zip(one.shape, one.stride, other.stride, strict=True)
    )


def _overlaps_itself(spec: Spec) -> bool:
    return any(
        known_eq(stride, 0) and not known_eq(size, 1)
        for size, stride in zip(spec.shape, spec.stride, strict=True)
    )


def _same_place(one: Spec, other: Spec) -> bool:
    return (
        one.dtype == other.dtype
        and known_eq(one.offset, other.offset)
        and len(one.shape) == len(other.shape)
        and all(
            known_eq(a, b)
            for a, b in zip(one.shape + one.stride, other.shape + other.stride, strict=True)
        )
    )


def _flat(items: Any) -> Iterator[Any]:
    for item in items:
        if isinstance(item, (tuple, list)):
            yield from _flat(item)
        else:
            yield item


def _tensors(arg: Any) -> Iterator[FakeTensor]:
    if isinstance(arg, FakeTensor):
        yield arg
    elif isinstance(arg, dict):
        for item in arg.values():
            yield from _tensors(item)
    elif isinstance(arg, (tuple, list)):
        for item in arg:
            yield from _tensors(item)
