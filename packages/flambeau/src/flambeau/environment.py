"""The environment variables Flambeau reads, all of them, in one function.

| variable | meaning |
|---|---|
| `FLAMBEAU_DISABLE=1` | `flambeau.compile` returns what it was given (`TORCH_COMPILE_DISABLE=1` does the same) |
| `FLAMBEAU_CACHE_DIR` | where built kernels are kept (default: `~/.cache/flambeau`) |
| `FLAMBEAU_CXX` | the C++ compiler (default: `g++`) |
| `FLAMBEAU_CHECK=1` | run every border checker while compiling |
| `FLAMBEAU_DUMP=DIR` | write each stage's text to `DIR/<graph>.<stage>.txt` |
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """What the environment asked for, read when `flambeau.compile` is called."""

    disable: bool = False
    cache_dir: Path | None = None
    cxx: str | None = None
    check: bool = False
    dump: Path | None = None


def read_environment() -> Environment:
    """The current environment; called once for each `flambeau.compile`, never at import."""

    def flag(name: str) -> bool:
        return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")

    def path(name: str) -> Path | None:
        text = os.environ.get(name)
        return Path(text).expanduser() if text else None

    return Environment(
        disable=flag("FLAMBEAU_DISABLE") or flag("TORCH_COMPILE_DISABLE"),
        cache_dir=path("FLAMBEAU_CACHE_DIR"),
        cxx=os.environ.get("FLAMBEAU_CXX") or None,
        check=flag("FLAMBEAU_CHECK"),
        dump=path("FLAMBEAU_DUMP"),
    )
