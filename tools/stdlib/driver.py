"""Forks a process for each file and mode, and another one behind each test that takes too long or
ends its process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.stdlib import cases
from tools.stdlib.cases import PLAIN, Row

Key = tuple[str, str, str]
"""(file, mode, test)."""


@dataclass
class _Job:
    """Tests of one file in one mode; `names` None: all that there are."""

    file: str
    mode: str
    names: list[str] | None
    alone: bool = False
    """Whether these run once more, each in a process of its own: no other test is to blame for what
    comes of them.
    """


@dataclass
class _Process:
    job: _Job
    id: int
    path: Path
    offset: int = 0
    running: str | None = None
    since: float = field(default_factory=time.monotonic)
    done: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)


def run_all(
    files: list[str],
    modes: tuple[str, ...],
    known: dict[Key, Row],
    *,
    jobs: int,
    limit: float,
    only: tuple[str, ...] = ("",),
) -> Iterator[tuple[Key, Row]]:
    """What became of each test that is not in `known`; a compiled one is run only if it passes
    plainly.

    only: how the names of the tests to run begin.  limit: seconds that a test may take.
    """
    queue = [_Job(file, PLAIN, None) for file in files]
    running: list[_Process] = []
    with tempfile.TemporaryDirectory() as directory:
        while queue or running:
            while queue and len(running) < jobs:
                job = queue.pop(0)
                if job.names is not None:
                    job.names = [
                        n for n in job.names if job.alone or (job.file, job.mode, n) not in known
                    ]
                    if not job.names:
                        continue
                elif (job.file, PLAIN, "") in known:  # plain is done
                    queue[:0] = _compiled(job.file, modes, known, only)
                    continue
                running.append(_start(job, directory, only))
            time.sleep(0.02)
            for process in list(running):
                ended, status = os.waitpid(process.id, os.WNOHANG)
                for name, row in _news(process):
                    yield from _note(process, name, row, known, queue)
                late = not ended and time.monotonic() - process.since > limit
                if not ended and not late:
                    continue
                if late:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.id, signal.SIGKILL)
                    os.waitpid(process.id, 0)
                running.remove(process)
                if late or status:
                    cause = f"took more than {limit:g} s" if late else f"ended with status {status}"
                    row = {"status": "timeout" if late else "crash", "cause": cause}
                    yield from _note(process, process.running or "", row, known, queue)
                left = [name for name in process.names if name not in process.done]
                if left and process.running is not None:
                    queue.insert(
                        0, _Job(process.job.file, process.job.mode, left, process.job.alone)
                    )
                elif process.job.mode == PLAIN:
                    if (process.job.file, PLAIN, "") not in known:
                        done = {"status": "done"}
                        known[process.job.file, PLAIN, ""] = done
                        yield (process.job.file, PLAIN, ""), done
                    queue[:0] = _compiled(process.job.file, modes, known, only)


def _compiled(
    file: str, modes: tuple[str, ...], known: dict[Key, Row], only: tuple[str, ...]
) -> list[_Job]:
    """The jobs for the tests of a file that pass plainly."""
    passing = [
        name
        for (of, mode, name), row in known.items()
        if of == file
        and mode == PLAIN
        and row["status"] == "pass"
        and f"{file}.{name}".startswith(only)
    ]
    return [_Job(file, mode, passing) for mode in modes if mode != PLAIN and passing]


def _note(
    process: _Process, name: str, row: Row, known: dict[Key, Row], queue: list[_Job]
) -> Iterator[tuple[Key, Row]]:
    process.done.add(name)
    job = process.job
    suspicious = row["status"] in ("fail", "crash", "timeout") and job.mode != PLAIN
    if suspicious and not job.alone and name:
        queue.insert(0, _Job(job.file, job.mode, [name], alone=True))
        return
    key = (job.file, job.mode, name)
    known[key] = row
    yield key, row


def _start(job: _Job, directory: str, only: tuple[str, ...]) -> _Process:
    path = Path(tempfile.mkstemp(dir=directory)[1])
    scratch = tempfile.mkdtemp(dir=directory)
    process = os.fork()
    if process == 0:
        _child(job, path, scratch, only)
    return _Process(job, process, path)


def _child(job: _Job, path: Path, scratch: str, only: tuple[str, ...]) -> None:
    """Runs in the forked process, and never returns."""
    os.setpgid(0, 0)
    os.chdir(scratch)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def tell(name: str, row: Any) -> None:
        os.write(file, (json.dumps([name, row]) + "\n").encode(errors="replace"))

    try:
        cases.prepare()
        names = job.names
        if names is None:
            names = [n for n in cases.names_of(job.file) if f"{job.file}.{n}".startswith(only)]
        tell("", names)
        cases.run_file(job.file, job.mode, names, tell)
    except BaseException:
        cause = traceback.format_exc().strip().splitlines()[-1][:300]
        tell("<file>", {"status": "fail", "cause": cause})
    finally:  # a test may have closed the file or used up the stack: nothing may leave this frame
        os._exit(0)


def _news(process: _Process) -> Iterator[tuple[str, Row]]:
    """What a process has written since last asked: tests that ended."""
    text = process.path.read_bytes()[process.offset :]
    text = text[: text.rfind(b"\n") + 1]
    process.offset += len(text)
    for line in text.splitlines():
        name, row = json.loads(line)
        process.since = time.monotonic()
        if name == "":
            process.names = row
        elif row is None:
            process.running = name
        else:
            process.running = None
            yield name, row
