"""The environment variables Flambeau reads, all of them, in one function.

| variable | meaning |
|---|---|
| `FLAMBEAU_DISABLE=1` | `flambeau.compile` returns `model` (as `TORCH_COMPILE_DISABLE=1`) |
| `FLAMBEAU_CACHE_DIR` | the folder of built kernels (default: `~/.cache/flambeau`) |
| `FLAMBEAU_SHARED_CACHE_DIR` | the option `shared_cache`: a cache directory that is only read |
| `FLAMBEAU_REMOTE_CACHE` | the option `remote_cache`: `redis://host:6379/0`, `file:///mnt/cache` |
| `FLAMBEAU_REMOTE_CACHE_KEY` | the option `remote_cache_key`: the file of the secret that signs |
| `FLAMBEAU_CXX` | the C++ compiler, or a command such as `ccache g++` (default: `g++`) |
| `FLAMBEAU_ISA` | the ISA of CPU kernels: `avx512`, `avx2`, `baseline` (default: the best) |
| `FLAMBEAU_FREEZING=1` | the option `freezing` (as `TORCHINDUCTOR_FREEZING=1`) |
| `FLAMBEAU_MAX_AUTOTUNE_GEMM_BACKENDS` | the option of this name (as torch's variable) |
| `FLAMBEAU_GRAPH_CACHE=0` | turns the option `graph_cache` off: no compiled graphs on disk |
| `FLAMBEAU_CACHE_LIMIT` | the option `cache_limit`: bytes of the cache directory, `8G`, `0` |
| `FLAMBEAU_SANITIZE=1` | build CPU kernels with the address sanitizer (preload its library) |
| `FLAMBEAU_CHECK=1` | run every border checker; raise internal errors, do not fall back |
| `FLAMBEAU_DEBUG_DIR=DIR` | write each stage of each graph to a folder there (`debug_folder`) |
| `TORCH_COMPILE_DEBUG=1` | the same, to `torch_compile_debug` (in `TORCH_COMPILE_DEBUG_DIR`) |
| `FLAMBEAU_PROGRESS=0` | show nothing of compiles that take longer than a second (`progress`) |
| `FLAMBEAU_LOGS=TOPIC,...` | write these topics to stderr, or `all` (next table) |
| `TORCH_LOGS=TOPIC,...` | the same for torch's names of these topics; others are torch's own |
| `TORCHINDUCTOR_...` | some set the option that they set for torch; a warning names the others |

| topic of `FLAMBEAU_LOGS` | what is written |
|---|---|
| `autotune` | each table of measured kernels (written to stderr without this topic, too) |
| `captures` | each capture and its seconds |
| `recompiles` | each recompilation, the guards that failed and the lines that they protect |
| `graph_breaks` | each graph break; calls that run eagerly after the recompile limit |
| `fallbacks` | each graph that runs eagerly because it could not be compiled, and why |
| `guards` | the guards of each entry, in the order they are checked |
| `graph_code` | the captured graph as Python text |
| `output_code` | each graph's Programs and their kernels, as runnable Python |
| `schedule` | each functional graph's kernels in loop IR, unmeasured, and refused fusions |
| `dynamic` | the inputs of each captured graph that have symbolic sizes; entries for all sizes |
| `cudagraphs` | each graph that is launched kernel by kernel though CUDA graphs were asked for |
| `perf_hints` | what is not fused, only copies, runs eagerly or is recompiled often, and why |
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flambeau_runtime.build.isa import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Environment:
    """What the environment asked for, read when `flambeau.compile` is called."""

    disable: bool = False
    cache_dir: Path | None = None
    shared_cache: str | None = None
    remote_cache: str | None = None
    remote_cache_key: str | None = None
    cxx: str | None = None
    isa: str | None = None
    freezing: bool = False
    gemm_backends: str | None = None
    graph_cache: bool | None = None
    cache_limit: int | None = None
    sanitize: bool = False
    check: bool = False
    debug_dir: Path | None = None
    logs: frozenset[str] = frozenset()
    progress: bool = True
    torch_variables: tuple[tuple[str, str], ...] = ()
    """Torch's variables of options, and their values."""


LOG_TOPICS = (
    "autotune", "captures", "cudagraphs", "dynamic", "fallbacks", "graph_breaks",
    "graph_code", "guards", "output_code", "perf_hints", "recompiles", "schedule",
)  # fmt: skip

TORCH_TOPICS = {topic: topic for topic in LOG_TOPICS} | {
    "autotuning": "autotune", "dynamo": "captures", "fusion": "schedule", "graph": "graph_code",
    "kernel_code": "output_code", "recompiles_verbose": "recompiles",
}  # fmt: skip
"""Our topics by torch's names of them."""


