"""Making weak references, and the first call of resume functions, which is about references only."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.tails import release_arguments
from flambeau_capture.interpreter.substitute_registry import substitute_for, substitute_if_new
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


@substitute_for(weakref.ref)
def _reference(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) > 1 and args[1] is not None:
        raise GraphBreak("side-effect", "a weak reference with a callback is made")
    return weakref.ref(*args, **kwargs)


def _release_arguments(machine: Machine, args: Any, kwargs: Any) -> None:
    """The captured frame's arguments are those of the call, which holds them until the entry has
    run.
    """


substitute_if_new(release_arguments, _release_arguments)
