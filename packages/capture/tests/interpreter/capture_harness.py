"""Runs a program eagerly and captured, and compares: results, exceptions, what became of the
arguments, and later calls.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from captured import run_graph

import flambeau_capture
from flambeau_capture import Break, CaptureOptions
from flambeau_capture.bytecode.resume_code import instructions, resumed_from
from flambeau_capture.compiled import compile_callable
from flambeau_capture.interpreter import capture
from flambeau_capture.record import Capture, CaptureFrame, DynamicDims
from flambeau_capture.sources import Scope
from tests.same import same


def compiled(
    fn: Callable[..., Any],
    *,
    fullgraph: bool = True,
    dynamic: bool | None = False,
    speculate: bool = True,
) -> Callable[..., Any]:
    if STEPS is not None:
        options = CaptureOptions(fullgraph=False, dynamic=dynamic, recompile_limit=200)
        return compile_callable(fn, stepping(STEPS), run_graph, options)
    options = CaptureOptions(
        fullgraph=fullgraph, dynamic=dynamic, recompile_limit=32, speculate=speculate
    )
    return flambeau_capture.compile(fn, backend=run_graph, options=options)


STEPS: int | None = None
"""Where set, `compiled` breaks every graph after so many instructions (test_resume.py)."""


def stepping(steps: int) -> CaptureFrame:
    """`capture_frame`, but a frame is suspended after `steps` instructions of it, or as soon after
    as it can be.
    """

    def capture_frame(
        scope: Scope, options: CaptureOptions, dynamic: DynamicDims
    ) -> Capture | Break:
        reason = Break("explicit-break", "the test stops here")
        for step in (*range(steps, steps + 60), 0):
            attempt = capture.Attempt(scope, options, dynamic, stop_step=step)
            match capture.interpret(attempt):
                case capture.Captured(record):
                    return record
                case capture.Suspended(record) if not _gets_nowhere(scope, record):
                    record.cause = reason
                    return record
        return capture.capture_frame(scope, options, dynamic)

    return capture_frame


def _gets_nowhere(scope: Scope, found: Capture) -> bool:
    """Whether the rest of a frame stops where it begins, at a conditional jump: what is performed
    there is only `bool(...)`.
    """
    code = scope.function.__code__
    resumed, stopped = resumed_from(code), found.suspended[-1]
    if resumed is None or len(found.suspended) > 1 or not stopped.following:
        return False
    entry = instructions(code)[resumed.first - 2]  # the jump into the original code
    begins = entry.end + entry.arg - resumed.start
    at = stopped.index
    return (
        instructions(stopped.frame_code.code)[at].start == begins
        and stopped.following[0][0].index == at
    )


def clone(value: Any) -> Any:
    return copy.deepcopy(value)


def check(fn: Callable[..., Any], *args: Any, dynamic: bool | None = False, **kwargs: Any) -> Any:
    """Captured whole, twice, on equal arguments; returns the compiled callable."""
    torch.manual_seed(0)
    eager_args = clone((args, kwargs))
    want = fn(*eager_args[0], **eager_args[1])
    callable_ = compiled(fn, dynamic=dynamic)
    for _ in range(2):
        own = clone((args, kwargs))
        torch.manual_seed(0)
        same(callable_(*own[0], **own[1]), want)
        same(own, eager_args, "arguments")
    events = flambeau_capture.state_of(callable_).events
    if STEPS is None:
        assert [event.kind for event in events] == ["capture"], [event.text for event in events]
    return callable_


def breaks(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Captured in pieces, or not at all, and right; returns the first Break. Nothing is assumed of
    data.
    """
    want = fn(*clone(args), **clone(kwargs))
    callable_ = compiled(fn, fullgraph=False, speculate=False)
    for _ in range(2):
        same(callable_(*clone(args), **clone(kwargs)), want)
    events = flambeau_capture.state_of(callable_).events
    found = [event.reason for event in events if event.kind == "break"]
    assert found and found[0] is not None, "the frame was captured whole"
    return found[0]


def outcome(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call returns, or the type, the text and the `name` of what it raises."""
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error), getattr(error, "name", None)


def check_in_steps(fn: Callable[..., Any], steps: int | None, monkeypatch: Any) -> None:
    """Two calls as eagerly, with a graph break after so many instructions (`STEPS`)."""
    monkeypatch.setitem(globals(), "STEPS", steps)
    x = torch.arange(3.0)
    captured = compiled(fn, fullgraph=False)
    for _ in range(2):
        same(captured(x), fn(x))
