"""The memory that a forward's recording saves tensors in, and that its backward's recording takes
over.

    forward   | saved a    | saved b | intermediates  |    in a pool that no other recording uses
    backward  | saved a    | saved b | intermediate c |
              | gradient d | saved b | intermediate c |    behind the last read of a

A saved tensor has to be at the same address at each replay, but its memory is free between the
backward's last read and the next replay of the forward. So the tensors which own it, to torch's
allocator, are dropped where the backward's Program frees them while it is captured, and what it
allocates from then on may lie there: gradients too, if they stay in place. The forward hands out
aliases, which keep the pool alive.

The forward is replayed only when nobody holds such a gradient any more (`Recording.watch`), and the
backward only if nobody reads the saved tensors again (`Launcher.spend`).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from flambeau_runtime.graph_launch.pool import Pool

Key: TypeAlias = tuple[Any, ...]
"""Address and layout of a saved tensor."""


class SavedMemory:
    """One piece of memory with the tensors that own it, by their keys."""

    def __init__(self, pool: Pool, owners: Sequence[torch.Tensor]) -> None:
        self.pool = pool
        self.owners = {_key(owner): owner for owner in owners}
        self.layouts = [
            (owner.dtype, owner.storage_offset(), owner.shape, owner.stride()) for owner in owners
        ]
        self.device = owners[0].device
        storage = owners[0].untyped_storage()
        # Read by torch.as_tensor, whose result keeps this object.
        self.__cuda_array_interface__ = {
            "shape": (storage.nbytes(),),
            "typestr": "|u1",
            "data": (storage.data_ptr(), False),
            "strides": None,
            "version": 2,
        }

    def aliases(self) -> list[torch.Tensor]:
        """A tensor over the same memory for each owner, which does not own it."""
        storage = torch.as_tensor(self, device=self.device).untyped_storage()
        return [
            torch.empty(0, dtype=dtype, device=self.device).set_(storage, offset, shape, stride)
            for dtype, offset, shape, stride in self.layouts
        ]


class Handover:
    """The saved memory of one forward's recording, and the backward's recording that took it over.

    `arena` is where both are captured, `outputs` what the backward keeps in place and how often it
    uses each itself, `ended` whether the forward's recording was dropped, `overstayed` whether that
    was because callers still hold `outputs` when they call the forward again.
    """

    def __init__(self, arena: Any, pool: Pool, memories: Sequence[SavedMemory]) -> None:
        self.arena = arena
        self.pool = pool
        self.recording: Any = None
        self.outputs: tuple[tuple[torch.Tensor, int], ...] = ()
        self.taken = False
        self.ended = False
        self.overstayed = False
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        """What is `Recorded` in the pool: the forward and the backward."""
        self._memories = {key: memory for memory in memories for key in memory.owners}

    @property
    def is_open(self) -> bool:
        """Whether a backward may take the memory over."""
        return not (self.taken or self.ended)

    def take(self, saved: torch.Tensor) -> torch.Tensor | None:
        """The tensor that owns the memory of a saved one, which is the caller's from now on."""
        self.taken = True
        key = _key(saved)
        memory = self._memories.pop(key, None)
        return None if memory is None else memory.owners.pop(key)

    def complete(self, outputs: tuple[tuple[torch.Tensor, int], ...]) -> None:
        """Have the forward wait for the outputs that the backward's recording keeps in place."""
        self.outputs = outputs
        self.recording.watch(outputs)
        self.recording = None

    def owners(self, storage: int) -> list[torch.Tensor]:
        """The tensors that own a piece of saved memory which nobody has taken, by its address."""
        owners = (owner for memory in self._memories.values() for owner in memory.owners.values())
        return [owner for owner in owners if owner.untyped_storage().data_ptr() == storage]

    def is_held(self, core: ModuleType) -> bool:
        """Whether a caller holds such an output."""
        return any(core.use_count(tensor) != own for tensor, own in self.outputs)


def _key(tensor: torch.Tensor) -> Key:
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
