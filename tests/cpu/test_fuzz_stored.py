"""Random programs that one process stores and the next ones find edited do what eager does;
`python -m tools.fuzz stored` runs more of them.
"""

from __future__ import annotations

from tools.fuzz.stored.check import check

FORMER = (17, 186, 215, 226)
"""Seeds of programs that differed: a limit of the interpreter, a class that was registered, and the
size of an object are read without a guard.
"""


def test_random_programs() -> None:
    found = check([*FORMER, *range(400, 410)], processes=3)
    assert not found.differences, "\n\n".join(found.differences)
    assert found.served["served"] > 2 * found.served["captured"], found.captured
