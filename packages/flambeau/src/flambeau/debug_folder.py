"""What `FLAMBEAU_DEBUG_DIR` and `TORCH_COMPILE_DEBUG=1` ask for: a folder for each compiled
callable, with each stage of each of its graphs.

    DIR/run_2026_11_23_12_50_07-pid_42/
        model/                                one compiled callable
            debug.log                         captures, breaks, recompiles and fallbacks, in order
            guards_0.txt                      the guards of its first entry
            graph_0/
                fx_graph_readable.py          the captured graph, with shapes and the user's lines
                fx_graph_runnable.py          the same as a script: eager beside compiled
                timings.txt                   seconds of each stage
                forward/
                    fx_graph_transformed.txt  the functional graph of primitives
                    ir_pre_fusion.txt         its loop nests
                    ir_post_fusion.txt        its kernels, and refused fusions, as without measuring
                    output_code.py            the compiled program, runnable alone
                    program.txt, program.json the same for people, and as data

What cannot be written is a warning, never an error of the program.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from flambeau.runnable_graph import runnable_graph
from flambeau_capture.guards.kinds import guard_text
from flambeau_prims.fork_safety import fork_safe_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    import torch

    from flambeau.environment import Environment
    from flambeau_capture.events import Event
    from flambeau_inductor import InductorOptions
    from flambeau_prims.graph import Graph
    from flambeau_runtime.program import Program

_LOCK = fork_safe_lock()
_RUNS: dict[tuple[Path, int], Path] = {}


def debug_folder_of(name: str, environment: Environment) -> DebugFolder | None:
    """The folder of a compiled callable, if the environment asks for one."""
    root = environment.debug_dir
    return None if root is None else DebugFolder(root, name)


class DebugFolder:
    """The folder of one compiled callable, made when something is written."""

    def __init__(self, root: Path, name: str) -> None:
        self._root = root
        self._name = _file_name(name)
        self._path: Path | None = None
        self._entries = 0

    @property
    def path(self) -> Path:
        """Where the callable's files are; OSError if there can be none."""
        with _LOCK:
            if self._path is None:
                self._path = _made(_run_folder(self._root), self._name)
            return self._path

    def note(self, event: Event) -> None:
        """Add an event to the log; write the guards of a new entry."""
        took = f" ({event.seconds:.3f} s)" if event.seconds else ""
        self.append("debug.log", f"{event.kind}: {event.text.rstrip()}{took}\n")
        if event.entry is not None:
            with _LOCK:
                number, self._entries = self._entries, self._entries + 1
            entry = event.entry
            self.write(f"guards_{number}.txt", lambda: "\n".join(map(_guard_line, entry.guards)))

    def append(self, name: str, text: str) -> None:
        """Add text to a file."""
        with _warning(), (self.path / name).open("a") as file:
            file.write(text)

    def write(self, name: str, text: Callable[[], str]) -> None:
        """Write a file of the callable."""
        with _warning():
            _write(self.path / name, text)

    def start_graph(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> GraphFolder:
        """Write a captured graph; what becomes of it goes to its folder."""
        folder = GraphFolder(self)
        folder.write("fx_graph_readable.py", lambda: gm.print_readable(print_output=False))
        folder.write("fx_graph_runnable.py", lambda: runnable_graph(self._name, gm, example_inputs))
        return folder


class GraphFolder:
    """The folder of one captured graph."""

    def __init__(self, callable_folder: DebugFolder) -> None:
        self._path: Path | None = None
        with _warning():
            self._path = _made(callable_folder.path, "graph", first=0)

    def write(self, name: str, text: Callable[[], str]) -> None:
        """Write a file of the graph."""
        with _warning():
            if self._path is not None:
                _write(self._path / name, text)

    def lowered(self, graph: Graph, program: Program, options: InductorOptions) -> None:
        """Write what became of a functional graph: loop IR, kernels, Program."""
        # Not for those who ask for no folder: stages are imported when they are needed.
        from flambeau_inductor import explain_graph
        from flambeau_runtime import format_program, output_code, program_json

        with _warning():
            if self._path is None:
                return
            folder = _made(self._path, graph.name)
            _write(folder / "fx_graph_transformed.txt", lambda: str(graph))
            _write(folder / "output_code.py", lambda: output_code(program))
            _write(folder / "program.txt", lambda: format_program(program))
            _write(folder / "program.json", lambda: program_json.dumps(program))
            explanation = explain_graph(graph, options)
            _write(folder / "ir_pre_fusion.txt", lambda: explanation.nests)
            _write(folder / "ir_post_fusion.txt", lambda: str(explanation))

    def finish(self, seconds: Mapping[str, float], eager: str) -> None:
        """Write how long each stage took, and why the graph runs eagerly, if it does."""
        lines = [f"{stage}: {took:.4f} s" for stage, took in seconds.items()]
        if eager:
            lines.append(f"runs eagerly: {eager}")
        self.write("timings.txt", lambda: "\n".join(lines))


def _run_folder(root: Path) -> Path:
    """The folder of this process."""
    key = (root, os.getpid())
    if key not in _RUNS:
        started = time.strftime("%Y_%m_%d_%H_%M_%S")
        _RUNS[key] = root / f"run_{started}-pid_{os.getpid()}"
    return _RUNS[key]


def _made(parent: Path, name: str, first: int | None = None) -> Path:
    """A new folder: `name`, `name_1`, ...; or with the first number already."""
    parent.mkdir(parents=True, exist_ok=True)
    number = first or 0
    while True:
        path = parent / (name if number == 0 and first is None else f"{name}_{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _write(path: Path, text: Callable[[], str]) -> None:
    path.write_text(f"{text().rstrip()}\n")


def _file_name(name: str) -> str:
    """A callable's name as that of a folder: `f.<locals>.g` -> `f.locals.g`."""
    kept = "".join(c if c.isalnum() or c in "._-" else "_" for c in name if c not in "<>")
    return kept.strip(".")[:80] or "callable"


def _guard_line(guard: Any) -> str:
    return f"{guard_text(guard)}{f'  # {guard.where}' if guard.where else ''}"


class _warning:
    """What fails inside is a warning."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        warnings.warn(
            f"FLAMBEAU_DEBUG_DIR: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=3
        )
        return True
