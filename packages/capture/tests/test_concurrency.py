"""Many threads compile and call at once, with graph breaks; a child forked meanwhile calls and
compiles.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from captured import compiled

import flambeau_capture
from flambeau_capture.compiled import compile_callable
from flambeau_capture.interpreter.capture import capture_frame

THREADS = 6


@pytest.fixture(autouse=True)
def _many_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def together(work: Callable[[int], None]) -> None:
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> None:
        barrier.wait(timeout=60)
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(run, number) for number in range(THREADS)]:
            future.result(timeout=120)


def breaking(x: torch.Tensor, by: int) -> torch.Tensor:
    x = x * by
    for _ in range(2):
        x = middle(x, by) + 1
    return x.cos()


def middle(x: torch.Tensor, by: int) -> torch.Tensor:
    x = x + 2
    rows = sorted([x, -x], key=lambda row: float(row.sum()))  # breaks, and calls Python from C
    return rows[0] * by


def test_continuations_made_by_all_threads_at_once() -> None:
    fn = compiled(breaking)

    def work(number: int) -> None:
        for step in range(6):
            x = torch.randn(2 + number % 2, 3)
            torch.testing.assert_close(fn(x, 1 + step % 2), breaking(x, 1 + step % 2))

    together(work)


def test_frames_below_breaks_in_callables_of_their_own() -> None:
    def work(number: int) -> None:
        def program(x: torch.Tensor) -> torch.Tensor:
            return middle(x.sin(), number + 1) * number

        fn = compiled(program)
        for _ in range(4):
            x = torch.randn(3)
            torch.testing.assert_close(fn(x), program(x))

    together(work)


def test_callables_that_call_each_other_while_both_compile() -> None:
    table: dict[str, Any] = {}

    def even(x: torch.Tensor, depth: int) -> torch.Tensor:
        x = x + float(x.sum().item() > 0)
        return table["odd"](x * 2, depth - 1) if depth else x

    def odd(x: torch.Tensor, depth: int) -> torch.Tensor:
        x = x - float(x.sum().item() > 0)
        return table["even"](x + 1, depth - 1) if depth else x

    eager = {"even": even, "odd": odd}
    both = {"even": compiled(even), "odd": compiled(odd)}
    x = torch.randn(4)
    table.update(eager)
    wanted = {name: eager[name](x, 3) for name in eager}
    table.update(both)

    def work(number: int) -> None:
        name = ("even", "odd")[number % 2]
        for _ in range(3):
            torch.testing.assert_close(both[name](x, 3), wanted[name])

    together(work)


def test_snapshots_of_one_module_that_changes_under_other_threads() -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(8)])
    fn = compiled(model)

    def work(number: int) -> None:
        x = torch.randn(2, 3)
        for step in range(60):
            if number == 0:
                model[step % 8].unread = step
            elif number == 1:
                model[step % 8].weight = torch.nn.Parameter(model[step % 8].weight.detach().clone())
            torch.testing.assert_close(fn(x), model(x))

    together(work)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_while_another_thread_compiles() -> None:
    """The other thread holds the callable's lock for as long as its backend takes."""
    entered, leave = threading.Event(), threading.Event()

    def slow(module: Any, example_inputs: list[Any]) -> Any:
        if threading.current_thread() is thread and not leave.is_set():
            entered.set()
            leave.wait(60)
        return module.forward

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 3 - 1

    fn = flambeau_capture.compile(program, backend=slow)
    x = torch.ones(3)
    thread = threading.Thread(target=lambda: fn(x))
    thread.start()
    assert entered.wait(60)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.testing.assert_close(fn(x), program(x))
            torch.testing.assert_close(compiled(breaking)(x, 2), breaking(x, 2))
            status = 0
        finally:
            os._exit(status)
    leave.set()
    thread.join(60)
    deadline = time.monotonic() + 60
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child waits for a lock that nobody holds")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(done[1]) == 0
    torch.testing.assert_close(fn(x), program(x))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_during_a_capture_collects_garbage() -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        entered.set()
        leave.wait(60)
        return capture_frame(*args)

    fn = compile_callable(lambda x: x + 1, slow, lambda module, example_inputs: module.forward)
    thread = threading.Thread(target=lambda: fn(torch.ones(3)))
    assert gc.isenabled()
    thread.start()
    assert entered.wait(60)
    assert not gc.isenabled()
    child = os.fork()
    if child == 0:
        os._exit(0 if gc.isenabled() else 1)
    leave.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.isenabled()
