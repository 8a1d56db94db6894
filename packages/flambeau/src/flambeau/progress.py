"""Progress: a line on stderr about each compile that takes longer than a second.

    compiling Model.forward: build, graph 2, 12 of 40 kernel sources, 34 s

The lines are shown on a terminal (by rich, if it is installed) and in a notebook, and are gone when
the compile is done. `FLAMBEAU_PROGRESS=0` turns them off.

A thread is started with the first compile and ends with the last. It draws under `_LOCK`, under
which compiles come and go. A process forks while nothing is drawn and rich is not being imported;
its child has no compiles and draws nothing of its parent's.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flambeau.environment import Environment
    from flambeau_runtime.cache import CacheUse
    from flambeau_runtime.program import Program

DELAY = 1.0
"""Seconds for which a compile is not shown."""
INTERVAL = 0.1
"""Seconds between two drawings."""
MOST_LINES = 6
HIDDEN = ""
"""The stage that shows its progress itself: nothing else is shown beside it."""


@dataclass(eq=False)
class _Compile:
    """One compile, written by its thread and read by the one that draws."""

    name: str
    stream: Any
    started: float = field(default_factory=time.monotonic)
    stage: str = "capture"
    graph: int = 0
    count: Callable[[], str] | None = None

    def text(self, now: float) -> str:
        """The line."""
        graph = f", graph {self.graph}" if self.graph else ""
        count = self.count
        built = "" if count is None else f", {count()}"
        return f"compiling {self.name}: {self.stage}{graph}{built}, {int(now - self.started)} s"


class _Current(threading.local):
    """The compile of this thread: the package's dynamically scoped value, restored on each exit."""

    compile: _Compile | None = None
    forking: tuple[Any, ...] = ()
    """The locks that this thread holds while it forks."""


class _Screen(Protocol):
    """Where lines are drawn."""

    stream: Any

    def draw(self, lines: list[str]) -> None: ...

    def clear(self) -> None: ...


_CURRENT = _Current()
_LOCK = threading.RLock()
_CHANGED = threading.Condition(_LOCK)
_IMPORTING = threading.Lock()
_COMPILES: list[_Compile] = []


class _Shown:
    """The thread that draws and where, guarded by `_LOCK`."""

    thread: threading.Thread | None = None
    screen: _Screen | None = None


# ---------------------------------------------------------------- what compiles say


def watcher(name: str, environment: Environment) -> Callable[[], AbstractContextManager[None]]:
    """What each compile of a callable runs in, so that it is shown."""

    def watched() -> AbstractContextManager[None]:
        if not environment.progress or _CURRENT.compile is not None:
            return nullcontext()
        stream = _stream()
        if not _is_terminal(stream) and not _is_notebook(stream):
            return nullcontext()
        return _watching(_Compile(name, stream))

    return watched


@contextmanager
def _watching(compile: _Compile) -> Iterator[None]:
    _CURRENT.compile = compile
    try:
        with _LOCK:
            _COMPILES.append(compile)
            if _Shown.thread is None or not _Shown.thread.is_alive():
                _Shown.thread = threading.Thread(
                    target=_draw, name="flambeau-progress", daemon=True
                )
                with suppress(RuntimeError):  # the interpreter exits, or there are too many threads
                    _Shown.thread.start()
            _CHANGED.notify_all()
        yield
    finally:
        _CURRENT.compile = None
        with _LOCK:
            if compile in _COMPILES:  # no longer, in the child of a fork
                _COMPILES.remove(compile)
            if not _due(time.monotonic()):
                _clear()
            _CHANGED.notify_all()


@contextmanager
def stage(name: str, count: Callable[[], str] | None = None) -> Iterator[None]:
    """This thread's compile is in a stage, of which `count` says how much is done."""
    compile = _CURRENT.compile
    if compile is None:
        yield
        return
    before = compile.stage, compile.count
    compile.stage, compile.count = name, count
    try:
        if name == HIDDEN:
            with _LOCK:
                _clear()
        yield
    finally:
        compile.stage, compile.count = before


def note_graph(number: int) -> None:
    """This thread compiles the callable's graph of this number, counted from 1."""
    if _CURRENT.compile is not None:
        _CURRENT.compile.graph = number


def building(program: Program, use: CacheUse) -> AbstractContextManager[None]:
    """The stage that builds a Program's kernels: each is found in the cache or stored there."""
    if _CURRENT.compile is None:
        return nullcontext()
    used = {kernel.source for kernel in program.kernels}
    total = len({program.sources[index] for index in used})
    before = use.hits + use.stored

    def count() -> str:
        return f"{min(use.hits + use.stored - before, total)} of {total} kernel sources"

    return stage("build", count if total else None)


