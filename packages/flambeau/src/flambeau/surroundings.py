"""What a compiled form depends on besides the program: the machine, what is installed, the options,
and torch's state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import os
import platform
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture import torch_state
from flambeau_prims.autocast_key import AUTOCAST_KEY
from flambeau_prims.lazy_exports import import_apart
from flambeau_runtime.build import isa
from flambeau_runtime.cache import Cache, CacheUse, binding, key_of, recording_cache_use
from flambeau_runtime.environment_errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau.compile_context import Context
    from flambeau_runtime.options import RuntimeOptions

COMPILER = "compiler"

PACKAGES = (
    "flambeau", "flambeau_capture", "flambeau_autograd", "flambeau_inductor", "flambeau_prims",
    "flambeau_runtime",
)  # fmt: skip


def surroundings(context: Context) -> list[Any]:
    """All that a compiled form depends on besides the program: what is installed, the options, and
    torch's state.
    """
    return [_installation(context.options.runtime), _gpus(), _options(context), state_of_torch()]


def _installation(options: RuntimeOptions) -> list[Any]:
    """The processor, Python, torch, and every file of this compiler by its content."""
    return [*_machine(), _compiler_digest(options.cache_dir if options.use_cache else None)]


@functools.lru_cache(maxsize=16)
def _compiler_digest(cache_dir: Path | None) -> str:
    """The hash of this compiler's files: equal on all machines where the same is installed. The
    cache keeps it by their names, sizes and times, as reading all of them takes a while.
    """
    files = []
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations is not None
        for folder in spec.submodule_search_locations:
            files += sorted(_files(Path(folder), package))
    stamp = key_of("compiler", repr(files))
    with recording_cache_use(CacheUse()):
        text = Cache(cache_dir).read(COMPILER, stamp) if cache_dir else None
    if text is not None:
        return text.decode().rpartition(" ")[2]
    digest = content_digest([(name, path) for name, path, _, _ in files])
    if cache_dir is not None:
        content = f"{binding(COMPILER, stamp)} {digest}".encode()
        with contextlib.suppress(CacheError), recording_cache_use(CacheUse()):
            Cache(cache_dir).store(COMPILER, stamp, content, ".txt")
    return digest


def content_digest(files: Sequence[tuple[str, str]]) -> str:
    """The hash of files, each by its name and what is in it."""
    return key_of(*(part for name, path in files for part in (name, _content_of(path))))


def _content_of(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # hundreds of small ones
        return file.readall()


@functools.cache
def _machine() -> list[Any]:
    flags = sorted(isa.cpu_flags())
    return [
        sys.version, platform.machine(), flags, os.cpu_count(), torch.__version__,
        torch.version.git_version, torch.__config__.show(),
    ]  # fmt: skip


def _gpus() -> list[str]:
    """The GPUs, and the compiler of their kernels; nothing before this process uses one."""
    return _described_gpus() if torch.cuda.is_initialized() else []


@functools.cache
def _described_gpus() -> list[str]:
    gpus = list(map(torch.cuda.get_device_properties, range(torch.cuda.device_count())))
    described = [
        f"{gpu.name} {gpu.major}.{gpu.minor} {gpu.multi_processor_count} "
        f"{getattr(gpu, 'shared_memory_per_block_optin', '')}"
        for gpu in gpus
    ]
    # The number of equal GPUs decides nothing.
    described = described[:1] if len(set(described)) == 1 else described
    metadata = import_apart("importlib.metadata")
    try:
        return [*described, metadata.version("triton")]
    except metadata.PackageNotFoundError:
        return described


_OF_THIS_PYTHON = (".py", sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def _files(folder: Path, name: str) -> list[tuple[str, str, int, int]]:
    """Name in its package, path, size and time of each file of the compiler below a folder."""
    found: list[tuple[str, str, int, int]] = []
    for entry in os.scandir(folder):
        if entry.is_dir():
            if entry.name != "__pycache__":
                found += _files(Path(entry.path), f"{name}/{entry.name}")
        elif entry.name.endswith(_OF_THIS_PYTHON):
            status = entry.stat()
            found.append((f"{name}/{entry.name}", entry.path, status.st_size, status.st_mtime_ns))
    return found


_PLACES = frozenset({
    "cache_dir", "shared_cache", "remote_cache", "remote_cache_key", "cache_limit",
    "graph_cache", "use_cache", "logs", "progress", "background", "background_limit",
    "torch_variables",
})  # fmt: skip
"""Fields of options and environment that say where things are kept, when they are compiled, and
what is shown; and torch's variables, which other fields follow from.
"""


def _options(context: Context) -> list[str]:
    options = context.options
    return [
        f"{stage}.{field.name}={getattr(value, field.name)!r}"
        for stage, value in (
            ("capture", options.capture), ("autograd", options.autograd),
            ("inductor", options.inductor),
            ("runtime", options.runtime), ("environment", options.environment),
        )
        for field in dataclasses.fields(value)
        if field.name not in _PLACES
    ]  # fmt: skip


def state_of_torch() -> list[str]:
    """All of torch's state that guards know, and what else passes and kernels are chosen by."""
    states = {**torch_state.DEFAULT_STRATEGY, **torch_state.EXTRA}
    found = [f"{name}={read()!r}" for name, read in states.items()]
    found += [
        f"autocast {device}={torch.is_autocast_enabled(device)}" for device in ("cpu", "cuda")
    ]
    precision = getattr(torch._C, "_get_fp32_precision_getter", lambda *_: "")
    found += [
        f"{backend} {operator}={precision(backend, operator)}"
        for backend in ("generic", "mkldnn", "cuda")
        for operator in ("all", "conv", "matmul", "rnn")
        if backend != "generic" or operator == "all"
    ]
    registered = torch.library._impls - _batching_rules()
    overrides = sorted(name for name in registered if _is_override(name))
    return [
        *found,
        f"mkldnn={torch._C._get_mkldnn_enabled()} {torch.backends.mkldnn.is_available()}",
        f"capability={torch.backends.cpu.get_cpu_capability()}",
        f"debug={torch.get_deterministic_debug_mode()}",
        f"fills={torch._C._get_deterministic_fill_uninitialized_memory()}",
        *overrides,
    ]


