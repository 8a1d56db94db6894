"""Multiply int8 matrices on a CPU by kernels of our own, where nobody measures.

extern aten._int_mm.default(x, w) -> buf0; nest dequantise, relu, quantise: buf0 -> buf1
->  one kernel, in the tiling that the model prefers

The library's product orders its right factor in every call, and its int32 results go through
memory. Only where one instruction adds up products of four numbers (`CpuFacts.multiplies_int8`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.codegen.contraction import contraction_of
from flambeau_inductor.lowering.contraction import contraction_nest, product_of_call
from flambeau_inductor.nodes import ExternCall
from flambeau_inductor.scheduler.groups import group_of
from flambeau_inductor.tuning.gemm_cpp import CppWays
from flambeau_inductor.tuning.order import GroupOrder
from flambeau_inductor.tuning.product_ways import kernel_of
from flambeau_inductor.tuning.tune import changed
from flambeau_runtime.tuning.contest import CpuFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.schedule import Schedule
    from flambeau_inductor.tuning.ways import Part
    from flambeau_runtime.tuning.contest import DeviceFacts


def multiply_integers(
    schedule: Schedule,
    options: InductorOptions,
    facts: Callable[[str], DeviceFacts | CpuFacts | None],
    spends_inputs: bool = False,
) -> Schedule:
    """The schedule with kernels for the products of int8 matrices on the CPU."""
    calls = calls_on_cpu(schedule, "aten._int_mm.default")
    known = facts("cpu") if calls else None
    if not isinstance(known, CpuFacts) or not known.multiplies_int8:
        return schedule
    parts = chosen_parts(schedule, options, calls, known, _preferred)
    return changed(schedule, parts, options, spends_inputs) if parts else schedule


def calls_on_cpu(schedule: Schedule, op: str) -> dict[int, ExternCall]:
    """The calls of an operator on the CPU, by the numbers of their groups."""
    return {
        number: call
        for number, group in enumerate(schedule.groups)
        if isinstance(call := group.nodes[0], ExternCall) and call.device == "cpu" and call.op == op
    }


def chosen_parts(
    schedule: Schedule,
    options: InductorOptions,
    calls: Mapping[int, ExternCall],
    facts: CpuFacts,
    prefer: Callable[[Part], int | None],
) -> list[Part]:
    """The calls with ways to compute them, `prefer` having chosen one; without those for which it
    chooses none.
    """
    order = GroupOrder(schedule.lowered, schedule.groups)
    parts = []
    for number, call in calls.items():
        product = product_of_call(call)
        if product is None:
            continue
        nest = group_of(contraction_nest(call, schedule.lowered))
        if contraction_of(kernel_of(nest, set(), schedule, options)) is None:
            continue
        part = CppWays(schedule, order, options, number, nest, product, facts).part()
        chosen = None if part is None else prefer(part)
        if part is not None and chosen is not None:
            part.chosen = chosen
            parts.append(part)
    return parts


def _preferred(part: Part) -> int | None:
    """The number of a kernel of ours, if there is one: panels where they are among the ways, which
    they are if more rows read them than dot products of rows are fast for.
    """
    own = [at for at, way in enumerate(part.ways) if way.name.startswith("cpp_")]
    panels = [at for at in own if " dots" not in part.ways[at].name]
    return next(iter(panels or own), None)
