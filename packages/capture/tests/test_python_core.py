"""Without the C core everything gives the same results: the tests of entries, in a process that
cannot import it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
sys.modules["flambeau_capture._core"] = None
import pytest
from flambeau_capture import core_is_native
assert not core_is_native()
sys.exit(
    pytest.main(["-q", "-x", "--import-mode=importlib", "-p", "no:cacheprovider", *sys.argv[1:]]),
)
"""


def test_without_the_c_core():
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).with_name("test_entries.py"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "passed" in done.stdout
