"""The C extension `_core`, or None where it is not built: every part has a pure-Python twin with
the same results.

Raises ImportError when the binary is older than the C sources beside it (a development checkout),
since passing tests on a stale binary is worse than none.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

try:
    from flambeau_capture import _core  # type: ignore[attr-defined]
except ImportError as error:
    if error.name not in ("flambeau_capture", "flambeau_capture._core"):
        raise
    _core = None  # type: ignore[assignment]


def _refuse_stale(module: ModuleType) -> None:
    build_script = Path(__file__).parents[2] / "hatch_build.py"
    if not (build_script.exists() and (build_script.parent / "csrc").is_dir()):
        return
    spec = importlib.util.spec_from_file_location("flambeau_capture_build", build_script)
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    if build.source_hash() != module.source_hash:
        raise ImportError(
            f"{module.__file__} is older than its C sources; rebuild it: python "
            f"{build_script} --inplace"
        )


if _core is not None:
    _refuse_stale(_core)

core: ModuleType | None = _core
"""The extension module, or None."""


def core_is_native() -> bool:
    """Whether calls are served by the C core rather than by its Python twin."""
    return core is not None
