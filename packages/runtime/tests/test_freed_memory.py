"""Freed memory stays in the process, where its C library is glibc."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, sys, torch
from flambeau_runtime.freed_memory import keep_freed_memory

class Facts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

facts = ctypes.CDLL(None).mallinfo2
facts.restype = Facts
if sys.argv[1] == "keep":
    keep_freed_memory()
before = facts().hblks
block = torch.empty(30 << 20, dtype=torch.uint8)
print(facts().hblks - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.parametrize(("word", "mapped"), [("keep", 0), ("leave", 1)])
def test_large_blocks_come_from_memory_that_is_kept(word: str, mapped: int) -> None:
    command = [sys.executable, "-c", SCRIPT, word]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) == mapped
