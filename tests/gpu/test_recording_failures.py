"""What goes wrong while a call is recorded, and processes that were forked afterwards."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch

import flambeau
from tests.launches import ALWAYS, AUTO, WARM, close, compiled_for, launch_lines, randn, replays

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@torch.library.custom_op("recording_failures::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    """Waits for the device where it is recorded, which fails."""
    if torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().synchronize()
    return x * 2


@waits.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("recording_failures::refuses", mutates_args=())
def refuses(x: torch.Tensor) -> torch.Tensor:
    """Raises where it is recorded."""
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("not in a capture")
    return x * 2


@refuses.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("drawing", [False, True])
@pytest.mark.parametrize("operator", [waits, refuses])
def test_a_failure_in_the_middle_of_a_recording(
    operator: Callable[[torch.Tensor], torch.Tensor], drawing: bool
) -> None:
    """The call is launched plainly, and so are later ones; other functions are still recorded."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = operator(x.sin() @ x) + 1
        return y + torch.nn.functional.dropout(y, 0.0 if not drawing else 0.5)

    compiled = compiled_for(function, ALWAYS)
    for _ in range(WARM):
        x = randn(16, 16)
        state = torch.cuda.get_rng_state()
        want = function(x)
        after = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state)
        close(compiled(x), want)
        assert torch.equal(torch.cuda.get_rng_state(), after)
        assert not torch.cuda.is_current_stream_capturing()
    (line,) = launch_lines(compiled)
    assert "launched kernel by kernel: recording failed" in line, line
    assert not replays(compiled)

    again = compiled_for(lambda x: (x @ x).cos(), ALWAYS)
    x = randn(16, 16)
    for _ in range(WARM):
        close(again(x), (x @ x).cos())
    assert replays(again)


def in_a_fork(child: Callable[[], None], *, leave: Callable[[int], object]) -> int:
    """Run `child` in a forked process, which then leaves by `leave(0)`; its status."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException as error:
            os.write(2, f"in the fork: {type(error).__name__}: {error}\n".encode())
            os._exit(3)
        leave(0)
    for _ in range(300):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the forked process hangs")


@pytest.mark.parametrize("leave", [os._exit, sys.exit], ids=["_exit", "exit"])
@pytest.mark.parametrize("drawing", [False, True])
def test_fork_after_a_recording(drawing: bool, leave: Callable[[int], object]) -> None:
    """The child computes on the CPU and drops the recordings; the parent goes on replaying."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x @ x).sin()
        return torch.nn.functional.dropout(y, 0.0 if not drawing else 0.5)

    x = randn(16, 16)
    kept = [compiled_for(function, ALWAYS)]
    for _ in range(WARM):
        kept[0](x)
    assert replays(kept[0])

    _leave_timed_calls_to_the_collector(x)

    def child() -> None:
        host = torch.arange(12.0).view(3, 4)
        assert torch.equal(flambeau.compile(lambda x: x + 1)(host), host + 1)
        kept.clear()
        gc.collect()

    if leave is sys.exit:  # not through pytest
        leave = _leave_by_exit
    assert in_a_fork(child, leave=leave) == 0
    before = replays(kept[0])
    for _ in range(3):
        torch.manual_seed(3)
        out = kept[0](x)
        torch.manual_seed(3)
        close(out, function(x))
    assert replays(kept[0]) == before + 3


def _leave_timed_calls_to_the_collector(x: torch.Tensor) -> None:
    """A cycle that holds a call whose time nobody has asked for, unless the collector runs."""
    compiled = compiled_for(lambda x: x.cos() + 1, AUTO)
    for _ in range(3):
        compiled(x)
    cycle: list[object] = [compiled]
    cycle.append(cycle)


def _leave_by_exit(status: int) -> None:
    """Run what the interpreter runs at its end, without unwinding the test runner."""
    import atexit

    atexit._run_exitfuncs()
    gc.collect()
    os._exit(status)


def test_threads_that_may_draw_are_the_reason_given() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return torch.nn.functional.scaled_dot_product_attention(y, x, x, dropout_p=0.5)

    compiled = compiled_for(function, ALWAYS)
    x = randn(1, 2, 16, 16)
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        for _ in range(WARM):
            compiled(x)
        (line,) = launch_lines(compiled)
        assert "another thread may draw random numbers" in line, line
    finally:
        done.set()
        other.join()
    for _ in range(WARM):
        compiled(x)
    assert replays(compiled), launch_lines(compiled)


def line_of(function: Callable[..., object], offset: int) -> str:
    """A line of a function, as events name it."""
    code = function.__code__
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno + offset}"


def copies_from_the_host(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    y = x.sin() + 1
    return y + host.cuda()


def reads_sizes(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() + 1
    z = torch.linalg.inv(y @ y + torch.eye(4, device="cuda"))
    return z.cos()


def has_data_dependent_sizes(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() + 1
    z = y.nonzero()
    return z * 2 + 1


def syncs(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() + 1
    return waits(y).cos()


SKIPS = {
    "tensors of the CPU": (copies_from_the_host, 2, True),
    "linalg": (reads_sizes, 2, False),
    "depends on its data": (has_data_dependent_sizes, 2, False),
    "recording failed": (syncs, 2, False),
}


@pytest.mark.parametrize("reason", SKIPS)
def test_a_skip_is_one_event_with_the_line(
    reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, offset, with_host = SKIPS[reason]
    compiled = flambeau.compile(function, mode="reduce-overhead", fullgraph=True)
    args = (randn(4, 4), torch.ones(4)) if with_host else (randn(4, 4),)
    for _ in range(WARM):
        close(compiled(*args), function(*args))
    events = [each for each in flambeau.explain(compiled).events if "plain_launch" in each]
    assert len(events) == 1, events
    assert reason in events[0] and line_of(function, offset) in events[0], events
    told = [each for each in caplog.records if each.name == "flambeau.cudagraphs"]
    assert len(told) == 1 and line_of(function, offset) in told[0].getMessage()
