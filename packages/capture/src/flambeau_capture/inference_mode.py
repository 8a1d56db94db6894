"""Inference mode as a captured graph enters and leaves it.

    with torch.inference_mode():          enter_inference_mode(True)
        y = x * 2                   ->    y = x * 2
                                          leave_inference_mode()

torch has no setter of this mode, only guards that are to be left in the order in which they were entered.  Those that a graph holds are
kept for it here, by thread; `leaving_after_errors` leaves what a graph that raises has entered.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Entered(threading.local):
    """The guards that this thread's graphs have entered, the innermost last."""

    def __init__(self) -> None:
        self.guards: list[Any] = []


_ENTERED = _Entered()


def enter_inference_mode(enabled: bool) -> None:
    """Turn inference mode on, or off, until the matching `leave_inference_mode`."""
    _ENTERED.guards.append(torch._C._InferenceMode(enabled))  # which enters it


def leave_inference_mode() -> None:
    """Go back to the modes that were on when the innermost `enter_inference_mode` was called."""
    _ENTERED.guards.pop().__exit__(None, None, None)


@contextmanager
def leaving_inference_modes() -> Iterator[None]:
    """A block that leaves what is entered in it."""
    depth = len(_ENTERED.guards)
    try:
        yield
    finally:
        while len(_ENTERED.guards) > depth:
            leave_inference_mode()


def leaving_after_errors(graph: Callable[..., Any]) -> Callable[..., Any]:
    """`graph`, a call of which that raises has left what it entered."""

    def run(*args: Any) -> Any:
        depth = len(_ENTERED.guards)
        try:
            return graph(*args)
        except BaseException:
            while len(_ENTERED.guards) > depth:
                leave_inference_mode()
            raise

    return run
