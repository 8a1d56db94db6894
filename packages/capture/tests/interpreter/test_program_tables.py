"""Tables of programs, captured whole and compared with eager."""

from __future__ import annotations

import application_programs
import class_programs
import container_programs
import everyday_programs
import library_programs
import model_code_programs
import protocol_programs
import pytest
import statement_programs
from capture_harness import check

TABLES = (
    application_programs,
    class_programs,
    container_programs,
    everyday_programs,
    library_programs,
    model_code_programs,
    protocol_programs,
    statement_programs,
)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize(
    ("fn", "args", "x"),
    [(fn, args, table.X) for table in TABLES for fn, args in table.PROGRAMS],
    ids=[fn.__name__ for table in TABLES for fn, _ in table.PROGRAMS],
)
def test_same_as_eager(fn, args, x):
    check(fn, x.clone(), *args)
