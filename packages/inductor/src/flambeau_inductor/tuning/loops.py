"""Ways to cut a loop nest: its own tiling with other tile sizes and warps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flambeau_inductor.codegen.cpp.matmul_tiling import CppMatmulTiling
from flambeau_inductor.codegen.triton.matmul_tiling import MatmulTiling
from flambeau_inductor.codegen.triton.packed_sum import unpack_sum
from flambeau_inductor.codegen.triton.tiling import choose_tiling
from flambeau_inductor.ir import CheckIndex, format_kernel
from flambeau_inductor.scheduler.build_kernel import build_kernel
from flambeau_inductor.tuning.ways import Part, Way, part_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from flambeau_inductor.codegen.triton.tiling import Tiling
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.schedule import Schedule

TOLERANCE = 1e-2
MAX_WARPS = 16
MAX_TILE = 8192

SMALL = 1 << 18
"""A kernel that touches fewer bytes is bound by its launch, however it is cut."""


def loop_parts(schedule: Schedule, options: InductorOptions) -> Iterator[Part]:
    """The kernels on GPUs whose tiling nobody has measured yet, with their ways."""
    lowered = schedule.lowered
    dtypes = {name: buffer.spec.dtype for name, buffer in lowered.buffers.items()}
    for number, group in enumerate(schedule.groups):
        if group.is_extern or group.tiling is not None or not group.device.startswith("cuda"):
            continue
        kernel = build_kernel(
            group, schedule.memory.internal, dtypes, lowered.sizes, options
        ).kernel
        if not kernel.params or kernel.sizes or any(isinstance(s, CheckIndex) for s in kernel.body):
            continue  # nothing to measure, or random data would not do
        own = choose_tiling(unpack_sum(kernel))
        ways = [Way(tiling_name(own), (group,))]
        ways += [
            Way(tiling_name(tiling), (replace(group, tiling=tiling),)) for tiling in variations(own)
        ]
        sizes = "x".join(str(axis.size) for axis in (*kernel.outer, *kernel.inner))
        key = format_kernel(kernel)
        part = part_of(schedule, (number,), f"{kernel.label}({sizes})", key, TOLERANCE, ways)
        if part is not None and _bytes(part) >= SMALL:
            yield part


def _bytes(part: Part) -> int:
    """The memory that a part reads and writes."""
    specs = [part.lowered.buffers[name].spec for name in (*part.inputs, *part.outputs)]
    return sum(int(spec.numel) * spec.dtype.itemsize for spec in specs)


def variations(tiling: Tiling) -> list[Tiling]:
    """Tilings of the same form with more or fewer points and warps."""
    found: dict[Tiling, None] = {}
    for points, warps in ((2, 1), (2, 2), (0.5, 1), (0.5, 0.5), (4, 2), (1, 2)):
        near = replace(tiling, xblock=int(tiling.xblock * points), warps=int(tiling.warps * warps))
        size = near.xblock * max(1, near.rblock)
        if 0 < near.warps <= MAX_WARPS and near.warps * 32 <= size <= MAX_TILE:
            found[near] = None
    return list(found)


def neighbours(tiling: Tiling | MatmulTiling | CppMatmulTiling) -> Sequence[Hashable]:
    """Tilings that differ in one number."""
    if isinstance(tiling, CppMatmulTiling):
        return tiling.neighbours()
    result: list[Tiling | MatmulTiling] = []
    least = 16 if isinstance(tiling, MatmulTiling) else 1
    names = ("xblock", "rblock", "kblock", "warps")
    for name in names:
        value = getattr(tiling, name, 0)
        low = 1 if name == "warps" else least
        high = MAX_WARPS if name == "warps" else MAX_TILE
        if name == "rblock" and getattr(tiling, "persistent", False):
            continue  # a row must fit
        for changed in (value * 2, value // 2):
            if value and low <= changed <= high:
                changes: dict[str, Any] = {name: changed}
                result.append(replace(tiling, **changes))
    if isinstance(tiling, MatmulTiling):
        for stages in (tiling.stages - 1, tiling.stages + 1):
            if 2 <= stages <= 7:
                result.append(replace(tiling, stages=stages))
        result += [replace(tiling, height=height) for height in (4, 16) if height != tiling.height]
    return result


def tiling_name(tiling: Tiling) -> str:
    """A tiling as tables of choices have it."""
    text = f"XBLOCK={tiling.xblock}" + (f" RBLOCK={tiling.rblock}" if tiling.rblock else "")
    return f"{text} warps={tiling.warps}"
