"""Take out of a schedule what depends on frozen inputs only: it is computed once, not in each call.

frozen arg1; group pack (reads arg1, writes buf9); group mm (reads arg0, buf9; writes buf0)
->  prepared: arg1 -> pack -> buf9;  the rest: arg0, arg1, buf9 -> mm -> buf0

Such groups come to be where a way to compute something packs an operand (`tuning/`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flambeau_inductor.nodes import ExternCall, Lowered, TensorRef
from flambeau_inductor.schedule import Schedule
from flambeau_inductor.scheduler.memory import plan_memory
from flambeau_prims.graph import Graph

if TYPE_CHECKING:
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.scheduler.groups import Group


def split_prepared(
    schedule: Schedule, options: InductorOptions
) -> tuple[Schedule | None, Schedule]:
    """The schedule of what is computed once, if anything is, and that of each call."""
    lowered = schedule.lowered
    known = set(lowered.frozen)
    once: list[Group] = []
    for group in schedule.groups if known else ():
        reads, writes = _accesses(group)
        if reads and reads <= known and not writes & schedule.kept and _may_move(group, lowered):
            once.append(group)
            known |= writes
    if not once:
        return None, schedule
    rest = [group for group in schedule.groups if group not in once]
    made = set().union(*(_accesses(group)[1] for group in once))
    passed = sorted(made & set().union(*(_accesses(group)[0] for group in rest)))
    read = sorted(lowered.frozen & set().union(*(_accesses(group)[0] for group in once)))
    nodes = [node for group in once for node in group.nodes]
    before = Lowered(
        Graph(name="prepared"), lowered.sizes, (), read,
        {name: lowered.buffers[name] for name in sorted({*read, *made})}, nodes,
        [TensorRef(name, lowered.buffers[name].spec) for name in passed],
    )  # fmt: skip
    buffers = {
        name: replace(buffer, role="input") if name in passed else buffer
        for name, buffer in lowered.buffers.items()
        if name in passed or name not in made
    }
    behind = replace(
        lowered, inputs=[*lowered.inputs, *passed], buffers=buffers,
        nodes=[node for node in lowered.nodes if node not in nodes], frozen=frozenset(),
    )  # fmt: skip
    return (
        Schedule(before, once, plan_memory(before, once, options), []),
        Schedule(behind, rest, plan_memory(behind, rest, options), schedule.refusals),
    )


def _accesses(group: Group) -> tuple[set[str], set[str]]:
    """What a group reads of others, and what it writes."""
    writes = set().union(*(node.writes for node in group.nodes))
    return set().union(*(node.reads for node in group.nodes)) - writes, writes


def _may_move(group: Group, lowered: Lowered) -> bool:
    """Whether nothing else notices when a group runs."""
    for node in group.nodes:
        if any(lowered.buffers[name].role == "input" for name in node.writes):
            return False
        if isinstance(node, ExternCall):
            if node.side_effect or node.is_check or node.mutates or node.can_raise:
                return False
        elif node.can_raise or node.host_reads:
            return False
    return group.device == "cpu"
