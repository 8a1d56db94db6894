"""Programs of `tests.programs` in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def with_entries(cache: Path) -> dict[str, str]:
    """The environment of a process that stores and reads entries."""
    given = {"FLAMBEAU_CACHE_DIR": str(cache), "FLAMBEAU_GRAPH_CACHE": "1", "FLAMBEAU_CHECK": "0"}
    return os.environ | given


def outcomes(module: str, *arguments: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The JSON that `python -m tests.programs.MODULE` prints in its last line."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.programs.{module}", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
