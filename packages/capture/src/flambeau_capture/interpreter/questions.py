"""Functions of torch that answer with a bool what tensors hold: asked of one tensor in the data, whose truth is assumed or breaks the graph.

torch.equal(x, y)        bool((x == y).all())        of tensors of one shape and dtype
torch.allclose(x, y)     bool(torch.isclose(x, y).all())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.tape import Tape


def answer(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the function gives; NotImplemented for other functions, and for arguments that torch is to judge."""
    question = _QUESTIONS.get(function)
    return NotImplemented if question is None else question(tape, args, kwargs)


def _equal(tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or kwargs or not _are_unknown(args):
        return NotImplemented
    left, right = args
    if left.dtype != right.dtype or left.device != right.device:
        return NotImplemented
    if tuple(left.shape) != tuple(right.shape):
        return False
    return _all(tape, tape.call_function(torch.eq, (left, right)))


def _allclose(tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) < 2 or not _are_unknown(args[:2]):
        return NotImplemented
    return _all(tape, tape.call_function(torch.isclose, args, kwargs))


def _is_nonzero(tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs or not _are_unknown(args) or args[0].spec.numel != 1:
        return NotImplemented
    return tape.truth(args[0])


def _all(tape: Tape, condition: torch.Tensor) -> bool:
    return tape.truth(tape.call_method("all", (condition,)))


def _are_unknown(tensors: tuple[Any, ...]) -> bool:
    """Whether these are tensors of which not all contents are known."""
    return all(type(tensor) is FakeTensor for tensor in tensors) and any(
        tensor.contents is None for tensor in tensors
    )


_QUESTIONS: dict[Any, Callable[[Tape, tuple[Any, ...], dict[str, Any]], Any]] = {
    torch.equal: _equal,
    torch.Tensor.equal: _equal,
    torch.allclose: _allclose,
    torch.Tensor.allclose: _allclose,
    torch.is_nonzero: _is_nonzero,
    torch.Tensor.is_nonzero: _is_nonzero,
}
