"""From an operator of torch's tests and a variant to cases: programs, and what makes their
arguments.

    mul, "views"   ->   Case("0", program, make), Case("3", program, make)

`make()` gives fresh `(input, args, kwargs)`, alike at each call.  `program` is what is compiled.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from tools.sweep.ops.draw import draw
from tools.sweep.ops.sample import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DRAWN = 40
"""How many of an operator's samples are drawn; those that run are spread evenly over them."""


@dataclass(frozen=True)
class Case:
    """One program and its arguments; `grad` says whether gradients are recorded, `inference`
    whether the arguments are made and the program is called in inference mode.
    """

    name: str
    program: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    grad: bool = True
    inference: bool = False


def cases(op: Any, variant: str, device: str, limit: int, seed: int = 0) -> list[Case]:
    """The cases of a variant: none where the operator does not have it. `limit` bounds its samples
    (0: all of them); `seed` gives other values.
    """
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    if variant == "errors":
        errors = [error.sample_input for error in draw(op.error_inputs, device)]
        return [_case(str(n), _call(op.op), s, grad=False) for n, s in _spread(errors, limit)]
    if variant in DTYPES:
        return _of_dtype(op, getattr(torch, DTYPES[variant]), device, limit)
    dtype = _float_dtype(op, device)
    if dtype is None:
        return []
    if variant == "inplace":
        return _inplace(op, dtype, device, limit)
    if variant == "out":
        return _out(op, dtype, device, limit)
    if variant == "devices":
        return _devices(op, dtype, device, limit)
    if variant == "method" and op.method_variant is None:
        return []
    target = op.method_variant if variant == "method" else op.op
    samples = _samples(op, dtype, device, limit, grad=op.supports_autograd)
    recorded = variant not in ("no_grad", "inference")
    made = [_case(str(n), _call(target), s, grad=recorded) for n, s in samples]
    if variant == "inference":
        return [replace(case, inference=True) for case in made]
    return [_with_views(case) for case in made] if variant == "views" else made


def _float_dtype(op: Any, device: str) -> torch.dtype | None:
    """float32, or the first other dtype that the operator takes."""
    known = op.supported_dtypes(device)
    wanted = (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64)
    return next((dtype for dtype in wanted if dtype in known), None)


def _samples(
    op: Any, dtype: torch.dtype, device: str, limit: int, *, grad: bool
) -> list[tuple[int, Any]]:
    grad = grad and (dtype.is_floating_point or dtype.is_complex)
    drawn = draw(op.sample_inputs, device, dtype, requires_grad=grad)
    return _spread(list(islice(drawn, DRAWN if limit else None)), limit)


def _spread(samples: list[Any], limit: int) -> list[tuple[int, Any]]:
    """At most `limit` samples, with their numbers."""
    numbers = range(len(samples))
    if limit and len(samples) > limit:
        numbers = sorted({round(n * (len(samples) - 1) / max(limit - 1, 1)) for n in range(limit)})  # type: ignore[assignment]
    return [(n, samples[n]) for n in numbers]


# ---------------------------------------------------------------- variants


def _inplace(op: Any, dtype: torch.dtype, device: str, limit: int) -> list[Case]:
    """Each sample twice: written to itself, and a copy of it that autograd records."""
    target = op.inplace_variant
    if target is None:
        return []

    def copied(input: Any, args: Any, kwargs: Any) -> Any:
        own = input.clone()
        return target(own, *args, **kwargs), own

    made = []
    for n, sample in _samples(op, dtype, device, limit, grad=False):
        made.append(_case(str(n), _call(target), sample))
    if op.supports_inplace_autograd:
        for n, sample in _samples(op, dtype, device, limit, grad=True):
            made.append(_case(f"{n} copied", copied, sample))
    return made


def _of_dtype(op: Any, dtype: torch.dtype, device: str, limit: int) -> list[Case]:
    """Samples of that dtype; of one the operator does not take, where it has any: eager's error is
    compared then.
    """
    known = dtype in op.supported_dtypes(device)
    if known:
        samples = _samples(op, dtype, device, limit, grad=op.supports_autograd)
        return [_case(str(n), _call(op.op), sample) for n, sample in samples]
    made_as = _float_dtype(op, device)
    if made_as is None or not made_as.is_floating_point:
        return []
    found = []
    for n, sample in _samples(op, made_as, device, 1 if limit else 0, grad=False):
        found.append(_case(f"{n} cast", _call(op.op), sample, cast=dtype))
    return found


def _devices(op: Any, dtype: torch.dtype, device: str, limit: int) -> list[Case]:
    """On a GPU: each sample with one of its tensors on the CPU, each in turn."""
    made: list[Case] = []
    if device == "cpu":
        return made
    for n, sample in _samples(op, dtype, device, limit, grad=False):
        leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
        tensors = sum(isinstance(leaf, torch.Tensor) for leaf in leaves)
        if tensors > 1:
            for number in range(tensors):
                made.append(
                    _moved(_case(f"{n} tensor {number}", _call(op.op), sample, grad=False), number)
                )
    return made


def _moved(case: Case, number: int) -> Case:
    """The case with the tensor of this number on the CPU."""

    def make() -> tuple[Any, ...]:
        order = count()
        return tree_map_only(
            torch.Tensor, lambda t: t.cpu() if next(order) == number else t, case.make()
        )

    return Case(case.name, case.program, make, case.grad)


