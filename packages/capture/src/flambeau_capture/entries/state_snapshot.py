"""What is saved before a graph runs that may raise when it has changed something, and restored when
it has (`entries/eager_replay.py`).

    graph draws from _inst, writes to x, may raise
    ->  before = save(x, _inst); try: graph(...); except: ... before.restore()

Random generators are saved before graphs that draw and of which something may raise; inputs before
those of which something may still raise when they have been written to. Nothing is saved before
others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.graphs.graph_module import values_in
from flambeau_capture.graphs.higher_order import HigherOrder
from flambeau_capture.graphs.host_random import (
    DRAWS,
    is_host_generator_type,
    restore_generator,
    state_of_generator,
)
from flambeau_capture.record import Opaque
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import fx

    from flambeau_capture.record import Call, Capture, Input
    from flambeau_capture.sources import Source


@dataclass(frozen=True)
class StateSnapshot:
    """What an entry saves before its graph runs, so that the call may run again.

    `generators`: torch's own that the graph draws from. `written`: the inputs that it writes to,
    and the program's generators (torch's, Python's and NumPy's), by source. `nesting`: whether it
    enters autocast blocks.
    """

    generators: tuple[torch.Generator, ...] = ()
    written: tuple[Source, ...] = ()
    nesting: bool = False

    def __bool__(self) -> bool:
        return bool(self.generators or self.written or self.nesting)

    def save(self, *written: Any) -> Saved:
        """The state of all that, now; `written` are the tensors and generators at its sources."""
        nesting = autocast_nesting() if self.nesting else None
        if not (self.generators or written):
            return Saved((), (), nesting)
        given = [item for item in written if not isinstance(item, torch.Tensor)]
        return Saved(
            [_SavedGenerator.of(generator) for generator in (*self.generators, *given)],
            [_SavedTensor.of(item) for item in written if isinstance(item, torch.Tensor)],
            nesting,
        )


@dataclass(eq=False, slots=True)
class Saved:
    """The state of generators, inputs and autocast before a graph ran."""

    generators: Sequence[_SavedGenerator]
    tensors: Sequence[_SavedTensor]
    nesting: int | None

    def leave_autocast(self) -> None:
        """Leave the autocast blocks that the graph had entered."""
        if self.nesting is not None:
            while autocast_nesting() > self.nesting:
                torch.autocast_decrement_nesting()

    def restore(self) -> bool:
        """Put generators and inputs back; False where an input cannot be, and then none is."""
        if not all(saved.can_be_restored() for saved in self.tensors):
            return False
        for saved in self.tensors:
            saved.restore()
        for generator in self.generators:
            generator.restore()
        return True


@dataclass(frozen=True, eq=False, slots=True)
class _SavedGenerator:
    """A generator, torch's or the host's, and its state."""

    generator: Any
    state: Any

    @classmethod
    def of(cls, generator: Any) -> _SavedGenerator:
        if isinstance(generator, torch.Generator):
            return cls(generator, generator.get_state())
        return cls(generator, state_of_generator(generator))

    def restore(self) -> None:
        if isinstance(self.generator, torch.Generator):
            self.generator.set_state(self.state)
        else:
            restore_generator(self.generator, self.state)


@dataclass(frozen=True, eq=False, slots=True)
class _SavedTensor:
    """A tensor, its geometry, and a copy of it, which autograd knows to be one."""

    tensor: torch.Tensor
    geometry: tuple[torch.Size, tuple[int, ...], int]
    copy: torch.Tensor
    grad_fn: Any

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _SavedTensor:
        grad_fn = tensor.grad_fn
        copy = (tensor.data if grad_fn is None else tensor).clone()
        return cls(tensor, _geometry(tensor), copy, grad_fn)

    def can_be_restored(self) -> bool:
        """Autograd lets nobody take back a write to a view that it has recorded."""
        return self.tensor.grad_fn is self.grad_fn or not self.tensor._is_view()

    def restore(self) -> None:
        recorded = self.tensor.grad_fn is not self.grad_fn
        if recorded:
            self.tensor.detach_()
        if _geometry(self.tensor) != self.geometry:  # it was transposed in place, or the like
            with torch.no_grad():
                self.tensor.as_strided_(*self.geometry)
        if recorded and self.grad_fn is not None:
            with torch.enable_grad():
                self.tensor.copy_(self.copy)
        if not _same_bits(self.tensor.data, self.copy.data):
            self.tensor.data.copy_(self.copy.data)


def _geometry(tensor: torch.Tensor) -> tuple[torch.Size, tuple[int, ...], int]:
    return tensor.shape, tensor.stride(), int(tensor.storage_offset())


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers; zeros have signs, too."""
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    return torch.equal(a, b) and not (
        a.is_floating_point() and bool((a.signbit() != b.signbit()).any())
    )


def autocast_nesting() -> int:
    """How many autocast blocks this thread is in."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def state_snapshot(
    capture: Capture, written: Iterable[Input], graph_module: fx.GraphModule
) -> StateSnapshot:
    """What to save before the graph of a capture, which writes to the inputs `written`."""
    nesting = any(call.target is torch.autocast_increment_nesting for call in capture.calls)
    raising = [at for at, call in enumerate(capture.calls) if may_raise(call)]
    if not raising:
        return StateSnapshot(nesting=nesting)
    sources: list[Source] = []
    if not graph_module.meta.get("writes_last"):
        storages = {
            value.storage for call in capture.calls[: raising[-1] + 1] for value in call.mutates
        }
        sources = [item.source for item in written if item.value.storage in storages]
    sources += [item.source for item in capture.inputs if _is_generator(item)]
    return StateSnapshot(_generators(capture.calls), tuple(sources), nesting)


def generators_before(calls: Sequence[Call], inputs: Iterable[Input]) -> Saved:
    """The current state of all generators that these calls may change; `inputs` are those of their
    graph. `restore()` undoes a trial of the calls.
    """
    given = [item.example for item in inputs if _is_generator(item)]
    return StateSnapshot(_generators(calls)).save(*given)


def _is_generator(item: Input) -> bool:
    """Whether an input is a random generator of the program."""
    spec = item.spec
    return isinstance(spec, Opaque) and (
        issubclass(spec.kind, torch.Generator) or is_host_generator_type(spec.kind)
    )


def may_raise(call: Call) -> bool:
    """Whether a call of the tape may raise when the graph runs."""
    if call.untraced and call.target in DRAWS:
        return call.can_raise  # with arguments that were tried when it was captured it does not
    return call.can_raise or call.untraced or isinstance(call.target, HigherOrder)


def draws(call: Call) -> bool:
    """Whether a call may draw from, or set, a random generator of torch."""
    if call.untraced and call.target in DRAWS:
        return False
    return call.random or call.untraced or isinstance(call.target, HigherOrder)


def _generators(calls: Iterable[Call]) -> tuple[torch.Generator, ...]:
    """The generators of torch's own that calls may draw from, or set."""
    found: dict[torch.Generator, None] = {}
    for call in calls:
        if draws(call):
            found.update(dict.fromkeys(_generators_of(call)))
    return tuple(found)


def _generators_of(call: Call) -> list[torch.Generator]:
    values = values_in((call.args, call.kwargs, call.result))
    devices = {value.spec.device for value in values if isinstance(value.spec, Spec)}
    found = {device.index or 0 for device in devices if device.type == "cuda"}
    if call.untraced and torch.cuda.is_initialized():
        found.update(range(torch.cuda.device_count()))
    return [torch.default_generator, *(torch.cuda.default_generators[at] for at in sorted(found))]
