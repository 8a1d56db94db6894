"""A sample of the standard library's own tests passes compiled; `python -m tools.stdlib` runs all
of them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.stdlib import cases
from tools.stdlib.files import FILES, SAMPLE, available
from tools.stdlib.report import accepted, unexpected

ROOT = Path(__file__).resolve().parents[2]
needs_tests = pytest.mark.skipif(
    "bool" not in available(), reason="Python without the tests of its library"
)


@needs_tests
def test_the_sample_passes_compiled() -> None:
    files = dict.fromkeys(name.partition(".")[0] for name in SAMPLE)
    command = [sys.executable, "-m", "tools.stdlib", "--modes", "default", "--limit", "30"]
    ended = subprocess.run(
        [*command, "--files", *files, "--only", *SAMPLE],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-1000:]
    assert "not accepted: 0" in ended.stdout
    passed = int(ended.stdout.partition("default: ")[2].partition(" ")[0])
    assert passed >= 100


@needs_tests
def test_what_is_accepted_exists_and_has_a_reason() -> None:
    assert all(reason.strip() for reason in accepted().values())
    assert {name.partition(".")[0] for name in accepted()} <= set(FILES)


def test_failures_that_are_not_accepted_are_told() -> None:
    failed = {"status": "fail", "cause": "AssertionError"}
    results = {
        ("list", "default", "ListTest.test_sort"): failed,
        ("list", "default", "ListTest.test_repr"): {"status": "pass", "cause": ""},
        ("list", "graph", "ListTest.test_repr"): {"status": "break", "cause": ""},
    }
    assert unexpected(results, {}) == ["list.ListTest.test_sort"]
    assert unexpected(results, {"list.ListTest.test_sort": "why"}) == []


@needs_tests
def test_a_test_that_fails_only_compiled_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "module_of", lambda file: f"test.test_{file}")
    assert "bool" in available()
    rows: dict[str, object] = {}

    class Broken:
        def compile(self, function: object, **options: object) -> object:
            def raising(*args: object) -> object:
                raise ValueError("wrong")

            return raising

    monkeypatch.setattr(cases, "flambeau", Broken())
    monkeypatch.setattr(cases, "state_of", lambda compiled: type("State", (), {"events": ()}))
    cases.run_file("bool", "default", ["BoolTest.test_str"], rows.__setitem__)
    row = rows["BoolTest.test_str"]
    assert isinstance(row, dict)
    assert row["status"] == "fail" and row["cause"].startswith("ValueError: wrong")
