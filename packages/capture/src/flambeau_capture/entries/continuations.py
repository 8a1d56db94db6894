"""After a graph break: functions that rebuild the suspended frames, and the compiled callables that
continue them.

    entry:   out = graph(x);  return Tail(outer, y, Tail(inner, y))
    inner:   performs the instruction that broke the graph, continues in the compiled rest of inner
    outer:   takes inner's value where it was calling, continues in the compiled rest of outer

If an instruction is reached again, as in a loop, its callable is reused: it has guards and entries
like any other.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, TypeAlias

from flambeau_capture import record
from flambeau_capture.bytecode.resume_code import (
    Continuation,
    argument_order,
    call_function,
    perform_function,
    resume_function,
)
from flambeau_capture.core import core
from flambeau_capture.sources import Argument, Item, Source
from flambeau_prims.fork_safety import fork_safe_lock
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from flambeau_capture.bytecode.resume_code import FrameCode, Layout

    Changing: TypeAlias = Callable[[Sequence[str]], Mapping[str, frozenset[int]]]
    """The dynamic dims of a continuation's parameters of these names, by text of the source."""

_NOTHING: Mapping[str, frozenset[int]] = types.MappingProxyType({})


class Continuations:
    """The compiled callables that continue one callable's frames; made when first needed."""

    def __init__(self, compile_function: Callable[[types.FunctionType], Any]) -> None:
        self._compile_function = compile_function
        self._made: dict[tuple[int, int, int, Layout], Any] = {}
        self._frame_codes: list[FrameCode] = []  # so that ids stay theirs
        self._lock = fork_safe_lock()

    def at(
        self,
        frame_code: FrameCode,
        index: int,
        layout: Layout,
        changing: Changing,
    ) -> Any:
        """The callable that continues at an instruction; `changing(names)`: its dynamic dims."""
        key = (id(frame_code.code), id(frame_code.globals), index, layout)
        with self._lock:
            found = self._made.get(key)
            if found is None:
                function = resume_function(frame_code, index, layout)
                _leave_alone(function)
                found = self._made[key] = self._compile_function(function)
                self._frame_codes.append(frame_code)
        dims = changing(found.__wrapped__.__code__.co_varnames)
        if dims:
            found.state.expect_dynamic(dims)
        return found

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._made.values()))

    def clear(self) -> None:
        """Forget them all."""
        with self._lock:
            self._made.clear()
            self._frame_codes.clear()


def frame_functions(
    suspended: list[record.SuspendedFrame],
    continuations: Continuations,
    changing: Callable[[int, int], Changing] = lambda frame, at: _unchanging,
) -> list[types.FunctionType]:
    """The function that rebuilds each frame, in their order. `changing(frame, at)`: the dynamic
    dims of what the frame of that number passes on to the instruction of that number that may
    follow (`Changes`).
    """
    functions = []
    for number, frame in enumerate(suspended):
        following = tuple(
            Continuation(
                successor,
                layout,
                continuations.at(frame.frame_code, successor.index, layout, changing(number, at)),
            )
            for at, (successor, layout) in enumerate(frame.following)
        )
        if frame.performs:
            made = perform_function(
                frame.frame_code, frame.index, frame.layout, frame.keyword_names, following
            )
        else:
            made = call_function(frame.frame_code, frame.index, frame.layout, following)
        _leave_alone(made)
        functions.append(made)
    return functions


def _unchanging(names: Sequence[str]) -> Mapping[str, frozenset[int]]:
    return _NOTHING


class Changes:
    """Whether another call of the graph may pass another value: a number of the graph, a size that
    depends on one, or a number that changes.

    `unbacked`: the symbols that the graph before the frames defines; `changed`: the dims of what
    was given to it that have changed, by text of the source. `found` keeps what was asked for.
    """

    def __init__(
        self,
        suspended: Sequence[record.SuspendedFrame],
        unbacked: Collection[str],
        changed: Mapping[str, frozenset[int]] = _NOTHING,
    ) -> None:
        self._suspended = suspended
        self._unbacked = unbacked
        self._changed = changed
        self.found: dict[tuple[int, int], dict[str, frozenset[int]]] = {}
        """The dims by the numbers of a frame and of what follows in it."""

    def __call__(self, number: int, at: int) -> Changing:
        """The dims of what a frame passes on to what follows."""
        frame = self._suspended[number]
        _, layout = frame.following[at]

        def changing(names: Sequence[str]) -> Mapping[str, frozenset[int]]:
            found = self.found[number, at] = self._of(frame, layout, names)
            return found

        return changing

    def _of(
        self, frame: record.SuspendedFrame, layout: Layout, names: Sequence[str]
    ) -> dict[str, frozenset[int]]:
        """The dynamic dims of a continuation's parameters `names`, and of their contents."""
        if not self._unbacked and not self._changed:
            return {}
        code = frame.frame_code.code
        recipes = dict(zip(argument_order(code, frame.layout), frame.arguments, strict=True))
        found: dict[str, frozenset[int]] = {}
        pushed = ("stack", len(layout.stack) - 1)  # by the instruction, perhaps
        for at, place in enumerate(argument_order(code, layout)):
            if place in recipes and place != pushed:
                found.update(self._inside(recipes[place], Argument(names[at], at)))
        return found

    def _inside(
        self, recipe: record.Recipe, source: Source, around: tuple[record.Recipe, ...] = ()
    ) -> Iterator[tuple[str, frozenset[int]]]:
        """The dynamic dims of a recipe's result; `around` holds the recipes that contain it."""
        match recipe:
            case record.SizeValue(expr=Expr() | FloatExpr() as number) if self._varies(number):
                yield source.text(), frozenset({-1})
            case record.FromGraph(value=record.GraphValue(spec=Spec(shape=shape))):
                dims = [dim for dim, size in enumerate(shape) if self._varies(size)]
                if dims:
                    yield source.text(), frozenset(dims)
            case record.FromSource(source=before):
                yield from self._kept(before.text(), source.text())
            case record.MakeTuple(items=items) | record.MakeList(items=items):
                if not any(recipe is outer for outer in around):
                    for at, item in enumerate(items):
                        yield from self._inside(item, Item(source, at), (*around, recipe))

    def _kept(self, before: str, now: str) -> Iterator[tuple[str, frozenset[int]]]:
        """The known changes of an object that is passed on, and of its contents."""
        for text, dims in self._changed.items():
            if text == before or text.startswith(f"{before}["):
                yield now + text[len(before) :], dims

    def _varies(self, number: Any) -> bool:
        """Whether a number depends on one that the graph defines or that is known to change."""
        return isinstance(number, (Expr, FloatExpr)) and any(
            name in self._unbacked or self._is_changed(number.env.symbols[name].source)
            for name in number.symbols()
        )

    def _is_changed(self, source: Any) -> bool:
        return isinstance(source, Source) and source.text() in self._changed


def _leave_alone(function: types.FunctionType) -> None:
    """Not for the frame hook: its frames are ours."""
    if core is not None:
        core.mark_skip(function.__code__)
