"""What an entry does when its graph has raised: see `eager_replay`, which says for which graphs.

It needs no interpreter: stored entries have it, too.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.events import Event
from flambeau_capture.record import CaptureError
from flambeau_prims.error_texts import HOST_MEMORY_EXHAUSTED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_capture.entries.state_snapshot import Saved
    from flambeau_capture.record import Assumption
    from flambeau_capture.torch_state import Setting


class GraphFailed(Exception):
    """Raised by an entry function whose graph raised `error`; `before` is the saved state."""

    def __init__(self, error: BaseException, before: Saved | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.before = before


class OnError:
    """What an entry is asked when its target has raised: the exception to raise; None to run the
    call again; or NotImplemented, where the entry does not serve the call after all.
    """

    def __init__(
        self,
        name: str,
        note: Callable[[Event], None],
        *,
        runs_again: bool,
        switches: Sequence[Setting] = (),
        assumptions: tuple[Assumption, ...] = (),
        communicates: bool = False,
    ) -> None:
        """`name` is the function's; `switches` are the calls that restore what the graph sets.

        A graph that `communicates` runs again only for an assumption, which it checks first: other
        processes do not take part in its collectives a second time.
        """
        self.name = name
        self.note = note
        self.direct = False
        """Whether the target is the graph itself, so that whatever it raises is the graph's."""
        self.runs_again = runs_again
        self.switches = switches
        self._last = ""
        self._assumptions = assumptions
        self.communicates = communicates
        self.violated: Callable[[Assumption], None] | None = None
        """Receives an assumption that does not hold."""
        self._violated_before: set[Assumption] = set()

    def __call__(self, error: BaseException) -> Any:
        before = None
        if isinstance(error, GraphFailed):
            before, error = error.before, error.error
        elif not self.direct:
            return error
        if before is not None:
            before.leave_autocast()
        for setter, args in self.switches:
            setter(*args)
        if not self.runs_again or not _is_of_the_program(error):
            return error
        found = str(error)
        assumption = next((each for each in self._assumptions if each.violation in found), None)
        if self.communicates and assumption is None:
            return error
        if before is not None and not before.restore():
            return error
        if assumption is not None and self.violated is not None:
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
