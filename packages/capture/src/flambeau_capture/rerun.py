"""A graph that raises for what its tensors hold: the call runs again from its start, in the interpreter.

    def entry(x, i):                             log.append("one"); y = x[i]; log.append("two")
        try:
            out0, = graph(x, i)          ->      IndexError: nothing has been appended yet, so the function itself runs now: it
        except ...:                              appends "one", raises the program's own IndexError at its own line, and whatever
            raise GraphFailed(...)               handler the program has handles that
        log.extend(["one", "two"])

Python effects come after the graph, so a call whose graph has raised has changed nothing of the program's but these, which are put
back: switches of torch that the graph had set, random generators that it had drawn from, and inputs that it had written to.
Generators and inputs are saved before graphs of which something may still raise when they have been used; writes of backends that
make them last (`writes_last` in the graph module's meta) need not be.

Where what fails is the check of an assumption about data (interpreter/speculation.py), the call is another entry's, or captured anew.

Errors of a graph in which nothing may raise (`flambeau_prims.raising`) are the backend's, and reach the caller as they are; so do
interrupts, and errors that say that memory has run out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.events import Event
from flambeau_capture.graph_module import values_in
from flambeau_capture.higher_order import HigherOrder
from flambeau_capture.host_random import (
    DRAWS,
    is_host_generator_type,
    restore_generator,
    state_of_generator,
)
from flambeau_capture.interpreter.switches import Switches
from flambeau_capture.record import CaptureError, Opaque
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import fx

    from flambeau_capture.origins import Origin
    from flambeau_capture.record import Assumption, Call, Capture, GraphValue, Input


class GraphFailed(Exception):
    """What an entry function raises when its graph has raised `error`; `before` is what it had saved."""

    def __init__(self, error: BaseException, before: Saved | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.before = before


# ---------------------------------------------------------------- what is saved


@dataclass(frozen=True)
class Precautions:
    """What an entry saves before its graph runs, so that the call may run again.

    `generators`: torch's own that the graph draws from.  `written`: the inputs that it writes to, and the program's generators (torch's,
    Python's and NumPy's), by origin.
    `nesting`: whether it enters autocast blocks.
    """

    generators: tuple[torch.Generator, ...] = ()
    written: tuple[Origin, ...] = ()
    nesting: bool = False

    def __bool__(self) -> bool:
        return bool(self.generators or self.written or self.nesting)

    def save(self, *written: Any) -> Saved:
        """The state of all that, now; `written` are the tensors and generators at its origins."""
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


@dataclass(frozen=True, eq=False)
class _SavedTensor:
    """A tensor and a copy of it, which autograd knows to be one."""

    tensor: torch.Tensor
    copy: torch.Tensor
    grad_fn: Any

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _SavedTensor:
        grad_fn = tensor.grad_fn
        return cls(tensor, (tensor.data if grad_fn is None else tensor).clone(), grad_fn)

    def can_be_restored(self) -> bool:
        """Autograd lets nobody take back a write to a view that it has recorded."""
        return self.tensor.grad_fn is self.grad_fn or not self.tensor._is_view()

    def restore(self) -> None:
        if self.tensor.grad_fn is not self.grad_fn:
            self.tensor.detach_()
            if self.grad_fn is not None:
                with torch.enable_grad():
                    self.tensor.copy_(self.copy)
        if not torch.equal(self.tensor.data, self.copy.data):
            self.tensor.data.copy_(self.copy.data)


def autocast_nesting() -> int:
    """How many autocast blocks this thread is in."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def precautions(
    capture: Capture, written: Iterable[Input], graph_module: fx.GraphModule
) -> Precautions:
    """What to save before the graph of a capture, which writes to the inputs `written`."""
    nesting = any(call.target is torch.autocast_increment_nesting for call in capture.calls)
    raising = [at for at, call in enumerate(capture.calls) if may_raise(call)]
    if not raising:
        return Precautions(nesting=nesting)
    origins: list[Origin] = []
    if not graph_module.meta.get("writes_last"):
        storages = {
            value.storage for call in capture.calls[: raising[-1] + 1] for value in call.mutates
        }
        origins = [item.origin for item in written if item.value.storage in storages]
    origins += [item.origin for item in capture.inputs if _is_generator(item)]
    return Precautions(_generators(capture.calls), tuple(origins), nesting)


