"""torch.profiler shows what a compiled call runs: graphs, kernels and operators, with lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import flambeau


class Product(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x) * 2
        return torch.softmax(y @ y.T, -1)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def seen_in(
    call: object, **kwargs: object
) -> dict[str, torch.autograd.profiler_util.FunctionEvent]:
    with torch.profiler.profile(**kwargs) as profile:
        call()  # type: ignore[operator]
    return {event.name: event for event in profile.events()}


@pytest.mark.parametrize("graph_cache", [False, True])
def test_graphs_and_kernels_are_shown_with_the_lines_of_the_user(graph_cache: bool) -> None:
    model = Product()
    compiled = flambeau.compile(model, options={"graph_cache": graph_cache})
    x = torch.randn(5, 7, requires_grad=True)
    compiled(x).sum().backward()
    events = seen_in(lambda: compiled(x).sum().backward())
    sin, softmax = line_of("torch.sin(x) * 2"), line_of("torch.softmax(y @ y.T, -1)")
    here = re.escape(Path(__file__).name)
    for direction in ("forward", "backward"):
        (graph,) = (n for n in events if n.startswith(f"Product graph 0 {direction}"))
        assert f"({Path(__file__).name}:{sin},{softmax})" in graph
        inside = [n for n, event in events.items() if event.cpu_parent is events[graph]]
        kernels = [n for n in inside if re.fullmatch(rf"cpu_\w+ \({here}:[\d,]+\)", n)]
        assert kernels, inside
        assert any(str(softmax) in name for name in inside)


def test_graphs_of_one_callable_have_numbers() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.cos() + 1
        torch._dynamo.graph_break()
        return y.exp() * 2

    compiled, x = flambeau.compile(broken), torch.randn(6)
    compiled(x)
    names = " | ".join(seen_in(lambda: compiled(x)))
    assert "broken graph 0 " in names and " graph 1 " in names
    torch.testing.assert_close(compiled(x), broken(x))


def test_a_profiled_call_is_no_other_entry() -> None:
    compiled, x = flambeau.compile(Product(), fullgraph=True), torch.randn(3, 3)
    plain = compiled(x)
    with torch.profiler.profile():
        torch.testing.assert_close(compiled(x), plain)
    assert len(flambeau.explain(compiled).graphs) == 1
