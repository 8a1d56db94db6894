"""The page on the stages of the compiler: sin² + cos² is one and its derivative none; a backend
that shows the captured graph and draws it; the forward and backward graphs; their kernels.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

import flambeau
from flambeau.report import report_of
from flambeau_autograd import aot
from flambeau_prims.evaluate import run_graph


def one(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) ** 2 + torch.cos(x) ** 2


def test_the_function_is_one() -> None:
    x = torch.rand(1000, requires_grad=True)
    out = flambeau.compile(one)(x)
    assert torch.nn.functional.mse_loss(out, torch.ones(1000)) < 1e-12
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.zeros(1000), rtol=0, atol=1e-6)


def test_a_backend_that_shows_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    def inspect(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        gm.print_readable()
        return gm.forward

    compiled = flambeau.compile(one, backend=inspect)
    assert not capsys.readouterr().out  # nothing is compiled before the first call
    x = torch.rand(1000, requires_grad=True)
    torch.testing.assert_close(compiled(x), one(x))
    printed = capsys.readouterr().out
    for text in ("torch.sin(x)", "torch.cos(x)", "** 2", "f32[1000]"):
        assert text in printed


def test_a_picture_of_the_graph() -> None:
    pytest.importorskip("pydot")
    from torch.fx.passes.graph_drawer import FxGraphDrawer

    pictures: list[Any] = []

    def draw(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        pictures.append(FxGraphDrawer(gm, "f").get_dot_graph())
        return gm.forward

    flambeau.compile(one, backend=draw)(torch.rand(3))
    (picture,) = pictures
    assert "sin" in picture.to_string() and "cos" in picture.to_string()
    if shutil.which("dot"):
        assert b"<svg" in picture.create_svg()


def test_forward_and_backward_graphs() -> None:
    graphs: dict[str, str] = {}

    def compiler(graph: Any, kind: str) -> Any:
        graphs[kind] = str(graph)
        return lambda *inputs: run_graph(graph, inputs)

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        return aot(gm, example_inputs, compiler)

    x = torch.rand(1000, requires_grad=True)
    flambeau.compile(one, backend=backend)(x).sum().backward()
    assert set(graphs) == {"forward", "backward"}
    assert "prims.sin(x)" in graphs["forward"] and "prims.neg" in graphs["backward"]
    torch.testing.assert_close(x.grad, torch.zeros(1000), rtol=0, atol=1e-6)


def test_each_graph_is_one_kernel() -> None:
    compiled = flambeau.compile(one)
    compiled(torch.rand(1000, requires_grad=True)).sum().backward()
    (graph,) = report_of(compiled).graphs
    assert [len(program.kernels) for program in graph.programs] == [1, 1]
