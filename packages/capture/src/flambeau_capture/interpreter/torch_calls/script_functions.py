"""Calls of TorchScript functions, traced through as calls of torch's own functions are.

One that draws random numbers runs apart, as it is: TorchScript draws in other ways once it has
compiled the function. One that asks what a tensor holds breaks the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.graphs.script_calls import ScriptCall
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.error_texts import SCRIPT_REFUSED

if TYPE_CHECKING:
    from flambeau_capture.interpreter.torch_calls.tape import TapeRecorder


def call_script_function(
    machine: TapeRecorder, function: Any, args: Any, kwargs: Any, in_place: bool
) -> Any:
    """Run and record a call of a `torch.jit.ScriptFunction`."""
    source = machine.objects.source_of(function)
    if source is None:
        raise GraphBreak("unknown-c-function", "call of a TorchScript function of unknown origin")
    machine.guard("IS", source, function)
    calls = machine.tape.calls
    before = len(calls)
    try:
        result = machine.tape.call_function(ScriptCall(function), args, kwargs)
    except RuntimeError as error:
        raised = isinstance(error, torch.jit.Error)  # by the function itself
        if raised or not SCRIPT_REFUSED.matches(error):
            raise
        detail = f"the TorchScript function {function.name} fails on tensors without contents"
        raise GraphBreak("unknown-c-function", detail) from error
    for call in calls[before:]:
        call.untraced |= call.random
    return result
