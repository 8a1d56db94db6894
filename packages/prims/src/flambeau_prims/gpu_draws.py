"""Draws of eager on a GPU: what they take from the device's default generator, and their grid.

`reserve_random` advances the generator as a draw does and returns (seed, offset) of before; the
primitive `random_words` computes words from them, whenever and as often as they are needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flambeau_prims.philox import WORDS, signed
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import ceil_div, size_min
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor

    from flambeau_prims.spec import Size

BLOCK = 256
"""Threads in a block of eager's draws."""

_LIBRARY = torch.library.Library("flambeau", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "reserve_random(SymInt increment, Device device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)


def _reserve(increment: int, device: torch.device) -> Tensor:
    seed, offset = reserve(increment, device)
    return torch.tensor([signed(seed), signed(offset)])


_LIBRARY.impl("reserve_random", _reserve, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
reserve_random = torch.ops.flambeau.reserve_random.default
"""reserve_random(increment, device) -> int64[2] on the CPU: seed and offset, as signed words."""


@rule(reserve_random)
def _reserve_rule(increment: Size) -> Spec:
    return Spec.of((2,), dtype=torch.int64)


def reserve(increment: int, device: torch.device) -> tuple[int, int]:
    """Advance the default generator of a GPU; seed and offset of before."""
    generator = torch.cuda.default_generators[
        torch.cuda.current_device() if device.index is None else device.index
    ]
    offset = generator.get_offset()
    generator.set_offset(offset + increment)
    return generator.initial_seed(), offset


# The grid of a draw


@dataclass(frozen=True)
class GpuFacts:
    """What the grid of a draw depends on."""

    multiprocessors: int
    threads: int  # that one multiprocessor can hold

    @property
    def blocks(self) -> int:
        """The most blocks of a draw."""
        return self.multiprocessors * (self.threads // BLOCK)


def gpu_facts(device: torch.device) -> GpuFacts | None:
    """The facts of a device; None if it is no GPU, or not of this machine."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        return None
    facts = torch.cuda.get_device_properties(index)
    return GpuFacts(facts.multi_processor_count, facts.max_threads_per_multi_processor)


def grid_threads(facts: GpuFacts, numel: Size) -> Size:
    """The threads of a draw of that many elements."""
    return BLOCK * size_min(facts.blocks, ceil_div(numel, BLOCK))


def offset_increment(numel: Size, threads: Size, elements: int) -> Size:
    """What a draw adds to the offset; each thread draws `elements` at a time."""
    return WORDS * ceil_div(numel, elements * threads)
