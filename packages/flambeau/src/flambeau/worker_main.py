"""The process that compiles graphs for another one: it fills the cache, and says what it stored.

    stdin:  8 bytes of length, a message (`graph_messages`)
    stdout: 8 bytes of length, {"stored": "written", "key": ..., "seconds": ...}

It ends with its input, at once: with the process that it works for.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from flambeau.worker_frames import read_frame, write_frame

if TYPE_CHECKING:
    from collections.abc import Callable

NICENESS = 5


def main() -> None:
    """Serve until the input ends."""
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the process it works for
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(source, messages.put), daemon=True).start()
    from flambeau.worker_compile import compile_message  # while the reader is watching

    while True:
        data = messages.get()
        started = time.perf_counter()
        try:
            reply = compile_message(data)
        except Exception as error:
            reply = {"stored": f"{type(error).__name__}: {error}"}
        write_frame(sink, {**reply, "seconds": time.perf_counter() - started})


def _receive(source: int, put: Callable[[dict[str, Any]], None]) -> None:
    while (data := read_frame(source)) is not None:
        put(data)
    os.killpg(0, signal.SIGKILL)  # compilers of C++, too
