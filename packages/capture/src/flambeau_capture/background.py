"""Compiles in a worker thread, while calls run eagerly: the queue, waiting, cancelling.

    with place(limit) as held:                   no place: the call runs eagerly
        held.submit(Job(owner, name, run, ...))  run() in the worker thread
    wait(timeout=5), cancel()                    for all jobs, or those of one owner

One thread runs the jobs in their order. It starts with the first job and ends when it has had none
for `IDLE` seconds. It has a low priority, and while it runs Python code the interpreter switches
threads every `SWITCH_INTERVAL` seconds: at the default of 5 ms, each operator of an eager call
would wait that long for the interpreter's lock.

The interpreter's exit cancels all jobs and interrupts the one that runs. A forked child has none.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IDLE = 20.0
"""Seconds for which the thread, and what it uses, is kept without a job."""
SWITCH_INTERVAL = 1e-4
NICENESS = 5


class Cancelled(BaseException):
    """The job that this thread runs was cancelled."""


class Job:
    """One compile: `run` compiles and installs; `forget` drops it without a result."""

    def __init__(
        self, owner: Any, name: str, run: Callable[[Job], None], forget: Callable[[], None]
    ) -> None:
        self.owner = owner
        self.name = name
        self.run = run
        self.forget = forget
        self.cancelled = False
        self._interrupts: list[Callable[[], None]] = []

    def check(self) -> None:
        """Cancelled if the job is."""
        if self.cancelled:
            raise Cancelled

    @contextlib.contextmanager
    def interrupted_by(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """A block that `interrupt`, called by another thread, ends early; then Cancelled."""
        self._interrupts.append(interrupt)
        try:
            self.check()
            yield
        finally:
            self._interrupts.remove(interrupt)
        self.check()

    def cancel(self) -> None:
        """Drop the job, and end what it waits for."""
        self.cancelled = True
        self.forget()
        for interrupt in tuple(self._interrupts):
            interrupt()


class _Queue:
    """The jobs of this process. `changed` guards all fields, and is notified of each change."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.waiting: deque[Job] = deque()
        self.running: Job | None = None
        self.reserved = 0
        self.thread: threading.Thread | None = None
        self.exiting = False
        self.closers: list[Callable[[], None]] = []

    def jobs(self, owner: Any = None) -> list[Job]:
        """Those of an owner, or all."""
        running = [] if self.running is None else [self.running]
        return [job for job in (*running, *self.waiting) if owner is None or job.owner is owner]


_QUEUE = _Queue()


class _Current(threading.local):
    """The job of this thread: the module's dynamically scoped value."""

    job: Job | None = None


_CURRENT = _Current()


def current_job() -> Job | None:
    """The job that this thread runs, or None."""
    return _CURRENT.job


def when_idle(close: Callable[[], None]) -> None:
    """Have the worker thread call `close` before it ends."""
    with _QUEUE.changed:
        if close not in _QUEUE.closers:
            _QUEUE.closers.append(close)


class Place:
    """A place in the queue; given back at the end of the block, unless a job was submitted."""

    def __init__(self) -> None:
        self._taken = False

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._taken:
            with _QUEUE.changed:
                _QUEUE.reserved -= 1

    def submit(self, job: Job) -> None:
        """Queue a job."""
        queue = _QUEUE
        with queue.changed:
            self._taken = True
            queue.reserved -= 1
            queue.waiting.append(job)
            if queue.thread is None or not queue.thread.is_alive():
                queue.thread = threading.Thread(target=_work, name="flambeau-compile")
                queue.thread.start()
            queue.changed.notify_all()


def place(limit: int) -> Place | None:
    """One of `limit` places in the queue, or None."""
    with _QUEUE.changed:
        if _QUEUE.exiting or len(_QUEUE.jobs()) + _QUEUE.reserved >= limit:
            return None
        _QUEUE.reserved += 1
        return Place()


def wait(timeout: float | None = None, owner: Any = None) -> bool:
    """Wait until no job is left; False if the time is over before that, or in a job."""
    if _CURRENT.job is not None:
        return False
    with _QUEUE.changed:
        return _QUEUE.changed.wait_for(lambda: not _QUEUE.jobs(owner), timeout)


def cancel(owner: Any = None) -> int:
    """Cancel all jobs, or an owner's; how many. What runs is dropped when it ends."""
    with _QUEUE.changed:
        jobs = _QUEUE.jobs(owner)
        for job in jobs:
            if job is not _QUEUE.running:
                _QUEUE.waiting.remove(job)
        _QUEUE.changed.notify_all()
    for job in jobs:
        job.cancel()
    return len(jobs)


# ---------------------------------------------------------------- the thread


def _work() -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux gives each thread a priority
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    try:
        while (job := _next_job()) is not None:
            _run(job)
            del job
    except Cancelled:  # at exit, anywhere
        _close()


def _close() -> None:
    with _QUEUE.changed:
        closers = tuple(_QUEUE.closers)
    for close in closers:
        close()


def _run(job: Job) -> None:
    queue = _QUEUE
    _CURRENT.job = job
    try:
        with short_turns():
            job.run(job)
    except Cancelled:
        pass
    finally:
        _CURRENT.job = None
        with queue.changed:
            queue.running = None
            queue.changed.notify_all()


def _next_job() -> Job | None:
    """The next job, or None where the thread is to end."""
    queue, until = _QUEUE, time.monotonic() + IDLE
    while True:
        with queue.changed:
            while not queue.waiting and not queue.exiting and time.monotonic() < until:
                queue.changed.wait(until - time.monotonic())
            if queue.waiting and not queue.exiting:
                queue.running = queue.waiting.popleft()
                return queue.running
        _close()
        with queue.changed:
            if queue.exiting or not queue.waiting:
                queue.thread = None
                return None


class _Turns:
    """How many blocks ask for short turns; guarded by the queue's lock."""

    blocks = 0
    before = 0.0


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """A block in which the interpreter switches threads often."""
    with _QUEUE.changed:
        if _Turns.blocks == 0:
            _Turns.before = sys.getswitchinterval()
            sys.setswitchinterval(min(_Turns.before, SWITCH_INTERVAL))
        _Turns.blocks += 1
    try:
        yield
    finally:
        with _QUEUE.changed:
            _Turns.blocks -= 1
            if _Turns.blocks == 0:
                sys.setswitchinterval(_Turns.before)


# ---------------------------------------------------------------- exit and forks


def _at_exit() -> None:
    """Let the thread end: the interpreter waits for it."""
    with _QUEUE.changed:
        _QUEUE.exiting = True
        thread, running = _QUEUE.thread, _QUEUE.running
        _QUEUE.changed.notify_all()
    cancel()
    if running is not None and thread is not None and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(Cancelled)
        )


# Exit functions of `atexit` are called only after all threads have ended.
threading._register_atexit(_at_exit)  # type: ignore[attr-defined]


def _in_child() -> None:
    """The thread is not in a forked child; its jobs can be submitted again."""
    global _QUEUE
    before, _QUEUE = _QUEUE, _Queue()
    _QUEUE.closers = before.closers
    _CURRENT.job = None
    for job in before.jobs():
        job.forget()
    if _Turns.blocks:
        sys.setswitchinterval(_Turns.before)
        _Turns.blocks = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
