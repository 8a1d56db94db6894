"""Launches of attention: one Triton source a distinct kernel, as `backend` does it for loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.codegen.base import Emitted
from flambeau_inductor.codegen.triton.attention_tiling import choose_attention_tiling
from flambeau_inductor.codegen.triton.flex_attention import attention_grid, write_attention
from flambeau_inductor.codegen.triton.ops import POINTER_TYPES
from flambeau_inductor.ir import CheckIndex
from flambeau_runtime.program import Kernel, Launch, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.attention import AttentionKernel, ScheduledAttention
    from flambeau_inductor.codegen.triton.attention_tiling import AttentionTiling


def emit_attention(scheduled: Sequence[ScheduledAttention]) -> Emitted:
    """Sources, kernels, and a launch for each of `scheduled`."""
    names: dict[AttentionKernel, str] = {}
    sources: list[Source] = []
    kernels: list[Kernel] = []
    launches: list[Launch] = []
    for launch in scheduled:
        kernel = launch.kernel
        tiling = choose_attention_tiling(kernel)
        name = names.get(kernel)
        if name is None:
            name = names[kernel] = f"{kernel.device}_{kernel.label}_{len(names)}"
            kernels.append(Kernel(name, len(sources), attention_meta(kernel, tiling)))
            sources.append(Source("triton", write_attention(kernel, name, tiling)))
        dims = {symbol.name: dim for symbol, dim in zip(kernel.sizes, launch.ints, strict=True)}
        grid = attention_grid(kernel, tiling, dims)
        launches.append(Launch(name, launch.buffers, launch.ints, grid))
    return Emitted(tuple(sources), tuple(kernels), tuple(launches))


def attention_meta(kernel: AttentionKernel, tiling: AttentionTiling) -> dict[str, object]:
    """What the build needs to know of a kernel (`flambeau_runtime.program.Kernel`)."""
    pointers = {param.name: POINTER_TYPES[param.dtype] for param in kernel.params}
    return {
        "signature": pointers | {size.name: "i64" for size in kernel.sizes},
        "constants": {},
        "num_warps": tiling.warps,
        "num_stages": tiling.stages,
        "divisible_by_16": list(pointers),
        "debug": any(isinstance(statement, CheckIndex) for statement in kernel.body),
    }
