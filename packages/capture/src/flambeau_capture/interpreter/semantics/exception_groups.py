"""What `except*` does with exceptions: the matching part, the rest, and what is raised after all
clauses have run.

Follows PEP 654 and CPython's exception_group_match and _PyExc_PrepReraiseStar, except that
interpreted frames give no tracebacks, by which CPython knows whether a part was raised anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def match_group(error: Any, wanted: Any) -> tuple[Any, Any]:
    """(rest, match): the parts of an exception that a clause `except* wanted` leaves and takes."""
    for cls in wanted if isinstance(wanted, tuple) else (wanted,):
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TypeError(
                "catching classes that do not inherit from BaseException is not allowed"
            )
        if issubclass(cls, BaseExceptionGroup):
            raise TypeError(
                "catching ExceptionGroup with except* is not allowed. Use except instead."
            )
    if error is None:
        return None, None
    if isinstance(error, wanted):
        if isinstance(error, BaseExceptionGroup):
            return None, error
        match = BaseExceptionGroup("", [error])
        return None, match
    if isinstance(error, BaseExceptionGroup):
        taken, rest = error.split(wanted)
        return rest, taken
    return error, None


def to_reraise(
    original: BaseException,
    errors: list[BaseException | None],
    raised_by_name: Callable[[BaseException], bool],
) -> BaseException | None:
    """What leaves a try statement with `except*`: what its clauses raised, and the unhandled part
    of the original as it was.

    `raised_by_name` says of a part of the original whether a clause has raised it, other than by a
    bare `raise`.
    """
    if not isinstance(original, BaseExceptionGroup):
        return errors[0] if errors else None
    raised: list[BaseException] = []
    kept: list[Any] = []
    for error in errors:
        if error is not None:
            same = error is original or not raised_by_name(error)
            (kept if same and _same_metadata(error, original) else raised).append(error)
    projection = _project(original, kept)
    if not raised:
        return projection
    if projection is not None:
        raised.append(projection)
    return raised[0] if len(raised) == 1 else BaseExceptionGroup("", raised)


def _same_metadata(error: BaseException, original: BaseException) -> bool:
    """Whether an exception is a part of the original: split off, and raised again, but not a new
    one.
    """
    return isinstance(error, BaseExceptionGroup) and all(
        getattr(error, name, None) is getattr(original, name, None)
        for name in ("__notes__", "__cause__", "__context__")
    )


def _project(
    original: BaseExceptionGroup[Any], kept: list[BaseExceptionGroup[Any]]
) -> BaseException | None:
    """The part of the original whose leaves are in any of the kept groups, nested as they were."""
    if not kept:
        return None
    leaves: set[int] = set()
    pending: list[BaseException] = list(kept)
    for error in pending:
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            leaves.add(id(error))
    return original.subgroup(
        lambda error: not isinstance(error, BaseExceptionGroup) and id(error) in leaves
    )
