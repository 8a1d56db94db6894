"""What torch's DTensor asks of whoever traces it: it plans each operator before the operator runs.

    view(DTensor[s0, 16])  ->  the plan: view(empty_strided(s0, 16))      recorded nowhere
                               the call: view(local tensor)

A plan computes shapes in a mode that it takes from the tracing context of the thread, else in
torch's own fake tensors, which do not know our sizes. Plans are kept by sizes, unless a mode of the
kind that fakes is active; symbolic sizes have no hash. Thus a tracer with symbolic sizes enters as
such a mode, and is the mode of the context.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._guards import TracingContext, tracing

if TYPE_CHECKING:
    from collections.abc import Iterator

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
