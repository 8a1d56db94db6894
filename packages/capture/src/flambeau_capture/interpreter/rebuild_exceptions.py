"""Recipes of exceptions that the frame has made: with their chain, notes and traceback."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.tracebacks import made_part, traceback_recipe
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, Const, MakeDict, MakeTuple

if TYPE_CHECKING:
    from flambeau_capture.interpreter.rebuild import Rebuilder
    from flambeau_capture.record import Recipe


def exception_recipe(rebuild: Rebuilder, error: BaseException) -> Recipe:
    """The exception, made anew, with the places where it has been raised."""
    made, traceback = _untraced_recipe(rebuild, error), made_part(error)
    if traceback is None:
        return made
    return CallRecipe(_with_traceback, (made, traceback_recipe(traceback)))


def _untraced_recipe(rebuild: Rebuilder, error: BaseException) -> Recipe:
    kind = type(error)
    if rebuild.machine.was_raised_by_name(error):
        raise GraphBreak("not-resumable", "which parts of a group were raised anew is not kept")
    args = MakeTuple(tuple(rebuild.recipe(item) for item in error.args))
    state: list[tuple[Recipe, Recipe]] = [
        (Const(name), rebuild.recipe(item)) for name, item in error.__dict__.items()
    ]
    state += _fields(rebuild, error)
    chain = error.__cause__, error.__context__
    if not state and chain == (None, None) and type(kind.__init__) is not types.FunctionType:
        return CallRecipe(kind, args.items)
    links = tuple(Const(None) if link is None else rebuild.recipe(link) for link in chain)
    flag = Const(error.__suppress_context__)
    return CallRecipe(_made, (Const(kind), args, *links, flag, MakeDict(list(state))))


def _fields(rebuild: Rebuilder, error: BaseException) -> list[tuple[Recipe, Recipe]]:
    """What the exception's type holds besides its arguments and its `__dict__`: `name` of a NameError, `path` of an ImportError, slots."""
    kind = type(error)
    names = [name for name in _members(kind.__mro__) if getattr(error, name, None) is not None]
    if names and type(kind.__init__) is not types.FunctionType:
        again = kind(*error.args)
        names = [name for name in names if getattr(again, name, None) is not getattr(error, name)]
    found: list[tuple[Recipe, Recipe]] = []
    for name in names:
        try:
            found.append((Const(name), rebuild.recipe(getattr(error, name))))
        except GraphBreak:
            if name != "obj":  # for suggestions only: the object without the attribute
                raise
            rebuild.machine.forget_break()
    return found


@functools.cache
def _members(bases: tuple[type, ...]) -> tuple[str, ...]:
    """Fields that a program can set, of an exception type written in C or with slots, by its `__mro__`."""
    return tuple(
        name
        for base in bases
        for name, member in vars(base).items()
        if type(member) is types.MemberDescriptorType
        and not name.startswith("__")
        and name not in ("characters_written", "exceptions", "message")
    )


def _with_traceback(error: BaseException, traceback: types.TracebackType) -> BaseException:
    error.__traceback__ = traceback
    return error


def _made(
    kind: Any,
    args: tuple[Any, ...],
    cause: BaseException | None,
    context: BaseException | None,
    suppress_context: bool,
    state: dict[str, Any],
) -> BaseException:
    # An __init__ of the program's has run when the frame made the exception.
    written = type(kind.__init__) is types.FunctionType
    error: BaseException = kind.__new__(kind, *args) if written else kind(*args)
    error.__cause__, error.__context__ = cause, context
    error.__suppress_context__ = suppress_context
    for name, value in state.items():
        if name in _members(kind.__mro__):
            setattr(error, name, value)
        else:
            error.__dict__[name] = value
    return error