# ---------------------------------------------------------------- drawing


def _due(now: float) -> list[_Compile]:
    if any(compile.stage == HIDDEN for compile in _COMPILES):
        return []
    return [compile for compile in _COMPILES if now - compile.started >= DELAY]


def _draw() -> None:
    """Draw until no compile is left."""
    try:
        while True:
            with _LOCK:
                if _Shown.thread is not threading.current_thread() or not _COMPILES:
                    return
                now = time.monotonic()
                due = _due(now)
                ready = not due or _is_notebook(due[0].stream) or "rich.live" in sys.modules
                if ready:
                    if due:
                        _show(due, now)
                    oldest = min(compile.started for compile in _COMPILES)
                    _CHANGED.wait(INTERVAL if due else max(INTERVAL, oldest + DELAY - now))
                    continue
            with _IMPORTING:  # without the lock, which ending compiles take
                import rich.console
                import rich.live
                import rich.text  # noqa: F401
    except Exception:  # no rich, or a closed stream: no progress, and no trace of it
        _clear()


def _show(due: list[_Compile], now: float) -> None:
    stream = due[0].stream
    if _Shown.screen is not None and _Shown.screen.stream is not stream:
        _clear()
    if _Shown.screen is None:
        if sys.stderr is not stream:  # somebody else has taken it meanwhile
            return
        _Shown.screen = _NotebookLine(stream) if _is_notebook(stream) else _TerminalLines(stream)
    lines = [compile.text(now) for compile in due if compile.stream is stream]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES - 1 :] = [f"and {len(lines) - MOST_LINES + 1} more"]
    _Shown.screen.draw(lines)


def _clear() -> None:
    """Take what is drawn off the screen."""
    with _LOCK:
        screen, _Shown.screen = _Shown.screen, None
        if screen is not None:
            with suppress(Exception):  # nothing more can be drawn on a closed stream
                screen.clear()


@atexit.register
def _at_exit() -> None:
    """Threads that still compile are not shown any longer."""
    with _LOCK:
        _COMPILES.clear()
        _clear()


class _TerminalLines:
    """Lines at the bottom of a terminal; what others write while they stand goes above them."""

    def __init__(self, stream: Any) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self.stream = stream
        self._text = Text
        # The line that a progress bar of the program left open, which is drawn again.
        stream.write("\r\x1b[2K")
        # rich writes to one stream only, so stdout is redirected just if it is a terminal, too.
        self._live = Live(
            console=Console(file=stream, force_jupyter=False),
            auto_refresh=False,
            transient=True,
            redirect_stdout=_is_terminal(sys.stdout),
        )
        self._live.start()

    def draw(self, lines: list[str]) -> None:
        """Draw these lines in the place of those before."""
        text = self._text("\n".join(lines), style="dim", no_wrap=True, overflow="ellipsis")
        self._live.update(text, refresh=True)

    def clear(self) -> None:
        """Erase the lines, and give the streams back."""
        self._live.stop()


class _NotebookLine:
    """One line in the output of a notebook's cell, by the only control that all notebooks know."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._width = 0

    def draw(self, lines: list[str]) -> None:
        """Draw the lines as one."""
        text = "; ".join(lines)
        self.stream.write(f"\r{text.ljust(self._width)}")
        self.stream.flush()
        self._width = len(text)

    def clear(self) -> None:
        """Overwrite the line by spaces."""
        self.stream.write(f"\r{' ' * self._width}\r")
        self.stream.flush()


def _stream() -> Any:
    """The stream to draw on: below our own redirection; None where the program draws by rich."""
    stream, screen = sys.stderr, _Shown.screen
    proxied = getattr(stream, "rich_proxied_file", None)
    if proxied is None:
        return stream
    return proxied if screen is not None and proxied is screen.stream else None


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # None, or closed
        return False


def _is_notebook(stream: Any) -> bool:
    return type(stream).__module__.startswith("ipykernel.")


# ---------------------------------------------------------------- forks


def _before_fork() -> None:
    """Have a clear screen, and nobody draw or import."""
    _CURRENT.forking = tuple(lock for lock in (_IMPORTING, _LOCK) if lock.acquire(timeout=5))
    _clear()


def _after_fork() -> None:
    for lock in reversed(_CURRENT.forking):
        lock.release()
    _CURRENT.forking = ()


def _in_child() -> None:
    global _LOCK, _CHANGED, _IMPORTING
    _LOCK, _IMPORTING = threading.RLock(), threading.Lock()
    _CHANGED = threading.Condition(_LOCK)
    _COMPILES.clear()
    _CURRENT.compile = None
    _Shown.thread = _Shown.screen = None
    _CURRENT.forking = ()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
