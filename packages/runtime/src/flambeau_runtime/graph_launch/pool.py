"""The memory that recordings allocate: pools of torch's caching allocator.

A pool here is an id of the allocator and one use of it. It is no `torch.cuda.MemPool`: one of
those that is dropped frees its memory at once, and the allocator ends the process if any thread is
inside a `use_mem_pool` block or a capture at that moment. Memory of a dropped pool here stays with
the allocator, which frees it when it needs memory or is asked to by `torch.cuda.empty_cache()`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pool:
    """Memory for recordings on one device, kept as long as this object."""

    ids: ClassVar[set[tuple[int, ...]]] = set()
    """Of all pools that there were."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.id = torch.cuda.graph_pool_handle()
        self.ids.add(tuple(self.id))
        self._begin()  # makes the pool; this use of it is given back at the end
        self._end()

    @contextlib.contextmanager
    def allocating(self) -> Iterator[None]:
        """Have this thread's allocations on the device come from the pool."""
        self._begin()
        try:
            yield
        finally:
            self._end()
            self._release()

    def _begin(self) -> None:
        torch._C._cuda_beginAllocateCurrentThreadToPool(self.device, self.id)

    def _end(self) -> None:
        torch._C._cuda_endAllocateToPool(self.device, self.id)

    def _release(self) -> None:
        torch._C._cuda_releasePool(self.device, self.id)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the interpreter's end torch may be gone
            self._release()


def allocates_from_a_pool(device: int) -> bool:
    """Whether the thread allocates from a memory pool of the caller, where the recording's own
    memory would then be.
    """
    probe = torch.empty(1, dtype=torch.uint8, device=f"cuda:{device}").data_ptr()
    return any(
        segment["device"] == device
        and 0 <= probe - segment["address"] < segment["total_size"]
        and tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
        for segment in torch.cuda.memory_snapshot()
    )
