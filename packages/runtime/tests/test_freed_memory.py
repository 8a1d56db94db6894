"""Freed memory stays in the process, where its C library is glibc."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from flambeau_runtime import freed_memory
from flambeau_runtime.freed_memory import LARGEST_BLOCK, SETTINGS, SHARE, SLACK, keep_freed_memory

MIB = 1 << 20
ON_GLIBC = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the C library is not glibc"
)

FACTS = """
import ctypes, resource, sys, torch
from flambeau_runtime.freed_memory import keep_freed_memory, release_freed_memory

class Facts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

facts = ctypes.CDLL(None).mallinfo2
facts.restype = Facts
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def allocate_and_free(count, size):
    # Not tensors: between their blocks lie small ones, above which the heap may stay.
    blocks = [None] * count
    for i in range(count):
        blocks[i] = libc.malloc(size)
    for block in reversed(blocks):
        libc.free(block)
"""

MAPPED = """
for word in sys.argv[1:]:
    keep_freed_memory(int(word))
before = facts().hblks
block = torch.empty(30 << 20, dtype=torch.uint8)
print(facts().hblks - before)
"""

KEPT = """
for word in sys.argv[1:]:
    keep_freed_memory(int(word) if word != "None" else None)
before = facts().arena
allocate_and_free(10, 20 << 20)
print((facts().arena - before) >> 20)
"""

RELEASED = """
keep_freed_memory(200 << 20)
allocate_and_free(5, 20 << 20)
print(int(facts().keepcost > 90 << 20))
release_freed_memory()
print(facts().keepcost >> 20)
"""

PAGES = """
from example_programs import sin_cos
from flambeau_runtime import RuntimeOptions, load
run = load(sin_cos((4000, 1000)), RuntimeOptions())
x = torch.randn(4000, 1000)
def call():
    results = [run(x)[0] for _ in range(int(sys.argv[1]))]
    for y in results:
        y += 1
for _ in range(8):  # it grows in the first four: small blocks stay in gaps
    call()
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def printed(script: str, *words: str, **settings: str) -> list[int]:
    """The numbers that a script prints in a fresh process, whose allocator the user left alone
    except for `settings`.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in SETTINGS and name != "GLIBC_TUNABLES"
    }
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", FACTS + script, *words]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment | settings
    )
    return [int(line) for line in done.stdout.split()]


@ON_GLIBC
@pytest.mark.parametrize(("words", "mapped"), [(["0"], 0), ([], 1)])
def test_large_blocks_come_from_memory_that_is_kept(words: list[str], mapped: int) -> None:
    assert printed(MAPPED, *words) == [mapped]


@ON_GLIBC
@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ([], False),
        (["0"], False),
        ([str(150 * MIB)], True),
        ([str(150 * MIB), "0"], True),  # what a larger program needs stays kept
        (["None"], True),
    ],
)
def test_as_much_is_kept_as_the_largest_program_holds(words: list[str], kept: bool) -> None:
    (mebibytes,) = printed(KEPT, *words)
    assert (mebibytes >= 190) == kept, f"{mebibytes} MiB of 200 are kept"


@ON_GLIBC
def test_free_memory_is_released() -> None:
    kept, left = printed(RELEASED)
    assert kept == 1
    assert left <= 1


@ON_GLIBC
def test_a_setting_of_the_user_is_what_glibc_does() -> None:
    (mebibytes,) = printed(KEPT, str(150 * MIB), MALLOC_TRIM_THRESHOLD_="131072")
    assert mebibytes < 190


@pytest.mark.parametrize("name", [*SETTINGS, "GLIBC_TUNABLES"])
def test_settings_of_the_user_decide(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(freed_memory, "_function", lambda name: lambda *args: calls.append(args[0]))
    monkeypatch.setattr(freed_memory, "_kept", 0)
    for other in (*SETTINGS, "GLIBC_TUNABLES"):
        monkeypatch.delenv(other, raising=False)
    with monkeypatch.context() as context:
        context.setenv(name, "glibc.malloc.top_pad=131072")
        keep_freed_memory(None)
        assert not calls
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.cpu.x86_shstk=off")
    keep_freed_memory(None)
    assert calls


@ON_GLIBC
def test_calls_of_a_program_pay_for_no_pages_again() -> None:
    """Six results of 16 MB, more than glibc keeps by itself.

    The least of four calls: the kernel moves pages of a busy machine, too, and that is a fault.
    """
    assert min(printed(PAGES, "6")) < 100


def test_the_share_of_the_machine_bounds_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []

    def mallopt(parameter: int, value: int) -> int:
        calls.append((parameter, value))
        return 1

    monkeypatch.setattr(freed_memory, "_function", lambda name: mallopt)
    monkeypatch.setattr(freed_memory, "_is_left_to_us", lambda: True)
    monkeypatch.setattr(freed_memory, "_kept", 0)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 18, "SC_PAGESIZE": 4096}.__getitem__)
    keep_freed_memory(10 * MIB)
    keep_freed_memory(5 * MIB)
    keep_freed_memory(1024 * MIB)
    keep_freed_memory(None)
    largest = (freed_memory.M_MMAP_THRESHOLD, LARGEST_BLOCK)
    trim = freed_memory.M_TRIM_THRESHOLD
    assert calls == [
        largest, (trim, 10 * MIB + SLACK), largest, (trim, 1024 * MIB // SHARE),
    ]  # fmt: skip


def test_nothing_is_told_to_other_c_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "_function", lambda name: None)
    monkeypatch.setattr(freed_memory, "_kept", 0)
    keep_freed_memory(None)
    freed_memory.release_freed_memory()
    assert freed_memory._kept == 0


def test_a_refused_size_of_blocks_leaves_the_heap_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(freed_memory, "_function", lambda name: lambda *args: calls.append(args[0]))
    monkeypatch.setattr(freed_memory, "_is_left_to_us", lambda: True)
    monkeypatch.setattr(freed_memory, "_kept", 0)
    keep_freed_memory(MIB)
    assert calls == [freed_memory.M_MMAP_THRESHOLD]
    assert freed_memory._kept == 0
