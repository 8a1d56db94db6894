"""What a long compile shows on a terminal and in a notebook, and that nothing of it stays."""

from __future__ import annotations

import os
import re
import select
import stat
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from tests.ranks import start_program

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pty = pytest.importorskip("pty")
pytest.importorskip("rich")

COLUMNS = 80

BEGINNING = """
import os, sys, threading, time, warnings
import torch, flambeau

def sleeping(seconds):
    def backend(gm, example_inputs):
        time.sleep(seconds)
        return gm.forward
    return backend

def f(x):
    return x + 1

x = torch.ones(3)
"""


def on_terminal(program: str, **environment: str) -> tuple[str, str, int]:
    """What a program writes to a terminal: all of it, what is left in the end, its exit status."""
    terminal, stderr = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", BEGINNING + textwrap.dedent(program)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), **environment},
    )
    os.close(stderr)
    text = _read(terminal)
    process.communicate(timeout=60)
    return text, screen(text), process.returncode


def on_terminal_forked(program: str, **environment: str) -> tuple[str, str, int]:
    """As `on_terminal`, in a process that is forked from one that has imported torch. It begins
    with no thread and nothing compiled; it does not end as an interpreter does.
    """
    terminal, stderr = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), **environment}
    text = BEGINNING + textwrap.dedent(program)
    process = start_program(text, os.ttyname(stderr), variables)
    os.set_blocking(terminal, False)
    # This process keeps the other end open until the program has ended: its first bytes find it.
    written = _read(terminal, process.is_alive)
    process.join(60)
    os.close(stderr)
    assert process.exitcode is not None
    return written, screen(written), process.exitcode


def _read(terminal: int, goes_on: Callable[[], bool] = lambda: True) -> str:
    """What is written to a terminal until its other end is closed, or nothing goes on."""
    written = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        alive = goes_on()
        if not select.select([terminal], [], [], 0.05)[0]:
            if not alive:
                break
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        written += piece
    os.close(terminal)
    return written.decode()


