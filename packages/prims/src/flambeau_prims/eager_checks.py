"""What eager says of an operator's arguments: its own checks, run on stand-ins for the tensors.

    aten.softshrink(f32[8, 4], -0.5)            elementwise: run on one element     -> RuntimeError: lambda must be in range ...
    aten.clamp(b8[8, 4], 0, 1)                                                      -> NotImplementedError: "clamp_cpu" not implemented for 'Bool'
    aten.avg_pool2d(f32[2, 8, 8], [2, 2], [], [-1, -1])    run on meta tensors      -> RefusedByEager

A shape rule says what a valid call gives.  Which dtypes a kernel exists for, and which numbers it takes, is asked of the kernel itself.  An elementwise
operator's answer does not depend on sizes, and one element costs nothing.  Others check shapes as they do on meta tensors; whether that is what eager
raises only eager says, so such a call is left to it.  The arguments have been found valid by the rule before.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.meta_fallback import infer_on_meta
from flambeau_prims.rules.registry import aliasing
from flambeau_prims.size_floats import FloatExpr, is_unbacked
from flambeau_prims.sizes import Expr, hint_of
from flambeau_prims.spec import Spec
from flambeau_prims.unsupported import RefusedByEager, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._ops import OpOverload

aten = torch.ops.aten

_AS_ELEMENTWISE = frozenset(
    {aten.huber_loss.default, aten.smooth_l1_loss.default, aten._prelu_kernel.default}
)
"""Reductions of elementwise losses, whose checks concern numbers and dtypes only, and what torch does not tag as pointwise."""
_READ_DATA = frozenset(
    {aten.allclose.default, aten._local_scalar_dense.default, aten.repeat_interleave.Tensor}
)
"""Operators that raise on meta tensors for want of data, as other errors than NotImplementedError."""

_Question = tuple[Any, ...]
_ANSWERS: dict[_Question, Exception | None] = {}
"""Facts of torch that do not change, kept as the rules' results are."""


def check(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what eager raises for these arguments (tensors given as Specs), or RefusedByEager where it is to be asked."""
    how = _how(op)
    if how is None:
        return
    try:
        question = (op, *_question((args, tuple(kwargs.items())), how == "elements"))
    except Unsupported:
        return  # of numbers that are in the data
    devices = {item[2].type for item in question if type(item) is tuple}
    if not devices or not devices <= _devices():
        return
    if question not in _ANSWERS:
        ask = _ask_elements if how == "elements" else _ask_meta
        _ANSWERS[question] = ask(op, args, kwargs)
    answer = _ANSWERS[question]
    if answer is None:
        return
    if how == "elements":
        raise type(answer)(*answer.args)
    raise RefusedByEager(f"{op}: {str(answer).partition(chr(10))[0]}", op) from answer


@cache
def _devices() -> frozenset[str]:
    """Where eager can be asked: a program for a GPU may be traced where there is none."""
    return frozenset({"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"})


@cache
def _how(op: OpOverload) -> str | None:
    shared = aliasing(op)
    seeded = torch.Tag.nondeterministic_seeded in op.tags
    if op.namespace != "aten" or shared.view or shared.mutated or seeded or op in _READ_DATA:
        return None
    if torch.Tag.pointwise in op.tags or op in _AS_ELEMENTWISE:
        return "elements"
    return "meta" if _has_compiled_meta_kernel(op) else None


def _has_compiled_meta_kernel(op: OpOverload) -> bool:
    """Whether C++ answers on meta tensors.  Many operators have a kernel in Python there, which imports torch's compiler."""
    registrations = torch._C._dispatch_dump(op.name()).splitlines()
    active = next((line for line in registrations if line.startswith("Meta: ")), "")
    return "RegisterMeta" in active


def _question(arg: Any, elements: bool) -> Iterator[Any]:
    """What an answer depends on, hashable; sizes and numbers as they are on this call."""
    if isinstance(arg, Spec):
        shape = tuple(_number(size) for size in arg.shape)
        if elements:
            yield "tensor", arg.dtype, arg.device, tuple(size and 1 for size in shape)
        else:
            yield "tensor", arg.dtype, arg.device, shape, tuple(_number(s) for s in arg.stride)
    elif isinstance(arg, (tuple, list)):
        yield len(arg)
        for item in arg:
            yield from _question(item, elements)
    else:
        number = _number(arg)
        yield type(number)
        yield number


def _number(value: Any) -> Any:
    if isinstance(value, (Expr, FloatExpr)):
        if is_unbacked(value):
            raise Unsupported("a number that is in the data")
        return hint_of(value) if isinstance(value, Expr) else value.hint
    return value


def _ask_elements(op: OpOverload, args: Any, kwargs: Any) -> Exception | None:
    def stand_in(arg: Any) -> Any:
        if isinstance(arg, Spec):
            shape = [1 if _number(size) else 0 for size in arg.shape]
            return torch.ones(shape, dtype=arg.dtype, device=arg.device)
        if isinstance(arg, (tuple, list)):
            return [stand_in(item) for item in arg]
        return _number(arg)

    try:
        with torch.no_grad():
            op(*map(stand_in, args), **{name: stand_in(arg) for name, arg in kwargs.items()})
    except Exception as error:
        return error.with_traceback(None)
    return None


def _ask_meta(op: OpOverload, args: Any, kwargs: Any) -> Exception | None:
    def concrete(arg: Any) -> Any:
        if isinstance(arg, Spec):
            return Spec.of(
                [_number(size) for size in arg.shape],
                stride=[_number(stride) for stride in arg.stride],
                dtype=arg.dtype,
                device=arg.device,
            )
        if isinstance(arg, (tuple, list)):
            return tuple(map(concrete, arg))
        return _number(arg)

    try:
        infer_on_meta(
            op, tuple(map(concrete, args)), {name: concrete(arg) for name, arg in kwargs.items()}
        )
    except Unsupported:
        return None  # no meta kernel
    except Exception as error:
        return error.with_traceback(None)
    return None
