"""Several kernels in one launch: each program runs a program of one of them.

    @triton.jit
    def combined_0(p0_b0, p0_b1, p1_b0, p1_b1):
        program = tl.program_id(0)
        if program < 32:
            part_0(program, 0, p0_b0, p0_b1, 128)
        else:
            part_1(program - 32, 0, p1_b0, p1_b1, 512)

The kernels have static sizes and as many warps. Equal ones share a function.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from flambeau_inductor.codegen.triton.kernel import HEADER, KernelWriter, needs_debug, signature
from flambeau_inductor.codegen.triton.tiling import grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.codegen.triton.tiling import Tiling
    from flambeau_inductor.ir import LoopKernel

Part = tuple["LoopKernel", "Tiling"]


def can_combine(kernel: LoopKernel, tiling: Tiling) -> bool:
    """Whether a kernel can be a part: sizes are static, and no index is checked."""
    return not kernel.sizes and not needs_debug(kernel) and kernel.shares == 0


def programs_of(part: Part) -> tuple[int, ...]:
    """The grid of a part."""
    return tuple(int(size) for size in grid(*part, {}))


def combined_grid(parts: Sequence[Part]) -> tuple[int, ...]:
    """One dimension: the programs of all parts, one behind the other."""
    return (sum(prod(programs_of(part)) for part in parts),)


def _signature(parts: Sequence[Part]) -> dict[str, str]:
    """Triton's type of each argument, in order."""
    return {
        f"p{number}_{name}": kind
        for number, (kernel, _) in enumerate(parts)
        for name, kind in signature(kernel).items()
    }


def combined_meta(parts: Sequence[Part]) -> dict[str, object]:
    """What the build needs to know (`flambeau_runtime.program.Kernel`)."""
    types = _signature(parts)
    return {
        "signature": types,
        "constants": {},
        "num_warps": max(tiling.warps for _, tiling in parts),
        "num_stages": 2,
        "divisible_by_16": list(types),
        "debug": False,
    }


def write_combined(parts: Sequence[Part], name: str) -> str:
    """The source text."""
    functions: dict[Part, str] = {}
    helpers: dict[str, str] = {}
    texts = []
    for part in parts:
        if part not in functions:
            functions[part] = f"{name}_part_{len(functions)}"
            kernel, tiling = part
            writer = KernelWriter(kernel, functions[part], tiling, ("program", "across"))
            texts.append("\n" + writer.function())
            helpers |= writer.helpers
    arguments = ", ".join(_signature(parts))
    lines = [f"@triton.jit\ndef {name}({arguments}):", "    program = tl.program_id(0)"]
    start = 0
    for number, part in enumerate(parts):
        programs = programs_of(part)
        end = start + prod(programs)
        if number + 1 < len(parts):
            lines.append(f"    {'elif' if number else 'if'} program < {end}:")
        else:
            lines.append("    else:")
        lines.append(f"        {functions[part]}({_call(number, part, programs, start)})")
        start = end
    shared = (text.strip("\n") + "\n" for text in helpers.values())
    return "\n".join([HEADER, *shared, *texts, "", *lines, ""])


def _call(number: int, part: Part, programs: tuple[int, ...], start: int) -> str:
    """The arguments of one part's function."""
    kernel, tiling = part
    index = f"program - {start}" if start else "program"
    across = f"({index}) // {programs[0]}" if len(programs) > 1 else "0"
    along = f"({index}) % {programs[0]}" if len(programs) > 1 else index
    buffers = [f"p{number}_{param.name}" for param in kernel.params]
    blocks = [str(tiling.xblock), *([str(tiling.rblock)] if tiling.rblock else [])]
    return ", ".join([along, across, *buffers, *blocks])
