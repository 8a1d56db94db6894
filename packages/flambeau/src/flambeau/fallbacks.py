"""What cannot be compiled runs eagerly, with the reason in the report: a captured graph, or a
backward whose forward has run.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from flambeau.logs import emit
from flambeau.report import Fallback
from flambeau_autograd.begun_compiles import begin
from flambeau_autograd.partition import copied
from flambeau_prims.evaluate import run_graph
from flambeau_prims.unsupported import InvalidOption, Unsupported
from flambeau_runtime import EnvironmentProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau.compile_context import Compiled, Context
    from flambeau.report import GraphReport
    from flambeau_autograd.begun_compiles import Compiler
    from flambeau_prims.graph import Graph


def fall_back(
    report: GraphReport, refused: Unsupported | EnvironmentProblem, context: Context
) -> None:
    """Report that a graph, or a call of it, runs eagerly."""
    _note(report, Fallback(refused.reason, refused.text, refused.hint), context)


def _note(report: GraphReport, fallback: Fallback, context: Context) -> None:
    report.fall_back(fallback)
    text = f"{context.report.name}: {fallback}"
    emit("fallbacks", text, context.options.environment)
    emit("perf_hints", f"{text} (runs eagerly)", context.options.environment)


def note_error(report: GraphReport, error: Exception, context: Context) -> None:
    """Report why a graph runs eagerly, with a warning where that is not the program's doing.
    Raises the error if it is of an option, or if the environment asks for checks.
    """
    if isinstance(error, Unsupported):
        fall_back(report, error, context)
        return
    if isinstance(error, InvalidOption) or context.options.environment.check:
        raise error
    if isinstance(error, EnvironmentProblem):
        fall_back(report, error, context)
        text = f"Flambeau runs {context.report.name!r} eagerly: {error}"
    else:
        fallback = Fallback("internal-error", f"{type(error).__name__}: {error}")
        _note(report, fallback, context)
        text = (
            f"Flambeau could not compile {context.report.name!r} and runs it eagerly: "
            f"{fallback.text}. This is a bug in Flambeau: please report it, with "
            "the output of flambeau.explain (FLAMBEAU_CHECK=1 raises the error instead)."
        )
    warnings.warn(text, RuntimeWarning, stacklevel=3)


@dataclass
class OrOperators:
    """A compiler of functional graphs, which runs a backward that cannot be compiled operator by
    operator if its forward has run (`late`): it is too late for the program's own.
    """

    compile: Compiler
    report: GraphReport
    context: Context
    late: bool = True

    def __call__(self, graph: Graph, kind: str) -> Compiled:
        """The compiled graph."""
        if not self.late or kind != "backward":
            return self.compile(graph, kind)
        # The compiler may rewrite the graph that it is given.
        whole = copied(graph.nodes, graph.inputs, graph.outputs, graph.env)
        try:
            return self.compile(graph, kind)
        except Exception as error:
            note_error(self.report, error, self.context)
            return lambda *inputs: run_graph(whole, inputs)

    def begin(self, graph: Graph, kind: str) -> Callable[[], Compiled]:
        """Begin to compile a graph; what ends that, and raises what is wrong. What is begun late is
        compiled at the end.
        """
        return partial(self, graph, kind) if self.late else begin(self.compile, graph, kind)