def screen(text: str) -> str:
    """The characters that a terminal shows after it has got a text."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif not part.startswith("\x1b"):
            line = lines[row].ljust(column)
            lines[row] = line[:column] + part + line[column + 1 :]
            column += 1
        elif part.endswith("A"):
            row = max(0, row - int(part[2:-1] or 1))
        elif part.endswith("K"):
            assert part == "\x1b[2K"
            lines[row] = ""
        else:
            assert part[-1] in "mhl", part
    return "\n".join(lines).strip()


def test_a_long_compile_is_shown_and_gone() -> None:
    written, left, status = on_terminal("flambeau.compile(f, backend=sleeping(3.5))(x)")
    assert status == 0
    shown = [int(seconds) for seconds in re.findall(r"f: backend, graph 1, (\d+) s", written)]
    assert shown == sorted(shown)
    assert len(set(shown)) > 1
    assert left == ""
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is shown again


def test_graphs_are_counted() -> None:
    program = """
    def h(x):
        y = x * 2
        open(os.devnull).close()
        return y + 1

    flambeau.compile(h, backend=sleeping(2.5))(x)
    """
    written, left, status = on_terminal_forked(program)
    assert status == 0
    assert "compiling h: backend, graph 1" in written
    assert re.search(r"graph 2, \d+ s", written)
    assert left == ""


def test_built_kernels_are_counted(tmp_path: Path) -> None:
    compiler = tmp_path / "slow-g++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *.cpp*) sleep 2;; esac\nexec g++ "$@"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    written, left, status = on_terminal_forked(
        "flambeau.compile(f)(x)", FLAMBEAU_CXX=str(compiler), FLAMBEAU_CACHE_DIR=str(tmp_path / "c")
    )
    assert status == 0
    assert re.search(r"compiling f: build, graph 1, 0 of 1 kernel sources, \d+ s", written)
    assert left == ""


def test_short_compiles_show_nothing_and_import_nothing() -> None:
    program = """
    import flambeau.progress

    flambeau.progress.DELAY = 60  # the first compile imports much
    flambeau.compile(f, backend=sleeping(0.3))(x)
    assert "rich" not in sys.modules
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(30)
            assert not thread.is_alive()
    """
    assert on_terminal(program) == ("", "", 0)


def test_progress_is_turned_off() -> None:
    program = "flambeau.compile(f, backend=sleeping(2.5))(x)"
    assert on_terminal_forked(program, FLAMBEAU_PROGRESS="0") == ("", "", 0)


def test_a_pipe_gets_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{BEGINNING}\nflambeau.compile(f, backend=sleeping(2.5))(x)"],
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == b""


def test_other_output_stays_whole() -> None:
    program = """
    def backend(gm, example_inputs):
        for number in range(4):
            time.sleep(0.6)
            sys.stderr.write(f"message {number}\\n")
        return gm.forward

    before = sys.stderr
    flambeau.compile(f, backend=backend)(x)
    assert sys.stderr is before
    """
    written, left, status = on_terminal_forked(program)
    assert status == 0
    assert "compiling f: backend" in written
    assert left.splitlines() == [f"message {number}" for number in range(4)]


@pytest.mark.parametrize("error", ["ValueError", "KeyboardInterrupt"])
def test_an_error_leaves_the_terminal_clean(error: str) -> None:
    program = f"""
    def backend(gm, example_inputs):
        time.sleep(2.5)
        raise {error}("stop")

    before = sys.stderr
    try:
        flambeau.compile(f, backend=backend)(x)
    except {error}:
        assert sys.stderr is before
        sys.stderr.write("caught\\n")
    """
    written, left, status = on_terminal_forked(program)
    assert status == 0
    assert "compiling f: backend" in written
    assert left == "caught"


def test_threads_are_shown_together() -> None:
    program = """
    def named(number):
        def g(x):
            return x + number
        g.__qualname__ = f"g{number}"
        return flambeau.compile(g, backend=sleeping(2.5 + 0.4 * number))

    compiled = [named(number) for number in range(4)]
    threads = [threading.Thread(target=each, args=(x,)) for each in compiled]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    """
    written, left, status = on_terminal_forked(program)
    assert status == 0
    assert all(f"compiling g{number}: backend" in written for number in range(4))
    assert left == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_while_progress_is_shown() -> None:
    program = """
    flambeau.compile(f, backend=sleeping(0))(x)  # a module that is being imported is no fork's

    def compile_and_call():
        flambeau.compile(f, backend=sleeping(2.5))(x)

    thread = threading.Thread(target=compile_and_call)
    thread.start()
    for _ in range(5):
        time.sleep(0.4)
        child = os.fork()
        if child == 0:
            assert type(sys.stderr).__module__ == "_io"
            flambeau.compile(f, backend=sleeping(0))(x)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    thread.join()
    """
    # From Python 3.12 on, a fork beside threads prints a DeprecationWarning.
    written, left, status = on_terminal_forked(program, PYTHONWARNINGS="ignore::DeprecationWarning")
    assert status == 0
    assert "compiling f: backend" in written
    assert left == ""


def test_a_program_that_draws_itself_is_left_alone() -> None:
    program = """
    from rich.console import Console
    from rich.live import Live

    with Live("mine", console=Console(stderr=True), transient=True):
        flambeau.compile(f, backend=sleeping(2.5))(x)
    """
    written, left, status = on_terminal_forked(program)
    assert status == 0
    assert "mine" in written
    assert "compiling" not in written
    assert left == ""


def test_a_notebook_shows_a_line() -> None:
    program = """
    class OutStream:
        def __init__(self):
            self.written = ""
        def isatty(self):
            return False
        def write(self, text):
            self.written += text
        def flush(self):
            pass

    OutStream.__module__ = "ipykernel.iostream"
    real, sys.stderr = sys.stderr, OutStream()
    flambeau.compile(f, backend=sleeping(2.5))(x)
    notebook, sys.stderr = sys.stderr, real
    assert "rich" not in sys.modules
    sys.stderr.write(notebook.written)
    """
    written, left, status = on_terminal_forked(program)
    assert status == 0
    assert re.search(r"compiling f: backend, graph 1, \d+ s", written)
    assert left == ""