def read_environment() -> Environment:
    """The environment, read once a `flambeau.compile`; ValueError for an unknown topic or level."""

    def flag(name: str) -> bool:
        return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")

    def choice(name: str) -> bool | None:
        """True or False where the variable says so; None otherwise."""
        off = os.environ.get(name, "").lower() in ("0", "false", "no", "off")
        return False if off else flag(name) or None

    def path(name: str) -> Path | None:
        text = os.environ.get(name)
        return Path(os.path.expanduser(text)) if text else None

    torch_debug_dir = None
    if flag("TORCH_COMPILE_DEBUG"):
        torch_debug_dir = (path("TORCH_COMPILE_DEBUG_DIR") or Path.cwd()) / "torch_compile_debug"
    return Environment(
        disable=flag("FLAMBEAU_DISABLE") or flag("TORCH_COMPILE_DISABLE"),
        cache_dir=path("FLAMBEAU_CACHE_DIR"),
        shared_cache=os.environ.get("FLAMBEAU_SHARED_CACHE_DIR") or None,
        remote_cache=os.environ.get("FLAMBEAU_REMOTE_CACHE") or None,
        remote_cache_key=os.environ.get("FLAMBEAU_REMOTE_CACHE_KEY") or None,
        cxx=os.environ.get("FLAMBEAU_CXX") or None,
        isa=_level(os.environ.get("FLAMBEAU_ISA") or None),
        freezing=flag("FLAMBEAU_FREEZING"),
        gemm_backends=os.environ.get("FLAMBEAU_MAX_AUTOTUNE_GEMM_BACKENDS") or None,
        graph_cache=choice("FLAMBEAU_GRAPH_CACHE"),
        cache_limit=_bytes("FLAMBEAU_CACHE_LIMIT"),
        sanitize=flag("FLAMBEAU_SANITIZE"),
        check=flag("FLAMBEAU_CHECK"),
        debug_dir=path("FLAMBEAU_DEBUG_DIR") or torch_debug_dir,
        logs=topics_named(_words(os.environ.get("FLAMBEAU_LOGS", "")), "FLAMBEAU_LOGS")
        | _topics_of_torch(os.environ.get("TORCH_LOGS", "")),
        progress=choice("FLAMBEAU_PROGRESS") is not False,
        torch_variables=tuple(
            sorted(item for item in os.environ.items() if item[0].startswith("TORCHINDUCTOR_"))
        ),
    )


def bytes_of(text: str) -> int:
    """The bytes of "500M"; ValueError for what is no size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)b?", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is no size (such as 500M, 2G)")
    return int(float(match[1]) * _SIZES[match[2]])


_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _bytes(name: str) -> int | None:
    text = os.environ.get(name)
    try:
        return bytes_of(text) if text else None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def environment_of_child(left_out: Iterable[str] = (), **more: str) -> dict[str, str]:
    """The variables for a process of our own: this one's, but those left out, and `more`."""
    absent = set(left_out)
    kept = {name: value for name, value in os.environ.items() if name not in absent}
    return kept | more


def set_environment(variables: dict[str, str]) -> None:
    """Give this process, which was forked, these variables and no others."""
    os.environ.clear()
    os.environ.update(variables)


def _level(text: str | None) -> str | None:
    if text is not None and text not in LEVELS:
        raise ValueError(f"FLAMBEAU_ISA is {text!r}; known: {', '.join(LEVELS)}")
    return text


def topics_named(words: Iterable[str], origin: str) -> frozenset[str]:
    """These topics; ValueError, which says where they are from, if one is unknown."""
    named = set(words)
    unknown = named - set(TORCH_TOPICS) - {"all"}
    if unknown:
        raise ValueError(
            f"{origin} names unknown topics: {', '.join(sorted(unknown))}; known: "
            f"{', '.join(LOG_TOPICS)}, all"
        )
    if "all" in named:
        return frozenset(LOG_TOPICS)
    return frozenset(TORCH_TOPICS[name] for name in named)


def _topics_of_torch(text: str) -> frozenset[str]:
    """What `TORCH_LOGS` asks for that is a topic of ours: "+dynamo,guards,-inductor"."""
    words = {word.lstrip("+") for word in _words(text) if not word.startswith("-")}
    return frozenset(TORCH_TOPICS[word] for word in words & set(TORCH_TOPICS))


def _words(text: str) -> set[str]:
    return {word.strip() for word in text.split(",")} - {""}
