"""Entries of frames that take locks: the locks are held from before the guards are checked until
the side effects are done.

    with self.lock:                    take self.lock
        self.calls += 1       ->       check the guards again: self.calls may have changed
        return x * self.scale          run the entry: graph, side effects
                                       release self.lock

So what the program reads and writes under its lock, no other thread changes in between.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from flambeau_capture.frame_hook import flat_function
from flambeau_capture.sources import Argument, CapturedFunction, Scope, Source

if TYPE_CHECKING:
    import types

    from flambeau_capture.python_core import PythonEntry


class UnderLocks:
    """The target of such an entry, in front of the entry that it would be without locks."""

    def __init__(self, locks: tuple[Source, ...], entry: PythonEntry) -> None:
        self._locks = locks
        self._entry = entry

    def __call__(self, function: types.FunctionType, *arguments: Any) -> Any:
        scope = Scope(function, arguments)
        with ExitStack() as held:
            for source in self._locks:
                held.enter_context(source.load(scope))
            holds, result = self._entry.run(function, arguments)
            if holds:
                return result
        return flat_function(function)(*arguments)


def call_sources(scope: Scope) -> list[Source]:
    """What an `UnderLocks` is called with: the function and its bound arguments."""
    names = scope.function.__code__.co_varnames
    return [
        CapturedFunction(scope.function.__name__),
        *(Argument(names[at], at) for at in range(len(scope.arguments))),
    ]
