"""Comparisons whose answer is known, though what is compared is not: torch.rand draws from [0, 1).

p = torch.rand([])
if p < 0.0:          # a layer that is dropped with probability 0: never
    return x
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.record import Call, GraphValue

if TYPE_CHECKING:
    from flambeau_capture.interpreter.tape import Tape

_DRAWS = frozenset({torch.rand, torch.rand_like})
_RELATIONS: dict[Any, str] = {
    **{function: name for name in ("lt", "le", "gt", "ge") for function in (getattr(operator, name), getattr(torch, name))},
    **{name: name for name in ("lt", "le", "gt", "ge")},
}  # fmt: skip
"""Target of a call -> the relation that it computes."""
_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def known_truth(tape: Tape, condition: torch.Tensor) -> bool | None:
    """The truth of a tensor of one element, if it is a comparison of random numbers that always comes out alike."""
    made_by = _maker(tape, tape.value_of(condition))
    relation = None if made_by is None else _RELATIONS.get(made_by.target)
    if made_by is None or relation is None or len(made_by.args) != 2 or made_by.kwargs:
        return None
    left, right = made_by.args
    if type(right) is GraphValue:
        left, right, relation = right, left, _SWAPPED[relation]
    if type(left) is not GraphValue or type(right) not in (int, float):
        return None
    drawn_by = _maker(tape, left)
    if drawn_by is None or drawn_by.target not in _DRAWS:
        return None
    if right < 0 or (right == 0 and relation in ("lt", "ge")):
        return relation in ("gt", "ge")
    if right > 1 or (right == 1 and relation in ("le", "gt")):
        return relation in ("lt", "le")
    return None


def _maker(tape: Tape, value: GraphValue) -> Call | None:
    """The call that has made a value which nothing has written to since."""
    if any(written.storage is value.storage for call in tape.calls for written in call.mutates):
        return None
    return next((call for call in reversed(tape.calls) if call.result is value), None)
