"""A wide table of small programs: compiled, each does what eager does, in everything that a user
can see.
"""

from __future__ import annotations

import warnings

import pytest

from tests.differential import differences
from tests.programs import (
    dtypes,
    indexing,
    memory,
    mutation,
    neural,
    pointwise,
    reductions,
    updates,
)

TABLES = {
    "pointwise": pointwise.PROGRAMS,
    "reductions": reductions.PROGRAMS,
    "indexing": indexing.PROGRAMS,
    "dtypes": dtypes.PROGRAMS,
    "memory": memory.PROGRAMS,
    "mutation": mutation.PROGRAMS,
    "neural": neural.PROGRAMS,
    "updates": updates.PROGRAMS,
}


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table, programs in TABLES.items() for name in programs]
)
def test_as_eager(table: str, name: str) -> None:
    program = TABLES[table][name]
    with warnings.catch_warnings():
        # Eager's own warnings are not the subject; ours (a fallback, a limit) would be errors of
        # the comparison.
        warnings.simplefilter("ignore")
        found = differences(
            program.function,
            program.make,
            **{"fullgraph": True, "options": {"check": True}, **program.options},
        )
    assert not found, "\n".join(found)
