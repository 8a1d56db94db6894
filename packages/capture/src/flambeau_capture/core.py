"""The C extension `_core`, or None where it is not built: every part has a pure-Python twin with
the same results.

Raises ImportError when the binary is older than the C sources beside it (a development checkout),
since passing tests on a stale binary is worse than none.

Tails: calls that stand for the value of a suspended frame, made when the function that hands them
over has returned.

    entry   ->  Tail(perform, y)              perform(y)  ->  Tail(resume, y, z)
            resume(y, z)  ->  the value

A Tail owns its arguments and is used once, so that an object that the program drops is freed there,
as in eager.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

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


# ---------------------------------------------------------------- tails


class _PythonTail(functools.partial):  # type: ignore[type-arg]
    """The C core's Tail in Python."""

    __slots__ = ()

    def __call__(self) -> Any:
        """The value of the frame, for the frame above."""
        return _run_to_end(self)


def _run_to_end(value: Any) -> Any:
    """The value of a suspended frame: runs the pending calls one after another, at one depth."""
    while type(value) is _PythonTail:
        value = value.func(*value.args)
    return value


Tail: Any = _PythonTail if core is None else core.Tail
run_to_end: Any = _run_to_end if core is None else core.run_to_end
release_arguments: Any = None if core is None else core.release_arguments
"""Called first by a Tail's function, so that only its frame holds the arguments; None without C."""
