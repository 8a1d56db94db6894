"""Which backends there are, by name: our own (`flambeau.backends`, which is imported when the first
graph is compiled), those of `register_backend`, and those of the entry-point group
`torch_dynamo_backends`, which torch.compile's own backends use.
"""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from flambeau.engines.names import ENGINES, check_installed, check_not_retired
from flambeau.stored_graphs import stored_first
from flambeau_prims.lazy_exports import import_apart

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from flambeau.compile_context import Backend, Compiled, Context

OWN = ("aot_eager", "cudagraphs", "eager", "inductor")
"""The names in `flambeau.backends.OWN`."""

_REGISTERED: dict[str, Backend] = {}


def register_backend(backend: Backend, name: str | None = None) -> Backend:
    """Make `backend` available as `flambeau.compile(backend=name)`; the name defaults to the
    function's.

    Usable as a decorator.  Raises ValueError when the name is taken.
    """
    name = name or backend.__name__
    if name in OWN or name in ENGINES or _REGISTERED.setdefault(name, backend) is not backend:
        raise ValueError(f"a backend named {name!r} is registered already")
    return backend


class _Default:
    """The default backend of `compile`: a setting of the process, held here alone."""

    backend: str | Backend = "inductor"


def set_default_backend(backend: str | Backend | None) -> None:
    """Set the default backend of `compile`, by name or callable; None: "inductor"."""
    _Default.backend = backend or "inductor"


def get_default_backend() -> str | Backend:
    """What `compile` without `backend` uses."""
    return _Default.backend


def list_backends() -> list[str]:
    """The names `compile(backend=...)` takes: our own, engines (installed or not), registered ones
    and installed entry points.
    """
    installed = {entry.name for entry in entry_points(group="torch_dynamo_backends")}
    return sorted({*OWN, *ENGINES, *_REGISTERED} | (installed - {"flambeau"}))


def lookup_backend(backend: str | Backend, context: Context) -> Backend:
    """The backend of that name, or the callable itself.

    Raises ValueError, which lists the known names, for an unknown or retired one; ImportError for
    an engine that is not installed.
    """
    if isinstance(backend, str) and backend in OWN:
        own = _deferred(lambda stage: stage.OWN[backend](context))
        if backend == "inductor" and context.options.runtime.graph_cache:
            own = stored_first(context, own)
        if backend == "inductor" and context.options.capture.background:
            return _in_background(context, own)
        return own
    if isinstance(backend, str) and backend in ENGINES:
        check_installed(backend)
        return _deferred(lambda stage: stage.engine(backend, context))
    named = backend if callable(backend) else _REGISTERED.get(backend) or _installed(backend)
    if named is None:
        check_not_retired(str(backend))
        raise ValueError(f"unknown backend {backend!r}; known: {', '.join(list_backends())}")
    return _deferred(lambda stage: stage.reporting(named, context))


def _installed(name: str) -> Any:
    """What the entry point of a name loads, or None."""
    if name != "flambeau":
        for entry in entry_points(group="torch_dynamo_backends", name=name):
            return entry.load()
    return None


def backend_of_captures(backend: str | Backend, context: Context) -> Backend:
    """`lookup_backend`; under FLAMBEAU_CHECK each captured graph is checked before it."""
    found = lookup_backend(backend, context)
    if not context.options.environment.check:
        return found
    return _deferred(lambda stage: stage.checking(found, context))


def _in_background(context: Context, backend: Backend) -> Backend:
    """The backend, behind the worker process for graphs that are compiled in the background."""

    @functools.cache
    def made() -> Backend:
        worker = import_apart("flambeau.worker_process")
        behind: Backend = worker.in_worker_process(context, backend)
        return behind

    return lambda gm, example_inputs: made()(gm, example_inputs)


def _deferred(make: Callable[[Any], Backend]) -> Backend:
    """The backend that `make(flambeau.backends)` gives, when a graph is compiled."""

    @functools.cache
    def made() -> Backend:
        return make(import_apart("flambeau.backends"))

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        return made()(gm, example_inputs)

    return backend
