"""Whether this thread is inside a capture or a backend: what those call must not be captured in turn."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Capturing(threading.local):
    """The package's dynamically scoped value: per thread, and restored on every exit."""

    depth = 0


CAPTURING = _Capturing()


@contextmanager
def capturing() -> Iterator[None]:
    """A block that captures or compiles: the program's hooks on saved tensors are not told of what it computes."""
    hooks_off = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    CAPTURING.depth += 1
    try:
        yield
    finally:
        CAPTURING.depth -= 1
        torch._C._autograd._saved_tensors_hooks_set_tracing(hooks_off)


def is_capturing() -> bool:
    """Whether this thread captures a program or compiles its graph."""
    return CAPTURING.depth > 0
