"""Every test asserts: itself, or through a helper of the test suites that it calls."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASSERTIONS = {"raises", "warns", "deprecated_call", "fail", "assert_close", "assert_allclose"}
"""Functions of pytest, torch and NumPy that raise where an assertion fails."""
CHECKERS = {"check_graph", "check_captured_graph", "check_program", "check_code"}
"""The checkers of stage borders, which raise."""


def calls_and_assertion(function: ast.AST) -> tuple[set[str], bool]:
    """The names that a function calls, and whether it asserts itself."""
    names, asserts = set(), False
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            asserts = True
        elif isinstance(node, ast.Raise) and node.exc is not None:
            asserts = asserts or "AssertionError" in ast.unparse(node.exc)
        elif isinstance(node, ast.Call):
            names.add(getattr(node.func, "attr", getattr(node.func, "id", "")))
    return names, asserts


def without_assertion(sources: dict[str, str]) -> list[str]:
    """The tests of these files from which no call leads to an assertion.

    Helpers are known by their names alone.
    """
    calls: dict[str, set[str]] = {}
    asserting = ASSERTIONS | CHECKERS
    tests = []
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef):
                continue
            names, asserts = calls_and_assertion(node)
            if node.name.startswith("test_"):
                tests.append((f"{path}:{node.lineno} {node.name}", names, asserts))
            calls.setdefault(node.name, set()).update(names)
            if asserts:
                asserting.add(node.name)
    while more := {name for name in calls.keys() - asserting if calls[name] & asserting}:
        asserting |= more
    return [where for where, names, asserts in tests if not asserts and not names & asserting]


def test_every_test_asserts() -> None:
    paths = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("packages/*/tests/**/*.py")]
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths)}
    assert len(sources) > 200
    assert without_assertion(sources) == []


def test_one_without_an_assertion_is_found() -> None:
    helper = "def helper(x):\n    assert x\n"
    good = (
        "def test_good():\n    helper(1)\n\n\ndef test_raises():\n    pytest.raises(KeyError, f)\n"
    )
    bad = "def test_bad():\n    print(1)\n"
    sources = {"helper.py": helper, "test_a.py": good + bad}
    assert without_assertion(sources) == ["test_a.py:7 test_bad"]
