"""The process that compiles graphs in the background, from the side of the process that it serves.

    captured graph -> message -> worker process -> cache -> the backend, which finds it there

A Python thread that compiles takes the interpreter's lock from eager calls; a process does not. It
is started for the first graph, with a low priority, and ended when the worker thread has had
nothing to do for a while (`flambeau_capture.background`), or with this process. It gets graphs and
gives nothing back but the cache's files, which are read as always. A graph that it cannot compile
is compiled in the worker thread; the report says why.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from flambeau import graph_keys, stored_graphs
from flambeau.environment import environment_of_child
from flambeau.graph_messages import encode_message
from flambeau.not_stored import NotStored
from flambeau.worker_frames import read_frame, write_frame
from flambeau_capture import background

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from flambeau.compile_context import Compiled, Context

MOST_DEATHS = 3
"""After so many ends of the process in the middle of a graph, none is started any more."""
_START = "from flambeau.worker_main import main; main()"


class WorkerDied(Exception):
    """The process ended, or cannot be started."""


class WorkerProcess:
    """The process, if it runs. One thread asks it; others may end it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths = 0

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """The reply to a message; WorkerDied without one."""
        if self._deaths >= MOST_DEATHS:
            raise WorkerDied(f"the worker process ended {MOST_DEATHS} times")
        try:
            process = self._process = self._process or _started()
        except OSError as error:
            raise WorkerDied(f"no worker process can be started: {error}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_frame(process.stdin.fileno(), message)
            reply = read_frame(process.stdout.fileno())
        except (OSError, ValueError):
            reply = None
        if reply is None:
            self.end()
            job = background.current_job()
            if job is None or not job.cancelled:
                self._deaths += 1
            raise WorkerDied("the worker process ended while it compiled the graph")
        return reply

    def interrupt(self) -> None:
        """Kill the process: whoever waits for it reads its end."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End the process, and all that it started."""
        self.interrupt()
        process, self._process = self._process, None
        if process is not None:
            _close_pipes(process)
            process.wait()

    def forget(self) -> None:
        """In a forked child: the process is the parent's, and ends with the parent alone."""
        process, self._process = self._process, None
        if process is not None:
            _close_pipes(process)
            process.returncode = 0  # its destructor has nothing to wait for


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _started() -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise OSError("Python's executable is not known")
    environment = environment_of_child(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env=environment,
        process_group=0,
    )


_WORKER = WorkerProcess()
background.when_idle(_WORKER.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WORKER.forget)


def in_worker_process(
    context: Context, backend: Callable[..., Compiled]
) -> Callable[..., Compiled]:
    """A backend whose graphs, in the background, are compiled by the worker process first."""

    def compile_in_background(gm: fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        job = background.current_job()
        if job is None:
            return backend(gm, example_inputs)
        refused = _refused(gm, example_inputs, context, job)
        before = len(context.report.graphs)
        compiled = backend(gm, example_inputs)
        for graph in context.report.graphs[before:]:
            if graph.gm is gm:
                graph.background = f"in a thread: {refused}" if refused else "in a worker process"
        return compiled

    return compile_in_background


def _refused(gm: fx.GraphModule, examples: list[Any], context: Context, job: background.Job) -> str:
    """Have the worker process compile a graph; "", or why it did not."""
    if not context.options.runtime.use_cache:
        return "the cache is not read"
    try:
        key = graph_keys.key_of_graph(gm, examples, context)
        if stored_graphs.is_stored(key, context):
            return ""
        message = encode_message(gm, examples, context, key)
    except (NotStored, TypeError) as error:
        return str(error)
    try:
        with job.interrupted_by(_WORKER.interrupt):
            reply = _WORKER.ask(message)
    except WorkerDied as error:
        job.check()
        return str(error)
    return "" if reply["stored"] == "written" else str(reply["stored"])
