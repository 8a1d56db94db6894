"""The environment variables Flambeau reads, all of them, in one function.

| variable | meaning |
|---|---|
| `FLAMBEAU_DISABLE=1` | `flambeau.compile` returns `model` (as `TORCH_COMPILE_DISABLE=1`) |
| `FLAMBEAU_CACHE_DIR` | the folder of built kernels (default: `~/.cache/flambeau`) |
| `FLAMBEAU_CXX` | the C++ compiler, or a command such as `ccache g++` (default: `g++`) |
| `FLAMBEAU_ISA` | the ISA of CPU kernels: `avx512`, `avx2`, `baseline` (default: the best) |
| `FLAMBEAU_FREEZING=1` | the option `freezing` (as `TORCHINDUCTOR_FREEZING=1`) |
| `FLAMBEAU_MAX_AUTOTUNE_GEMM_BACKENDS` | the option of this name (as torch's variable) |
| `FLAMBEAU_GRAPH_CACHE=1` | the option `graph_cache`: compiled graphs are read from the cache |
| `FLAMBEAU_SANITIZE=1` | build CPU kernels with the address sanitizer (preload its library) |
| `FLAMBEAU_CHECK=1` | run every border checker; raise internal errors, do not fall back |
| `FLAMBEAU_DEBUG_DIR=DIR` | write each stage of each graph to a folder there (`debug_folder`) |
| `TORCH_COMPILE_DEBUG=1` | the same, to `torch_compile_debug` (in `TORCH_COMPILE_DEBUG_DIR`) |
| `FLAMBEAU_LOGS=TOPIC,...` | write these topics to stderr, or `all` (next table) |

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
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from flambeau_runtime.build.isa import LEVELS


@dataclass(frozen=True)
class Environment:
    """What the environment asked for, read when `flambeau.compile` is called."""

    disable: bool = False
    cache_dir: Path | None = None
    cxx: str | None = None
    isa: str | None = None
    freezing: bool = False
    gemm_backends: str | None = None
    graph_cache: bool = False
    sanitize: bool = False
    check: bool = False
    debug_dir: Path | None = None
    logs: frozenset[str] = frozenset()


LOG_TOPICS = (
    "autotune", "captures", "fallbacks", "graph_breaks", "graph_code", "guards", "output_code",
    "recompiles",
)  # fmt: skip


def read_environment() -> Environment:
    """The environment, read once a `flambeau.compile`; ValueError for an unknown topic or level."""

    def flag(name: str) -> bool:
        return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")

    def path(name: str) -> Path | None:
        text = os.environ.get(name)
        return Path(os.path.expanduser(text)) if text else None

    torch_debug_dir = None
    if flag("TORCH_COMPILE_DEBUG"):
        torch_debug_dir = (path("TORCH_COMPILE_DEBUG_DIR") or Path.cwd()) / "torch_compile_debug"
    return Environment(
        disable=flag("FLAMBEAU_DISABLE") or flag("TORCH_COMPILE_DISABLE"),
        cache_dir=path("FLAMBEAU_CACHE_DIR"),
        cxx=os.environ.get("FLAMBEAU_CXX") or None,
        isa=_level(os.environ.get("FLAMBEAU_ISA") or None),
        freezing=flag("FLAMBEAU_FREEZING") or flag("TORCHINDUCTOR_FREEZING"),
        gemm_backends=os.environ.get("FLAMBEAU_MAX_AUTOTUNE_GEMM_BACKENDS")
        or os.environ.get("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS")
        or None,
        graph_cache=flag("FLAMBEAU_GRAPH_CACHE"),
        sanitize=flag("FLAMBEAU_SANITIZE"),
        check=flag("FLAMBEAU_CHECK"),
        debug_dir=path("FLAMBEAU_DEBUG_DIR") or torch_debug_dir,
        logs=_topics(os.environ.get("FLAMBEAU_LOGS", "")),
    )


def _level(text: str | None) -> str | None:
    if text is not None and text not in LEVELS:
        raise ValueError(f"FLAMBEAU_ISA is {text!r}; known: {', '.join(LEVELS)}")
    return text


def _topics(text: str) -> frozenset[str]:
    named = {name.strip() for name in text.split(",")} - {""}
    unknown = named - set(LOG_TOPICS) - {"all"}
    if unknown:
        raise ValueError(
            f"FLAMBEAU_LOGS names unknown topics: {', '.join(sorted(unknown))}; known: "
            f"{', '.join(LOG_TOPICS)}, all"
        )
    return frozenset(LOG_TOPICS) if "all" in named else frozenset(named)
