"""Processes of a test, forked from one that has imported torch and the stages: ranks of a process
group, programs that share a cache or have a terminal.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_STAGES = ["flambeau.backends", "flambeau_capture.capture_stage", "flambeau_inductor.compile"]


def run_ranks(check: Callable[..., None], arguments: tuple[Any, ...], count: int) -> None:
    """Call `check(rank, *arguments)` in `count` processes; raise what one of them raises. They are
    forked from one that has imported torch and the stages, and has run nothing.
    """
    multiprocessing.set_forkserver_preload(_STAGES)
    context = torch.multiprocessing.start_processes(
        _run_rank,
        (check, dict(os.environ), arguments),
        nprocs=count,
        join=False,
        start_method="forkserver",
    )
    assert context is not None
    ended = False
    while not ended:
        ended = context.join()
    assert [process.exitcode for process in context.processes] == [0] * count


def start_program(
    text: str, terminal: str, variables: dict[str, str]
) -> multiprocessing.process.BaseProcess:
    """A started process, forked as the ranks are, that runs a text as `__main__`; its stderr is
    this terminal.
    """
    return _started(_run_program, text, os.devnull, terminal, variables)


def run_module(words: Sequence[str], output: Path, variables: dict[str, str]) -> int:
    """`python -m WORDS` in a process that is forked as the ranks are, and begins with nothing
    compiled; its exit status. What it prints is in the file `output`.
    """
    process = _started(_run_module, tuple(words), os.fspath(output), variables)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _started(call: Callable[..., None], *arguments: Any) -> multiprocessing.process.BaseProcess:
    multiprocessing.set_forkserver_preload(_STAGES)
    process = multiprocessing.get_context("forkserver").Process(target=call, args=arguments)
    process.start()
    return process


def _run_program(text: str, output: str, errors: str, variables: dict[str, str]) -> None:
    _begin(output, errors, variables)
    exec(compile(text, "<string>", "exec"), vars(sys.modules["__main__"]))


def _run_module(words: tuple[str, ...], output: str, variables: dict[str, str]) -> None:
    _begin(output, output, variables)
    sys.argv = list(words)
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _begin(output: str, errors: str, variables: dict[str, str]) -> None:
    """Take files for the standard streams, and these variables."""
    os.environ.clear()
    os.environ.update(variables)
    for stream, path in enumerate((os.devnull, output, errors)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOCTTY, 0o600), stream)


def _run_rank(
    rank: int, check: Callable[..., None], environment: dict[str, str], arguments: tuple[Any, ...]
) -> None:
    """One process, with the variables of the test's process, not of the one that is forked."""
    os.environ.clear()
    os.environ.update(environment)
    check(rank, *arguments)


def leave_groups() -> None:
    """Destroy the process groups, as the last thing that a rank does with them.

    Their objects are never freed: the destructor of one of gloo's waits, with the interpreter's
    lock, for threads that may need that lock to drop what a backward has handed them. When the
    interpreter exits, such a thread ends the process (SIGABRT) instead.
    """
    for group in torch.distributed.distributed_c10d._world.pg_map:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    torch.distributed.destroy_process_group()
