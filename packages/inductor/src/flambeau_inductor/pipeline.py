"""The passes from a graph of primitives to a schedule, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from flambeau_inductor.check import BorderError, check_graph, check_lowered, check_schedule
from flambeau_inductor.graph_passes.convolution_gradients import separate_convolution_gradients
from flambeau_inductor.graph_passes.convolution_products import convolutions_to_products
from flambeau_inductor.graph_passes.depthwise_convolutions import (
    compute_depthwise_convolutions,
)
from flambeau_inductor.graph_passes.fuse_attention import (
    attention_groups,
    fuse_attention,
    options_without_effect,
)
from flambeau_inductor.graph_passes.multiply_by_onednn import multiply_by_onednn
from flambeau_inductor.graph_passes.one_hot_sums import collapse_one_hot_sums
from flambeau_inductor.graph_passes.one_pass_reductions import reduce_in_one_pass
from flambeau_inductor.graph_passes.patch_products import patch_products
from flambeau_inductor.graph_passes.scatter_into_sum import scatter_into_sums
from flambeau_inductor.graph_passes.split_bias_gradient import split_bias_gradient
from flambeau_inductor.graph_passes.split_lstm import split_lstm
from flambeau_inductor.graph_passes.unfuse_bias import unfuse_bias
from flambeau_inductor.graph_passes.widen_gradients import widen_gradients
from flambeau_inductor.lowering.lower_graph import lower_graph
from flambeau_inductor.schedule import Schedule
from flambeau_inductor.scheduler.combine import gather
from flambeau_inductor.scheduler.fusion import Refusal, fuse
from flambeau_inductor.scheduler.memory import plan_memory
from flambeau_inductor.scheduler.order import order_groups
from flambeau_inductor.scheduler.overlap_collectives import overlap_collectives
from flambeau_inductor.scheduler.update_in_place import update_in_place
from flambeau_prims.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.options import InductorOptions

GraphPass: TypeAlias = Callable[[Graph], Graph]

GRAPH_PASSES: tuple[tuple[str, GraphPass], ...] = (
    ("convolutions_to_products", convolutions_to_products),
    ("compute_depthwise_convolutions", compute_depthwise_convolutions),
    # What makes products of convolutions has seen only those of forward passes.
    ("separate_convolution_gradients", separate_convolution_gradients),
    ("split_lstm", split_lstm),
    # Behind what makes products of convolutions and of layers.
    ("multiply_by_onednn", multiply_by_onednn),
    ("unfuse_bias", unfuse_bias),
    ("split_bias_gradient", split_bias_gradient),
    # Biases stand apart by now.
    ("patch_products", patch_products),
    ("widen_gradients", widen_gradients),
    ("collapse_one_hot_sums", collapse_one_hot_sums),
    ("reduce_in_one_pass", reduce_in_one_pass),
    # It says what lowering makes of attention, and looks at what reads scores.
    ("fuse_attention", fuse_attention),
    # Behind it: it adds up gradients of what scores read before they are scattered.
    ("scatter_into_sums", scatter_into_sums),
)
"""The passes on the graph before it is lowered, by name, in the order in which they run."""

UNTUNED = frozenset({"multiply_by_onednn"})
"""Passes that choose what `tuning` measures, where it does."""


INEXACT = frozenset({
    "compute_depthwise_convolutions", "scatter_into_sums", "separate_convolution_gradients",
    "split_lstm", "unfuse_bias", "widen_gradients",
})  # fmt: skip
"""Passes that round results of products and sums in another place than eager: not with strict
numerics.
"""


def schedule_graph(graph: Graph, options: InductorOptions, spends_inputs: bool = False) -> Schedule:
    """Transform, lower, fuse, order and plan."""
    written_out = [
        Refusal("products and softmax", "attention in one kernel", reason)
        for _, reason in attention_groups(graph)
        if reason is not None
    ] + [
        Refusal("attention in one kernel", f"kernel_options[{name!r}]", reason)
        for name, reason in options_without_effect(graph)
    ]
    left_out = (UNTUNED if options.tunes_gemm else frozenset()) | (
        INEXACT if options.strict else frozenset()
    )
    passes = [each for each in GRAPH_PASSES if each[0] not in left_out]
    lowered = lower_graph(run_passes(graph, options, passes), options)
    # Before fusion, which would make one kernel of an update and the copy back.
    update_in_place(lowered)
    if options.debug_checks:
        check_lowered(lowered)
    fusion = fuse(lowered, options)
    # After fusion: what stays inside a kernel needs no memory.
    groups = fusion.groups
    if options.reuse_memory:
        groups = order_groups(lowered, groups, fusion.needs, spends_inputs)
    # A combined kernel is built with one set of flags.
    if options.combine_kernels and not options.strict:
        groups = gather(lowered, groups, fusion.needs, options, spends_inputs)
    # Last: order and combining would pull waits forward, which free memory.
    groups = overlap_collectives(lowered, groups, fusion.needs, spends_inputs)
    memory = plan_memory(lowered, groups, options, spends_inputs)
    schedule = Schedule(lowered, groups, memory, [*written_out, *fusion.refusals])
    if options.debug_checks:
        check_schedule(schedule)
    return schedule


def run_passes(
    graph: Graph, options: InductorOptions, passes: Sequence[tuple[str, GraphPass]]
) -> Graph:
    """The graph after the passes, checked before and after each where the options ask for checks.

    Raises BorderError that names the pass which broke the graph.
    """
    if options.debug_checks:
        check_graph(graph)
    for name, run in passes:
        graph = run(graph)
        if options.debug_checks:
            try:
                check_graph(graph)
            except BorderError as error:
                raise BorderError(f"after the pass {name}: {error}") from error
    return graph
