"""Tracebacks of the exceptions that the frame raises, which name the program's functions and lines
as those of an eager run do.

An entry of a traceback holds a frame, and an interpreted frame has none. A generator that is never
begun gives one: its code has the name, file and positions of the program's function, it holds no
locals, and no frame called it.
"""

from __future__ import annotations

import dis
import inspect
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, Const

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_capture.interpreter.protocols import ActiveFrame
    from flambeau_capture.record import Recipe


class _Place(NamedTuple):
    """Where an exception passed: an instruction of a function, by a stand-in for its code."""

    code: types.CodeType
    namespace: dict[str, Any]
    offset: int
    line: int


def raised_in(frame: ActiveFrame, error: BaseException) -> types.TracebackType | None:
    """The traceback of `error` as it leaves the instruction of `frame` that raised it."""
    behind = made_part(error)
    index = frame.ip - 1
    code = frame.code.code_reference()
    if code is None or (behind is not None and frame.code.names_at[index] == "RERAISE"):
        return behind
    resumable = bool(code.co_flags & inspect.CO_GENERATOR) and frame.code.unwinds[index] is not None
    stand_in = _stand_in(code, _RESUMABLE_MARK if resumable else _MARK)
    offset, line = 2 * frame.code.offsets[index], frame.code.line(index)
    return _entry(_Place(stand_in, frame.globals, offset, line), behind)


def _stand_in(code: types.CodeType, mark: object) -> types.CodeType:
    """A generator's code with the name, file and positions of `code`, and of its length: CPython's
    tracing writes beyond its array if the position table is longer. `mark` is its last constant.
    """
    size = max(len(code.co_code), len(_PLACE.co_code))
    beyond = (size - len(code.co_code)) // 2
    return _PLACE.replace(
        co_consts=(*_PLACE.co_consts, mark),
        co_code=_PLACE.co_code + _NOP * ((size - len(_PLACE.co_code)) // 2),
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_linetable=code.co_linetable + _NO_POSITION * beyond,
    )


def made_part(error: BaseException) -> types.TracebackType | None:
    """The traceback entries of program frames; those in front are the interpreter's."""
    traceback = error.__traceback__
    while traceback is not None and not is_made(traceback):
        traceback = traceback.tb_next
    return traceback


def own_traceback(error: BaseException) -> types.TracebackType | None:
    """The traceback of an exception of the frame, as the program may read it."""
    traceback = error.__traceback__
    if traceback is not None and not is_made(traceback):
        raise GraphBreak("traceback", f"__traceback__ of a {type(error).__name__} is read")
    return traceback


def is_made(traceback: types.TracebackType) -> bool:
    """Whether an entry stands for an interpreted frame."""
    return any(mark in _MARKS for mark in traceback.tb_frame.f_code.co_consts[-1:])


def has_locals(traceback: types.TracebackType | None) -> bool:
    """Whether clearing a frame would end locals that an entry holds: of frames that are not ours,
    or of a generator that handled the error.
    """
    while traceback is not None:
        if traceback.tb_frame.f_code.co_consts[-1:] != (_MARK,):
            return True
        traceback = traceback.tb_next
    return False


def traceback_recipe(traceback: types.TracebackType) -> Recipe:
    """A traceback made anew in each call: a program may cut and join tracebacks."""
    places = []
    link: types.TracebackType | None = traceback
    while link is not None:
        frame = link.tb_frame
        places.append(_Place(frame.f_code, frame.f_globals, link.tb_lasti, link.tb_lineno))
        link = link.tb_next
    return CallRecipe(_chain, (Const(_Places(places)),))


class _Places:
    """Places from the outermost to the innermost; one constant of a record."""

    def __init__(self, places: list[_Place]) -> None:
        self.places = places


def _chain(found: _Places) -> types.TracebackType | None:
    made = None
    for place in reversed(found.places):
        made = _entry(place, made)
    return made


def _entry(place: _Place, behind: types.TracebackType | None) -> types.TracebackType:
    begun_never = types.FunctionType(place.code, place.namespace)()
    return types.TracebackType(behind, begun_never.gi_frame, place.offset, place.line)


def _place() -> Iterator[None]:
    yield


_NOP = bytes((dis.opmap["NOP"], 0))
_NO_POSITION = bytes((0xF8,))
"""The position table entry of an instruction without a position (code 15)."""
_PLACE = _place.__code__


class _Mark:
    """A constant that only stand-ins have."""


_MARK = _Mark()
_RESUMABLE_MARK = _Mark()
"""Of a generator that may have handled the exception, and go on."""
_MARKS = (_MARK, _RESUMABLE_MARK)
