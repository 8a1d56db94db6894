"""Functions of torch that look at what tensors hold. Where they answer with a bool, it is asked of
one tensor in the data, whose truth is assumed or breaks the graph.

torch.equal(x, y)        bool((x == y).all())        of tensors of one shape and dtype
torch.allclose(x, y)     bool(torch.isclose(x, y).all())

Comparisons whose answer is known, though what is compared is not: torch.rand draws from [0, 1), and
so does numpy.random.rand.

p = torch.rand([])
if p < 0.0:          # a layer that is dropped with probability 0: never
    return x
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.graphs.host_random import UNIT_DRAWS, draw_array
from flambeau_capture.record import Call, GraphValue
from flambeau_prims.fake import FakeTensor
from flambeau_prims.float_ranges import BELOW_ONE
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes_node import from_symbolic

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.protocols import Args, CallTape, Kwargs


def answer(tape: CallTape, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """The function's result; NotImplemented for other functions and for torch's errors."""
    question = _PREDICATES.get(function)
    return NotImplemented if question is None else question(tape, args, kwargs)


def _equal(tape: CallTape, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 2 or kwargs or not _are_unknown(args):
        return NotImplemented
    left, right = args
    if left.dtype != right.dtype or left.device != right.device:
        return NotImplemented
    if tuple(left.shape) != tuple(right.shape):
        return False
    return _all(tape, tape.call_function(torch.eq, (left, right)))


def _allclose(tape: CallTape, args: Args, kwargs: Kwargs) -> Any:
    if len(args) < 2 or not _are_unknown(args[:2]):
        return NotImplemented
    return _all(tape, tape.call_function(torch.isclose, args, kwargs))


def _is_nonzero(tape: CallTape, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or kwargs or not _are_unknown(args) or args[0].spec.numel != 1:
        return NotImplemented
    return tape.truth(args[0])


def _all(tape: CallTape, condition: torch.Tensor) -> bool:
    return tape.truth(tape.call_method("all", (condition,)))


def _are_unknown(tensors: tuple[Any, ...]) -> bool:
    """Whether these are tensors of which not all contents are known."""
    return all(type(tensor) is FakeTensor for tensor in tensors) and any(
        tensor.contents is None for tensor in tensors
    )


_PREDICATES: dict[Any, Callable[[CallTape, tuple[Any, ...], dict[str, Any]], Any]] = {
    torch.equal: _equal, torch.Tensor.equal: _equal, torch.ops.aten.equal.default: _equal,
    torch.allclose: _allclose,
    torch.Tensor.allclose: _allclose, torch.is_nonzero: _is_nonzero,
    torch.Tensor.is_nonzero: _is_nonzero,
}  # fmt: skip


# ---------------------------------------------------------------- known ranges

_DRAWS = frozenset({torch.rand, torch.rand_like})
_RELATIONS: dict[Any, str] = {
    **{
        function: name
        for name in ("lt", "le", "gt", "ge")
        for function in (getattr(operator, name), getattr(torch, name))
    },
    **{name: name for name in ("lt", "le", "gt", "ge")},
}
"""Target of a call -> the relation that it computes."""
_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def known_truth(tape: CallTape, condition: torch.Tensor) -> bool | None:
    """The truth of a comparison of random numbers that always has the same result, else None."""
    made_by = _maker(tape, tape.value_of(condition))
    relation = None if made_by is None else _RELATIONS.get(made_by.target)
    if made_by is None or relation is None or len(made_by.args) != 2 or made_by.kwargs:
        return None
    left, right = made_by.args
    if type(right) is GraphValue:
        left, right, relation = right, left, _SWAPPED[relation]
    if type(left) is not GraphValue or type(right) not in (int, float):
        return None
    if not _is_drawn(tape, left):
        return None
    if right < 0 or (right == 0 and relation in ("lt", "ge")):
        return relation in ("gt", "ge")
    if right > 1 or (right == 1 and relation in ("le", "gt")):
        return relation in ("lt", "le")
    return None


def learn_range(tape: CallTape, tensor: torch.Tensor, number: Any) -> None:
    """Note between what the number lies that is the only element of a tensor."""
    inner = from_symbolic(number)
    name = inner.symbol if isinstance(inner, FloatExpr) else None
    if name is not None and tape.env is not None and _is_drawn(tape, tape.value_of(tensor)):
        tape.env.float_ranges[name] = (0.0, BELOW_ONE)


def _is_drawn(tape: CallTape, value: GraphValue) -> bool:
    """Whether all elements are drawn from [0, 1)."""
    maker = _maker(tape, value)
    if maker is not None and maker.target is operator.getitem:
        maker = _maker(tape, maker.args[0])
    if maker is None:
        return False
    return maker.target in _DRAWS or (maker.target is draw_array and maker.args[1] in UNIT_DRAWS)


def _maker(tape: CallTape, value: GraphValue) -> Call | None:
    """The call that has made a value which nothing has written to since."""
    if value.storage in tape.written_storages:
        return None
    return next((call for call in reversed(tape.calls) if call.result is value), None)
