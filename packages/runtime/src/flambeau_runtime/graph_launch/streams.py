"""Where the calls on a stream are recorded: a side stream, and pools of memory."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, ClassVar

import torch

from flambeau_runtime.graph_launch.pool import Pool

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from types import ModuleType


class Side:
    """What recordings for one stream need for good: a side stream, where the thread that records
    has its workspaces of libraries.

    Recordings use a workspace as long as they live, and torch may free it at any time: it lies in a
    pool from which nothing else is allocated. The stream is not one of torch's, which hands each of
    those to several owners: what they launch there would be captured, and use the workspace.
    """

    _of_streams: ClassVar[dict[tuple[int, int], Side]] = {}

    def __init__(self, core: ModuleType, device: int) -> None:
        with torch.cuda.device(device):
            torch.cuda.is_current_stream_capturing()  # gives a thread its context
            self.stream = torch.cuda.ExternalStream(core.new_stream(), device)
        self.workspaces = Pool(device)
        self.busy = threading.Lock()

    @classmethod
    def of(cls, core: ModuleType, device: int, stream: int) -> Side:
        """The side of a stream, made when it is first asked for."""
        side = cls._of_streams.get((device, stream))
        return side or cls._of_streams.setdefault((device, stream), cls(core, device))

    def open_blas(self) -> None:
        """Make the thread's handle of cuBLAS and its workspace, which a capture could not make or
        would take from the recording's memory.
        """
        with torch.cuda.stream(self.stream), self.workspaces.allocating():
            torch.cuda.current_blas_handle()


class Arena:
    """Where the calls on one stream are recorded: the stream's side, and the pool of memory for
    recordings that keep nothing in place.
    """

    _of_streams: ClassVar[MutableMapping[tuple[int, int], Arena]] = weakref.WeakValueDictionary()

    def __init__(self, core: ModuleType, device: int, stream: int) -> None:
        self.side = Side.of(core, device, stream)
        self.pool = Pool(device)

    @classmethod
    def of(cls, core: ModuleType, device: int, stream: int) -> Arena:
        """The arena of a stream, made when it is first asked for. No lock: the collector may run
        in here, and a second arena does no harm.
        """
        arena = cls._of_streams.get((device, stream))
        if arena is None:
            arena = cls._of_streams[device, stream] = cls(core, device, stream)
        return arena
