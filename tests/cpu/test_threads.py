"""Many threads and processes at once: compiling, calling, forking, and sharing or damaging one
cache directory.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 8


def together(work: Callable[[int], None]) -> None:
    """Run `work(number)` in many threads that start at once; the first error is raised here."""
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> None:
        barrier.wait(timeout=60)
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(run, number) for number in range(THREADS)]:
            future.result(timeout=240)


def wave(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return (torch.sin(x) * scale + x.mean(-1, keepdim=True)).softmax(-1)


def test_one_callable_compiled_by_all_threads_at_once() -> None:
    compiled = flambeau.compile(wave, fullgraph=True)

    def work(number: int) -> None:
        for step in range(20):
            x = torch.randn(3 + number % 3, 5)
            torch.testing.assert_close(compiled(x, 1.0 + step % 2), wave(x, 1.0 + step % 2))

    together(work)


def test_callables_of_their_own() -> None:
    def work(number: int) -> None:
        def program(x: torch.Tensor) -> torch.Tensor:
            return (x * (number + 2)).cos().sum(0) + number

        compiled = flambeau.compile(program, fullgraph=True)
        for _ in range(10):
            x = torch.randn(7, number + 1)
            torch.testing.assert_close(compiled(x), program(x))

    together(work)


def test_training_in_threads() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5))
    compiled = flambeau.compile(model, fullgraph=True)

    def work(number: int) -> None:
        for _ in range(5):
            x = torch.randn(4, 6, requires_grad=True)
            twin = x.detach().clone().requires_grad_()
            (found,) = torch.autograd.grad(compiled(x).square().sum(), x)
            (expected,) = torch.autograd.grad(model(twin).square().sum(), twin)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    together(work)


def test_grad_mode_is_each_threads_own() -> None:
    compiled = flambeau.compile(lambda x: x * 2, fullgraph=True)

    def work(number: int) -> None:
        x = torch.randn(3, requires_grad=True)
        for _ in range(20):
            with torch.set_grad_enabled(number % 2 == 0):
                assert compiled(x).requires_grad == (number % 2 == 0)

    together(work)


def test_state_is_written_once_a_call() -> None:
    log: list[int] = []

    def program(x: torch.Tensor, number: int) -> torch.Tensor:
        log.append(number)
        return x + 1

    compiled = flambeau.compile(program)
    together(lambda number: [compiled(torch.randn(3), number) for _ in range(10)] and None)
    assert sorted(log) == sorted(list(range(THREADS)) * 10)


def test_reset_while_others_call() -> None:
    compiled = flambeau.compile(wave, fullgraph=True)

    def work(number: int) -> None:
        for _ in range(6):
            x = torch.randn(4, 5)
            if number == 0:
                flambeau.reset()
            torch.testing.assert_close(compiled(x), wave(x))

    together(work)


# Processes
# ----------------------------------------------------------------------------

SCRIPT = """
import sys, torch, flambeau
torch.manual_seed(1)
def program(x, w):
    return torch.tanh(x @ w).softmax(-1), (x * 3).sum(0)
x, w = torch.randn(5, 6), torch.randn(6, 7, requires_grad=True)
found = flambeau.compile(program, fullgraph=True)(x, w)
expected = program(x, w)
for ours, theirs in zip(found, expected):
    torch.testing.assert_close(ours, theirs)
torch.testing.assert_close(
    torch.autograd.grad(found[0].square().sum(), w),
    torch.autograd.grad(expected[0].square().sum(), w),
)
print("right")
"""


def start(cache: Path) -> subprocess.Popen[str]:
    """A process that compiles and checks a program, with this cache."""
    environment = {
        **os.environ,
        "FLAMBEAU_CACHE_DIR": str(cache),
        "FLAMBEAU_CHECK": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", SCRIPT]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> None:
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0 and out == "right\n", error


def test_two_processes_and_one_empty_cache(tmp_path: Path) -> None:
    for process in [start(tmp_path / "cache") for _ in range(2)]:
        finish(process)


def test_a_damaged_cache_is_rebuilt(tmp_path: Path) -> None:
    finish(start(tmp_path / "whole"))
    processes = []
    for damage in ("truncate", "garbage", "missing"):
        cache = tmp_path / damage
        shutil.copytree(tmp_path / "whole", cache)
        files = [path for path in cache.rglob("*") if path.is_file()]
        assert any(path.suffix == ".so" for path in files)
        for path in files:
            content = path.read_bytes()
            path.chmod(0o600)
            if damage == "truncate":
                path.write_bytes(content[: len(content) // 2])
            elif damage == "garbage":
                path.write_bytes(os.urandom(len(content)))
            elif path.suffix == ".so":
                path.unlink()
        processes.append(start(cache))
    for process in processes:
        finish(process)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_after_compiling() -> None:
    """A child calls what its parent compiled, and compiles more; OpenMP's threads do not survive a
    fork, so work stays small.
    """
    compiled = flambeau.compile(wave, fullgraph=True)
    x = torch.randn(4, 5)
    expected = compiled(x)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.testing.assert_close(compiled(x), expected)
            y = torch.randn(2, 3)
            torch.testing.assert_close(
                flambeau.compile(lambda y: y.cos() + 2, fullgraph=True)(y), y.cos() + 2
            )
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    torch.testing.assert_close(compiled(x), expected)


def test_calls_do_not_leak() -> None:
    compiled = flambeau.compile(lambda x: (x + 1, x.view(-1)), fullgraph=True)
    x = torch.randn(97, 103)  # no other test's tensors have so many elements

    def live() -> int:
        gc.collect()
        tensors = [item for item in gc.get_objects() if type(item) is torch.Tensor]
        return sum(tensor.numel() == x.numel() for tensor in tensors)

    compiled(x)
    before = live()
    assert before
    held: Any = None
    for _ in range(50):
        held = compiled(x)
    del held
    assert live() == before
