"""Whether the graph so far may run twice: what a graph does before a check fails is done again by the call that is served anew.

Tensors, generators and torch's own state are put back (`rerun.py`).  What the program's own operators and functions do beyond their
tensors is not: nothing is assumed of data behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.classes import is_trusted

if TYPE_CHECKING:
    from flambeau_capture.interpreter.tape import Tape
    from flambeau_capture.record import Call

_TORCH_NAMESPACES = frozenset({"aten", "prim", "prims", "higher_order", "flambeau"})


def is_repeatable(tape: Tape) -> bool:
    """Whether everything that has been recorded can be taken back."""
    return not any(_has_own_effect(call) for call in tape.calls) and not _writes_for_good(tape)


def _has_own_effect(call: Call) -> bool:
    if call.pure or isinstance(call.target, str):
        return False
    if isinstance(call.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return _namespace(call.target) not in _TORCH_NAMESPACES
    module = getattr(call.target, "__module__", None) or "torch"  # torch's C functions have none
    return not is_trusted(module) and not module.startswith("flambeau_")


def _namespace(operator: Any) -> str:
    name = getattr(operator, "_qualified_op_name", None) or operator.name()
    return str(name).partition("::")[0]


def _writes_for_good(tape: Tape) -> bool:
    """Whether the frame has written to a view that existed before, or to a tensor that keeps its gradient: autograd lets nobody take that
    back."""
    written = {value.storage for call in tape.calls for value in call.mutates} - {None}
    return any(
        item.value.storage in written and (item.example._is_view() or item.example.retains_grad)
        for item in tape.inputs
        if isinstance(item.example, torch.Tensor)
    )
