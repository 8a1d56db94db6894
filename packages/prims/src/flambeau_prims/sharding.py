"""What torch's DTensor asks of whoever traces it: it plans each operator before the operator runs.

    view(DTensor[s0, 16])  ->  the plan: view(empty_strided(s0, 16))      recorded nowhere
                               the call: view(local tensor)

A plan computes shapes in a mode that it takes from the tracing context of the thread, else in
torch's own fake tensors, which do not know our sizes. Plans are kept by sizes, unless a mode of the
kind that fakes is active; symbolic sizes have no hash. Thus a tracer with symbolic sizes enters as
such a mode, and is the mode of the context.

A plan may keep a tensor between two operators: embedding() of a weight that is split by rows leaves
a mask in the placement of its result, and the reduction takes it. Eager calls have the same plans,
so a trace must leave no fake mask there.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._guards import TracingContext, tracing

from flambeau_prims.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FAKES = torch._C._TorchDispatchModeKey.FAKE
"""The kind of mode that torch takes for one that makes fake tensors."""


def plans_shardings() -> bool:
    """Whether the program may hold tensors that plan their operators."""
    return "torch.distributed.tensor" in sys.modules


class Recorder(Protocol):
    """A tracer, as plans use it."""

    record: bool


class _Planning:
    """The mode of the tracing context: the tracer that is active anyway, which records nothing."""

    shape_env = None

    def __init__(self, tracer: Recorder) -> None:
        self._tracer = tracer
        self._recorded: list[bool] = []

    def __enter__(self) -> _Planning:
        self._recorded.append(self._tracer.record)
        self._tracer.record = False
        return self

    def __exit__(self, *error: object) -> None:
        self._tracer.record = self._recorded.pop()


@contextmanager
def planned_by(tracer: Recorder) -> Iterator[None]:
    """Have plans compute with a tracer."""
    mode: Any = _Planning(tracer)
    with tracing(TracingContext(mode)):
        yield


def masks_of(value: Any) -> list[Any]:
    """The buffers in which placements keep a mask until they are reduced: those of a tensor, or in
    what `__tensor_flatten__` says of it.
    """
    if hasattr(value, "mask_buffer"):
        return [value.mask_buffer]
    if isinstance(value, tuple):
        return [buffer for item in value for buffer in masks_of(item)]
    return masks_of(value.placements) if hasattr(value, "placements") else []


def release_fake_masks(buffers: Iterable[Any]) -> None:
    """Empty buffers of masks that a trace has made."""
    for buffer in buffers:
        if isinstance(buffer.data, FakeTensor):
            buffer.data, buffer.refcount = None, 0
