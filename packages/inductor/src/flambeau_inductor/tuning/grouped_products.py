"""Multiply few rows in groups on a CPU by a kernel of our own, where nobody measures.

extern aten._grouped_mm.default(x: 16 rows, w: 16 matrices as a linear layer has them, ends) -> buf0
nest relu: buf0 -> buf1
->  one kernel of dot products, which reads each matrix once, as it lies

The library calls one product for each group. For few rows of a group, as where a mixture of experts
decodes, a call takes longer than its product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.codegen.cpp.matmul_tiling import MOST_DOT_ROWS
from flambeau_inductor.tuning.integer_products import calls_on_cpu, chosen_parts
from flambeau_inductor.tuning.tune import changed
from flambeau_prims.sizes import hint_of
from flambeau_runtime.tuning.contest import CpuFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_inductor.nodes import ExternCall
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.schedule import Schedule
    from flambeau_inductor.tuning.ways import Part
    from flambeau_runtime.tuning.contest import DeviceFacts


def multiply_groups(
    schedule: Schedule,
    options: InductorOptions,
    facts: Callable[[str], DeviceFacts | CpuFacts | None],
    spends_inputs: bool = False,
) -> Schedule:
    """The schedule with kernels for products of few rows in groups on the CPU."""
    calls = calls_on_cpu(schedule, "aten._grouped_mm.default")
    calls = {number: call for number, call in calls.items() if _has_few_rows(call)}
    known = facts("cpu") if calls else None
    if not isinstance(known, CpuFacts) or options.strict:
        return schedule
    parts = chosen_parts(schedule, options, calls, known, _dot_products)
    return changed(schedule, parts, options, spends_inputs) if parts else schedule


def _has_few_rows(call: ExternCall) -> bool:
    """Whether a group is likely to have no more rows than a register tile of dot products."""
    left, right = (call.args[at].spec for at in range(2))
    if left.ndim != 2 or right.ndim != 3:
        return False
    return bool(hint_of(left.shape[0]) <= MOST_DOT_ROWS * hint_of(right.shape[0]))


def _dot_products(part: Part) -> int | None:
    """The number of a kernel that multiplies rows of both factors, if there is one."""
    return next((at for at, way in enumerate(part.ways) if " dots" in way.name), None)