_OF_CALLS = ("grad_enabled=", "dispatch_keys_", "autocast")


def state_of_backwards() -> list[str]:
    """The same but for modes in which calls are recorded: what is compiled for a backward that is
    expected, beside its forward, is what its call would find.
    """
    return [state for state in state_of_torch() if not state.startswith(_OF_CALLS)]


def _batching_rules() -> set[str]:
    """What torch registers itself when it batches a call for the first time."""
    modules = map(sys.modules.get, ("torch._functorch.predispatch", "torch._functorch.vmap"))
    libraries = (getattr(module, "VMAP_DECOMPOSITIONS_LIB", None) for module in modules)
    return set().union(*(library._op_impls for library in libraries if library is not None))


_KEYS_OF_PRIMS = frozenset({
    "Autograd", "BackendSelect", "CompositeExplicitAutograd", "Conjugate", "Meta", "Negative",
})  # fmt: skip
"""What torch registers for operators of `prims` itself, for some when a program imports them."""


_KERNEL_OF_RECORDINGS = "aten/record_stream/AutogradCUDA"
"""What `graph_launch.stream_uses` registers at the first recording of a process."""


@functools.lru_cache(maxsize=8192)
def _is_override(name: str) -> bool:
    """Whether a kernel registered in Python ("aten/sin/CPU") may not be one of torch itself."""
    space, key = name.partition("/")[0], name.rpartition("/")[2]
    if key == AUTOCAST_KEY or name == _KERNEL_OF_RECORDINGS:
        return False  # kernels of ours, registered when first needed
    return space == "aten" or (space.startswith("prim") and key not in _KEYS_OF_PRIMS)
