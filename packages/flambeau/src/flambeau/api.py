"""`flambeau.compile`: torch.compile's signature, composed from the five packages."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from torch import nn

from flambeau.backend_registry import backend_of_captures, get_default_backend, lookup_backend
from flambeau.compile_context import Context
from flambeau.debug_folder import debug_folder_of
from flambeau.environment import read_environment
from flambeau.expected_work import expecting_kernels
from flambeau.logs import listener
from flambeau.module import CompiledModule
from flambeau.options import check_arguments, resolve
from flambeau.progress import watcher
from flambeau.report import Report, attach_report
from flambeau.reset import remember
from flambeau.stored_entries import store_of
from flambeau_capture.api import compile as compile_frames
from flambeau_capture.compiled import state_of
from flambeau_capture.compiler_functions import innermost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flambeau.compile_context import Backend
    from flambeau.options import Options


def compile(
    model: Callable[..., Any] | nn.Module | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    name: str | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    dynamic_shapes: Mapping[str, Mapping[int, Any]] | None = None,
) -> Any:
    """Compile a function or module; usable as a decorator, with or without arguments.

    model: what to compile. A module gives a module (`CompiledModule`); a class is given a compiled
        `__call__` and returned; a staticmethod, classmethod or property gives one around the
        compiled function; anything else gives a callable of the same signature. What this function,
        torch.compile or `disable` returned is compiled from the original.
    fullgraph: what cannot be captured as one graph is an error, not run by the interpreter.
    dynamic: True makes every size symbolic, so that one compilation serves all; False none; None
        those seen to change.
    backend: a name (`list_backends()`), or `backend(gm, example_inputs) -> callable returning a
        tuple`; `get_default_backend()` by default.
    mode: a named set of options (torch.compile's names); exclusive with `options`.
    options: fields of the packages' option dataclasses, by name.
    disable: return `model` as it is.
    name: what reports call this region; the function's own name by default.
    recompile_limit: how many entries the callable may have; the option of that name.
    isolate_recompiles: accepted; entries always belong to one call of `compile`.
    dynamic_shapes: sizes of tensors by where they are read, `{"x": {0: True, 1: (2, 64)},
        "L['self'].bias": {0: "maybe"}}`: True is dynamic, (min, max) dynamic in this range,
        "unbacked" a size that nothing may depend on, "maybe" dynamic where that costs nothing,
        False static. It says beforehand what `mark_dynamic` and `mark_unbacked` say of a tensor.

    Raises ValueError for an unknown backend, mode or option (the known ones are listed), TypeError
    if `model` is not callable, or an argument or option is of the wrong type. Nothing is compiled
    before the first call.
    """
    arguments: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "backend": backend,
        "mode": mode,
        "options": options,
        "disable": disable,
        "name": name,
        "recompile_limit": recompile_limit,
        "isolate_recompiles": isolate_recompiles,
        "dynamic_shapes": dynamic_shapes,
    }
    check_arguments(arguments)
    if model is None:
        return functools.partial(compile, **arguments)
    again: Callable[[Any], Any] = functools.partial(compile, **arguments)
    if isinstance(model, (staticmethod, classmethod)):
        return type(model)(again(model.__func__))
    if isinstance(model, property):
        accessors = (model.fget, model.fset, model.fdel)
        return property(*(accessor and again(accessor) for accessor in accessors), model.__doc__)
    if not callable(model):
        raise TypeError(
            f"flambeau.compile takes a callable or a module, not {type(model).__name__}"
        )
    environment = read_environment()
    resolved = resolve(
        fullgraph=fullgraph,
        dynamic=dynamic,
        mode=mode,
        options=options,
        environment=environment,
        recompile_limit=recompile_limit,
        dynamic_shapes=dynamic_shapes,
    )
    chosen = get_default_backend() if backend is None else backend
    lookup_backend(
        chosen, Context(resolved, Report(""))
    )  # an unknown one is an error even where nothing is compiled
    if disable or environment.disable:
        return model
    if isinstance(model, type):
        return _compile_class(model, again)
    model = _original(model)
    region = name or str(getattr(model, "__qualname__", type(model).__qualname__))
    report = Report(region, debug_folder_of(region, resolved.environment), resolved.runtime)
    compiled = _compile_callable(model, chosen, resolved, report)
    return CompiledModule(model, compiled, again) if isinstance(model, nn.Module) else compiled


def compile_in_place(module: nn.Module, **arguments: Any) -> nn.Module:
    """Compile a module's calls without wrapping it, as `nn.Module.compile` does for torch.compile;
    returns the module.

    Copies and pickles of the module are not compiled.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"compile_in_place takes a module, not {type(module).__name__}")
    module._compiled_call_impl = compile(module._call_impl, **arguments)
    return module


def _original(model: Any) -> Any:
    """What is to be compiled, out of whatever compilers have put around it."""
    while isinstance(model, nn.Module) and (
        isinstance(model, CompiledModule) or type(model).__module__.startswith("torch._dynamo")
    ):
        model = model._orig_mod
    return innermost(model)


def _compile_callable(
    model: Callable[..., Any], backend: str | Backend, options: Options, report: Report
) -> Any:
    context = Context(options, report)
    compiled = compile_frames(
        model, backend=backend_of_captures(backend, context), options=options.capture
    )
    state = state_of(compiled)
    state.resolve_backend = lambda other: backend_of_captures(other, context)
    state.listener = listener(report, options.environment)
    state.watch = watcher(report.name, options.environment)
    state.entry_store = store_of(context, backend)
    if backend == "inductor" and options.autograd.decompose:
        state.capture_frame = expecting_kernels(state.capture_frame, options)
    remember(compiled)
    attach_report(compiled, report)
    return compiled


def _compile_class(cls: type, compile_function: Callable[[Any], Any]) -> type:
    """The class itself, its instances' calls compiled."""
    call = getattr(cls, "__call__")  # noqa: B004, B009 (the function is wanted, not whether there is one)
    if not isinstance(call, types.FunctionType):
        raise TypeError(
            f"{cls.__qualname__} has no __call__ to compile; compile a function that makes "
            f"its instances"
        )
    cls.__call__ = compile_function(call)  # type: ignore[method-assign]
    return cls
