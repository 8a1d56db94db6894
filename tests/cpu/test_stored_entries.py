"""Whole entries on disk: the next process uses what fits it, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(phase: str, cache: Path) -> dict[str, str]:
    """The outcomes of all programs in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.stored_entries", phase],
        cwd=ROOT,
        env=os.environ
        | {
            "FLAMBEAU_CACHE_DIR": str(cache),
            "FLAMBEAU_GRAPH_CACHE": "1",
            "FLAMBEAU_CHECK": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """What became of each program in the first process, and in the second."""
    cache = tmp_path_factory.mktemp("entries") / "cache"
    first, second = run("write", cache), run("read", cache)
    return {name: (first[name], second[name]) for name in first}


def test_the_first_process_stores_its_entries(outcomes: dict[str, tuple[str, str]]) -> None:
    from tests.programs.stored_entries import OF_THE_PROCESS

    stored = ("written", "read")
    refused = {name: first for name, (first, _) in outcomes.items() if not first.endswith(stored)}
    assert refused.keys() == OF_THE_PROCESS.keys()
    assert all("[of-the-process]" in first for first in refused.values()), refused


def test_the_second_process_uses_what_fits_and_nothing_else(
    outcomes: dict[str, tuple[str, str]],
) -> None:
    from tests.programs.stored_entries import SAME

    used = {name for name, (_, second) in outcomes.items() if second.startswith("stored")}
    assert used == set(SAME)
    captured = {name: second for name, (_, second) in outcomes.items() if name not in SAME}
    assert all(second.startswith(("capture", "break")) for second in captured.values()), captured
