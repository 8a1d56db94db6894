"""The passes from a graph of primitives to a schedule, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.check import check_graph, check_lowered, check_schedule
from flambeau_inductor.lowering.lower_graph import lower_graph
from flambeau_inductor.schedule import Schedule
from flambeau_inductor.scheduler.fusion import fuse
from flambeau_inductor.scheduler.memory import plan_memory

if TYPE_CHECKING:
    from flambeau_inductor.options import InductorOptions
    from flambeau_prims.graph import Graph


def schedule_graph(graph: Graph, options: InductorOptions) -> Schedule:
    """Lower, fuse, order and plan."""
    if options.debug_checks:
        check_graph(graph)
    lowered = lower_graph(graph, options)  # decides by `realize` what gets memory
    if options.debug_checks:
        check_lowered(lowered)
    fusion = fuse(lowered, options)
    memory = plan_memory(
        lowered, fusion.groups, options
    )  # after fusion: what stays inside a kernel needs no memory
    schedule = Schedule(lowered, fusion.groups, memory, fusion.refusals)
    if options.debug_checks:
        check_schedule(schedule)
    return schedule
