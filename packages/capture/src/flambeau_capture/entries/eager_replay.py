"""A graph that raises for what its tensors hold: the call is replayed eagerly from its start, in
the interpreter.

    program:  log.append("one"); y = x[i]; log.append("two")

    def entry(x, i):
        try:
            out0, = graph(x, i)      IndexError: nothing is appended yet, so the original function
        except ...:                  runs: it appends "one" and raises the program's own IndexError
            raise GraphFailed(...)   at its own line, inside the program's own handlers
        log.extend(["one", "two"])

Python side effects come after the graph, so a call whose graph has raised has changed nothing of
the program's but these, which are restored: switches of torch that the graph had set, random
generators that it had drawn from, and inputs that it had written to. Generators and inputs are
saved before graphs of which something may still raise when they have been used; writes of backends
that make them last (`writes_last` in the graph module's meta) need not be.

Where what fails is the check of an assumption about data (interpreter/branches/speculation.py), the
call uses another entry, or is captured again.

Errors of a graph in which nothing may raise (`flambeau_prims.raising`) are the backend's, and reach
the caller as they are; so do interrupts, errors that say that memory has run out, and what a
saved-tensors hook raises: it is no operator's error, and the hook has counted its tensors
(torch.utils.checkpoint ends a recomputation so).
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.entries.state_snapshot import Saved, may_raise
from flambeau_capture.events import Event
from flambeau_capture.graphs.graph_module import values_in
from flambeau_capture.record import CaptureError
from flambeau_capture.torch_state import Switches
from flambeau_prims.error_texts import HOST_MEMORY_EXHAUSTED
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.record import Assumption, Capture, GraphValue


class GraphFailed(Exception):
    """Raised by an entry function whose graph raised `error`; `before` is the saved state."""

    def __init__(self, error: BaseException, before: Saved | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.before = before


# ---------------------------------------------------------------- what must be computed


def unused_that_raise(capture: Capture, outputs: list[GraphValue]) -> list[GraphValue]:
    """Unused results of calls that may raise: as outputs, every backend computes them."""
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
    """What an entry is asked when its target has raised: the exception to raise; None to run the
    call again; or NotImplemented, where the entry does not serve the call after all.
    """

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
        self.violated: Callable[[Assumption], None] | None = None
        """Receives an assumption that does not hold."""
        self._violated_before: set[Assumption] = set()

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
        if self._assumptions and self.violated is not None:
            found = str(error)
            for assumption in self._assumptions:
                if assumption.violation in found:
                    if assumption not in self._violated_before:  # not one a call
                        self._violated_before.add(assumption)
                        self.note(Event("violated", assumption.violation))
                    self.violated(assumption)
                    return NotImplemented
        text = f"{self.name} ran again eagerly: its graph raised {type(error).__name__}: {error}"
        if text != self._last:  # not one a call
            self._last = text
            self.note(Event("eager_replay", text))
        return None


def _is_of_the_program(error: BaseException) -> bool:
    """Whether an operator may have raised this for what its tensors hold."""
    if not isinstance(error, Exception) or isinstance(
        error, (MemoryError, torch.OutOfMemoryError, CaptureError)
    ):
        return False
    if HOST_MEMORY_EXHAUSTED.matches(error):
        return False
    return not _is_of_a_saved_tensors_hook(error)


def _is_of_a_saved_tensors_hook(error: BaseException) -> bool:
    """Whether an exception has come out of a hook that packs, or unpacks, what autograd saves."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    codes = {code for hook in hooks or () if (code := _code_of(hook)) is not None}
    traceback = error.__traceback__ if codes else None
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(hook: Any) -> types.CodeType | None:
    """The code that a call of `hook` runs; None where it is no Python code."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    if not isinstance(hook, (types.FunctionType, types.MethodType)):
        hook = type(hook).__call__
    code = getattr(hook, "__code__", None)
    return code if isinstance(code, types.CodeType) else None
