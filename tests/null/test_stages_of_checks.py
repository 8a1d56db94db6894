"""Stages of `python -m tools.checks` run side by side: what each prints stays together, and
failures are told.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tools.checks import __main__ as checks
from tools.checks.command import CheckFailed

if TYPE_CHECKING:
    import pytest


def passing() -> None:
    print("printed here")
    subprocess.run([sys.executable, "-c", "print('printed by a command')"], check=True)


def failing() -> None:
    raise CheckFailed("one sentence")


def test_stages_side_by_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "STAGES", {"a": passing, "b": failing, "c:x": passing})
    monkeypatch.setattr(sys, "argv", ["checks", "--jobs", "2"])
    assert checks.main() == 1
    shown = capsys.readouterr().out
    assert shown.count("printed here\n") == shown.count("printed by a command\n") == 2
    assert "b failed: one sentence" in shown and shown.endswith("2 passed, 1 failed\n")
    monkeypatch.setattr(sys, "argv", ["checks", "--jobs", "2", "a", "c"])
    assert checks.main() == 0
    assert "2 passed, 0 failed" in capsys.readouterr().out
