"""Values that the graph so far computes, on the call being captured: it is run once, and changes
nothing of the program's.

Inputs that it writes to are replaced by copies, generators that it draws from are restored, and so
is torch's state.

Whether the graph so far may run twice: what a graph does before a check fails is done again by the
call that is recompiled or served by another entry.

Tensors, generators and torch's own state are restored (`entries/eager_replay.py`). What the
program's own operators and functions do beyond their tensors is not: nothing is assumed of data
behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from flambeau_capture.entries.state_snapshot import autocast_nesting, generators_before
from flambeau_capture.graphs.autograd_calls import leaving_inference_modes
from flambeau_capture.graphs.graph_module import build_graph_module, live_calls
from flambeau_capture.interpreter.values.classes import is_trusted
from flambeau_capture.record import Capture
from flambeau_capture.torch_state import Switches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flambeau_capture.interpreter.torch_calls.tape import Tape
    from flambeau_capture.record import Call, GraphValue, Input

_CHANGES_HISTORY = frozenset({"requires_grad_", "detach_"})


@dataclass(frozen=True, slots=True)
class Failure:
    """What the graph so far raises on the call being captured, as text: the program would fail
    there, too, or memory does not suffice.
    """

    text: str


def observe(tape: Tape, wanted: Sequence[GraphValue]) -> tuple[Any, ...] | Failure | None:
    """What these values of the graph are; None where finding out would change something.

    Called in the state of torch that the call began in, outside of the tracer.
    """
    calls = live_calls(tape.calls, wanted, tape.unbacked.values)
    inputs = {item.value for item in tape.inputs}
    if any(call.target in _CHANGES_HISTORY and call.args[0] in inputs for call in calls):
        return None
    capture = Capture(
        scope=tape.machine.scope,
        calls=calls,
        inputs=tape.inputs,
        size_env=tape.env,
        unbacked=tape.unbacked.values,
    )
    module, inputs_read = build_graph_module(capture, list(wanted))
    generators = generators_before(calls, inputs_read)
    switches = Switches()
    nesting = autocast_nesting()
    try:
        examples = _with_copies(inputs_read, calls)
        with leaving_inference_modes():
            found = fx.Interpreter(module).run(*examples)
        return tuple(_plain(value) for value in found)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}")
    finally:
        generators.restore()
        switches.restore(autocast_nesting() - nesting)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _with_copies(inputs: Iterable[Input], calls: Iterable[Call]) -> list[Any]:
    """The real inputs; those whose memory is written to are copies that share memory as they do."""
    written = {value.storage for call in calls for value in call.mutates}
    given = list(inputs)
    copies: dict[int, torch.UntypedStorage] = {}
    for item in given:
        if item.value.storage is not None and item.value.storage in written:
            storage = item.example.untyped_storage()
            copies[storage._cdata] = storage.clone()
    found: list[Any] = []
    for item in given:
        example = item.example
        if isinstance(example, torch.Tensor) and copies:
            copy = copies.get(example.untyped_storage()._cdata)
            if copy is not None:
                empty = torch.empty(0, dtype=example.dtype, device=example.device)
                example = empty.set_(
                    copy, example.storage_offset(), example.shape, example.stride()
                )
        found.append(example)
    return found


# ---------------------------------------------------------------- repeatable

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
    """Whether the frame has written to a view that existed before, or to a tensor that keeps its
    gradient: autograd lets nobody take that back.
    """
    written = {value.storage for call in tape.calls for value in call.mutates} - {None}
    return any(
        item.value.storage in written and (item.example._is_view() or item.example.retains_grad)
        for item in tape.inputs
        if isinstance(item.example, torch.Tensor)
    )
