"""Launching a Program as one CUDA graph: which Programs, when they are recorded, and how.

| question | where |
|---|---|
| which memory does each launch and each library call touch? | `memory.py` |
| can this Program be recorded at all? | `eligibility.py` |
| is it worth it now, and what has to be copied? | `policy.py`, which asks `device.py` |
| on which stream is it recorded, in whose memory? | `streams.py`, `pool.py` |
| what must not end in a forked process? | `driver_objects.py` |
| record one call | `record.py` |
| which memory do a forward and its backward share? | `handover.py` |
| where are the workspaces of cuBLAS? | `workspaces.py` |
| which other streams read what is handed out? | `stream_uses.py` |
| which other threads may use the GPU? | `other_threads.py` |
| replay it | `csrc/recording.c`, found by `csrc/launcher.c` |
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flambeau_runtime.graph_launch.device import Gpu
from flambeau_runtime.graph_launch.eligibility import refusal
from flambeau_runtime.graph_launch.policy import LaunchPolicy
from flambeau_runtime.graph_launch.record import Recorder
from flambeau_runtime.program import uses_gpu

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from flambeau_runtime.options import RuntimeOptions
    from flambeau_runtime.program import Program


_LOG = logging.getLogger(__name__)


def launcher_of(
    program: Program,
    executor: Any,
    core: ModuleType,
    options: RuntimeOptions,
    on_refusal: Callable[[str], None] | None = None,
) -> Any:
    """The executor, behind a launcher if the Program can be launched as a CUDA graph and the
    options allow it. `on_refusal` gets the reason, now or later, why a Program on a GPU is launched
    kernel by kernel though the options ask for a graph always; by default that is logged.
    """
    reason = why_plain(program, options)
    tell = on_refusal or functools.partial(_log, program.name)
    if reason is not None and options.cuda_graphs == "always" and uses_gpu(program):
        tell(reason)
    if reason is not None or core.use_count(torch.empty(1)) is None:
        return executor
    gpus = (torch.device(tensor.device) for tensor in program.tensors)
    index = next(gpu.index or 0 for gpu in gpus if gpu.type == "cuda")
    core.open_cuda(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
    always = options.cuda_graphs == "always"
    recorder = Recorder(program, executor, core, index)
    gpu = Gpu(core, index, calls_libraries=recorder.calls_libraries)
    policy = LaunchPolicy(program, executor, core, gpu, recorder, always=always, tell=tell)
    launcher = core.Launcher(executor, index, policy, gpu.settings)
    policy.attach(launcher)
    return launcher


def why_plain(program: Program, options: RuntimeOptions) -> str | None:
    """Why a Program is never launched as a CUDA graph under these options; None if it may be."""
    if options.cuda_graphs == "never":
        return "the option cuda_graphs asks for it"
    reason = refusal(program, any_operator=options.cuda_graphs == "always")
    if reason is None and (allocator := torch.cuda.get_allocator_backend()) != "native":
        return f"the allocator {allocator} has no memory pools for recordings"
    return reason


def describe_launch(program: Program, run: Any, options: RuntimeOptions) -> str | None:
    """How what `load` returned is launched, in a line; None for a Program without GPU memory."""
    if not uses_gpu(program):
        return None
    policy = getattr(getattr(run, "run", run), "policy", None)
    if policy is None:
        return f"{program.name}: launched kernel by kernel: {why_plain(program, options)}"
    return f"{program.name}: {policy.describe()}"


def _log(name: str, reason: str) -> None:
    _LOG.warning("%s is launched kernel by kernel: %s", name, reason)
