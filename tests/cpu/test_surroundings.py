"""Compiled callables among what surrounds them: modules whose state changes, optimizers, hooks,
autograd from outside, methods.
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

# Modules
# ----------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4))
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Dropout(0.5)])
        self.table = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.kind = "relu"
        self.calls = 0
        self.extra = nn.ParameterList([nn.Parameter(torch.ones(4))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.steps += 1
        if self.training:
            self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        x = self.table[self.kind](self.second(self.first(x - self.mean)))
        for layer in self.layers:
            x = layer(x)
        return x * self.extra[0]


def both() -> tuple[Net, nn.Module, Net]:
    """A compiled net, its wrapper, and its eager twin."""
    torch.manual_seed(3)
    ours = Net()
    theirs = copy.deepcopy(ours)
    return ours, flambeau.compile(ours), theirs


def assert_nets_equal(ours: Net, theirs: Net) -> None:
    assert ours.calls == theirs.calls
    for (name, mine), other in zip(
        ours.state_dict().items(), theirs.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, other, msg=name)
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None), name
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad, msg=name)


def step(net: nn.Module, call: int) -> torch.Tensor:
    torch.manual_seed(call)
    out = net(torch.randn(5, 4))
    if out.requires_grad:
        out.square().sum().backward()
    return out.detach()


def test_module_whose_state_changes() -> None:
    ours, compiled, theirs = both()
    for call in range(12):
        if call == 3:
            compiled.eval(), theirs.eval()
        if call == 5:
            compiled.train(), theirs.train()
        if call == 6:
            compiled.kind = theirs.kind = "tanh"
        if call == 7:
            ours.first.weight.requires_grad_(False), theirs.first.weight.requires_grad_(False)
        if call == 8:
            ours.layers.append(nn.Identity()), theirs.layers.append(nn.Identity())
        if call == 9:
            ours.zero_grad(), theirs.zero_grad()
        if call == 10:
            ours.second = nn.Linear(4, 4)
            theirs.second = copy.deepcopy(ours.second)
        torch.testing.assert_close(step(compiled, call), step(theirs, call), msg=f"call {call}")
        assert_nets_equal(ours, theirs)


@pytest.mark.parametrize("make", [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
], ids=["sgd", "adamw"])  # fmt: skip
def test_three_steps_of_training(make: Callable[..., torch.optim.Optimizer]) -> None:
    ours, compiled, theirs = both()
    optimizers = make(ours.parameters()), make(theirs.parameters())
    for call in range(3):
        for net, optimizer in zip((compiled, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            step(net, call)
            optimizer.step()
        assert_nets_equal(ours, theirs)


def test_hooks_of_modules() -> None:
    ours, compiled, theirs = both()
    logs: tuple[list[Any], list[Any]] = ([], [])
    for net, log in zip((ours, theirs), logs, strict=True):
        net.first.register_forward_pre_hook(
            lambda module, args, log=log: log.append(("pre", module.in_features))
        )
        net.first.register_forward_hook(
            lambda module, args, out, log=log: log.append("post") or out * 2
        )
    for call in range(3):
        torch.testing.assert_close(step(compiled, call), step(theirs, call))
    assert logs[0] == logs[1] and logs[0]


# Gradients from outside
# -------------------------------------------------------------------------------------------------


def curve(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = torch.tanh(x @ w)
    return hidden, (hidden * hidden).sum(1)


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    return torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)


def test_autograd_grad_of_some_inputs_and_outputs() -> None:
    compiled = flambeau.compile(curve, fullgraph=True)
    for inputs in ((0,), (1,), (0, 1)):
        for output in (0, 1):
            results = []
            for function in (compiled, curve):
                args = leaves()
                results.append(
                    torch.autograd.grad(function(*args)[output].sum(), [args[i] for i in inputs])
                )
            torch.testing.assert_close(results[0], results[1])


def test_retain_graph_and_accumulation() -> None:
    results = []
    for function in (flambeau.compile(curve, fullgraph=True), curve):
        args = leaves()
        hidden, total = function(*args)
        hidden.sum().backward(retain_graph=True)
        total.sum().backward(retain_graph=True)
        total.sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            total.sum().backward()
        results.append([arg.grad for arg in args])
    torch.testing.assert_close(results[0], results[1])


def test_double_backward() -> None:
    results = []
    for function in (flambeau.compile(curve, fullgraph=True), curve):
        args = leaves()
        _, total = function(*args)
        (grad,) = torch.autograd.grad(total.sum(), args[:1], create_graph=True)
        grad.sum().backward()
        results.append([arg.grad for arg in args])
    torch.testing.assert_close(results[0], results[1])


def test_hooks_on_tensors_and_retained_grads() -> None:
    results = []
    for function in (flambeau.compile(curve, fullgraph=True), curve):
        args = leaves()
        seen: list[torch.Tensor] = []
        args[0].register_hook(lambda grad, seen=seen: seen.append(grad) or grad * 2)
        hidden, total = function(*args)
        # Of outputs that depend on one another only the last sees all of its gradient: a compiled
        # graph is one node.
        total.register_hook(seen.append)
        total.retain_grad()
        (hidden.sum() + total.square().sum()).backward()
        results.append([*seen, total.grad, args[0].grad, args[1].grad])
    torch.testing.assert_close(results[0], results[1])


def test_saved_tensors_written_after_the_forward_are_noticed() -> None:
    compiled = flambeau.compile(lambda x, w: (x * w).sin(), fullgraph=True)
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    out = compiled(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_saved_tensor_hooks_and_checkpoint() -> None:
    packed: list[torch.Size] = []
    compiled = flambeau.compile(lambda x: x.sin().exp() * x, fullgraph=True)
    x = torch.randn(4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t.shape) or t.clone(), lambda t: t
    ):
        out = compiled(x)
    out.sum().backward()
    twin = x.detach().clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(compiled, twin, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, twin.grad)
    assert packed


# Forms of callables
# ----------------------------------------------------------------------------


class Scaler:
    factor = 3

    @flambeau.compile
    def method(self, x: torch.Tensor) -> torch.Tensor:
        self.factor += 1
        return x * self.factor

    @staticmethod
    @flambeau.compile
    def static(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @classmethod
    @flambeau.compile
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.factor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.factor


def test_bound_static_and_class_methods() -> None:
    x = torch.randn(3)
    for _ in range(2):
        one, other = Scaler(), Scaler()
        assert torch.equal(one.method(x), x * 4)
        assert torch.equal(one.method(x), x * 5)
        assert torch.equal(other.method(x), x * 4)
        assert torch.equal(one.static(x), x + 1) and torch.equal(Scaler.static(x), x + 1)
        assert torch.equal(Scaler.of_class(x), x * 3) and torch.equal(one.of_class(x), x * 3)
        assert torch.equal(flambeau.compile(one)(x), x - 5)
        assert torch.equal(flambeau.compile(other.__call__)(x), x - 4)
        assert torch.equal(flambeau.compile(functools.partial(torch.add, x))(x), x + x)


def test_compiled_within_compiled() -> None:
    inner = flambeau.compile(lambda x: x.sin() + 1)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x) * inner(x * 2)

    x = torch.randn(5, requires_grad=True)
    compiled = flambeau.compile(outer, fullgraph=True)
    torch.testing.assert_close(compiled(x), outer(x))
    torch.testing.assert_close(
        torch.autograd.grad(compiled(x).sum(), x), torch.autograd.grad(outer(x).sum(), x)
    )


def test_generator_functions_run_as_they_are() -> None:
    @flambeau.compile
    def rows(x: torch.Tensor) -> Any:
        yield from (row * 2 for row in x)

    x = torch.randn(3, 2)
    assert torch.equal(torch.stack(list(rows(x))), x * 2)
