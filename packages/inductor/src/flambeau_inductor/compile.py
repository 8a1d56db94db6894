"""compile_graph: a graph of primitives in, a Program out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flambeau_inductor.emit_program import build_attention_kernels, build_kernels, emit_program
from flambeau_inductor.ir import format_kernel
from flambeau_inductor.options import InductorOptions
from flambeau_inductor.pipeline import schedule_graph
from flambeau_inductor.repeat_program import extend_program
from flambeau_inductor.tuning.dequantised import multiply_quantised
from flambeau_inductor.tuning.grouped_products import multiply_groups
from flambeau_inductor.tuning.integer_products import multiply_integers
from flambeau_inductor.tuning.reduced_products import reduce_products
from flambeau_inductor.tuning.tune import tune
from flambeau_prims.repeated_regions import shorten

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_inductor.codegen.base import KernelBackend
    from flambeau_inductor.scheduler.fusion import Refusal
    from flambeau_prims.graph import Graph
    from flambeau_runtime.program import Program
    from flambeau_runtime.tuning.contest import CpuFacts, DeviceFacts, Tuner


def compile_graph(
    graph: Graph,
    options: InductorOptions | None = None,
    *,
    backends: dict[str, KernelBackend] | None = None,
    spends_inputs: bool = False,
    tuner: Tuner | None = None,
    facts: Callable[[str], DeviceFacts | CpuFacts | None] | None = None,
) -> Program:
    """The Program that computes a functional graph of primitives and ATen calls (border 2 of
    docs/architecture.md).

    `backends` (device type -> code generator) replaces the registered generators. `spends_inputs`:
    the caller hands its references over, and inputs are freed after their last use. `tuner`
    measures what the options ask to measure; without one nothing is. `facts` describes a device to
    cost models, which then choose kernels for products of quantised factors, and for large products
    that are only reduced, that nobody measures.
    """
    options = options or InductorOptions()
    if tuner is None or not options.tunes:
        short = graph.short or shorten(graph)
        if short is not None:
            program = compile_graph(
                short.graph, options, backends=backends, spends_inputs=spends_inputs, facts=facts
            )
            extended = extend_program(short, program)
            if extended is not None:
                return extended
    schedule = schedule_graph(graph, options, spends_inputs)
    if facts is not None and not (tuner is not None and options.tunes_gemm):
        schedule = multiply_quantised(schedule, options, facts, spends_inputs)
        schedule = multiply_integers(schedule, options, facts, spends_inputs)
        schedule = multiply_groups(schedule, options, facts, spends_inputs)
        schedule = reduce_products(schedule, options, facts, spends_inputs)
    if tuner is not None and options.tunes:
        schedule = tune(schedule, options, tuner, spends_inputs)
    return emit_program(schedule, options, backends)


@dataclass(frozen=True)
class Explanation:
    """How a graph was compiled: kernels in loop IR in launch order, and refused fusions; `nests`:
    the loop nests and calls before fusion.
    """

    kernels: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    nests: str = ""

    def __str__(self) -> str:
        lines = [f"{len(self.kernels)} kernel launches", *self.kernels]
        lines += [f"not fused: {r.first} with {r.second}: {r.reason}" for r in self.refusals]
        return "\n".join(lines)


def explain_graph(graph: Graph, options: InductorOptions | None = None) -> Explanation:
    """Schedule a graph and tell what became of it."""
    options = options or InductorOptions()
    schedule = schedule_graph(graph, options)
    kernels = build_kernels(schedule, options)
    attention = build_attention_kernels(schedule)
    texts = {step: format_kernel(launch.kernel) for step, launch in kernels.items()}
    texts |= {step: str(launch.kernel) for step, launch in attention.items()}
    ordered = tuple(texts[step] for step in sorted(texts))
    return Explanation(ordered, tuple(schedule.refusals), str(schedule.lowered))
