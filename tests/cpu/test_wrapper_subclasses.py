"""Wrapper subclasses under compile: one graph of plain tensors each, and eager's results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import flambeau
from flambeau_prims.wrapper_subclasses import is_wrapper_subclass, parts_of
from tests.programs.subclasses import PROGRAMS, Scaled, two, two_twos
from tests.worlds import kinds


def same(ours: Any, theirs: Any, where: str) -> None:
    """Both are alike: types, values, geometry, flags, versions; so are inner tensors."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, (tuple, list)):
        assert len(ours) == len(theirs), where
        for at, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            same(mine, other, f"{where}[{at}]")
    elif is_wrapper_subclass(type(ours)):
        ragged = ours.is_nested  # each call has other nested ints
        for name in ("dtype", "requires_grad", "is_leaf", "_version", *("shape",) * (not ragged)):
            assert getattr(ours, name) == getattr(theirs, name), f"{where}.{name}"
        assert ragged or ours.stride() == theirs.stride(), where
        names, context, inner = parts_of(ours)
        other_names, other_context, other_inner = parts_of(theirs)
        assert (names, context) == (other_names, other_context), where
        same(inner, other_inner, where)
    elif isinstance(ours, torch.Tensor):
        assert ours.stride() == theirs.stride(), where
        assert ours.requires_grad == theirs.requires_grad, where
        torch.testing.assert_close(ours, theirs, msg=lambda text: f"{where}: {text}")
    else:
        assert ours == theirs, where


def backward(result: Any) -> None:
    """Differentiate everything that a call returns and that requires grad."""
    results = result if isinstance(result, tuple) else (result,)
    plain = [out.values() if out.is_nested else out for out in results]
    sum(out.sum() for out in plain if out.requires_grad).backward()  # type: ignore[union-attr]


def no_fallback(compiled: Any) -> None:
    """No graph of a compiled callable runs eagerly."""
    graphs = flambeau.explain(compiled).graphs
    assert graphs
    assert [graph.fallback for graph in graphs] == [None] * len(graphs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_equal_to_eager(name: str) -> None:
    program = PROGRAMS[name]
    compiled = flambeau.compile(program.function, fullgraph=True, **program.options)
    for call in range(program.calls):
        shown = []
        for function in (compiled, program.function):
            torch.manual_seed(call)
            arguments = program.arguments(call)
            result = function(*arguments)
            if program.trains:
                backward(result)
            shown.append((result, arguments, tuple(x.grad for x in arguments if x.is_leaf)))
        same(*shown, f"call {call}")
    assert kinds(compiled) == list(program.captures)
    no_fallback(compiled)


class Rounded(Scaled):
    """Requires grad, though what it consists of are integers."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, scale: float) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: dict[str, Any], size: Any, stride: Any
    ) -> Rounded:
        return Rounded(inner["inner"], context["scale"])


def test_a_result_of_integers_that_requires_grad_runs_eagerly() -> None:
    compiled = flambeau.compile(lambda x: x * 2.0, fullgraph=True)
    x = Rounded(torch.arange(3), 0.5).requires_grad_()
    same(compiled(x).detach(), (x * 2.0).detach(), "result")
    (graph,) = flambeau.explain(compiled).graphs
    assert "subclass-in-graph" in str(graph.fallback)


class Layer(nn.Module):
    """A Linear whose weight is a TwoTensor, and a plain bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(two(3, 8))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(nn.functional.linear(x, self.weight, self.bias))


def test_a_module_of_subclass_parameters_is_trained() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Layer())
    assert type(models[0].weight) is TwoTensor
    compiled = flambeau.compile(models[0], fullgraph=True)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.1) for model in models]
    for step in range(3):
        x = torch.randn(4, 8)
        for call, optimizer in zip((compiled, models[1]), optimizers, strict=True):
            optimizer.zero_grad()
            call(x).sum().backward()
            optimizer.step()
        for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
            same(ours.detach(), theirs.detach(), f"step {step}")
            same(ours.grad, theirs.grad, f"gradient of step {step}")
    no_fallback(compiled)
    assert len(flambeau.explain(compiled).graphs) == 1
    assert list(models[0].state_dict()) == list(models[1].state_dict())


def test_another_class_recompiles() -> None:
    compiled = flambeau.compile(lambda x: torch.sin(x) + 1, fullgraph=True)
    for x in (two(4), torch.randn(4), Scaled(torch.randn(4), 2.0), two(4)):
        same(compiled(x), torch.sin(x) + 1, type(x).__name__)
    assert kinds(compiled) == ["capture", "recompile", "recompile"]


