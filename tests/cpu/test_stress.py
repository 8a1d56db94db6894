"""Short forms of `python -m tools.stress`: processes that are killed, threads that meet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def stress(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tools.stress", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_processes_leave_a_cache_that_serves_right_results() -> None:
    words = stress("kills", "--kills", "4", "--processes", "2", "--programs", "3")
    assert "kills=4" in words and "wrong=0" in words and "damaged=()" in words


def test_threads_that_compile_and_call_at_once() -> None:
    words = stress("threads", "--threads", "8", "--steps", "6", "--programs", "3")
    assert "right=48" in words
