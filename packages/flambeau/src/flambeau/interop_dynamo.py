"""Flambeau as a backend of torch.compile: `torch.compile(model, backend="flambeau")`.

torch finds `flambeau_backend` through the entry-point group `torch_dynamo_backends`.  Nothing of torch's compiler is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau.backends import Context, lookup_backend
from flambeau.environment import read_environment
from flambeau.options import resolve
from flambeau.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch


def flambeau_backend(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph that torch's capture made with Flambeau's autograd, inductor and runtime."""
    resolved = resolve(
        fullgraph=False,
        dynamic=None,
        mode=mode,
        options=options,
        environment=read_environment(),
    )
    context = Context(resolved, Report("torch.compile graph"))
    return lookup_backend("inductor", context)(gm, example_inputs)
