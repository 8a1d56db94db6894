"""Other streams that read what a recording hands out in place, as `Tensor.record_stream` says.

    y = compiled(x)
    with torch.cuda.stream(side):
        send(y)
    y.record_stream(side); del y     -> the next replay that writes to y's memory waits for `side`

torch's allocator gives no memory away while a stream that was recorded for it is behind. It cannot
know that what a recording hands out is written to again once it was dropped.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from flambeau_runtime.graph_launch.record import Recorded

_HANDED_OUT: MutableMapping[int, Recorded] = weakref.WeakValueDictionary()
"""The recordings by the memory that they hand out in place."""


class Readers:
    """What a recording calls before its next replay: streams that its own has to wait for."""

    def __init__(self) -> None:
        self.streams: set[torch.cuda.Stream] = set()

    def __call__(self) -> None:
        here = torch.cuda.current_stream()
        for stream in self.streams:
            with torch.cuda.device(stream.device):
                here.wait_stream(stream)


def watch(recorded: Recorded) -> None:
    """Have a recording wait for streams that are recorded for what it hands out."""
    if recorded.storages:
        _listen()
        _HANDED_OUT.update(dict.fromkeys(recorded.storages, recorded))


@functools.cache
def _listen() -> torch.library.Library:
    """See each call of `record_stream`; kept for good."""
    library = torch.library.Library("aten", "IMPL", "AutogradCUDA")
    library.impl("record_stream", _record_stream)
    return library


def _record_stream(tensor: torch.Tensor, stream: torch.Stream) -> None:
    address = tensor.untyped_storage().data_ptr()
    recorded = _HANDED_OUT.get(address)
    with torch._C._AutoDispatchBelowAutograd():
        tensor.record_stream(stream)  # type: ignore[arg-type]
        if recorded is not None and recorded.handover is not None:
            for owner in recorded.handover.owners(address):
                owner.record_stream(stream)  # type: ignore[arg-type]
    if recorded is not None:
        reader = _as_cuda(stream)
        for each in _users_of_its_memory(recorded):
            readers = each.recording.before or Readers()
            readers.streams.add(reader)
            each.recording.before = readers


def _users_of_its_memory(recorded: Recorded) -> set[Recorded]:
    shared = filter(None, (recorded.handover, recorded.borrowed))
    return {recorded}.union(*(each.users for each in shared))


def _as_cuda(stream: Any) -> torch.cuda.Stream:
    return torch.cuda.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )
