"""Numbers that the graph itself computes: what stands in the graph, and what is refused."""

from __future__ import annotations

import pytest
import torch
from capture_harness import compiled, same

import flambeau_capture
from flambeau_capture import CaptureError, state_of

X = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, 6.0]])


def graph_of(function, *args):
    """The graph of a program captured whole, checked against eager."""
    captured = compiled(function)
    same(captured(*args), function(*args))
    (entry,) = state_of(captured).entries
    return entry.info.graph_module.graph


def calls(graph):
    return [
        str(getattr(node.target, "__name__", node.target))
        for node in graph.nodes
        if node.op in ("call_function", "call_method")
    ]


def test_an_item_is_a_node_and_its_uses_take_it():
    graph = graph_of(lambda x: (x * x.sum().item(), x.max().item() * 2), X)
    assert calls(graph).count("item") == 2


def test_a_size_is_read_from_the_tensor_that_has_it():
    graph = graph_of(lambda x: x[x > 0] * x[x > 0].shape[0], X)
    assert "sym_size.int" in calls(graph)
    assert "sym_size.int" not in calls(graph_of(lambda x: x[x > 0] + 1, X))


def test_what_is_assumed_is_checked_in_the_graph():
    graph = graph_of(lambda x: torch.zeros((x > 0).sum().item()), X)
    assert "_assert_scalar.default" in calls(graph)
    captured = compiled(lambda x: torch.zeros(x.sum().long().item()))
    same(captured(X), torch.zeros(9))
    with pytest.raises(RuntimeError):
        captured(-X)


def test_numbers_of_the_data_are_python_numbers_outside():
    def program(x):
        return int((x > 0).sum()), float(x[0, 0]), (x > 9).any().item(), x.long()[0].tolist()

    captured = compiled(program)
    for scale in (1, 2, -1):
        same(captured(X * scale), program(X * scale))
    assert len(state_of(captured).entries) == 1


def test_unused_numbers_leave_no_node():
    def program(x):
        x.sum().item()
        return x + 1

    assert calls(graph_of(program, X)) == ["add"]


def f_string_measured(x):
    return x * len(f"{x.sum().item()}")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x if (x > 0).sum().item() > 2 else -x,
        lambda x: [x for _ in range((x > 0).sum().item())],
        lambda x: x if x.sum() > 0 else -x,
        lambda x: {(x > 0).sum().item(): 1},
        f_string_measured,
    ],
)
def test_what_needs_the_value_is_an_error_with_a_hint(function):
    with pytest.raises(CaptureError, match=r"test_unbacked\.py:\d+(.|\n)*data-dependent"):
        compiled(function, speculate=False)(X)
    same(compiled(function, fullgraph=False)(X), function(X))
    if "f_string" not in function.__name__:
        same(compiled(function)(X), function(X))  # what it decides is assumed


def test_checks_are_told_and_decide():
    def program(x):
        count = (x > 0).sum().item()
        torch._check(count > 2, lambda: "too few")
        torch._check(count <= 6)
        return x + 1 if count > 1 and count != 7 else x

    captured = compiled(program)
    same(captured(X), program(X))
    with pytest.raises(RuntimeError):
        captured(-X - 100)


def test_subgraphs_define_no_numbers():
    def body(x):
        return (x * x.sum().item(),)

    with pytest.raises(CaptureError):
        compiled(lambda x: torch.cond(x.sum() > 0, body, body, (x,)))(X)


class Selecting(torch.nn.Module):
    def forward(self, x):
        return x[x > 0] * 2, (x > 0).sum().item(), {"where": (x > 1).nonzero()}


def test_export_saved_and_read_back(tmp_path):
    exported = flambeau_capture.export(Selecting(), (X,))
    exported.save(tmp_path / "graph")
    for graph in (exported, flambeau_capture.load(tmp_path / "graph")):
        for scale in (1, -1, 0):
            same(graph(X * scale), Selecting()(X * scale))


def test_export_of_arithmetic_on_numbers_is_refused():
    class Counting(torch.nn.Module):
        def forward(self, x):
            return (x > 0).sum().item() + 1

    with pytest.raises(CaptureError, match="in the data"):
        flambeau_capture.export(Counting(), (X,))
