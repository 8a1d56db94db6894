"""What the policy asks of a GPU: a call's stream, whether that is captured, how long it takes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType


_SETTINGS = (
    "_get_float32_matmul_precision",
    "_get_cublas_allow_tf32",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cudnn_allow_tf32",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_cudnn_enabled",
    "_get_deterministic_algorithms",
)

LIBRARY_SETTINGS: tuple[Callable[[], Any], ...] = tuple(
    getattr(torch._C, name) for name in _SETTINGS if hasattr(torch._C, name)
)
"""What libraries choose kernels by: a recording serves the calls under equal settings."""


@dataclass
class Timing:
    """The time of one plain call: of the host, and of the device once it is known.

    Its events go as soon as they have been read: torch ends a forked process that frees one.
    """

    host: float
    events: tuple[Any, Any] | None = None
    seconds: float | None = None

    def device(self) -> float | None:
        """Seconds on the device; None while the call is under way."""
        if self.events is not None and self.events[1].query():
            start, end = self.events
            self.seconds, self.events = start.elapsed_time(end) * 1e-3, None
        return self.seconds


class Gpu:
    """One GPU, as the calling thread sees it."""

    def __init__(self, core: ModuleType, index: int, *, calls_libraries: bool = True) -> None:
        self.core = core
        self.index = index
        self.settings = LIBRARY_SETTINGS if calls_libraries else ()

    def read_settings(self) -> tuple[Any, ...] | None:
        """What libraries' kernels depend on now; None where torch refuses to say, as after its old
        and its new names for TF32 were both set.
        """
        try:
            return tuple(read() for read in self.settings)
        except RuntimeError:
            return None

    def current_stream(self) -> int:
        """The handle of the stream that a call is launched on."""
        return torch.cuda.current_stream(self.index).cuda_stream

    def is_capturing(self, stream: int) -> bool:
        """Whether the caller captures the stream into a CUDA graph."""
        return self.core.is_capturing(stream)

    def timed(self, call: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, Timing]:
        """The result of the call and its time."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(self.index)
        before = time.perf_counter()
        start.record(stream)
        result = call(*args)
        end.record(stream)
        return result, Timing(time.perf_counter() - before, (start, end))