def generators_before(calls: Sequence[Call], inputs: Iterable[Input]) -> Saved:
    """The state, now, of all generators that these calls may draw from or set; `inputs` are those of their graph, with their real objects.

    For who makes the calls on trial: `restore()` puts every generator back.
    """
    given = [item.example for item in inputs if _is_generator(item)]
    return Precautions(_generators(calls)).save(*given)


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
    """Whether a call of the tape may draw random numbers, or set the state of a generator, of torch's."""
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


# ---------------------------------------------------------------- what must be computed


def unused_that_raise(capture: Capture, outputs: list[GraphValue]) -> list[GraphValue]:
    """What calls that may raise compute or write to, and nobody reads: as outputs of the graph, they are computed by any backend."""
    used = set(outputs)
    storages = {item.value.storage for item in capture.inputs} | {None}
    storages.update(value.storage for value in outputs)
    unused: list[GraphValue] = []
    for call in reversed(capture.calls):
        results = list(values_in(call.result))
        if (
            (call.pure or call.mutates)
            and used.isdisjoint(results)
            and storages.isdisjoint(value.storage for value in call.mutates)
        ):
            if not call.can_raise:
                continue
            unused += [
                value
                for value in dict.fromkeys(results or call.mutates)
                if not _has_unbacked_sizes(value, capture)
            ]
        for value in values_in((call.args, call.kwargs)):
            used.add(value)
            storages.add(value.storage)
    return unused


def _has_unbacked_sizes(value: GraphValue, capture: Capture) -> bool:
    return not isinstance(value.spec, Spec) or any(
        isinstance(size, Expr) and not size.symbols().isdisjoint(capture.unbacked)
        for size in (*value.spec.shape, *value.spec.stride)
    )


# ---------------------------------------------------------------- when a graph has raised


class OnError:
    """What an entry is asked when its target has raised: the exception to raise; None to run the call again; or NotImplemented, where
    the entry does not serve the call after all."""

    def __init__(self, capture: Capture, note: Callable[[Event], None]) -> None:
        """Made in the state of torch that the call began in."""
        self.name = getattr(capture.scope.function, "__qualname__", "function")
        self.note = note
        self.direct = False
        """Whether the target is the graph itself, so that whatever it raises is the graph's."""
        self.runs_again = any(map(may_raise, capture.calls))
        self._switches = Switches().set_by([call.target for call in capture.calls])
        self._last = ""
        self._assumptions = capture.assumptions
        self.refuted: Callable[[Assumption], None] | None = None
        """Told of an assumption that does not hold."""

    @classmethod
    def of(cls, capture: Capture, note: Callable[[Event], None]) -> OnError | None:
        """As `OnError`; None where errors of the graph need no treatment."""
        made = cls(capture, note)
        return made if made.runs_again or made._switches else None

    def __call__(self, error: BaseException) -> Any:
        before = None
        if isinstance(error, GraphFailed):
            before, error = error.before, error.error
        elif not self.direct:
            return error
        if before is not None:
            before.leave_autocast()
        for setter, args in self._switches:
            setter(*args)
        if not self.runs_again or not _is_of_the_program(error):
            return error
        if before is not None and not before.restore():
            return error
        if self._assumptions and self.refuted is not None:
            found = str(error)
            for assumption in self._assumptions:
                if assumption.refutation in found:
                    self.refuted(assumption)
                    return NotImplemented
        text = f"{self.name} ran again eagerly: its graph raised {type(error).__name__}: {error}"
        if text != self._last:  # not one a call
            self._last = text
            self.note(Event("rerun", text))
        return None


def _is_of_the_program(error: BaseException) -> bool:
    """Whether an operator may have raised this for what its tensors hold."""
    if not isinstance(error, Exception) or isinstance(
        error, (MemoryError, torch.OutOfMemoryError, CaptureError)
    ):
        return False
    return not (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
