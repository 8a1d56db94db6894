"""The inductor's options: one frozen value that travels with a compile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class InductorOptions:
    """How a graph is lowered, scheduled and printed."""

    numerics: Literal["fast", "strict"] = "fast"
    """"strict": pointwise chains are bitwise equal to eager's. Each result is rounded to its dtype,
    and products are not contracted with sums.
    """

    elide_cast_pairs: bool = True
    """Keep float32 inside a kernel where the graph rounds to float16/bfloat16 and back."""

    inline_cost: int = 24
    """The cost in adds up to which a value with several readers is recomputed, not stored."""

    store_cost: int = 1
    """What storing a value with several readers costs, in passes over its memory: it is stored when
    the readers beside the first would read more than this without it. (Storing costs less where all
    readers share a kernel.)
    """

    max_fusion_size: int = 64
    """At most this many loop nests share a kernel."""

    max_kernel_statements: int = 1000
    """The most statements in a fused kernel: compile time grows faster than the kernel."""

    max_kernel_buffers: int = 256
    """Nor into one that takes more buffers than this: executors and devices bound them."""

    threads: int = 0
    """Threads that C++ kernels use; 0: as OpenMP decides at run time."""

    reduction_parts: int | None = None
    """Cut every long reduction into this many parts; None: as the device needs it."""

    fuse_horizontal: bool = True
    """Also fuse loop nests that share no data but run over the same axes."""

    combine_kernels: bool = True
    """On a GPU, run small kernels that are independent of each other in one launch."""

    reuse_memory: bool = True
    """Let a new buffer take over the memory of a dead one of the same size."""

    smallest_overwrite: int = 1 << 16
    """A kernel writes its result over a dead operand of at least this many bytes: for smaller ones
    equal layers rather share one kernel.
    """

    max_autotune: bool = False
    """`max_autotune_gemm` and `max_autotune_pointwise`."""

    max_autotune_gemm: bool = False
    """Measure ways to multiply matrices: the library's kernel and a kernel for what is done with
    its result, or kernels of our own for both.
    """

    max_autotune_gemm_backends: str = "ATEN,TRITON,CPP"
    """Which of these are measured ("TRITON" on a GPU, "CPP" on a CPU); with only one of them,
    measuring is among its ways. "ATEN" is used where there is no other way, too.
    """

    max_autotune_pointwise: bool = False
    """On a GPU, measure tile sizes and warps of the kernels for loop nests."""

    coordinate_descent_tuning: bool = False
    """Go on from the fastest of what was measured, changing one number at a time."""

    max_autotune_candidates: int = 12
    """At most this many kernels of our own are measured for one matrix product."""

    debug_checks: bool = False
    """Run the border checkers of `check.py` between passes."""

    @property
    def strict(self) -> bool:
        """Whether pointwise chains are bitwise equal to eager's."""
        return self.numerics == "strict"

    @property
    def elides_casts(self) -> bool:
        """Whether float32 is kept where the graph rounds to half precision and back."""
        return self.elide_cast_pairs and not self.strict

    @property
    def tunes_gemm(self) -> bool:
        """Whether matrix products are measured."""
        return self.max_autotune or self.max_autotune_gemm

    @property
    def tunes_pointwise(self) -> bool:
        """Whether kernels for loop nests are measured."""
        return self.max_autotune or self.max_autotune_pointwise

    @property
    def tunes(self) -> bool:
        """Whether anything is measured."""
        return self.tunes_gemm or self.tunes_pointwise or self.coordinate_descent_tuning
