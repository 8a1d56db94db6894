"""The backends of our own: what compiles a captured graph.

A backend is the field's convention, `backend(gm, example_inputs) -> callable returning a tuple`:

- `eager` runs the captured graph as it is;
- `aot_eager` runs the functional forward and backward graphs of autograd, operator by operator;
- `inductor` lowers them to kernels and runs Programs;
- `cudagraphs` runs them as Programs of ATen calls, recorded as CUDA graphs;
- `engine` gives them to ONNX Runtime and its like (`flambeau.engines`).

`backend_registry` knows them by name, and those from elsewhere.

A graph that our own backends cannot compile runs eagerly, with the reason in the report: what runs
without Flambeau runs with it.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau import graph_keys, stored_graphs
from flambeau.compile_context import Backend, Compiled, Context, start_graph
from flambeau.eager_draws import draw_as_eager
from flambeau.fallbacks import OrOperators, fall_back, note_error
from flambeau.graph_split import can_be_cut, cut_graph, cutting_calls, is_data_dependent
from flambeau.interop_backends import compile_with
from flambeau.logs import emit, is_shown
from flambeau.not_stored import NotStored
from flambeau.plain_launches import note_cuts
from flambeau.program_compiler import ProgramCompiler, cpu_facts
from flambeau.progress import stage
from flambeau.report import GraphReport, Stopwatch, count_calls
from flambeau_autograd import aot
from flambeau_autograd.reasons import RecordedWrite
from flambeau_capture.graphs.check import check_captured_graph
from flambeau_prims.evaluate import run_graph
from flambeau_prims.lazy_exports import import_apart
from flambeau_runtime.cuda import expect_kernels
from flambeau_runtime.tuning.cpu_bench import CpuBench
from flambeau_runtime.tuning.cuda_bench import CudaBench
from flambeau_runtime.tuning.tuner import Bench, MeasuringTuner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flambeau_autograd import AutogradOptions
    from flambeau_autograd.begun_compiles import Compiler
    from flambeau_prims.graph import Graph
    from flambeau_prims.unsupported import Unsupported
    from flambeau_runtime.tuning.contest import Tuner
    from flambeau_runtime.tuning.table import TuningTable

BackendFactory: TypeAlias = "Callable[[Context], Backend]"

OWN: dict[str, BackendFactory] = {}
"""The backends of our own, by name."""


def _own(factory: BackendFactory) -> BackendFactory:
    OWN[factory.__name__] = factory
    return factory


def checking(backend: Backend, context: Context) -> Backend:
    """The backend, behind the checker of border 1 if the options ask for checks."""
    if not context.options.environment.check:
        return backend

    def checking(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        check_captured_graph(gm, example_inputs)
        return backend(gm, example_inputs)

    return checking


# The backends of our own


@_own
def eager(context: Context) -> Backend:
    """The captured graph, run as it is."""

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        with Stopwatch(start_graph(context, gm, example_inputs).seconds, "backend"):
            return gm.forward

    return backend


@_own
def aot_eager(context: Context) -> Backend:
    """Autograd's functional graphs, run operator by operator."""

    def compiler_for(graph_report: GraphReport) -> Compiler:
        return lambda graph, kind: lambda *inputs: run_graph(graph, inputs)

    return _ThroughAutograd(context, compiler_for)


@_own
def inductor(context: Context) -> Backend:
    """Fused kernels: autograd, inductor and runtime in a row."""

    through_autograd = _to_inductor(context)

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        if context.options.autograd.decompose:
            tensors = (one for one in example_inputs if isinstance(one, torch.Tensor))
            for device in {one.device for one in tensors if one.device.type == "cuda"}:
                expect_kernels(device)
        return through_autograd(gm, example_inputs)

    return backend


def piece_of_inductor(context: Context, whole: GraphReport) -> Backend:
    """The same for the pieces of a graph that was read from the cache."""
    return _to_inductor(context).of_pieces(whole)


def _to_inductor(context: Context) -> _ThroughAutograd:
    tuner = tuner_of(context)
    return _ThroughAutograd(
        context,
        lambda report: ProgramCompiler(report, context, tuner),
        autograd_options(context),
        stores=True,
    )


def autograd_options(context: Context) -> AutogradOptions:
    """The options of autograd's passes, on this processor."""
    autograd, cpu = context.options.autograd, cpu_facts(context)
    if autograd.integer_products is None:
        multiplies = cpu is not None and cpu.multiplies_int8
        autograd = dataclasses.replace(autograd, integer_products=multiplies)
    return autograd


def tuner_of(context: Context) -> Tuner | None:
    """Who measures kernels, if the options ask for it; the results go to stderr."""
    runtime, environment = context.options.runtime, context.options.environment
    if not context.options.inductor.tunes:
        return None

    def report(table: TuningTable) -> None:
        context.report.tables.append(table)
        emit("autotune", str(table), environment)
        if not is_shown("autotune", environment):
            sys.stderr.write(f"{table}\n")

    benches: dict[str, Bench] = {"cpu": CpuBench(runtime, context.options.inductor.threads)}
    if torch.cuda.is_available():
        benches["cuda"] = CudaBench(runtime)
    return MeasuringTuner(benches, runtime, seconds=runtime.max_autotune_seconds, report=report)


@_own
def cudagraphs(context: Context) -> Backend:
    """The functional graphs as calls of ATen, without kernels of our own, each graph launched as
    one CUDA graph where its tensors are on a GPU.
    """
    options = dataclasses.replace(
        context.options,
        autograd=dataclasses.replace(context.options.autograd, decompose=False),
        runtime=dataclasses.replace(context.options.runtime, cuda_graphs="always"),
    )
    return inductor(dataclasses.replace(context, options=options))


