"""Captures written by hand, and callables that return them."""

from __future__ import annotations

import torch

from flambeau_capture.compiled import compile_callable, state_of
from flambeau_capture.record import (
    Call,
    Capture,
    FromGraph,
    GraphValue,
    Input,
)
from flambeau_capture.sources import (
    Argument,
)
from flambeau_prims.spec import spec_of

X = Argument("x", 0)
Y = Argument("y", 1)


def backend(gm, example_inputs):
    return gm.forward


def tape(scope, **fields):
    """A capture of `sin(cos(x))`, whose values are handed to `fields` to build results and effects
    from.
    """
    x = scope.arguments[0]
    values = [GraphValue(spec_of(x), name) for name in ("x", "cos", "sin")]
    capture = Capture(scope, inputs=[Input(X, x, spec_of(x), values[0])])
    capture.calls = [
        Call("function", torch.cos, (values[0],), {}, values[1], "user.py:1"),
        Call("method", "sin", (values[1],), {}, values[2], "user.py:2"),
        Call(
            "function", torch.tan, (values[1],), {}, GraphValue(spec_of(x), "unused"), "user.py:3"
        ),
    ]
    capture.result = FromGraph(values[2])
    for name, make in fields.items():
        setattr(capture, name, make(values))
    return capture


def run(arguments=(), function=None, **fields):
    """Compile a function of (x, *arguments) whose capture has these results and effects; call it
    twice, with other tensors.
    """
    function = function or (lambda x, y=None, z=None: None)
    compiled = compile_callable(
        function, lambda scope, options, dynamic: tape(scope, **fields), backend
    )
    compiled(torch.randn(3, 4), *arguments)
    x = torch.randn(3, 4)
    result = compiled(x, *arguments)
    assert len(compiled.entries) == 1 and [event.kind for event in state_of(compiled).events] == [
        "capture"
    ]
    return result, x.cos(), x.cos().sin(), compiled.entries[0]
