"""What becomes of one operator: its samples are captured and lowered to Programs, and the steps of
these are counted. No kernel is built: graphs run operator by operator.
"""

from __future__ import annotations

import os
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

import flambeau
from flambeau import program_compiler
from flambeau.report import report_of
from flambeau_capture import state_of
from flambeau_prims.evaluate import run_graph
from flambeau_runtime.program import Extern, Launch
from tools.sweep.ops.variants import cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_prims.graph import Graph
    from tools.sweep.ops.variants import Case

CLASSES = ("kernels", "views", "mixed", "extern", "breaks", "no graph", "falls back")
"""In this order; an operator is in the last one that fits any of its samples. Calls that return
what they are given have no graph, and count as views; "no graph": no sample could be run.
"""


@dataclass(frozen=True)
class Outcome:
    """What became of an operator's float32 samples: forward, without gradients.

    calls: the ATen operators that Programs call; backward: those that the Programs of gradients
    call besides; reasons: ids of breaks and fallbacks, or what kept the samples from running;
    specialises: operators that made symbolic sizes concrete.
    """

    name: str
    dynamic: bool
    kind: str
    calls: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    specialises: tuple[str, ...] = ()


@dataclass
class _Seen:
    launches: int = 0

    def __post_init__(self) -> None:
        self.calls: set[str] = set()
        self.breaks: set[str] = set()
        self.fallbacks: set[str] = set()
        self.specialises: set[str] = set()


def names() -> list[str]:
    """The operators of `op_db` that take float32."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op.full_name for op in op_db if torch.float32 in op.supported_dtypes("cpu")]


def count(name: str, dynamic: bool, samples: int) -> Outcome:
    """What becomes of this operator, over so many of its samples (0: all)."""
    from torch.testing._internal.common_methods_invocations import op_db

    op = next(op for op in op_db if op.full_name == name)
    try:
        forward = [case for case in cases(op, "no_grad", "cpu", samples) if not _raises(case)]
    except Exception as error:  # torch's own samples cannot be made here
        return Outcome(name, dynamic, "no graph", reasons=(f"{type(error).__name__}: {error}",))
    seen = _Seen()
    for case in forward:
        _run(case, dynamic, seen)
    behind = _Seen()
    if not seen.breaks and op.supports_autograd:
        for case in cases(op, "static", "cpu", samples):
            _run(case, dynamic, behind)
    return Outcome(
        name,
        dynamic,
        _kind(seen, len(forward)),
        tuple(sorted(seen.calls)),
        tuple(sorted(behind.calls - seen.calls)),
        tuple(sorted(seen.breaks | seen.fallbacks)),
        tuple(sorted(seen.specialises)),
    )


def _kind(seen: _Seen, samples: int) -> str:
    if seen.fallbacks:
        return "falls back"
    if seen.breaks:
        return "breaks"
    if not samples:
        return "no graph"
    if seen.calls:
        return "mixed" if seen.launches else "extern"
    return "kernels" if seen.launches else "views"


def _raises(case: Case) -> bool:
    """Whether eager PyTorch raises, in the backward too if there is one."""
    try:
        with torch.set_grad_enabled(case.grad):
            result = case.program(*case.make())
            if case.grad:
                _backward(result)
    except Exception:
        return True
    return False


def _run(case: Case, dynamic: bool, seen: _Seen) -> None:
    graphs: list[Graph] = []

    def compile_graph(graph: Graph, *args: Any, **kwargs: Any) -> Any:
        graphs.append(graph)
        return lowered(graph, *args, **kwargs)

    def begin_load(program: Any, *args: Any) -> Callable[[], Callable[..., Any]]:
        graph = graphs[-1]
        return lambda: lambda *inputs: run_graph(graph, inputs)

    lowered = program_compiler.compile_graph
    compiled = flambeau.compile(case.program, dynamic=dynamic)
    with (
        warnings.catch_warnings(),
        torch.set_grad_enabled(case.grad),
        patch.object(program_compiler, "compile_graph", compile_graph),
        patch.object(program_compiler, "begin_load", begin_load),
    ):
        warnings.simplefilter("ignore")
        try:
            result = compiled(*case.make())
            if case.grad:
                _backward(result)
        except Exception:
            if not _raises(case):
                seen.fallbacks.add("the call raises")
    events = state_of(compiled).events
    seen.breaks |= {e.reason.id for e in events if e.reason is not None}
    report = report_of(compiled)
    for graph in report.graphs:
        if graph.fallback is not None:
            seen.fallbacks.add(graph.fallback.reason)
        for program in graph.programs:
            seen.launches += sum(isinstance(step, Launch) for step in program.steps)
            called = {step.op for step in program.steps if isinstance(step, Extern)}
            seen.calls |= {op for op in called if not op.startswith("aten._assert")}
    for event in events if dynamic else ():
        if event.entry is not None:
            seen.specialises |= {text.partition(": ")[2] for text in event.entry.specialised}


def _backward(result: Any) -> None:
    leaves = [
        leaf
        for leaf in torch.utils._pytree.tree_leaves(result)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if leaves:
        sum(leaf.sum().abs() for leaf in leaves).backward()


def count_all(arguments: tuple[str, int]) -> tuple[Outcome, Outcome]:
    """Static and dynamic, in a worker process, whose output is dropped."""
    name, samples = arguments
    torch.set_num_threads(1)
    # Operators may print.
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        return count(name, False, samples), count(name, True, samples)
