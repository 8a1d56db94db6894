"""What compiles the functional graphs of a captured one to Programs, and loads them.

    begin(forward)     lowered; its kernels are built from now on, in processes
    begin(backward)    lowered meanwhile
    finish, finish     wait for kernels

Each graph's Program is in the report from its finish on.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from flambeau import stored_graphs
from flambeau.logs import emit, wanted
from flambeau.plain_launches import LaunchLines, PlainLaunches, note_cpu
from flambeau.progress import HIDDEN, building, stage
from flambeau.report import Stopwatch
from flambeau_prims.lazy_exports import import_apart
from flambeau_runtime import CacheUse, begin_load, describe_launch, output_code, recording_cache_use
from flambeau_runtime.tuning.cpu_bench import CpuBench
from flambeau_runtime.tuning.cuda_bench import cuda_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau.compile_context import Compiled, Context
    from flambeau.report import GraphReport
    from flambeau_inductor import InductorOptions
    from flambeau_prims.graph import Graph
    from flambeau_runtime import Program
    from flambeau_runtime.tuning.contest import CpuFacts, DeviceFacts, Tuner


def cpu_facts(context: Context) -> CpuFacts | None:
    """What is known of this processor."""
    return CpuBench(context.options.runtime, context.options.inductor.threads).facts("cpu")


class ProgramCompiler:
    """The compiler of the functional graphs of one captured graph."""

    def __init__(self, report: GraphReport, context: Context, tuner: Tuner | None = None) -> None:
        self._report = report
        self._context = context
        self._tuner = tuner
        self._cpu = cpu_facts(context)

    def __call__(self, graph: Graph, kind: str) -> Compiled:
        """The compiled graph."""
        return self.begin(graph, kind)()

    def begin(self, graph: Graph, kind: str) -> Callable[[], Compiled]:
        """Lower a graph and begin to build its kernels; what waits for them, and returns the
        callable. Where kernels are measured, nothing else may run then: all is left to the end.
        """
        if self._tuner is not None:
            return lambda: self._begin(graph, kind)()
        return self._begin(graph, kind)

    def _begin(self, graph: Graph, kind: str) -> Callable[[], Compiled]:
        report, context, runtime = self._report, self._context, self._context.options.runtime
        program = self._program(graph, kind)
        refused = PlainLaunches(context.report, LaunchLines.of(graph))
        title = f"{context.report.name} graph {report.number}"
        use = CacheUse()
        with recording_cache_use(use):
            begun = begin_load(program, runtime, refused, title)

        def finish() -> Compiled:
            self._describe(graph, program)
            if runtime.cuda_graphs == "always":
                note_cpu(context.report, graph, warn=not context.options.autograd.decompose)
            with (
                Stopwatch(report.seconds, "runtime"),
                recording_cache_use(use),
                building(program, use),
            ):
                executable = begun()
            report.cache.include(use)
            launch = functools.partial(describe_launch, program, executable, runtime)
            report.launches.append(launch)
            return executable

        return finish

    def _program(self, graph: Graph, kind: str) -> Program:
        report, context = self._report, self._context

        def facts(device: str) -> DeviceFacts | CpuFacts | None:
            return self._cpu if device == "cpu" else cuda_facts(device)

        with (
            Stopwatch(report.seconds, "inductor"),
            stage(HIDDEN if self._tuner else "inductor"),
            recording_cache_use(report.cache),
        ):
            return stored_graphs.stored_or_compiled(
                report,
                graph,
                kind,
                context,
                lambda: compile_graph(
                    graph,
                    context.options.inductor,
                    spends_inputs=kind == "backward",
                    tuner=self._tuner,
                    facts=facts,
                ),
            )

    def _describe(self, graph: Graph, program: Program) -> None:
        """Add a Program to the report, and to the logs that are asked for."""
        report, context = self._report, self._context
        environment, options = context.options.environment, context.options.inductor
        if report.folder is not None:
            report.folder.lowered(graph, program, options)
        report.add_program(program, graph)
        if wanted("schedule", environment):
            schedule = import_apart("flambeau_inductor.compile").explain_graph(graph, options)
            emit("schedule", f"{context.report.name}\n{schedule}", environment)
        if wanted("perf_hints", environment):
            hints = import_apart("flambeau.perf_hints")
            for hint in hints.perf_hints(graph, program, options):
                emit("perf_hints", f"{context.report.name}: {hint}", environment)
        if wanted("output_code", environment):
            emit("output_code", f"{context.report.name}\n{output_code(program)}", environment)


def compile_graph(graph: Graph, options: InductorOptions, **arguments: Any) -> Program:
    """`flambeau_inductor.compile_graph`, imported when the first graph is not stored."""
    stage = import_apart("flambeau_inductor.compile")
    program: Program = stage.compile_graph(graph, options, **arguments)
    return program
