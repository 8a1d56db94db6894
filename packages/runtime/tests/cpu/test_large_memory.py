"""Memory of large results: further calls write to it again, but never while anybody holds it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from example_programs import sin_cos

from flambeau_runtime import RuntimeOptions, load, native, release_memory

SHAPE = (3001, 3001)  # 36 MB: malloc gives back so much at once
pytestmark = pytest.mark.skipif(native.unavailable() is not None, reason="no C executor")


@pytest.fixture
def run():
    release_memory()
    yield load(sin_cos(SHAPE), RuntimeOptions())
    release_memory()


def check(y, x):
    """Some rows of a result; pages of whole temporaries would take most of the time."""
    rows = x[::100]
    torch.testing.assert_close(y[::100], rows.sin() + rows.cos())


def test_dropped_results_are_written_again(run):
    x = torch.randn(SHAPE)
    (y,) = run(x)
    first, versions = y.data_ptr(), y._version
    del y
    x += 1
    (y,) = run(x)
    assert y.data_ptr() == first and y._version == versions and y.stride() == x.stride()
    check(y, x)
    assert not y._is_view() and y.is_leaf and not y.requires_grad
    release_memory()
    check(y, x)  # its own reference holds the memory


@pytest.mark.parametrize(
    "hold",
    [
        lambda y: y.view(-1)[5:],
        lambda y: y.untyped_storage(),
        lambda y: y.numpy(),
        lambda y: torch.from_dlpack(y),
        lambda y: y.detach(),
    ],
)
def test_held_memory_is_left_alone(run, hold):
    x = torch.randn(SHAPE)
    (y,) = run(x)
    before, first, held = y[-1].clone(), y.data_ptr(), hold(y)
    del y
    x += 1
    (z,) = run(x)
    assert z.data_ptr() != first
    check(z, x)
    again = torch.empty(0).set_(held, 0, SHAPE) if isinstance(held, torch.UntypedStorage) else held
    assert torch.equal(torch.as_tensor(again).reshape(-1)[-SHAPE[1] :], before)


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.untyped_storage().resize_(0),
        lambda y: y.resize_(4000, 4000),
        lambda y: y.share_memory_(),
        lambda y: y.untyped_storage().resize_(y.numel() * 8),
    ],
)
def test_memory_that_changed_is_let_go(run, change):
    x = torch.randn(SHAPE)
    (y,) = run(x)
    change(y)
    del y
    x += 1
    (z,) = run(x)
    assert z.is_shared() is False and z.untyped_storage().nbytes() == z.numel() * 4
    check(z, x)


def test_results_can_be_resized(run):
    x = torch.randn(SHAPE)
    for _ in range(2):
        (y,) = run(x)
        y.resize_(10).fill_(1)
        del y
    (y,) = run(x)
    check(y, x)


def test_many_results_are_bounded(run):
    x = torch.randn(SHAPE)
    results = [run(x)[0] for _ in range(9)]
    assert len({y.data_ptr() for y in results}) == 9
    for y in results:
        check(y, x)


def test_threads_get_memory_each(run):
    failures = []

    def work(number):
        x = torch.randn(SHAPE)
        for _ in range(4):
            (y,) = run(x)
            try:
                check(y, x)
            except AssertionError:
                failures.append(number)
            del y

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_input_that_is_a_result(run):
    x = torch.randn(SHAPE)
    (y,) = run(x)
    for _ in range(3):
        before = y
        (y,) = run(y)
        check(y, before)


ASKS = """
import re
import sys
from pathlib import Path

import torch
from example_programs import sin_cos

from flambeau_runtime import RuntimeOptions, load


def asks_for_huge_pages(y):
    middle, inside = y.data_ptr() + y.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if (span := re.match("([0-9a-f]+)-([0-9a-f]+) ", line)) is not None:
            inside = int(span[1], 16) <= middle < int(span[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()


shape = (int(sys.argv[1]),) * 2
run, x = load(sin_cos(shape), RuntimeOptions()), torch.randn(shape)
print(*[asks_for_huge_pages(y) for y in [run(x)[0] for _ in range(3)]])
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="no huge pages"
)
@pytest.mark.parametrize(("side", "at_once"), [(1601, "False"), (3001, "True")])
def test_a_first_call_asks_for_huge_pages_only_for_the_largest(side, at_once):
    # In another process: memory that malloc gives out again has kept the advice of earlier tests.
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", ASKS, str(side)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [at_once, "True", "True"]
