"""Recording a function of the program on a tape of its own, to make a subgraph that a node holds.

    with recording(machine) as calls:
        result = machine.call(function, args, {})
    graph, lifted = build_subgraph(parameters, calls, results)

What the function reads is guarded as anywhere; tensors that it reads from outside are lifted to
arguments of the subgraph.
"""

from __future__ import annotations

import collections
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.values.objects import DELETED
from flambeau_prims.fake import FakeTensor, StorageRecord, make_fake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_capture.interpreter.torch_calls.tape import TapeRecorder
    from flambeau_capture.record import Call
    from flambeau_prims.spec import Spec

_AUTOCAST_DEVICES = ("cpu", "cuda")


@contextmanager
def recording(
    machine: TapeRecorder, *, grad: bool | None = None, autocast: bool = True
) -> Iterator[list[Call]]:
    """Collect the calls made inside apart from the frame's own.

    `grad` is the grad mode inside (None: as it is), `autocast=False` leaves all autocast blocks:
    neither is recorded.
    """
    tape = machine.tape
    calls: list[Call] = []
    outer, tape.calls = tape.calls, calls
    tape.subgraphs += 1
    # A number that a subgraph defines would be known to nobody outside of it.
    unbacked, tape.tracer.unbacked = tape.tracer.unbacked, False
    grad_outside = torch.is_grad_enabled()
    cast_outside = [torch.is_autocast_enabled(device) for device in _AUTOCAST_DEVICES]
    if grad is not None:
        torch._C._set_grad_enabled(grad)
    if not autocast:
        _set_autocast([False] * len(_AUTOCAST_DEVICES))
    try:
        yield calls
    finally:
        tape.calls = outer
        tape.subgraphs -= 1
        tape.tracer.unbacked = unbacked
        torch._C._set_grad_enabled(grad_outside)
        _set_autocast(cast_outside)


def _set_autocast(enabled: list[bool]) -> None:
    for device, value in zip(_AUTOCAST_DEVICES, enabled, strict=True):
        if torch.is_autocast_enabled(device) != value:
            torch.set_autocast_enabled(device, value)


def stand_in(spec: Spec, *, requires_grad: bool = False) -> FakeTensor:
    """A fake tensor with memory of its own: the parameter of a subgraph."""
    return make_fake(spec, StorageRecord(), requires_grad=requires_grad)


def side_effects_so_far(machine: TapeRecorder) -> list[Any]:
    """What the frame has done to objects that existed before the call, for comparison before and
    after a function that must do nothing.
    """
    objects = machine.objects
    found: list[Any] = [len(machine.objects.deferred.calls)]
    found += [
        (key, name, value is DELETED or id(value))
        for key, (_, pending) in objects.pending_writes.items()
        for name, value in pending.items()
    ]
    found += [(key, id(value)) for key, (_, value) in objects.globals_written.items()]
    found += [(key, id(value)) for key, (_, value) in objects.cells_written.items()]
    found += [(key, id(value)) for key, (value,) in objects.classes_written.items()]
    found += [
        (key, [id(item) for item in _contents(tracked.copy)])
        for key, tracked in objects.tracked_copies.items()
        if tracked.is_changed()
    ]
    found += [(key, len(target.items)) for key, target in objects.append_targets.items()]
    return found


def _contents(container: Any) -> list[Any]:
    """What a container holds, past any method of its class."""
    if isinstance(container, dict):
        return [*dict.keys(container), *dict.values(container)]
    if isinstance(container, list):
        return list.copy(container)
    return list(container) if isinstance(container, (tuple, set, collections.deque)) else []
