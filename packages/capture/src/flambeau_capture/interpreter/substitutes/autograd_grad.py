"""`torch.autograd.grad` inside the frame: one node, that runs the engine over what the graph has computed so far.

A frame's tensors know their history since the frame began.  A gradient by an input of the frame is therefore refused where another
input was computed from something: the path through that history would be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.fake import is_outside_history

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

_NAMES = (
    "outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused", "is_grads_batched",
    "materialize_grads",
)  # fmt: skip


def _break(detail: str) -> GraphBreak:
    return GraphBreak("backward", f"torch.autograd.grad {detail}")


@substitute_for(torch.autograd.grad)
def _grad(machine: Machine, args: Any, kwargs: Any) -> Any:
    named = dict(zip(_NAMES, args, strict=False)) | kwargs
    outputs, inputs = _tensors(named["outputs"]), _tensors(named["inputs"])
    given = named.get("grad_outputs")
    grad_outputs = None if given is None else _tensors(given)
    if named.get("is_grads_batched"):
        raise _break("with is_grads_batched=True")
    if grad_outputs is not None and any(_is_symbolic(tensor) for tensor in outputs):
        raise _break("with grad_outputs of symbolic sizes")
    _check_history(machine, outputs, [tensor for tensor in inputs if tensor is not None])
    options = {name: named[name] for name in _NAMES[3:] if name in named}
    if grad_outputs is not None:
        options = {"grad_outputs": grad_outputs, **options}
    tape = machine.tape
    gradients = tape.call_function(torch.autograd.grad, (outputs, inputs), options)
    retains = named.get("retain_graph")
    if not (named.get("create_graph") if retains is None else retains) and not tape.subgraphs:
        tape.calls[-1].pure = False  # it frees the history, whoever uses the gradients
    return gradients


def _tensors(value: Any) -> list[Any]:
    found = [value] if isinstance(value, torch.Tensor) else value
    if not isinstance(found, (list, tuple)):
        raise _break(f"of a {type(value).__name__}")
    if not all(item is None or isinstance(item, torch.Tensor) for item in found):
        raise _break("of what is no tensor")
    return list(found)


def _is_symbolic(tensor: torch.Tensor) -> bool:
    return tensor.spec.env is not None  # type: ignore[attr-defined]


def _check_history(
    machine: Machine, outputs: list[torch.Tensor], inputs: list[torch.Tensor]
) -> None:
    if any(not handle.is_removed for handle in machine.tape.hooks):
        raise _break("when hooks are registered in the frame")
    of_frame = [tensor for tensor in inputs if machine.tape.input_of(tensor) is not None]
    if any(machine.tape.input_of(tensor)[0]._backward_hooks for tensor in of_frame):  # type: ignore[index]
        raise _break("by a tensor with hooks")
    if not of_frame:
        return
    beyond = _history_outside(outputs)
    own = {of_frame[0].grad_fn} if len(of_frame) == 1 else set()
    if beyond - own:
        raise _break("by an input of the frame, beside another input that has a history")


def _history_outside(outputs: list[torch.Tensor]) -> set[Any]:
    """The nodes where the outputs' history leaves the frame, into that of its inputs."""
    pending = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen: set[Any] = set()
    found: set[Any] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if is_outside_history(node):
            found.add(node)
            continue
        pending += [following for following, _ in node.next_functions if following is not None]
    return found
