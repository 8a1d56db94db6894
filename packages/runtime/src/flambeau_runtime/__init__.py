"""Run compiled programs: build, cache, load and launch.  See README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_runtime._version import __version__
from flambeau_runtime.build.cpp import CompileError
from flambeau_runtime.cache import Cache, CacheUse, recording_cache_use
from flambeau_runtime.check import ProgramError, check_arguments, check_program
from flambeau_runtime.environment_errors import (
    CacheError,
    CompilerNotFound,
    CompilerUnusable,
    EnvironmentProblem,
    KernelNotLoadable,
    SanitizerNotLoaded,
)
from flambeau_runtime.executor import begin_load, load
from flambeau_runtime.large_memory import release_memory
from flambeau_runtime.options import RuntimeOptions, default_cache_dir
from flambeau_runtime.output_code import output_code
from flambeau_runtime.program import Program
from flambeau_runtime.program_text import format_program

if TYPE_CHECKING:
    from flambeau_runtime.graph_launch import describe_launch

__all__ = [
    "Cache", "CacheError", "CacheUse", "CompileError", "CompilerNotFound", "CompilerUnusable",
    "EnvironmentProblem", "KernelNotLoadable", "Program", "ProgramError", "RuntimeOptions",
    "SanitizerNotLoaded", "__version__", "begin_load", "check_arguments", "check_program",
    "default_cache_dir", "describe_launch", "format_program", "load", "output_code",
    "recording_cache_use", "release_memory",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name != "describe_launch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flambeau_runtime.graph_launch import describe_launch  # imported for a GPU alone

    return describe_launch
