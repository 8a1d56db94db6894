"""`flambeau.compiler`: torch.compiler's names, for this compiler. docs/api.md says what each does,
and where it differs from torch's.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from torch import nn

from flambeau.api import compile
from flambeau.artifacts import load_cache_artifacts, save_cache_artifacts
from flambeau.backend_registry import get_default_backend, list_backends, set_default_backend
from flambeau.logs import set_logs
from flambeau.module import CompiledModule
from flambeau.options import list_mode_options, list_options
from flambeau.report import owner_of
from flambeau.reset import reset
from flambeau_capture import background
from flambeau_capture.compiler_functions import (
    allow_in_graph,
    assume_constant_result,
    cudagraph_mark_step_begin,
    disable_function,
    disallow_in_graph,
    graph_break,
    is_compiling,
    is_dynamo_compiling,
    is_exporting,
    nested_compile_region,
    substitute_in_graph,
)
from flambeau_capture.guard_collectives import set_enable_guard_collectives
from flambeau_capture.guards.filtering import (
    keep_portable_guards_unsafe,
    keep_tensor_guards_unsafe,
    skip_all_guards_unsafe,
    skip_guard_on_all_nn_modules_unsafe,
    skip_guard_on_globals_unsafe,
    skip_guard_on_inbuilt_nn_modules_unsafe,
)
from flambeau_capture.stance import set_stance
from flambeau_prims.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.capture_stage import wrap_numpy

__all__ = [
    "allow_in_graph", "assume_constant_result", "cancel_compiles", "compile",
    "cudagraph_mark_step_begin",
    "disable", "disallow_in_graph", "get_default_backend", "graph_break", "is_compiling",
    "is_dynamo_compiling", "is_exporting", "keep_portable_guards_unsafe",
    "keep_tensor_guards_unsafe", "list_backends", "list_mode_options", "list_options",
    "load_cache_artifacts", "nested_compile_region", "reset", "save_cache_artifacts",
    "set_default_backend", "set_enable_guard_collectives", "set_logs", "set_stance",
    "skip_all_guards_unsafe",
    "skip_guard_on_all_nn_modules_unsafe", "skip_guard_on_globals_unsafe",
    "skip_guard_on_inbuilt_nn_modules_unsafe",
    "substitute_in_graph", "wait_for_compiles", "wrap_numpy",
]  # fmt: skip

lazy_exports(__name__, {"flambeau_capture.capture_stage": ("wrap_numpy",)})


def wait_for_compiles(
    compiled: Callable[..., Any] | None = None, timeout: float | None = None
) -> bool:
    """Wait until nothing is compiled in the background, for this callable or for all; False if that
    takes longer than `timeout` seconds.
    """
    return background.wait(timeout, None if compiled is None else owner_of(compiled))


def cancel_compiles(compiled: Callable[..., Any] | None = None) -> int:
    """Cancel what is compiled in the background, for this callable or for all; how many compiles.
    Later calls submit what they need again.
    """
    return background.cancel(None if compiled is None else owner_of(compiled))


def disable(
    fn: Callable[..., Any] | nn.Module | type | None = None,
    recursive: bool = True,
    *,
    reason: str | None = None,
) -> Any:
    """Keep a function from being captured: a call of it from compiled code is a graph break. Usable
    as a decorator, with or without arguments.

    fn: a function, method or other callable gives a callable of the same signature; a module gives
        a module around it, whose calls are not captured; a class has its `__init__` and `__call__`
        disabled and is returned.
    recursive: leave what the function calls alone, too; else frames below it may be captured.
    reason: stands in the reason of the break.

    Of `disable` and `compile` around one function, the outer one decides.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    again = functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(fn, CompiledModule):
        fn = fn._orig_mod
    if isinstance(fn, nn.Module):
        return CompiledModule(fn, disable_function(fn.__call__, recursive, reason), again)
    if isinstance(fn, type):
        for name in ("__init__", "__call__"):
            result = getattr(fn, name, None)
            if isinstance(result, types.FunctionType):
                setattr(fn, name, disable_function(result, recursive, reason))
        return fn
    if not callable(fn) and not isinstance(fn, (staticmethod, classmethod)):
        raise TypeError(f"disable takes a callable, a module or a class, not a {type(fn).__name__}")
    return disable_function(fn, recursive, reason)
