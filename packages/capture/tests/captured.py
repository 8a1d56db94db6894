"""A backend that runs the captured graph as it is, and callables compiled with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flambeau_capture
from flambeau_capture import CaptureOptions


def run_graph(module: Any, example_inputs: list[Any]) -> Any:
    return module.forward  # not the module: global hooks are the program's


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """May break, and recompile often."""
    return flambeau_capture.compile(
        fn, backend=run_graph, options=CaptureOptions(recompile_limit=64)
    )
