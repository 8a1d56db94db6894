"""What the policy asks of a GPU: a call's stream, whether that is captured, how long it takes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_runtime.graph_launch.driver_objects import DriverObjects
from flambeau_runtime.graph_launch.other_threads import others_on_the_gpu
from flambeau_runtime.graph_launch.workspaces import may_give_back

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


_SETTINGS = (
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation",
    "_get_blas_preferred_backend",
    "_get_sm_carveout_experimental",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_cudnn_enabled",
    "_get_deterministic_algorithms",
)

_PRECISIONS: tuple[Callable[[], Any], ...]
if hasattr(torch._C, "_get_fp32_precision_getter"):  # which never raises, as the old ones may
    _PRECISIONS = tuple(
        functools.partial(torch._C._get_fp32_precision_getter, "cuda", kind)
        for kind in ("matmul", "conv")
    )
else:
    _PRECISIONS = (
        torch._C._get_float32_matmul_precision,
        torch._C._get_cublas_allow_tf32,
        torch._C._get_cudnn_allow_tf32,
    )

LIBRARY_SETTINGS: tuple[Callable[[], Any], ...] = _PRECISIONS + tuple(
    getattr(torch._C, name) for name in _SETTINGS if hasattr(torch._C, name)
)
"""What libraries choose kernels by: a recording serves the calls under equal settings."""

LARGE = 1 << 28
"""Bytes of a recording for which unused memory is given back: allocating it again takes a while."""


@dataclass
class Timing:
    """The time of one plain call: of the host, and of the device once it is known."""

    host: float
    events: DriverObjects | None = None
    seconds: float | None = None

    def device(self) -> float | None:
        """Seconds on the device; None while the call is under way."""
        if self.events is not None:
            start, end = self.events.items
            if end.query():
                self.seconds, self.events = start.elapsed_time(end) * 1e-3, None
        return self.seconds


class Gpu:
    """One GPU, as the calling thread sees it."""

    def __init__(self, core: ModuleType, index: int, *, calls_libraries: bool = True) -> None:
        self.core = core
        self.index = index
        self.settings = LIBRARY_SETTINGS if calls_libraries else ()

    def read_settings(self) -> tuple[Any, ...] | None:
        """What libraries' kernels depend on now; None where torch refuses to say, as an old torch
        does after its old and its new names for TF32 were both set.
        """
        try:
            return tuple(read() for read in self.settings)
        except RuntimeError:
            return None

    def current_stream(self) -> int:
        """The handle of the stream that a call is launched on."""
        return torch.cuda.current_stream(self.index).cuda_stream

    def available_bytes(self) -> int:
        """The memory that is free, or that torch keeps and nothing uses."""
        free, _ = torch.cuda.mem_get_info(self.index)
        kept = torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)
        return free + kept

    def free_unused(self, needed: int) -> None:
        """Give back what torch keeps and nothing uses if a recording will hold as much beside it,
        which it cannot allocate there: memory of plain calls.
        """
        kept = torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)
        if kept >= needed >= LARGE and not others_on_the_gpu():
            torch.cuda.empty_cache()

    def give_back_workspaces(self) -> None:
        """Free the workspaces of cuBLAS that plain launches use, where that is safe."""
        if may_give_back(self.index, self.current_stream()):
            torch._C._cuda_clearCublasWorkspaces()

    def is_capturing(self, stream: int) -> bool:
        """Whether the caller captures the stream into a CUDA graph."""
        with torch.cuda.device(self.index):  # the runtime's first call gives a thread its context,
            torch.cuda.is_current_stream_capturing()  # without which the driver answers nothing
        return self.core.is_capturing(stream)

    def timed(self, call: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, Timing]:
        """The result of the call and its time."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(self.index)
        before = time.perf_counter()
        start.record(stream)
        result = call(*args)
        end.record(stream)
        return result, Timing(time.perf_counter() - before, DriverObjects(start, end))
