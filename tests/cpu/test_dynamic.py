"""`dynamic=True`: one compilation for all sizes, with guards printed as inequalities on the user's
names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional

import flambeau
from flambeau.interop_dynamo import flambeau_backend
from flambeau_prims.sizes import as_int

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[torch.Tensor, ...]]]] = {
    "sin_cos": (lambda x: torch.sin(torch.cos(x)), lambda n, m: (torch.randn(n, m),)),
    "softmax": (lambda x: torch.softmax(x, -1), lambda n, m: (torch.randn(n, m),)),
    "broadcast": (lambda x, y: x * y + 1, lambda n, m: (torch.randn(n, m), torch.randn(m))),
    "matmul": (lambda x, y: torch.relu(x @ y), lambda n, m: (torch.randn(n, m), torch.randn(m, 5))),
    "view": (lambda x: x.view(x.shape[0] * x.shape[1]).cos(), lambda n, m: (torch.randn(n, m),)),
    "mean": (lambda x: (x - x.mean(0)) / x.shape[0], lambda n, m: (torch.randn(n, m),)),
    "cat": (
        lambda x, y: torch.cat([x, y], 0).sin(),
        lambda n, m: (torch.randn(n, 4), torch.randn(m, 4)),
    ),
    "slice": (lambda x: x[: x.shape[0] // 2] * 2, lambda n, m: (torch.randn(n, m),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_serves_all_sizes(name: str) -> None:
    function, make = PROGRAMS[name]
    graphs = 0

    def counting(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        nonlocal graphs
        graphs += 1
        return flambeau_backend(gm, example_inputs)

    compiled = flambeau.compile(function, fullgraph=True, dynamic=True, backend=counting)
    for n, m in ((9, 6), (7, 3), (33, 129), (5, 2), (12, 1000)):
        args = make(n, m)
        torch.testing.assert_close(compiled(*args), function(*args), rtol=1e-5, atol=1e-6)
    assert graphs == 1


def test_sizes_zero_and_one_have_entries_of_their_own() -> None:
    compiled = flambeau.compile(lambda x: torch.softmax(x, -1) + x, fullgraph=True, dynamic=True)
    for shape in ((3, 4), (1, 4), (3, 1), (0, 4), (5, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1) + x)


def test_a_branch_on_a_size_is_an_inequality_on_the_users_names() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= 8:
            return x + 1
        return x - 1

    compiled = flambeau.compile(program, fullgraph=True, dynamic=True)
    for n in (3, 5, 8, 9, 100, 4):
        x = torch.randn(n)
        assert torch.equal(compiled(x), program(x))
    text = str(flambeau.explain(program, dynamic=True)(torch.randn(5)))
    assert "x.size(0) <= 8" in text.replace("L['x']", "x"), text


def test_changing_sizes_become_dynamic_by_themselves() -> None:
    graphs = 0

    def counting(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        nonlocal graphs
        graphs += 1
        return gm.forward

    compiled = flambeau.compile(lambda x: x * 2, backend=counting)
    for n in range(3, 20):
        x = torch.randn(n, 4)
        assert torch.equal(compiled(x), x * 2)
    assert graphs == 2


def test_training_with_symbolic_sizes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    compiled = flambeau.compile(model, fullgraph=True, dynamic=True)
    for n in (3, 7, 20):
        x = torch.randn(n, 6)
        weight = torch.randn(
            n, 8
        )  # the squares of a layer norm's result have a constant sum, hence no gradient
        (compiled(x) * weight).sum().backward()
        found = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        (model(x) * weight).sum().backward()
        for ours, parameter in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(ours, parameter.grad, rtol=1e-4, atol=1e-5)
        model.zero_grad()


def test_a_backend_fixes_a_size_that_has_a_bound() -> None:
    """`s == 2` replaces the bound `s >= 2` in the SizeEnv, and is a guard all the same."""

    def fixing(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        spec = next(node.meta["spec"] for node in gm.graph.nodes if node.op == "placeholder")
        rows = as_int(spec.shape[0])
        return lambda x: (gm.forward(x)[0] + rows,)

    compiled = flambeau.compile(lambda x: x * 2, backend=fixing, dynamic=True)
    for rows in (2, 9, 4):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), x * 2 + rows)


@pytest.mark.parametrize("grad", [False, True])
def test_operators_without_a_rule_for_symbolic_sizes_are_compiled_for_each(grad: bool) -> None:
    def program(weight: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return functional.embedding_bag(indices, weight, mode="mean", max_norm=1.0)

    compiled = flambeau.compile(program, dynamic=True)
    for bags in (2, 9, 4):
        weight = (torch.randn(5, 3) * 4).requires_grad_(grad)
        ours = weight.detach().clone().requires_grad_(grad)
        indices = torch.randint(0, 5, (bags, 1))
        torch.testing.assert_close(compiled(ours, indices), program(weight, indices))
        assert torch.equal(ours, weight)
