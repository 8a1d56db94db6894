"""One test file in a process of its own: its tests, found and run, plainly or each with its method
compiled.
"""

from __future__ import annotations

import importlib
import inspect
import os
import resource
import time
import traceback
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

# The stages are imported before the processes of test files are forked.
import flambeau.backends
import flambeau_capture.capture_stage  # noqa: F401
import flambeau_inductor.compile  # noqa: F401
from flambeau_capture import CaptureError, state_of
from tools.stdlib.files import module_of

PLAIN, DEFAULT, GRAPH = "plain", "default", "graph"
MODES = (PLAIN, DEFAULT, GRAPH)
"""Not compiled; compiled; compiled as one graph (`fullgraph=True`)."""
MEMORY = 8 << 30
"""Bytes of address space that a process may have: what asks for more gets a MemoryError."""

Row = dict[str, Any]
"""What became of a test: status ("pass", "skip", "fail", "break": a CaptureError), cause, seconds,
breaks (their reasons' ids).
"""


def names_of(file: str) -> list[str]:
    """The tests of a file, in the order in which unittest runs them, without the module:
    `ListTest.test_append`.

    Those made of documentation and those that are coroutines are left out: they have no method to
    compile.
    """
    module = importlib.import_module(module_of(file))
    loader = unittest.TestLoader()
    names = []
    for case in _flat(loader.loadTestsFromModule(module)):
        method = getattr(case, getattr(case, "_testMethodName", ""), None)
        known = getattr(module, type(case).__qualname__.partition(".")[0], None)
        if known is None or method is None or inspect.iscoroutinefunction(method):
            continue
        names.append(f"{type(case).__qualname__}.{case._testMethodName}")
    return list(dict.fromkeys(names))


def _flat(suite: Any) -> Iterator[Any]:
    if isinstance(suite, unittest.TestSuite):
        for item in suite:
            yield from _flat(item)
    else:
        yield suite


def prepare() -> None:
    """Settle the process: its memory, and what tests expect of their runner."""
    from test import support

    support.verbose = 0
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.pop("PYTHONPATH", None)  # children of tests are to import nothing of ours


def run_file(
    file: str, mode: str, names: list[str], tell: Callable[[str, Row | None], None]
) -> None:
    """Run these tests of a file; `tell` hears of each before it starts (None), and what became of
    it.
    """
    module = importlib.import_module(module_of(file))
    by_class: dict[str, list[str]] = {}
    for name in names:
        by_class.setdefault(name.rpartition(".")[0], []).append(name)
    with _fixture(module, "setUpModule", "tearDownModule"):
        for class_name, members in by_class.items():
            test_class: Any = module
            for part in class_name.split("."):
                test_class = getattr(test_class, part)
            with _fixture(test_class, "setUpClass", "tearDownClass"):
                for name in members:
                    tell(name, None)
                    tell(name, _run(test_class(name.rpartition(".")[2]), mode))


class _fixture:
    """What unittest does around a module's or class's tests."""

    def __init__(self, owner: Any, before: str, after: str) -> None:
        self.owner, self.before, self.after = owner, before, after

    def __enter__(self) -> None:
        getattr(self.owner, self.before, bool)()

    def __exit__(self, *error: object) -> None:
        getattr(self.owner, self.after, bool)()
        if isinstance(self.owner, type):
            self.owner.doClassCleanups()  # type: ignore[attr-defined]
        else:
            unittest.case.doModuleCleanups()


class _Outcome(unittest.TestResult):
    """The first thing that went wrong in one test."""

    def __init__(self) -> None:
        super().__init__()
        self.status, self.cause = "pass", ""

    def addError(self, test: Any, err: Any) -> None:
        self._note(err)

    def addFailure(self, test: Any, err: Any) -> None:
        self._note(err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._note(err)

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.status, self.cause = "fail", "unexpected success"

    def addSkip(self, test: Any, reason: str) -> None:
        if self.status == "pass":
            self.status = "skip"

    def _note(self, err: Any) -> None:
        if self.status not in ("pass", "skip"):
            return
        if isinstance(err[1], CaptureError):
            self.status = "break"
            self.cause = f"{err[1].reason.id}: {err[1].reason.cause} ({err[1].reason.where})"
            return
        self.status = "fail"
        text = " ".join("".join(traceback.format_exception_only(err[0], err[1])).split())
        lines = [
            f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
            for frame in traceback.extract_tb(err[2])
            if "/unittest/" not in frame.filename
        ]
        self.cause = f"{text[:400]} ({' < '.join(reversed(lines[-6:]))})"


def _run(case: unittest.TestCase, mode: str) -> Row:
    result = _Outcome()
    compiled = None
    if mode != PLAIN:
        compiled = _compile_method(case, fullgraph=mode == GRAPH)
    started = time.perf_counter()
    case.run(result)
    row: Row = {"status": result.status, "cause": result.cause}
    row["seconds"] = round(time.perf_counter() - started, 2)
    if mode == DEFAULT and compiled is not None:
        breaks = [e.reason for e in state_of(compiled).events if e.kind in ("break", "limit")]
        row["breaks"] = list(dict.fromkeys(reason.id for reason in breaks if reason))
    return row


def _compile_method(case: Any, *, fullgraph: bool) -> Any:
    """Have a test run its method compiled; what it is compiled to, or None where its method is no
    function.
    """
    name = case._testMethodName
    method = getattr(case, name)
    function = getattr(method, "__func__", None)
    if not isinstance(function, types.FunctionType):
        return None
    compiled = flambeau.compile(function, backend="eager", fullgraph=fullgraph)
    bound = types.MethodType(compiled, case)
    setattr(case, name, bound)
    return compiled
