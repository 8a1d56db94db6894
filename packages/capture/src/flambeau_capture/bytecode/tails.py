"""Tails: calls that stand for the value of a suspended frame, made when the function that hands
them over has returned.

    entry   ->  Tail(perform, y)              perform(y)  ->  Tail(resume, y, z)
            resume(y, z)  ->  the value

A Tail owns its arguments and is used once, so that an object that the program drops is freed there,
as in eager.
"""

from __future__ import annotations

import functools
from typing import Any

from flambeau_capture.core import core


class _PythonTail(functools.partial):  # type: ignore[type-arg]
    """The C core's Tail in Python."""

    __slots__ = ()

    def __call__(self) -> Any:
        """The value of the frame, for the frame above."""
        return _run_to_end(self)


def _run_to_end(value: Any) -> Any:
    """The value of a suspended frame: makes the calls that stand for it, one after another, at the
    same depth.
    """
    while type(value) is _PythonTail:
        value = value.func(*value.args)
    return value


Tail: Any = _PythonTail if core is None else core.Tail
run_to_end: Any = _run_to_end if core is None else core.run_to_end
release_arguments: Any = None if core is None else core.release_arguments
"""What a Tail's function calls first: its frame alone holds the arguments then. None where there is
no C core.
"""