TANGENTS: dict[str, tuple[Any, Any, Any]] = {
    "plain": (lambda x: (x * 2).sin(), lambda: two(4, grad=True), lambda: torch.randn(4)),
    "of another scale": (
        lambda x: x * 2.0,
        lambda: Scaled(torch.randn(4), 3.0).requires_grad_(),
        lambda: Scaled(torch.randn(4), 7.0),
    ),
    "nested": (lambda x: (x * 2).sin(), lambda: two(4, grad=True), lambda: two_twos(4)),
    "a wrapper for a plain result": (
        lambda x: (x * 2).sin(),
        lambda: torch.randn(4, requires_grad=True),
        lambda: two(4),
    ),
    "as expected": (lambda x: (x * 2).sin(), lambda: two(4, grad=True), lambda: two(4)),
}


@pytest.mark.parametrize("name", TANGENTS)
def test_gradients_that_are_built_otherwise_than_the_trace_assumed(name: str) -> None:
    program, argument, gradient = TANGENTS[name]
    compiled = flambeau.compile(program, fullgraph=True)
    for call in range(2):
        shown = []
        for function in (compiled, program):
            torch.manual_seed(call)
            x = argument()
            function(x).backward(gradient())
            shown.append(x.grad)
        same(*shown, f"call {call}")
    no_fallback(compiled)
    (graph,) = flambeau.explain(compiled).graphs
    assert bool(graph.eager_derivatives) == (
        name not in ("as expected", "a wrapper for a plain result")
    )


def test_a_gradient_for_which_the_program_cannot_run_again_is_refused() -> None:
    compiled = flambeau.compile(lambda x, y: x * 2 + y, fullgraph=True)
    x, y = two(4, grad=True), torch.randn(4)
    result = compiled(x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="an argument has been written to since"):
        result.backward(torch.ones(4))


def test_an_attribute_that_the_program_sets_is_seen_by_the_class() -> None:
    def program(x: Any) -> Any:
        x.scale = 5.0
        return x + 1, x * 2

    ours, theirs = Scaled(torch.ones(2), 2.0), Scaled(torch.ones(2), 2.0)
    compiled = flambeau.compile(program)
    same(compiled(ours), program(theirs), "result")
    assert ours.scale == theirs.scale
    assert "break" in kinds(compiled)


class Noted(Scaled):
    """Keeps its scale in a dict, too."""

    def __init__(self, inner: torch.Tensor, scale: float) -> None:
        super().__init__(inner, scale)
        self.notes = {"scale": scale}

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: dict[str, Any], size: Any, stride: Any
    ) -> Noted:
        return Noted(inner["inner"], context["scale"])


class Blocked(torch.Tensor):
    """Its context holds its shape, and a block that may be equal to it."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, block: torch.Size) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor, block: torch.Size) -> None:
        self.inner, self.block = inner, block

    def __tensor_flatten__(self) -> Any:
        return ["inner"], {"shape": self.shape, "block": self.block}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["inner"], context["block"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        block = next(arg for arg in args if isinstance(arg, Blocked)).block
        plain = [arg.inner if isinstance(arg, Blocked) else arg for arg in args]
        return cls(func(*plain, **(kwargs or {})) * block[0], block)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_what_a_context_says_of_the_shape_is_compared_as_sizes(backend: str) -> None:
    def program(x: Any) -> Any:
        return (x + 1).inner * x.shape[0]

    compiled = flambeau.compile(program, backend=backend)
    rows = ((4, 4), (5, 4), (5, 5), (7, 7), (7, 4), (8, 4), (6, 6))
    for count, block in rows:
        x = torch.randn(count, 6)
        ours = compiled(Blocked(x, torch.Size((block, 6))))
        torch.testing.assert_close(ours, program(Blocked(x, torch.Size((block, 6)))))
    assert kinds(compiled) == ["capture", "recompile", "recompile"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_views_of_jagged_inputs(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        heads = x.unflatten(-1, [2, 4]).transpose(1, 2)
        return heads, torch.nn.functional.gelu(x).values()

    compiled = flambeau.compile(program, backend=backend)
    for lengths in ((3, 5, 2), (3, 6, 2), (1, 2, 9)):
        rows = [torch.randn(length, 8) for length in lengths]
        x = torch.nested.nested_tensor(rows, layout=torch.jagged)
        (ours, mine), (theirs, other) = compiled(x), program(x)
        assert ours.shape == theirs.shape  # the ragged size is that of the input
        assert ours.stride() == theirs.stride()
        for row, expected in zip(ours.unbind(), theirs.unbind(), strict=True):
            torch.testing.assert_close(row, expected)
        assert ours._values.data_ptr() == x._values.data_ptr()  # type: ignore[attr-defined]
        torch.testing.assert_close(mine, other)
    assert len(kinds(compiled)) <= 2


def test_a_container_of_a_wrapper_is_the_real_one() -> None:
    def program(x: Any) -> Any:
        x.notes["seen"] = True
        return x * 2

    x = Noted(torch.ones(2), 2.0)
    compiled = flambeau.compile(program)
    same(compiled(x), x * 2, "result")
    assert x.notes == {"scale": 2.0, "seen": True}
