"""Going on after a graph break: the functions that rebuild the suspended frames, and the compiled callables that continue them.

    entry:   out = graph(x);  return run_to_end(outer(y, partial(run_frame, inner, y)))
    inner:   performs the instruction that broke the graph, hands over to the compiled rest of inner
    outer:   takes inner's value where it was calling, hands over to the compiled rest of outer

A place that is reached again, as in a loop, finds the callable that continues there: it has guards and entries like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.core import core
from flambeau_capture.resume_code import (
    Continuation,
    call_function,
    perform_function,
    resume_function,
)
from flambeau_prims.fork_safety import fork_safe_lock

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator

    from flambeau_capture.record import SuspendedFrame
    from flambeau_capture.resume_code import Layout, Source


class Continuations:
    """The compiled callables that one callable's frames go on with after a graph break, made where they are first needed."""

    def __init__(self, compile_function: Callable[[types.FunctionType], Any]) -> None:
        self._compile_function = compile_function
        self._made: dict[tuple[int, int, int, Layout], Any] = {}
        self._sources: list[Source] = []  # so that ids stay theirs
        self._lock = fork_safe_lock()

    def at(self, source: Source, index: int, layout: Layout) -> Any:
        """The callable that goes on at an instruction."""
        key = (id(source.code), id(source.globals), index, layout)
        with self._lock:
            found = self._made.get(key)
            if found is None:
                function = resume_function(source, index, layout)
                _leave_alone(function)
                found = self._made[key] = self._compile_function(function)
                self._sources.append(source)
            return found

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._made.values()))

    def clear(self) -> None:
        """Forget them all."""
        with self._lock:
            self._made.clear()
            self._sources.clear()


def frame_functions(
    suspended: list[SuspendedFrame], continuations: Continuations
) -> list[types.FunctionType]:
    """The function that rebuilds each frame, in their order."""
    functions = []
    for frame in suspended:
        following = tuple(
            Continuation(successor, layout, continuations.at(frame.source, successor.index, layout))
            for successor, layout in frame.following
        )
        if frame.performs:
            made = perform_function(
                frame.source, frame.index, frame.layout, frame.keyword_names, following
            )
        else:
            made = call_function(frame.source, frame.index, frame.layout, following)
        _leave_alone(made)
        functions.append(made)
    return functions


def _leave_alone(function: types.FunctionType) -> None:
    """Not for the frame hook: its frames are ours."""
    if core is not None:
        core.mark_skip(function.__code__)
