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
    from collections.abc import Callable

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
    numbers = [number for number, group in enumerate(schedule.groups)
               if isinstance(call := group.nodes[0], ExternCall) and call.device == "cpu"
               and call.op == "aten._int_mm.default"]  # fmt: skip
    known = facts("cpu") if numbers else None
    if not isinstance(known, CpuFacts) or not known.multiplies_int8:
        return schedule
    order = GroupOrder(schedule.lowered, schedule.groups)
    parts = []
    for number in numbers:
        call = schedule.groups[number].nodes[0]
        assert isinstance(call, ExternCall)
        product = product_of_call(call)
        if product is None:
            continue
        nest = group_of(contraction_nest(call, schedule.lowered))
        if contraction_of(kernel_of(nest, set(), schedule, options)) is None:
            continue
        part = CppWays(schedule, order, options, number, nest, product, known).part()
        chosen = None if part is None else _preferred(part)
        if part is not None and chosen is not None:
            part.chosen = chosen
            parts.append(part)
    return changed(schedule, parts, options, spends_inputs) if parts else schedule


def _preferred(part: Part) -> int | None:
    """The number of a kernel of ours, if there is one: panels where they are among the ways, which
    they are if more rows read them than dot products of rows are fast for.
    """
    own = [at for at, way in enumerate(part.ways) if way.name.startswith("cpp_")]
    panels = [at for at in own if " dots" not in part.ways[at].name]
    return next(iter(panels or own), None)
