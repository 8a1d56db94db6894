"""`compile`, which imports the interpreter when the first frame is captured: a call that a stored
entry serves needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.compiled import compile_callable
from flambeau_prims.lazy_exports import import_apart

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.entries.entry import Backend
    from flambeau_capture.options import CaptureOptions
    from flambeau_capture.record import Break, Capture, DynamicDims
    from flambeau_capture.sources import Scope


def compile(
    fn: Callable[..., Any], *, backend: Backend, options: CaptureOptions | None = None
) -> Callable[..., Any]:
    """A callable that runs what `backend(gm, example_inputs)` makes of the graphs of `fn`."""
    if options is not None and options.background:
        # Now, not in the first call: that one runs eagerly, and should take no longer.
        import_apart("flambeau_capture.capture_stage")
        import_apart("flambeau_capture.entries.entry")
    return compile_callable(fn, capture_frame, backend, options)


def capture_frame(scope: Scope, options: CaptureOptions, dynamic: DynamicDims) -> Capture | Break:
    """`interpreter.capture.capture_frame`, imported now."""
    stage = import_apart("flambeau_capture.capture_stage")
    captured: Capture | Break = stage.capture_frame(scope, options, dynamic)
    return captured
