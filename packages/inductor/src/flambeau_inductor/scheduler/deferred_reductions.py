"""Find the Reduces of a kernel that count only where a condition of the row holds.

    v7 = reduce sum v4
    v8 = add v3 v7                  v8 and v7 are for nothing unless v12 holds
    v9 = where v12 v8 v3

A generator that branches row by row then leaves out the loop to v7 and what depends on it alone.
Nothing but `where` says so: the result is the same with and without the branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import Compute, Reduce, defined_name, index_of, is_inner, operands

if TYPE_CHECKING:
    from flambeau_inductor.ir import Body, Statement


@dataclass(frozen=True)
class Deferral:
    """The names of Reduces that only the results of `body` need, where `condition` holds: its
    `choices` are `where` statements, the rest is read by nothing else.
    """

    condition: str
    reduces: frozenset[str]
    body: tuple[Compute, ...]

    @property
    def choices(self) -> tuple[Compute, ...]:
        """The statements that choose between a result and what stands in its place."""
        return tuple(s for s in self.body if _chooses(s, self.condition))


def find_deferrals(body: Body, inner: set[str]) -> list[Deferral]:
    """The deferrals of a kernel's body in the order of their results; `inner`: names of inner
    values.
    """
    condition_of = _conditions(body, inner)
    reduces: dict[str, set[str]] = {}
    for statement in body:
        if isinstance(statement, Reduce) and statement.name in condition_of:
            reduces.setdefault(condition_of[statement.name], set()).add(statement.name)
    result = []
    for condition, names in reduces.items():
        late: list[Compute] = []
        known = set(names)
        for statement in body:
            if isinstance(statement, Compute) and not known.isdisjoint(statement.args):
                is_choice = _chooses(statement, condition) and statement.args[1] in known
                if is_choice or condition_of.get(statement.name) == condition:
                    late.append(statement)
                if not is_choice:
                    known.add(statement.name)
        result.append(Deferral(condition, frozenset(names), tuple(late)))
    return result


def _conditions(body: Body, inner: set[str]) -> dict[str, str]:
    """The condition without which nothing needs a row value, of Reduces and Computes."""
    readers: dict[str, list[Statement]] = {}
    for statement in body:
        index = index_of(statement)
        for name in {*operands(statement), *(free_names(index) if index is not None else ())}:
            readers.setdefault(name, []).append(statement)
    result: dict[str, str] = {}
    for statement in reversed(body):
        name = defined_name(statement)
        if name is None or not isinstance(statement, (Compute, Reduce)):
            continue
        if not isinstance(statement, Reduce) and is_inner(statement, inner):
            continue
        conditions = {_condition(name, reader, inner, result) for reader in readers.get(name, ())}
        condition = conditions.pop() if len(conditions) == 1 else None
        if condition is not None:
            result[name] = condition
    return result


def _condition(name: str, reader: Statement, inner: set[str], known: dict[str, str]) -> str | None:
    """The condition without which a reader does not need a value."""
    if not isinstance(reader, Compute) or is_inner(reader, inner):
        return None
    if reader.op == "where" and reader.args[1] == name and name not in reader.args[::2]:
        return reader.args[0]
    return known.get(reader.name)


def _chooses(statement: Statement, condition: str) -> TypeGuard[Compute]:
    return (
        isinstance(statement, Compute)
        and statement.op == "where"
        and statement.args[0] == condition
    )
