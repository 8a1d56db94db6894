"""What one of our own backends compiles under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from flambeau.logs import emit, wanted
from flambeau.progress import note_graph
from flambeau_capture.background import current_job
from flambeau_runtime.cache_trimming import trim_if_due

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from flambeau.options import Options
    from flambeau.report import GraphReport, Report

Compiled: TypeAlias = "Callable[..., tuple[Any, ...]]"
Backend: TypeAlias = "Callable[[torch.fx.GraphModule, list[Any]], Compiled]"


@dataclass(frozen=True)
class Context:
    """The options, and where to report."""

    options: Options
    report: Report


def start_graph(
    context: Context, gm: torch.fx.GraphModule, example_inputs: list[Any]
) -> GraphReport:
    """Open the report of a graph that is about to be compiled, or read."""
    runtime = context.options.runtime
    if runtime.use_cache:
        trim_if_due(runtime.cache_dir.absolute(), runtime.cache_limit)
    environment = context.options.environment
    if wanted("graph_code", environment):
        code = gm.print_readable(print_output=False)
        emit("graph_code", f"{context.report.name}\n{code}", environment)
    if gm.meta.get("size_env") is not None and wanted("dynamic", environment):
        placeholders = gm.graph.find_nodes(op="placeholder")
        inputs = [f"{node.name}: {node.meta.get('spec')}" for node in placeholders]
        emit("dynamic", f"{context.report.name}: {', '.join(inputs)}", environment)
    graph = context.report.start_graph(gm, example_inputs)
    if current_job() is not None:
        graph.background = "in a thread"
    note_graph(len(context.report.graphs))
    return graph