def _with_views(case: Case) -> Case:
    """The same values in tensors with offsets and gaps."""

    def make() -> tuple[Any, ...]:
        return tree_map_only(torch.Tensor, _gapped, case.make())

    return Case(case.name, case.program, make)


def _gapped(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf of these values: every other element of memory that begins three elements earlier,
    last dim outermost.
    """
    if tensor.layout != torch.strided or tensor.is_quantized:
        return tensor
    memory = torch.zeros(
        2 * tensor.numel() + 3,
        dtype=torch.uint8 if tensor.dtype.itemsize == 1 else tensor.dtype,
        device=tensor.device,
    )
    memory = memory.view(tensor.dtype) if memory.dtype != tensor.dtype else memory
    shape = tensor.shape
    strides, step = [], 2
    for size in shape:
        strides.append(step)
        step *= max(size, 1)
    view = memory.as_strided(shape, strides, 3).detach()
    view.copy_(tensor.detach())
    return view.requires_grad_(tensor.requires_grad)


OUTS = (
    "empty",
    "strided",
    "wrong shape",
    "wrong dtype",
    "wider dtype",
    "overlapping",
    "input's memory",
)


def _out(op: Any, dtype: torch.dtype, device: str, limit: int) -> list[Case]:
    """Each sample with tensors to write to that eager takes, resizes or refuses."""
    if not op.supports_out:
        return []
    made = []
    for n, sample in _samples(op, dtype, device, limit, grad=False):
        try:
            results = op.op(sample.input, *sample.args, **sample.kwargs)
        except Exception:
            continue
        many = isinstance(results, (tuple, list))
        listed = list(results) if many else [results]
        if not all(_is_strided(result) for result in listed):
            continue
        for how in OUTS:
            made.append(_out_case(f"{n} {how}", op.op, sample, listed, many, how))
    return made


def _out_case(
    name: str, target: Any, sample: Any, results: list[torch.Tensor], many: bool, how: str
) -> Case:
    def program(out: Any, input: Any, args: Any, kwargs: Any) -> Any:
        return target(input, *args, out=out, **kwargs)

    frozen = _frozen((sample.input, sample.args, sample.kwargs))
    shapes = [(tuple(r.shape), r.dtype, r.device) for r in results]

    def make() -> tuple[Any, ...]:
        given = _thawed(frozen)
        outs = [_destination(how, *shape, given) for shape in shapes]
        return (tuple(outs) if many else outs[0], *given)

    return Case(name, program, make, grad=False)


def _destination(
    how: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, given: Any
) -> torch.Tensor:
    """A tensor to write a result of this shape to."""
    if how == "empty":
        return torch.zeros(0, dtype=dtype, device=device)
    if how == "strided":
        return torch.zeros(tuple(reversed(shape)), dtype=dtype, device=device).permute(
            tuple(reversed(range(len(shape))))
        )
    if how == "wrong shape":
        return torch.zeros((*shape, 2), dtype=dtype, device=device)
    if how == "wrong dtype":
        other = torch.int64 if dtype != torch.int64 else torch.int8
        return torch.zeros(shape, dtype=other, device=device)
    if how == "wider dtype":
        wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}
        return torch.zeros(shape, dtype=wide.get(dtype, torch.float32), device=device)
    if how == "overlapping":
        return torch.zeros((), dtype=dtype, device=device).expand(shape)
    first = next(
        (
            tensor
            for tensor in torch.utils._pytree.tree_leaves(given)
            if _is_strided(tensor) and tensor.dtype == dtype and tensor.numel()
        ),
        None,
    )
    count = torch.Size(shape).numel()
    if first is None or first.untyped_storage().nbytes() < count * dtype.itemsize:
        return torch.zeros(shape, dtype=dtype, device=device)
    return first.as_strided((count,), (1,), 0).view(shape)


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


# ---------------------------------------------------------------- arguments


def _call(target: Callable[..., Any]) -> Callable[..., Any]:
    def program(input: Any, args: Any, kwargs: Any) -> Any:
        return target(input, *args, **kwargs)

    return program


def _case(
    name: str,
    program: Callable[..., Any],
    sample: Any,
    *,
    grad: bool = True,
    cast: torch.dtype | None = None,
) -> Case:
    frozen = _frozen((sample.input, sample.args, sample.kwargs))

    def make() -> tuple[Any, ...]:
        return _thawed(frozen, cast)

    return Case(name, program, make, grad)


def _frozen(value: Any) -> Any:
    """Arguments without history, what shares memory sharing it still, and which of them are to
    record gradients.
    """
    memo: dict[int, torch.Tensor] = {}

    def detached(tensor: torch.Tensor) -> torch.Tensor:
        return memo.setdefault(id(tensor), tensor.detach())

    wants = [t.requires_grad for t in _tensors(value)]
    return tree_map_only(torch.Tensor, detached, value), wants


def _thawed(frozen: Any, cast: torch.dtype | None = None) -> Any:
    sparse = (t for t in _tensors(frozen[0]) if t.layout != torch.strided)  # deepcopy takes no CSR
    value = copy.deepcopy(frozen[0], {id(tensor): tensor.clone() for tensor in sparse})
    if cast is not None:
        value = tree_map_only(
            torch.Tensor, lambda t: t.to(cast) if t.is_floating_point() else t, value
        )
    for tensor, wants in zip(_tensors(value), frozen[1], strict=True):
        if wants:
            tensor.requires_grad_()
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for leaf in torch.utils._pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
