"""Lazy modules, which make their parameters at their first call.

    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    compiled(x)     capture meets the hook of the LazyLinear: its parameters are made, by torch's
                    code, from the shape of x; then the frame is interpreted again

The parameters are drawn before the graph runs, so nothing may have been drawn before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import _pytree as pytree

from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.concrete_sizes import with_concrete_sizes

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


class NeedsInitialization(GraphBreak):
    """A lazy module meets its first input."""

    def __init__(self, module: Any, args: Any, kwargs: Any) -> None:
        super().__init__("parameter-made", f"a {type(module).__qualname__} meets its first input")
        self.module, self.args_given, self.kwargs_given = module, args, kwargs

    def initialize(self) -> None:
        """Make the module's parameters."""
        args, kwargs = pytree.tree_map_only(
            torch.Tensor,
            lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"),
            (self.args_given, self.kwargs_given),
        )
        self.module._infer_parameters(self.module, args, kwargs)


@substitute_for(LazyModuleMixin._infer_parameters)
def _infer_parameters(machine: Machine, args: Any, kwargs: Any) -> Any:
    _, module, given, *rest = args
    named = rest[0] if rest else kwargs.get("kwargs") or {}
    tape, objects = machine.tape, machine.objects
    looks_at_shapes = type(module).initialize_parameters.__module__.startswith("torch.nn.modules.")
    if (
        not looks_at_shapes
        or not objects.is_known(module)
        or objects.pending_writes_of(module)
        or tape.subgraphs
        or tape.drawn
        or tape.seeds
        or any(call.random for call in tape.calls)
    ):
        raise GraphBreak("parameter-made", f"a {type(module).__qualname__} meets its first input")
    raise NeedsInitialization(module, *with_concrete_sizes(tuple(given), dict(named)))
