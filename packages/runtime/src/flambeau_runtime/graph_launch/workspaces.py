"""The workspaces of cuBLAS that plain launches leave behind, while a call is captured.

torch keeps a workspace (32 MiB on Hopper) for each pair of a thread's handle and a stream, for
good. Captures have a stream and workspaces of their own (`streams.py`), so those of plain launches
would lie there for nothing, two in a training step, whose backward runs in another thread.
They are given back before a capture, where nothing else can hold their addresses; the next plain
product allocates one again. So is the capture's behind it, which stays reserved by its pool.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from flambeau_runtime.graph_launch.other_threads import others_on_the_gpu
from flambeau_runtime.graph_launch.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def plain_ones_given_back(device: int, home: int) -> Iterator[None]:
    """Capture in this block without the workspaces of plain launches on the stream `home`, where
    that is safe.
    """
    spare = may_give_back(device, home)
    if spare:
        torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        if spare:
            torch._C._cuda_clearCublasWorkspaces()


def may_give_back(device: int, home: int) -> bool:
    """Whether the workspaces that torch keeps can be in use by nothing but launches that are in
    order on the default stream: by no CUDA graph and by no other thread.
    """
    return home == 0 and not others_on_the_gpu() and _all_on_default_stream(device)


def _all_on_default_stream(device: int) -> bool:
    for segment in torch.cuda.memory_snapshot():
        if segment["device"] != device:
            return False
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        if pool not in Pool.ids and (pool != (0, 0) or segment["stream"] != 0):
            return False
    return True