def engine(name: str, context: Context) -> Backend:
    """The functional graphs, compiled and run by another compiler (`flambeau.engines`)."""
    built_by = import_apart(f"flambeau.engines.{name}")
    graphs = import_apart("flambeau.engines.engine_graph")
    options = dataclasses.replace(
        context.options, autograd=dataclasses.replace(context.options.autograd, decompose=False)
    )
    context = dataclasses.replace(context, options=options)

    def compiler_for(graph_report: GraphReport) -> Compiler:
        def refused(unsupported: Unsupported) -> None:
            fall_back(graph_report, unsupported, context)

        def compiler(graph: Graph, kind: str) -> Compiled:
            with Stopwatch(graph_report.seconds, name), stage(name):
                compiled: Compiled = graphs.EngineGraph(graph, built_by, refused)
                return compiled

        return compiler

    return _ThroughAutograd(context, compiler_for)


class _ThroughAutograd:
    """A backend that gives autograd's graphs to a compiler; the rest runs eagerly. `autograd`: its
    options, where the backend has completed the context's. `stores`: the compiler makes Programs,
    which are kept in the cache.
    """

    def __init__(
        self,
        context: Context,
        compiler_for: Callable[[GraphReport], Compiler],
        autograd: AutogradOptions | None = None,
        *,
        stores: bool = False,
    ) -> None:
        self._context = context
        self._stores = stores
        self._compiler_for = compiler_for
        self._options = autograd or context.options.autograd

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        report = start_graph(self._context, gm, example_inputs)
        compiled = self._compile_and_store(gm, example_inputs, report)
        if report.folder is not None:
            report.folder.finish(report.seconds, str(report.fallback or ""))
        return compiled

    def of_pieces(self, whole: GraphReport) -> Backend:
        """The backend of the pieces of a graph."""

        def compile_piece(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
            # It may be data-dependent again: a branch of a torch.cond with another in it.
            report = whole.start_piece(gm, count_calls(gm))
            return self._compile_and_store(gm, example_inputs, report)

        return checking(compile_piece, self._context)

    def _compile_and_store(
        self, gm: torch.fx.GraphModule, example_inputs: list[Any], report: GraphReport
    ) -> Compiled:
        context = self._context
        key = for_entry = ""
        splits = is_data_dependent(gm)
        try:
            if self._stores:
                report.key = key = graph_keys.key_of_graph(gm, example_inputs, context)
        except NotStored as error:
            for_entry = graph_keys.key_for_entry(
                error.reason, gm, example_inputs, context, split=splits
            )
            report.stored = "" if error.reason == "not-asked" else str(error)
        gm.meta["has_key"] = bool(key or for_entry)
        if splits:
            compiled = self._split(gm, report)
        else:
            compiled = self._compile(gm, example_inputs, report)
        if key:
            report.stored = stored_graphs.write(gm, example_inputs, key, report, context)
        elif for_entry:
            stored_graphs.write_for_entry(gm, example_inputs, for_entry, report, context)
        gm.meta.pop("split", None)
        return compiled

    def _compile(
        self, gm: torch.fx.GraphModule, example_inputs: list[Any], report: GraphReport
    ) -> Compiled:
        context = self._context
        gm.meta["name"] = context.report.name
        try:
            with Stopwatch(report.seconds, "backend"), stage("autograd"):
                return self._compiled(gm, example_inputs, report)
        except Exception as error:
            if isinstance(error, RecordedWrite) and can_be_cut(gm):
                return self._split(gm, report, error.nodes)
            note_error(report, error, context)
        return gm.forward

    def _compiled(
        self, gm: torch.fx.GraphModule, example_inputs: list[Any], report: GraphReport
    ) -> Compiled:
        compiler = OrOperators(self._compiler_for(report), report, self._context, late=False)
        compiled = aot(gm, example_inputs, compiler, options=self._options)
        compiler.late = True
        gm.meta["writes_last"] = True
        if gm.meta["draws"]:
            compiled = draw_as_eager(compiled, gm.forward, gm.meta["aligned_inputs"])
        if (recomputes := gm.meta.get("partition")) is not None:
            report.partitions.append(recomputes)
        for part in (report, *report.around()):
            part.eager_derivatives = gm.meta.get("eager_derivatives", [])
            part.separate_tangents = gm.meta.get("separate_tangents", [])
        return compiled

    def _split(
        self,
        gm: torch.fx.GraphModule,
        report: GraphReport,
        ends: Iterable[torch.fx.Node] = (),
    ) -> Compiled:
        context = self._context
        if context.options.runtime.cuda_graphs == "always":
            note_cuts(context.report, gm, cutting_calls(gm))
        gm.meta["split"] = split = cut_graph(gm, ends)
        splits = import_apart("flambeau.stored_splits")
        backend = self.of_pieces(report)
        compiled: Compiled = splits.callable_of(
            split, report, context, backend, stores=self._stores
        )
        return compiled


def reporting(backend: Backend, context: Context) -> Backend:
    """A backend from elsewhere, its graphs counted and timed; its errors are its own."""

    def reporting(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        seconds = start_graph(context, gm, example_inputs).seconds
        with Stopwatch(seconds, "backend"), stage("backend"):
            return compile_with(backend, gm, example_inputs)

    return reporting
