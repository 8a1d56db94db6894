"""A process that has imported everything, and forks one for each trial:

    {"script": "t.py", "log": "t.log", "seconds": 60}   ->   {"status": 0}

A line of input is a trial, a line of output its exit status: that of the process, minus the number
of a signal that ended it, or null if its time was over. What it prints is in the log. The process
is forked from the command, which has imported torch and has run nothing: no thread, no GPU.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import IO

from flambeau.environment import set_environment

WAIT = 0.01


def start(variables: dict[str, str]) -> tuple[int, IO[str], IO[str]]:
    """Fork the process, with these variables of the environment; its number, its input and its
    output.
    """
    (source, requests), (answers, sink) = os.pipe(), os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        try:
            os.close(requests)
            os.close(answers)
            set_environment(variables)
            with open(source) as lines, open(sink, "w") as replies:
                _serve(lines, replies)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(source)
    os.close(sink)
    return process, open(requests, "w"), open(answers)


def _serve(lines: IO[str], replies: IO[str]) -> None:
    """Answer trials until the input ends."""
    # Imported before the forks, once for all trials.
    import flambeau.backends  # noqa: F401
    import flambeau_capture.capture_stage  # noqa: F401
    import flambeau_inductor.compile  # noqa: F401

    for line in lines:
        request = json.loads(line)
        status = _trial(request["script"], request["log"], request["seconds"])
        print(json.dumps({"status": status}), file=replies, flush=True)


def _trial(script: str, log: str, seconds: float) -> int | None:
    process = os.fork()
    if process == 0:
        _run(script, log)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(WAIT)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def _run(script: str, log: str) -> None:
    """The forked process; it does not return."""
    status = 1
    try:
        os.setsid()
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for stream in (1, 2):
            os.dup2(file, stream)
        sys.path.insert(0, str(Path(script).parent))
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
