"""Recurrent networks that graphs leave to torch, as they do where cuDNN computes them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import flambeau
from flambeau_capture.interpreter.substitutes import recurrent_networks

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def _left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the networks of a CPU are left to torch, too."""
    monkeypatch.setattr(
        recurrent_networks, "_computed_whole", lambda input, tape: not tape.subgraphs
    )


class Encoder(nn.Module):
    def __init__(self, network: nn.RNNBase, width: int) -> None:
        super().__init__()
        self.network, self.out = network, nn.Linear(width, 3)

    def forward(self, x: torch.Tensor, *state: Any) -> Any:
        output, last = self.network(x * 2, *state)
        return self.out(output).relu(), output, last


MODULES: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Encoder(nn.LSTM(4, 5, batch_first=True), 5),
    "lstm_time_first": lambda: Encoder(nn.LSTM(4, 5, 2), 5),
    "lstm_projected": lambda: Encoder(nn.LSTM(4, 5, batch_first=True, proj_size=2), 2),
    "gru_of_two_directions": lambda: Encoder(
        nn.GRU(4, 5, 2, batch_first=True, bidirectional=True), 10
    ),
    "rnn_tanh": lambda: Encoder(nn.RNN(4, 5, batch_first=True, bias=False), 5),
    "rnn_relu": lambda: Encoder(nn.RNN(4, 5, 3, nonlinearity="relu"), 5),
}


def leaves(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def same(found: Any, want: Any) -> None:
    assert pytree.tree_structure(found) == pytree.tree_structure(want)
    for ours, theirs in zip(leaves(found), leaves(want), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert (ours.stride(), ours.requires_grad) == (theirs.stride(), theirs.requires_grad)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", MODULES)
def test_networks(name: str, dynamic: bool | None) -> None:
    torch.manual_seed(0)
    module = MODULES[name]()
    twin = copy.deepcopy(module)
    compiled = flambeau.compile(twin, fullgraph=True, dynamic=dynamic)
    for shape in ((3, 7, 4), (6, 2, 4), (1, 1, 4), (5, 4)):
        x = torch.randn(shape, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        want, found = module(x), compiled(y)
        same(found, want)
        for result in (want, found):
            sum(leaf.square().sum() for leaf in leaves(result)).backward()
        torch.testing.assert_close(y.grad, x.grad)
        for ours, theirs in zip(twin.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
    with torch.no_grad():
        same(compiled(y), module(y))


@pytest.mark.parametrize("name", MODULES)
def test_one_call_for_the_whole_network(name: str) -> None:
    graphs: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, _: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    module = MODULES[name]()
    flambeau.compile(module, fullgraph=True, backend=backend)(torch.randn(3, 7, 4))
    (graph,) = graphs
    left = [node.target for node in graph.graph.nodes if node.meta.get("untraced")]
    assert len(left) == 1 and left[0] in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def test_states_that_are_given() -> None:
    module = MODULES["lstm"]()
    compiled = flambeau.compile(module, fullgraph=True)
    for batch in (2, 5):
        state = tuple(torch.randn(1, batch, 5, requires_grad=True) for _ in range(2))
        x = torch.randn(batch, 3, 4)
        want, found = module(x, state), compiled(x, state)
        same(found, want)
        (ours, theirs) = (
            torch.autograd.grad(result[0].sum() + result[2][1].sum(), state)
            for result in (found, want)
        )
        torch.testing.assert_close(ours, theirs)
    wrong = (torch.randn(1, 3, 6), torch.randn(1, 3, 6))
    with pytest.raises(RuntimeError) as want_error:
        module(x, wrong)
    with pytest.raises(RuntimeError) as found_error:
        flambeau.compile(module)(x, wrong)
    assert str(found_error.value) == str(want_error.value)


def test_dropout_between_layers_draws_as_eagerly() -> None:
    module = Encoder(nn.LSTM(4, 5, 3, batch_first=True, dropout=0.5), 5)
    compiled = flambeau.compile(module, fullgraph=True)
    x = torch.randn(3, 7, 4)
    found = []
    for function in (module, compiled, module):
        torch.manual_seed(1)
        found.append((function(x), torch.rand(3)))
    same(found[1], found[0])
    same(found[2], found[0])


def test_in_a_checkpoint_tracers_see_the_cells() -> None:
    module = Encoder(nn.GRU(4, 5), 5)

    def function(x: torch.Tensor) -> Any:
        return checkpoint(module, x, use_reentrant=False)

    x = torch.randn(3, 7, 4)
    same(flambeau.compile(function)(x), function(x))


def test_a_network_without_steps_raises_as_eagerly() -> None:
    module = MODULES["lstm"]()
    compiled = flambeau.compile(module)
    compiled(torch.randn(3, 2, 4))
    with pytest.raises(RuntimeError) as want:
        module(torch.randn(3, 0, 4))
    with pytest.raises(RuntimeError) as found:
        compiled(torch.randn(3, 0, 4))
    assert str(found.value) == str(want.value)


@pytest.mark.parametrize("name", ["lstm", "gru_of_two_directions", "rnn_tanh"])
def test_weights_that_the_graph_computes(name: str) -> None:
    """The module lists its weights, and weak references to them."""
    torch.manual_seed(0)
    module = MODULES[name]()
    twin = copy.deepcopy(module)
    x = torch.randn(3, 7, 4)

    def halved(model: nn.Module, x: torch.Tensor) -> Any:
        weights = {name: weight * 0.5 for name, weight in model.named_parameters()}
        return torch.func.functional_call(model, weights, (x,))

    for each in (module, twin):
        nn.utils.parametrizations.weight_norm(each.network, "weight_hh_l0")
    plain = copy.deepcopy(module)
    for function in (halved, lambda model, x: model(x)):
        found = flambeau.compile(function, fullgraph=True)(twin, x)
        want = function(module, x)
        same(found, want)
        for result in (want, found):
            sum(leaf.square().sum() for leaf in leaves(result)).backward()
        for ours, theirs in zip(twin.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
    same(twin(x), plain(x))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False}])
def test_lstms_without_a_backward(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], dynamic: bool | None, training: bool
) -> None:
    """Layers that kernels of our own compute on a CPU."""
    monkeypatch.undo()
    torch.manual_seed(0)
    module = nn.LSTM(6, 20, batch_first=True, **options).train(training)
    compiled = flambeau.compile(module, fullgraph=True, dynamic=dynamic)
    exact = copy.deepcopy(module).double()
    count = (2 if module.bidirectional else 1) * module.num_layers
    with torch.no_grad():
        for batch, steps in ((3, 7), (5, 4), (1, 1), (0, 2)):
            x = torch.randn(batch, steps, 6)
            for state in ((), (tuple(torch.randn(count, batch, 20) for _ in range(2)),)):
                found, want = compiled(x, *state), module(x, *state)
                best = exact(x.double(), *pytree.tree_map(torch.Tensor.double, state))
                for ours, theirs, true in zip(*map(leaves, (found, want, best)), strict=True):
                    assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
                    torch.testing.assert_close(ours, true.float(), rtol=1e-5, atol=1e-6)
