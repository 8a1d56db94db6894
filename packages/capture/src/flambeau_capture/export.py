"""Graph export: capture one call whole and hand over its graph.

    gm = export(fn, x, y)
    gm.print_readable()
    gm.meta["guards"]     # ["L['x'] is Tensor f32[4, 8]", ...]
    gm.meta["inputs"]     # the placeholders' origins, in order: ["L['x']", ...]

The module takes its placeholders' values in order, and returns the tuple of tensors that the function's result is built from.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from torch import fx

from flambeau_capture.entry import all_guards, current_state, graph_of
from flambeau_capture.guards.kinds import guard_text
from flambeau_capture.interpreter.capture import capture_frame
from flambeau_capture.options import CaptureOptions
from flambeau_capture.origins import Scope
from flambeau_capture.record import Break, CaptureError, DynamicDims

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def export(
    fn: Callable[..., Any], *args: Any, dynamic: bool = False, **kwargs: Any
) -> fx.GraphModule:
    """The graph of `fn(*args, **kwargs)`; CaptureError where the call cannot be captured whole.

    `fn` is a function, a method or an nn.Module.  With `dynamic`, sizes of 2 and more of the tensor arguments are symbolic.
    """
    scope = _scope(fn, args, kwargs)
    state = current_state()
    captured = capture_frame(
        scope, CaptureOptions(fullgraph=True, dynamic=dynamic), DynamicDims(dynamic)
    )
    if isinstance(captured, Break):
        raise CaptureError(captured)
    parts = graph_of(captured)
    module = parts.graph_module
    module.meta["guards"] = [guard_text(guard) for guard in all_guards(captured, state)]
    module.meta["inputs"] = [item.origin.text() for item in parts.inputs]
    module.meta["example_inputs"] = [item.example for item in parts.inputs]
    return module


def _scope(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scope:
    """The call, with arguments bound in the order of the frame's fast locals."""
    function: Any = fn
    if isinstance(fn, types.MethodType):
        function, args = fn.__func__, (fn.__self__, *args)
    elif not isinstance(fn, types.FunctionType):
        function, args = type(fn).__call__, (fn, *args)
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"export takes a Python function, a method or an nn.Module, not {fn!r}")
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    kinds: dict[Any, list[Any]] = {}
    for name, parameter in bound.signature.parameters.items():
        kind = (
            inspect.Parameter.POSITIONAL_OR_KEYWORD
            if parameter.kind in _POSITIONAL
            else parameter.kind
        )
        kinds.setdefault(kind, []).append(bound.arguments[name])
    order = (
        _POSITIONAL[1],
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    )
    return Scope(function, tuple(value for kind in order for value in kinds.get(kind, ())))
