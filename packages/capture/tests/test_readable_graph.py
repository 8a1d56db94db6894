"""print_readable of captured graphs shows shapes, dtypes and the program's lines, and leaves
nothing in the nodes' meta.
"""

from __future__ import annotations

from typing import Any

import torch

import flambeau_capture


def inner(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


def program(x: torch.Tensor, n: int) -> torch.Tensor:
    y = inner(x) * n
    return y.view(x.shape[0] * 2, -1)


def captured(dynamic: bool) -> torch.fx.GraphModule:
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        graphs.append(gm)
        return gm.forward

    options = flambeau_capture.CaptureOptions(dynamic=dynamic)
    flambeau_capture.compile(program, backend=backend, options=options)(torch.randn(4, 6), 3)
    return graphs[0]


def test_symbolic_shapes_and_lines() -> None:
    text = captured(dynamic=True).print_readable(print_output=False)
    assert 'x: "f32[s0, s1]", n: "Sym(s2)"' in text
    assert 'relu: "f32[s0, s1]" = ' in text and 'view: "f32[2*s0, (s1//2)]" = ' in text
    for function, code in ((inner, "return x.relu()"), (program, "y = inner(x) * n")):
        line = function.__code__.co_firstlineno + 1
        assert f"# File: {__file__}:{line} in {function.__name__}, code: {code}" in text


def test_static_shapes_and_strides() -> None:
    gm = captured(dynamic=False)
    assert 'view: "f32[8, 3]" = ' in gm.print_readable(print_output=False)
    before = [dict(node.meta) for node in gm.graph.nodes]
    gm.print_readable(print_output=False, include_stride=True, include_device=True)
    assert [dict(node.meta) for node in gm.graph.nodes] == before
