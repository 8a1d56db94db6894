"""What a compiler asks a tuner: which of several Programs that compute the same is the fastest.

Contest("addmm(4096x4096, 4096x4096)", key, "cuda:0",
        (Candidate("aten.addmm.out + gelu", make0), Candidate("128x256x64 ...", make1)), 2e-2)
->  1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_runtime.program import Program


@dataclass(frozen=True)
class DeviceFacts:
    """What cost models know of a GPU; the defaults are an H100's."""

    multiprocessors: int = 132
    shared: int = 227 * 1024
    """Bytes of shared memory that one program may have."""
    capability: int = 90


@dataclass(frozen=True)
class CpuFacts:
    """What cost models know of a CPU."""

    threads: int = 1
    lane_bytes: int = 16
    """Bytes of a vector."""
    registers: int = 16
    """Vector registers."""
    additions: int = 1
    """Vectors that are multiplied and added in a cycle."""
    latency: int = 4
    """Cycles until a sum can be added to again."""
    multiplies_bfloat16: bool = False
    """Whether one instruction adds up products of bfloat16 pairs."""
    has_tiles: bool = False
    """Whether a tile unit multiplies bfloat16 matrices (AMX)."""
    multiplies_int8: bool = False
    """Whether one instruction adds up products of four uint8 and int8 numbers (VNNI)."""
    has_int8_tiles: bool = False
    """Whether a tile unit multiplies uint8 by int8 matrices (AMX)."""


@dataclass(frozen=True)
class Candidate:
    """One way to compute: `make` emits its Program, if it has to be built."""

    name: str
    make: Callable[[], Program]


@dataclass(frozen=True)
class LikelyIndices:
    """An input that holds places in another tensor: random ones below `below`; or `rising` bounds
    of parts of so many rows, the last one `below` itself.
    """

    input: int
    below: int
    rising: bool = False


@dataclass(frozen=True)
class Contest:
    """Candidates that take the same inputs and return the same outputs. The first is what would run
    without tuning: it is trusted, and the results of others are compared with it.

    `key` says all that the times depend on, but for the device and the versions of the tools.
    `tolerance` bounds the norm of a difference, relative to the norm of the result; of bools and of
    positions the share that differs.
    """

    title: str
    key: str
    device: str
    candidates: tuple[Candidate, ...]
    tolerance: float
    numbers: tuple[int, ...] = ()
    """The values of the Programs' int inputs, which come last: likely sizes."""
    indices: tuple[LikelyIndices, ...] = ()
    """The inputs that may not hold just any numbers."""


class Tuner(Protocol):
    """Answers contests."""

    def facts(self, device: str) -> DeviceFacts | CpuFacts | None:
        """The device as cost models see it; None where nothing can be measured now."""

    def choose(self, contests: Sequence[Contest]) -> list[int]:
        """For each contest the number of the candidate to use."""
