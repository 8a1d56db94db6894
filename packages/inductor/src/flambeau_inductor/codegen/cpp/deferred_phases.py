"""Loops that most rows can leave out, and what comes of them (`scheduler.deferred_reductions`).

    float v9_chosen = v3;
    if (__builtin_expect(v12, 0)) { ...; const float v9 = v12 ? v8 : v3; v9_chosen = v9; }
    const float v9 = v9_chosen;

A block of columns leaves the loop out if none of its columns needs it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from flambeau_inductor.codegen.cpp.cpp_types import value_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Compute, Statement
    from flambeau_inductor.scheduler.phases import Phase


class ColumnWriter(Protocol):
    """The writer of a kernel whose columns lie side by side."""

    block_width: int

    def column_loop(self, *clauses: tuple[str, str] | None) -> AbstractContextManager[None]:
        """The vector loop over a block of columns."""

    def load_arrays(
        self, statements: Sequence[Statement], arrays: set[str], extra: Iterable[str] = ()
    ) -> None:
        """Read what earlier loops left in arrays."""


def _choices(phase: Phase) -> list[Compute]:
    return [choice for deferral in phase.deferrals for choice in deferral.choices]


def _late(phase: Phase) -> list[Statement]:
    return [statement for deferral in phase.deferrals for statement in deferral.body]


@contextmanager
def deferred_row(writer: LoopWriter, phase: Phase) -> Iterator[None]:
    """Around the loops of a phase of a row."""
    if not phase.deferrals:
        yield
        return
    choices = _choices(phase)
    for choice in choices:
        kind, other = value_type(choice.dtype), choice.args[2]
        writer.line(f"{kind} {choice.name}_chosen = {writer.replay.values[other]};")
    condition = " | ".join(writer.replay.values[each.condition] for each in phase.deferrals)
    with writer.block(f"if (__builtin_expect({condition}, 0))"):
        yield
        writer.statements(_late(phase))
        for choice in choices:
            writer.line(f"{choice.name}_chosen = {writer.replay.values[choice.name]};")
    for choice in choices:
        writer.line(f"const {value_type(choice.dtype)} {choice.name} = {choice.name}_chosen;")


@contextmanager
def deferred_columns(
    writer: LoopWriter, columns: ColumnWriter, phase: Phase, arrays: set[str]
) -> Iterator[None]:
    """Around the loops of a phase of a block of columns; `arrays`: the values that have one."""
    if not phase.deferrals:
        yield
        return
    choices, needed = _choices(phase), f"needs_{phase.reduces[0].name}"
    conditions = [deferral.condition for deferral in phase.deferrals]
    writer.line(f"int32_t {needed} = 0;")
    for choice in choices:
        writer.line(f"{value_type(choice.dtype)} {choice.name}_column[{columns.block_width}];")
    with columns.column_loop((needed, "|")):
        columns.load_arrays((), arrays, {*conditions, *(choice.args[2] for choice in choices)})
        writer.line(f"{needed} |= {' | '.join(writer.replay.values[each] for each in conditions)};")
        for choice in choices:
            writer.line(f"{choice.name}_column[c] = {writer.replay.values[choice.args[2]]};")
    with writer.block(f"if (__builtin_expect({needed}, 0))"):
        before = set(arrays)
        yield
        late = _late(phase)
        with columns.column_loop():
            columns.load_arrays(late, arrays)
            writer.statements(late)
            for choice in choices:
                writer.line(f"{choice.name}_column[c] = {writer.replay.values[choice.name]};")
        arrays &= before
    arrays |= {choice.name for choice in choices}
