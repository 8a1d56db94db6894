"""GPU kernels of a Program: built from Triton source (or taken from the cache) and loaded on their
device.

Each cubin is cached by its source, its meta data, the device's compute capability and Triton's
version. Kernels are built for pointers that are multiples of 16 bytes; the variant for other
pointers is built when a launch first meets one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flambeau_runtime import native
from flambeau_runtime.build.triton import Cubin, build_cubin, build_job, start_compiler
from flambeau_runtime.cache import Cache, CacheUse, binding, key_of, recording_cache_use
from flambeau_runtime.cache_locks import one_at_a_time
from flambeau_runtime.environment_errors import CompilerUnusable
from flambeau_runtime.object_stores import cache_of
from flambeau_runtime.program import Launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_runtime.options import RuntimeOptions
    from flambeau_runtime.program import Kernel, Program

MOST_BUILDS = 16
"""Kernels built at once, each in a process, if there are as many processors."""

TRITON_HINT = (
    "Triton needs a directory for temporary files: name one with TMPDIR (and with TRITON_HOME, "
    "where it runs in the program's process)"
)


def begin_kernels(program: Program, options: RuntimeOptions) -> Callable[[], dict[str, Any]]:
    """Begin to build and load the kernels; what waits for them, and returns a `_core.GpuKernel` for
    each Triton kernel of the program, on the device that its launches' buffers live on.
    """
    devices = kernel_devices(program)
    chosen = [kernel for kernel in program.kernels if kernel.name in devices]
    if not chosen:
        return dict
    core = native.core()
    if core is None:
        raise RuntimeError(f"GPU kernels need the C executor: {native.unavailable()}")
    library = str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so")
    with contextlib.suppress(PackageNotFoundError):  # which those raise that look for a cubin
        _triton_version()  # once, for all threads below

    def load(kernel: Kernel) -> tuple[str, Any]:
        device = devices[kernel.name]
        text = program.sources[kernel.source].text
        build = functools.partial(cubin, text, kernel, capability(device), options)
        aligned = build(aligned=True)
        if aligned.spills and kernel.meta.get("in_registers"):
            raise ValueError(f"{aligned.stack - aligned.frames} bytes of a thread are spilled")

        def unaligned() -> tuple[bytes, str, int]:
            made = build(aligned=False, warps=aligned.warps)
            return made.image, made.entry, made.shared

        loaded = core.GpuKernel(
            libtorch_cuda=library,
            device=device.index or 0,
            image=aligned.image,
            entry=aligned.entry,
            shared=aligned.shared,
            warps=aligned.warps,
            unaligned=unaligned,
        )
        return kernel.name, loaded

    processors = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(max(2, min(MOST_BUILDS, processors)))
    # Each in a copy of this context, which holds who writes down the use of the cache.
    loads = [pool.submit(copy_context().run, load, kernel) for kernel in chosen]
    pool.shutdown(wait=False)
    return lambda: dict(each.result() for each in loads)


def expect_kernels(device: torch.device) -> None:
    """Have the compiler of GPU kernels started, as a graph on this device is about to be compiled;
    without a wait.
    """
    with contextlib.suppress(PackageNotFoundError):
        _triton_version()
        start_compiler(capability(device))


@functools.cache
def _triton_version() -> str:
    """Triton's version, read from its metadata once."""
    return version("triton")


def kernel_devices(program: Program) -> dict[str, torch.device]:
    """The device of each kernel written in Triton: that of the first buffer of its first launch."""
    tensors = {tensor.name: tensor for tensor in program.tensors}
    triton_kernels = {
        kernel.name
        for kernel in program.kernels
        if program.sources[kernel.source].language == "triton"
    }
    devices: dict[str, torch.device] = {}
    for step in program.steps:
        if isinstance(step, Launch) and step.kernel in triton_kernels:
            devices.setdefault(step.kernel, torch.device(tensors[step.buffers[0]].device))
    return devices


def capability(device: torch.device) -> int:
    """The compute capability as Triton's target has it: 90 for an H100 or H200."""
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def cubin(
    text: str,
    kernel: Kernel,
    target: int,
    options: RuntimeOptions,
    *,
    aligned: bool,
    warps: int | None = None,
) -> Cubin:
    """The cubin of one kernel, from the cache or built now; with so many warps, or with more than
    its meta data say if its values do not fit into the registers of those.
    """
    cache = cache_of(options)
    meta = kernel.meta if warps is None else kernel.meta | {"num_warps": warps, "most_warps": warps}
    if not aligned and "unaligned_constants" in meta:
        meta = meta | {"constants": meta["constants"] | meta["unaligned_constants"]}
    job = build_job(text, kernel.name, meta, target, aligned=aligned)
    facts = json.dumps([job, meta.get("most_warps", 0)], sort_keys=True)
    key = key_of("triton", _triton_version(), facts)
    stored = cache.read("triton", key) if options.use_cache else None
    if stored is None and options.use_cache:
        with one_at_a_time(cache, "triton", key):
            with recording_cache_use(CacheUse()):  # the miss is counted
                stored = Cache(cache.root).read("triton", key)
            if stored is None:
                return _build_and_store(text, kernel, meta, target, cache, key, aligned=aligned)
    if stored is not None:
        with contextlib.suppress(ValueError):
            return Cubin.from_bytes(stored)
    return _build_and_store(text, kernel, meta, target, cache, key, aligned=aligned)


def _in_registers(build: Callable[[dict[str, Any]], Cubin], meta: dict[str, Any]) -> Cubin:
    """The kernel with its values in registers, as far as a thread can have so many.

    `ptxas` gives a thread fewer registers where more programs then run at once, and moves values to
    the stack for it. That is slow, and wrong for some kernels: 12.8, 12.9 and 13.0 put two values
    into one register where a product of two warps reads numbers one by one, and the second warp
    reads shared memory out of bounds. A bound keeps `ptxas` from it.
    """
    built = build(meta)
    if built.spills and built.registers < built.most_registers:
        built = build(meta | {"registers": built.most_registers})
    return built


def _build_and_store(
    text: str,
    kernel: Kernel,
    meta: dict[str, Any],
    target: int,
    cache: Cache,
    key: str,
    *,
    aligned: bool,
) -> Cubin:
    build = functools.partial(build_cubin, text, kernel.name, capability=target, aligned=aligned)
    try:
        built = _in_registers(build, meta)
        while built.spills and built.warps < meta.get("most_warps", 0):
            built = _in_registers(build, meta | {"num_warps": 2 * built.warps})
    except OSError as error:
        raise CompilerUnusable(f"Triton cannot build kernels: {error}", TRITON_HINT) from error
    if built.scratch > meta.get("scratch", 0):
        raise ValueError(f"{kernel.name} needs {built.scratch} bytes of scratch memory a program")
    cache.store("triton", key, built.to_bytes(binding("triton", key)), ".cubin")
    return built
