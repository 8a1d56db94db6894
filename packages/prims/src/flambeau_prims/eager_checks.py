"""What eager says of an operator's arguments: its own kernels, run on stand-ins for the tensors.

    aten.softshrink(f32[8, 4], -0.5)    on one element    RuntimeError: lambda must be in range ...
    aten.clamp(b8[8, 4], 0, 1)          on one element    NotImplementedError: "clamp_cpu" not ...
    aten.cumsum(f8[80], 0)              on eight zeros    NotImplementedError: ... 'Float8_e4m3fn'

A shape rule says what a valid call gives.  Which dtypes a kernel exists for, and which numbers it
takes, is asked of the kernel itself.  An elementwise operator's answer does not depend on sizes,
and one element costs nothing.  Other kernels are asked about uncommon dtypes only.  The rule has
found the arguments' shapes valid before.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.per_operator import per_operator
from flambeau_prims.rules.registry import aliasing
from flambeau_prims.size_floats import FloatExpr, is_unbacked
from flambeau_prims.sizes import Expr, hint_of
from flambeau_prims.spec import Spec
from flambeau_prims.unsupported import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._ops import OpOverload

aten = torch.ops.aten

_AS_ELEMENTWISE = frozenset(
    {
        aten.huber_loss.default,
        aten.smooth_l1_loss.default,
        aten.soft_margin_loss.default,
        aten._prelu_kernel.default,
    }
)
"""Elementwise operators that torch does not tag as pointwise, losses with a reduction too."""
_READ_DATA = frozenset(
    {aten.allclose.default, aten._local_scalar_dense.default, aten.repeat_interleave.Tensor}
)
"""Operators that read their tensors' contents, which stand-ins do not have."""
_BELIEVE_SIZES = frozenset(
    {aten._weight_int8pack_mm.default, aten._weight_int4pack_mm_for_cpu.default}
)
"""Operators whose kernels read beyond tensors as small as stand-ins are."""

_COMMON = frozenset(
    {torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128}
)
_CHECKED_NUMBERS = frozenset(
    {
        "dim", "dims", "dtype", "input_dtype", "kernel_size", "stride", "padding", "dilation",
        "reduction", "ignore_index",
    }
)  # fmt: skip
"""Numbers that are no sizes, or that kernels check against their tensors' shapes."""
_NO_KERNEL = "not implemented for"
_SMALL = 8
"""The largest size of a tensor that a kernel is asked with."""

_Question = tuple[Any, ...]
_ANSWERS: dict[_Question, Exception | None] = {}
"""Facts of torch that do not change, kept as the rules' results are."""


def check(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what eager raises for these arguments (tensors given as Specs)."""
    how = _how(op)
    if how is None:
        return
    try:
        question = (op, *_question((args, tuple(kwargs.items())), how == "elements"))
    except Unsupported:
        return  # of data-dependent numbers
    devices = {item[2].type for item in question if type(item) is tuple}
    if not devices or not devices <= _devices():
        return
    if question not in _ANSWERS:
        _ANSWERS[question] = _ask(how, op, args, kwargs)
    answer = _ANSWERS[question]
    if answer is None:
        return
    raise type(answer)(*answer.args)


def refusal(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], error: NotImplementedError
) -> Exception:
    """The error of eager's kernel for a dtype that a rule refused by `error`, else that one."""
    how = _how(op)
    if how is None or (how == "kernel" and not _takes_no_sizes(op)):
        return error
    try:
        question = ("refused", op, *_question((args, tuple(kwargs.items())), how == "elements"))
    except Unsupported:
        return error
    devices = {item[2].type for item in question if type(item) is tuple}
    if devices != {"cpu"}:
        return error
    if question not in _ANSWERS:
        most, content = (1, 1) if how == "elements" else (_SMALL, 0)
        _ANSWERS[question] = _run(op, args, kwargs, most, content)
    answer = _ANSWERS[question]
    return error if answer is None else type(answer)(*answer.args)


def check_fill(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise eager's error where a random fill refuses its dtype or its numbers."""
    kwargs = {name: arg for name, arg in kwargs.items() if name != "generator"}
    try:
        question = (op, *_question((args, tuple(kwargs.items())), elements=True))
    except Unsupported:
        return
    if not _takes_generator(op) or args[0].device.type not in _devices():
        return
    if question not in _ANSWERS:
        generator = torch.Generator(args[0].device)  # the program's own draws nothing
        _ANSWERS[question] = _ask_elements(op, args, {**kwargs, "generator": generator})
    answer = _ANSWERS[question]
    if answer is not None:
        raise type(answer)(*answer.args)


@cache
def _devices() -> frozenset[str]:
    """Where eager can be asked: a program for a GPU may be traced where there is none."""
    return frozenset({"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"})


@per_operator
def _takes_generator(op: OpOverload) -> bool:
    return any(argument.name == "generator" for argument in op._schema.arguments)


@per_operator
def _how(op: OpOverload) -> str | None:
    shared = aliasing(op)
    seeded = torch.Tag.nondeterministic_seeded in op.tags
    if op.namespace != "aten" or shared.view or seeded or op in _READ_DATA | _BELIEVE_SIZES:
        return None
    if torch.Tag.pointwise in op.tags or op in _AS_ELEMENTWISE:
        return None if shared.mutated else "elements"
    return "kernel"


@per_operator
def _takes_no_sizes(op: OpOverload) -> bool:
    """Whether the kernel learns sizes from its tensors alone.

    `native_group_norm(x, weight, bias, N, C, HxW, ...)` believes its numbers: on a smaller stand-in
    it writes beyond it.
    """
    return all(
        "int" not in str(argument.type).lower() or argument.name in _CHECKED_NUMBERS
        for argument in op._schema.arguments
    )


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


def _ask(how: str, op: OpOverload, args: Any, kwargs: Any) -> Exception | None:
    if how == "elements":
        return _ask_elements(op, args, kwargs)
    if not _takes_no_sizes(op) or not _is_uncommon(args):
        return None
    answer = _run(op, args, kwargs, _SMALL, 0)
    if isinstance(answer, NotImplementedError) and _NO_KERNEL in str(answer):
        return answer
    return None  # of the sizes or the contents, which are not the call's


def _is_uncommon(args: Any) -> bool:
    """Whether the first tensor of a call is one of the CPU, of a dtype that many kernels do not
    take.

    On a GPU nothing is asked: a kernel that asserts there ends the process's use of it.
    """
    for arg in args:
        first = arg[0] if isinstance(arg, (tuple, list)) and arg else arg
        if isinstance(first, Spec):
            half = first.dtype in (torch.bfloat16, torch.float16)
            return first.device.type == "cpu" and (half or first.dtype not in _COMMON)
    return False


def _ask_elements(op: OpOverload, args: Any, kwargs: Any) -> Exception | None:
    return _run(op, args, kwargs, 1, 1)


def _run(op: OpOverload, args: Any, kwargs: Any, most: int, content: int) -> Exception | None:
    """What a call raises on tensors of no size above `most` that are full of `content`."""

    def stand_in(arg: Any) -> Any:
        if isinstance(arg, Spec):
            shape = [min(int(_number(size)), most) for size in arg.shape]
            return torch.full(shape, content, device=arg.device).to(arg.dtype)
        if isinstance(arg, (tuple, list)):
            return [stand_in(item) for item in arg]
        return _number(arg)

    try:
        with torch.no_grad():
            op(*map(stand_in, args), **{name: stand_in(arg) for name, arg in kwargs.items()})
    except Exception as error:
        return error.with_traceback(None)
    return None
