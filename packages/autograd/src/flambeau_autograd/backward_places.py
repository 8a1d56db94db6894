"""The place of each call of a joint graph's backward: the user's line whose forward it belongs to,
and the number of the custom Function that makes it. Besides, where these hand on no gradient.

y = x.sin()          # model.py:3       grad_fn SinBackward, sequence number 7
->  cos, mul of the backward: Place("model.py:3", in_backward=True)

Relies on autograd's sequence numbers: nodes that a call of the forward made have numbers between
those before and after the call.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils.hooks import RemovableHandle

from flambeau_autograd.eigenvector_phases import phase_check
from flambeau_prims.graph import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from flambeau_prims.tracer import Tracer


@dataclass
class FunctionNodes:
    """What the nodes of custom Functions show while they run: the edges, by node and number, on
    which they hand on None, and the nodes that have saved tensors.
    """

    undefined: set[tuple[Any, int]] = field(default_factory=set)
    saving: set[Any] = field(default_factory=set)


class ForwardLines:
    """The user's line of each call of the forward, by the sequence number before it."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._lines: list[str] = []

    def note(self, line: str) -> None:
        """A call of this line begins."""
        self._numbers.append(torch.autograd._get_sequence_nr())
        self._lines.append(line)

    def line_of(self, node: Any) -> str:
        """The line that made a node of autograd; "" if none of these did."""
        last = bisect_right(self._numbers, node._sequence_nr()) - 1
        return self._lines[last] if last >= 0 else ""


@contextmanager
def marked_places(
    outputs: Iterable[Any], lines: ForwardLines, tracer: Tracer
) -> Iterator[FunctionNodes]:
    """A block in which the tracer knows the place of each call of the backward of `outputs`. Gives
    what is noted of custom Functions.

    The program sees the number that torch gives its next hook: it is the same behind the block.
    """
    number = RemovableHandle.next_id
    handles: list[Any] = []
    noted = FunctionNodes()
    try:
        _mark_places(handles, outputs, lines, tracer, noted)
        yield noted
    finally:
        for handle in handles:
            handle.remove()
        if RemovableHandle.next_id == number + len(handles):  # none of the program's among them
            RemovableHandle.next_id = number


def _mark_places(
    handles: list[Any],
    outputs: Iterable[Any],
    lines: ForwardLines,
    tracer: Tracer,
    noted: FunctionNodes,
) -> None:
    """Add hooks that tell the tracer the place of each call, and note what custom Functions do; and
    the hooks' handles.
    """
    functions = 0
    for node in nodes_below(outputs):
        number = 0
        if isinstance(node, BackwardCFunction):
            handles.append(node.register_hook(_noting(noted.undefined, node)))  # type: ignore[attr-defined]
            if node._raw_saved_tensors:  # type: ignore[attr-defined]
                noted.saving.add(node)
            if len(node._input_metadata) > 1:  # type: ignore[attr-defined]
                number = functions = functions + 1
        place = Place(lines.line_of(node), in_backward=True, function=number)
        handles.append(node.register_prehook(_entering(tracer, place)))
        check = phase_check(node)
        if check is not None:
            handles.append(node.register_prehook(check))
        if number:
            # What the engine adds up behind it is no part of the Function.
            outside = Place(str(place), in_backward=True)
            handles.append(node.register_hook(_leaving(tracer, outside)))


def _entering(tracer: Tracer, place: Place) -> Callable[[Any], None]:
    def enter(gradients: Any) -> None:
        tracer.where = place

    return enter


def _leaving(tracer: Tracer, place: Place) -> Callable[[Any, Any], None]:
    def leave(gradients: Any, tangents: Any) -> None:
        tracer.where = place

    return leave


def _noting(undefined: set[tuple[Any, int]], node: Any) -> Callable[[Any, Any], None]:
    def note(gradients: Any, tangents: Any) -> None:
        if any(tangent is not None for tangent in tangents):
            undefined.update((node, at) for at, grad in enumerate(gradients) if grad is None)

    return note


def nodes_below(outputs: Iterable[Any]) -> list[Any]:
    """The nodes of autograd that the backward of `outputs` may reach."""
    pending = list(dict.fromkeys(out.grad_fn for out in outputs))
    seen = set(pending)
    result = []
    while pending:
        node = pending.pop()
        result.append(node)
        below = dict.fromkeys(child for child, _ in node.next_functions if child is not None)
        pending += [child for child in below if child not in seen]
        seen.update(below)
    return result
