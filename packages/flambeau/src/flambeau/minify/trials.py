"""Trials: a script is run in a separate process, and the way it fails gets a name.

"" it does not fail; "wrong"; "raises TypeError"; "ends by SIGSEGV"; "takes too long"
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING

from flambeau.environment import environment_of_child
from flambeau.minify import trial_server
from flambeau.minify.check import FAILS, MARK

if TYPE_CHECKING:
    from pathlib import Path

    from flambeau.minify.script import Script

_MAIN = """

if __name__ == "__main__":
    from flambeau.minify.check import check

    check({name}(), example_inputs, backend={backend!r}, tolerance={tolerance!r})
"""
_DROPPED = (
    "FLAMBEAU_DISABLE", "FLAMBEAU_DEBUG_DIR", "TORCH_COMPILE_DEBUG", "TORCH_COMPILE_DISABLE",
    "FLAMBEAU_LOGS", "TORCH_LOGS",
)  # fmt: skip
"""Variables that would change what a trial does, or fill disks."""


class Trials:
    """Runs scripts; a context manager, because a process serves it."""

    def __init__(self, folder: Path, backend: str, tolerance: float, seconds: float) -> None:
        self.folder = folder
        self.backend = backend
        self.tolerance = tolerance
        self.seconds = seconds
        self.count = 0
        self._known: dict[str, str] = {}

    def __enter__(self) -> Trials:
        variables = environment_of_child(_DROPPED, FLAMBEAU_CHECK="1", FLAMBEAU_PROGRESS="0")
        self._server, self._requests, self._answers = trial_server.start(variables)
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self._requests.close()
        self._answers.close()
        os.waitpid(self._server, 0)

    def text(self, script: Script) -> str:
        """The script with what it does when it is run."""
        main = _MAIN.format(name="CapturedGraph", backend=self.backend, tolerance=self.tolerance)
        return f"{script}{main}"

    def failure(self, script: Script) -> str:
        """How a script fails, "" if it does not."""
        text = self.text(script)
        if text not in self._known:
            self._known[text] = self._run(text)[0]
        return self._known[text]

    def output(self, script: Script, main: str) -> str:
        """What a script prints that ends with other statements; "" if it fails."""
        name, log = self._run(f"{script}{main}")
        return "" if name else log

    def _run(self, text: str) -> tuple[str, str]:
        self.count += 1
        path, log = self.folder / f"trial_{self.count}.py", self.folder / "trial.log"
        path.write_text(text)
        request = {"script": str(path), "log": str(log), "seconds": self.seconds}
        answer = ""
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(f"{json.dumps(request)}\n")
            self._requests.flush()
            answer = self._answers.readline()
        if not answer:
            raise RuntimeError("the process that runs trials has ended")
        status = json.loads(answer)["status"]
        printed = log.read_text(errors="replace")
        path.unlink()
        return _name(status, printed), printed


def _name(status: int | None, printed: str) -> str:
    if status is None:
        return "takes too long"
    if status < 0:
        return f"ends by {signal.Signals(-status).name}"
    if status == FAILS:
        lines = [line for line in printed.splitlines() if line.startswith(MARK)]
        return lines[-1].removeprefix(MARK) if lines else "raises an exception"
    return ""
