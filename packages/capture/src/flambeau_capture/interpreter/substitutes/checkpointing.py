"""`torch.utils.checkpoint.checkpoint`: the function is followed as any other, and its calls are marked as one region.

    h = checkpoint(block, x)      ->      the calls of block(x), in region 1: their results are computed again in the backward

A region in a region is part of the outer one.  Random numbers are drawn once and kept, so the flags about generators change nothing.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint, noop_context_fn

from flambeau_capture.interpreter.enclosed import effects_so_far
from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

_OPTIONS = frozenset(
    parameter.name
    for parameter in inspect.signature(checkpoint).parameters.values()
    if parameter.kind is parameter.KEYWORD_ONLY
) | {"preserve_rng_state", "use_reentrant"}


@substitute_for(checkpoint)
def _checkpoint(machine: Machine, args: Any, kwargs: Any) -> Any:
    function, *rest = args
    if kwargs.get("context_fn", noop_context_fn) is not noop_context_fn:
        raise GraphBreak(
            "higher-order-operator", "torch.utils.checkpoint.checkpoint with context_fn"
        )
    inner = {name: value for name, value in kwargs.items() if name not in _OPTIONS}
    reentrant = kwargs.get("use_reentrant")
    if reentrant is None:
        raise GraphBreak(
            "higher-order-operator", "torch.utils.checkpoint.checkpoint without use_reentrant"
        )
    if reentrant and torch.is_grad_enabled():
        return _reentrant(machine, function, tuple(rest), inner)
    return _region(machine, function, tuple(rest), inner)


def _region(machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function, and mark its calls; an outer region, which ends later, marks them anew."""
    calls = machine.tape.calls
    first = len(calls)
    mark = machine.tape.values_made()
    before = effects_so_far(machine)
    result = machine.call(function, args, kwargs)
    inside = calls[first:]
    made = {value for _, value in machine.tape.made_since(mark).values()}
    if any(value.requires_grad for value in made):  # else nothing is computed again
        if effects_so_far(machine) != before:
            raise _break("a function that changes objects outside it")
        if any(value not in made for call in inside for value in call.mutates):
            raise _break("a function that writes to tensors outside it")
    for call in inside:
        call.region = first + 1
    return result


def _break(what: str) -> GraphBreak:
    return GraphBreak(
        "higher-order-operator",
        f"torch.utils.checkpoint.checkpoint of {what}, which it does again in the backward",
    )


def _reentrant(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The older variant runs the function under no_grad, and makes its results require grad if an argument does."""
    if not any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
        raise GraphBreak(
            "higher-order-operator",
            "torch.utils.checkpoint.checkpoint(use_reentrant=True) of arguments that require no grad",
        )
    result = _region(machine, function, args, kwargs)
    for item in result if isinstance(result, tuple) else (result,):
        if isinstance(item, torch.Tensor) and item.is_floating_point() and not item.requires_grad:
            raise GraphBreak(
                "higher-order-operator",
                "torch.utils.checkpoint.checkpoint(use_reentrant=True) of a function with a result that requires no grad",
            )
    return result
