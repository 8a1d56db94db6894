"""Ask a tuner how to run the parts of a schedule, and change the schedule as it says.

First the matrix products, which take nests into their kernels; then the loop nests that are left.
Coordinate descent goes on from there: each round asks about the neighbours of what is in use, until
nothing changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flambeau_inductor.ir import tile_points
from flambeau_inductor.schedule import Schedule
from flambeau_inductor.scheduler.fusion import Refusal
from flambeau_inductor.scheduler.memory import plan_memory
from flambeau_inductor.tuning.gemm import gemm_parts
from flambeau_inductor.tuning.loops import loop_parts, neighbours
from flambeau_inductor.tuning.order import GroupOrder
from flambeau_inductor.tuning.ways import Way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_inductor.tuning.ways import Part
    from flambeau_runtime.tuning.contest import Tuner

DESCENT_ROUNDS = 4


def tune(
    schedule: Schedule, options: InductorOptions, tuner: Tuner, spends_inputs: bool = False
) -> Schedule:
    """The schedule with what was measured to be fastest; `spends_inputs` as in `plan_memory`."""
    devices = {group.device for group in schedule.groups}
    # The kernels of a CPU beside a GPU's fetch numbers for these: they are short.
    device = min((name for name in devices if name != "cpu"), default="cpu")
    if not devices:
        return schedule
    facts = tuner.facts(device)
    if facts is None:
        reason = "nothing can be measured on it now (is a CUDA graph being captured?)"
        schedule.refusals.append(Refusal("autotune", device, reason))
        return schedule
    if options.tunes_gemm:
        parts = list(gemm_parts(schedule, options, facts))
        ask(parts, options, tuner)
        schedule = changed(schedule, parts, options, spends_inputs)
    if options.tunes_pointwise or options.coordinate_descent_tuning:
        parts = list(loop_parts(schedule, options))
        if options.tunes_pointwise:
            ask(parts, options, tuner)
        elif options.coordinate_descent_tuning:
            descend(parts, options, tuner)
        schedule = changed(schedule, parts, options, spends_inputs)
    return schedule


def ask(parts: Sequence[Part], options: InductorOptions, tuner: Tuner) -> None:
    """Let the tuner choose a way for each part; equal parts are asked about once."""
    distinct: dict[tuple[str, str, str], Part] = {}
    for part in parts:
        distinct.setdefault(identity(part), part)
    contests = [part.contest(options) for part in distinct.values()]
    answers = dict(zip(distinct, tuner.choose(contests), strict=True))
    for part in parts:
        part.chosen = answers[identity(part)]
    if options.coordinate_descent_tuning:
        descend(parts, options, tuner)


def identity(part: Part) -> tuple[str, str, str]:
    """What parts have in common that are the same work."""
    return part.title, part.key, part.device


def descend(parts: Sequence[Part], options: InductorOptions, tuner: Tuner) -> None:
    """Change one number of a part's tiling at a time while that helps."""
    active = list(parts)
    options = replace(options, coordinate_descent_tuning=False)
    for _ in range(DESCENT_ROUNDS):
        asked = []
        for part in active:
            way = part.ways[part.chosen]
            tiled = next((group for group in way.groups if group.tiling is not None), None)
            if tiled is None:
                continue
            part.ways = [way] + [
                Way(
                    str(near),
                    tuple(replace(g, tiling=near) if g is tiled else g for g in way.groups),
                    way.buffers,
                )
                for near in neighbours(tiled.tiling)  # type: ignore[arg-type]
                if _reduces_tiles_of(tiled) in (0, getattr(near, "rblock", 0))
            ]
            part.chosen = 0
            asked.append(part)
        if not asked:
            return
        ask(asked, options, tuner)
        active = [part for part in asked if part.chosen]


def _reduces_tiles_of(group: Group) -> int:
    """The lanes of the tiles that a group reduces, as the group that combines them expects."""
    return max((tile_points(nest.body) for nest in group.nests), default=0)


def changed(
    schedule: Schedule, parts: Sequence[Part], options: InductorOptions, spends_inputs: bool
) -> Schedule:
    """The schedule with each part computed in the chosen way, ordered and planned again.

    A part runs at one place, behind all that any of its groups needs; nodes are listed in the order
    in which they run, from which `dependencies` tells them.
    """
    before = schedule.groups
    order = GroupOrder(schedule.lowered, before)
    groups: dict[int, tuple[Group, ...]] = {n: (group,) for n, group in enumerate(before)}
    buffers = dict(schedule.lowered.buffers)
    for part in parts:
        way = part.ways[part.chosen]
        if way.groups == tuple(before[number] for number in part.groups):
            continue
        *others, last = part.groups
        for number in others:
            order.join(last, number)
        groups[last] = way.groups
        buffers |= way.buffers
    flat = [group for number in order.sorted() for group in groups[number]]
    nodes = [node for group in flat for node in group.nodes]
    lowered = replace(schedule.lowered, nodes=nodes, buffers=buffers)
    memory = plan_memory(lowered, flat, options, spends_inputs)
    return Schedule(lowered, flat, memory, schedule.refusals)
