"""Workers and their queue: hands operators out, collects rows, survives crashes and hangs."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
START_LIMIT = 300.0
"""Seconds that a worker may take to import torch and its operator tests."""
RECYCLE = 150
"""After how many operators and variants a worker is replaced: compiled programs stay in its memory.
"""

Unit = tuple[str, str]
"""Operator and variant."""


@dataclass(frozen=True)
class Settings:
    """How cases run.  limit: seconds for one of them; seconds: for all (None: no bound)."""

    device: str = "cpu"
    backend: str = "inductor"
    samples: int = 2
    seed: int = 0
    jobs: int = 2
    limit: float = 60.0
    seconds: float | None = None


@dataclass
class Worker:
    """One process of `tools.sweep.ops.worker`."""

    settings: Settings
    process: subprocess.Popen[bytes] | None = None
    served: int = 0
    pending: bytes = b""

    def start(self) -> None:
        """Start the process, and wait until it has imported what it needs; raises RuntimeError if
        it does not.
        """
        settings = self.settings
        environment = dict(os.environ)
        environment.setdefault("FLAMBEAU_CHECK", "1")
        environment["OMP_NUM_THREADS"] = "1"
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "tools.sweep.ops.worker", settings.device, settings.backend,
                str(settings.samples), str(settings.seed),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment,
        )  # fmt: skip
        self.served, self.pending = 0, b""
        ready = self.read(START_LIMIT)
        if ready is None or "ready" not in ready:
            self.stop()
            raise RuntimeError(
                "a worker did not start: run `python -m tools.sweep.ops.worker cpu inductor 1 0`"
            )

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdin is not None and self.process.stdout is not None
            self.process.stdin.close()
            self.process.stdout.close()
        self.process = None

    def send(self, message: dict[str, Any]) -> None:
        """Ask for the cases of one operator and variant."""
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def read(self, seconds: float) -> dict[str, Any] | None:
        """The next reply; None when none comes in time, {} when the process has ended."""
        assert self.process is not None and self.process.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                data = os.read(self.process.stdout.fileno(), 1 << 16)
                if not data:
                    return {}
                self.pending += data
        line, _, self.pending = self.pending.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def drive(
    units: list[Unit],
    done: set[tuple[str, str, str]],
    settings: Settings,
    take: Callable[[dict[str, Any]], None],
) -> None:
    """Run the units on `jobs` workers; `take` gets each row, in one thread at a time. Raises what
    kept a worker from working.
    """
    queue = list(reversed(units))
    lock = threading.Lock()
    ends = None if settings.seconds is None else time.monotonic() + settings.seconds

    def give(row: dict[str, Any]) -> None:
        with lock:
            take(row)

    failures: list[Exception] = []

    def loop() -> None:
        worker = Worker(settings)
        try:
            serve_all(worker)
        except Exception as error:
            failures.append(error)
        finally:
            worker.stop()

    def serve_all(worker: Worker) -> None:
        while ends is None or time.monotonic() < ends:
            with lock:
                unit = queue.pop() if queue else None
            if unit is None:
                return
            skip = [case for op, variant, case in done if (op, variant) == unit]
            _serve(worker, unit, skip, ends, give)

    threads = [threading.Thread(target=loop) for _ in range(max(1, settings.jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _serve(
    worker: Worker,
    unit: Unit,
    skip: list[str],
    ends: float | None,
    give: Callable[[dict[str, Any]], None],
) -> None:
    """Have a worker run a unit; after a crash or a hang, the rest of it in a new one."""
    key = {"op": unit[0], "variant": unit[1]}
    skip = list(skip)
    while True:
        if worker.process is None or worker.served >= RECYCLE:
            worker.stop()
            worker.start()
        worker.served += 1
        worker.send({**key, "skip": skip})
        case = ""
        while True:
            reply = worker.read(worker.settings.limit)
            if reply is None or not reply:
                text = "takes too long" if reply is None else "the process crashed"
                worker.stop()
                give({**key, "case": case, "status": "crash", "differences": [text]})
                skip.append(case)
                break
            if "end" in reply:
                give({**key, "case": "", "status": "end", **reply})
                return
            if "begin" in reply:
                case = reply["begin"]
            else:
                give({**key, **reply})
                skip.append(reply["case"])
            if ends is not None and time.monotonic() > ends:
                worker.stop()
                return
        if case == "":
            return  # its samples themselves do that
