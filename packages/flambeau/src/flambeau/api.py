"""`flambeau.compile`: torch.compile's signature, composed from the five packages."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch import nn

import flambeau_capture
from flambeau.backends import Context, lookup_backend
from flambeau.environment import read_environment
from flambeau.module import CompiledModule
from flambeau.options import resolve
from flambeau.report import Report, attach_report
from flambeau.reset import remember

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flambeau.backends import Backend


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
) -> Any:
    """Compile a function or module; usable as a decorator, with or without arguments.

    model: what to compile.  A module gives a module (`CompiledModule`), anything else a callable with the same signature.
    fullgraph: what cannot be captured as one graph is an error rather than run by the interpreter.
    dynamic: True makes every size symbolic, so that one compilation serves all; False none; None those seen to change.
    backend: a name (`list_backends()`), or `backend(gm, example_inputs) -> callable returning a tuple`; "inductor" by default.
    mode: a named set of options (torch.compile's names); exclusive with `options`.
    options: fields of the packages' option dataclasses, by name.
    disable: return `model` as it is.
    name: what reports call this region; the function's own name by default.

    Raises ValueError for an unknown backend, mode or option (the known ones are listed), TypeError if `model` is not callable.
    Nothing is compiled before the first call.
    """
    arguments: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "backend": backend,
        "mode": mode,
        "options": options,
        "disable": disable,
        "name": name,
    }
    if model is None:
        return functools.partial(compile, **arguments)
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
    )
    if isinstance(model, CompiledModule):
        model = model._orig_mod
    report = Report(name or str(getattr(model, "__qualname__", type(model).__qualname__)))
    chosen = lookup_backend(backend or "inductor", Context(resolved, report))
    if disable or environment.disable:
        return model
    compiled = flambeau_capture.compile(model, backend=chosen, options=resolved.capture)
    remember(compiled)
    attach_report(compiled, report)
    if isinstance(model, nn.Module):
        return CompiledModule(model, compiled, functools.partial(compile, **arguments))
    return compiled
