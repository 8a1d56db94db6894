"""Modules under compile: hooks, parametrizations, containers, tables that change, and what a
forward does to its own module.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

import flambeau
from tests.worlds import World, compare, kinds

if TYPE_CHECKING:
    from collections.abc import Callable


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


def calling(
    make: Callable[[], nn.Module],
    program: Callable[..., Any] = lambda module, x: module(x),
    inputs: Callable[[], tuple[Any, ...]] = lambda: (torch.randn(5, 4),),
) -> Callable[[], World]:
    def world() -> World:
        module = make()
        return World(
            lambda *args: program(module, *args),
            lambda call: inputs(),
            lambda: (module, getattr(module, "log", None)),
        )

    return world


# Hooks
# ----------------------------------------------------------------------------


def hooked(register: Callable[[nn.Sequential, list[Any]], Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        module = net()
        module.log = []  # type: ignore[assignment]
        register(module, module.log)  # type: ignore[arg-type]
        return module

    return make


FORWARD_HOOKS: dict[str, Callable[[nn.Sequential, list[Any]], Any]] = {
    "post": lambda net, log: net[0].register_forward_hook(lambda m, args, out: out * 2),
    "pre": lambda net, log: net[0].register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
    "post_kwargs": lambda net, log: net[0].register_forward_hook(
        lambda m, args, kwargs, out: out + len(kwargs), with_kwargs=True
    ),
    "pre_kwargs": lambda net, log: net[0].register_forward_pre_hook(
        lambda m, args, kwargs: (args, kwargs), with_kwargs=True
    ),
    "always": lambda net, log: net[0].register_forward_hook(
        lambda m, args, out: out + 1, always_call=True
    ),
    "stores": lambda net, log: net[2].register_forward_hook(
        lambda m, args, out: setattr(net, "activation", out.detach())
    ),
}
BACKWARD_HOOKS: dict[str, Callable[[nn.Sequential, list[Any]], Any]] = {
    "full": lambda net, log: net[0].register_full_backward_hook(
        lambda m, grad_in, grad_out: log.append(len(grad_out))
    ),
    "full_pre": lambda net, log: net[2].register_full_backward_pre_hook(
        lambda m, grad_out: (grad_out[0] * 2,)
    ),
    "tensor": lambda net, log: net[0].register_forward_hook(
        lambda m, args, out: (out.register_hook(lambda grad: grad * 3), None)[1]
    ),
    "accumulated": lambda net, log: net[0].weight.register_post_accumulate_grad_hook(
        lambda parameter: log.append(parameter.grad is not None)
    ),
}


@pytest.mark.parametrize("name", FORWARD_HOOKS)
def test_hooks_of_the_forward(name: str) -> None:
    compiled = compare(calling(hooked(FORWARD_HOOKS[name])), fullgraph=True, backward=True)
    assert kinds(compiled) == ["capture"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", BACKWARD_HOOKS)
def test_hooks_of_the_backward(name: str, backend: str) -> None:
    compiled = compare(
        calling(hooked(BACKWARD_HOOKS[name])), backend=backend, fullgraph=True, backward=True
    )
    assert kinds(compiled) == ["capture"]


def test_hooks_added_and_removed_later() -> None:
    def make() -> World:
        module = net()
        handles: list[Any] = []

        def arguments(call: int) -> tuple[Any, ...]:
            if call == 1:
                handles.append(module[0].register_forward_hook(lambda m, args, out: out + 1))
            if call == 2:
                handles.pop().remove()
            if call == 3:
                handles.append(
                    nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2)
                )
            if call == 4:
                handles.pop().remove()
            return (torch.randn(5, 4),)

        return World(lambda x: module(x), arguments, lambda: module)

    compiled = compare(make, calls=5, backend="eager", fullgraph=True)
    assert kinds(compiled) == ["capture", "recompile", "recompile"]


# Parametrizations and what torch.nn.utils does
# -------------------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


def symmetric() -> nn.Module:
    module = net()
    parametrize.register_parametrization(module[0], "weight", Symmetric())
    return nn.Sequential(module, nn.ReLU())


def pruned() -> nn.Module:
    module = net()
    prune.l1_unstructured(module[0], "weight", 0.3)
    return module


UTILITIES: dict[str, Callable[[], nn.Module]] = {
    "parametrized": symmetric,
    "weight_norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3))),
    "old_weight_norm": lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3))),
    "spectral_norm": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 3))),
    "old_spectral_norm": lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 3))),
    "pruned": pruned,
    "fused": lambda: nn.utils.fusion.fuse_linear_bn_eval(
        nn.Linear(4, 4).eval(), nn.BatchNorm1d(4).eval()
    ),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", UTILITIES)
def test_weights_that_are_computed(name: str) -> None:
    compare(calling(UTILITIES[name]), fullgraph=True, backward=True, backend="aot_eager")


def cached(module: nn.Module, x: torch.Tensor) -> Any:
    with parametrize.cached():
        return module(x) + module(x)


def as_vector(module: nn.Module, x: torch.Tensor) -> Any:
    vector = nn.utils.parameters_to_vector(module.parameters())
    nn.utils.vector_to_parameters(vector * 2, module.parameters())
    return module(x), vector.detach()


def loaded(module: nn.Module, x: torch.Tensor) -> Any:
    module.load_state_dict({name: value * 2 for name, value in module.state_dict().items()})
    return module(x), module.state_dict()


def copied(module: nn.Module, x: torch.Tensor) -> Any:
    return copy.deepcopy(module)(x).detach()


def converted(module: nn.Module, x: torch.Tensor) -> Any:
    return module.double()(x.double())


def frozen(module: nn.Module, x: torch.Tensor) -> Any:
    module.requires_grad_(False)
    y = module(x)
    module.requires_grad_(True)
    return module(x), y


def made_inside(module: nn.Module, x: torch.Tensor) -> Any:
    return module(x) + nn.Linear(4, 3)(x).detach()


def padded(module: nn.Module, x: torch.Tensor) -> Any:
    return pad_sequence([module(x), module(x[:2])])


@pytest.mark.parametrize(
    "program", [cached, as_vector, loaded, copied, converted, frozen, made_inside, padded]
)
def test_programs_of_modules(program: Callable[..., Any]) -> None:
    compare(calling(net, program), backend="eager")


@pytest.mark.parametrize("make", [
    lambda: nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2)),
    lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()),
], ids=["linear", "norm"])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules_meet_their_first_input(make: Callable[[], nn.Module]) -> None:
    compare(calling(make), backend="eager")


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.lstm(packed)
        return pad_packed_sequence(out, batch_first=True)[0]


def test_packed_sequences() -> None:
    def inputs() -> tuple[Any, ...]:
        return torch.randn(3, 5, 4), torch.tensor([5, 3, 2])

    compare(calling(Packed, inputs=inputs), backend="eager")


# A forward that changes its module
# ---------------------------------------------------------------------------------------------


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.counter = 0
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        self.counter += 1
        self.total += 1
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        self.total.mul_(2)
        named = dict(self.named_buffers())
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.ones(4))
        self.training = not self.training
        y = self.linear(x) + self.late + named["mean"] + self._buffers["mean"]
        return y * self.counter, "mean" in self.__dict__, len(list(self.buffers())), self.training


class Swapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        self.first, self.second = self.second, self.first
        return self.first(x), [name for name, _ in self.named_parameters()], len(self._modules)


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> Any:
        if len(self.layers) < 3:
            self.layers.append(nn.Linear(4, 4))
        for layer in self.layers:
            x = layer(x)
        return x


class Resetting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> Any:
        self.scale = nn.Parameter(self.scale.detach() * 2)
        return x * self.scale


@pytest.mark.parametrize("module", [Changing, Swapping, Growing, Resetting])
def test_a_forward_that_changes_its_module(module: type[nn.Module]) -> None:
    compare(calling(module), calls=5, backend="eager")


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.table = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
        self.factors = nn.ParameterList([torch.full((4,), 2.0), torch.ones(4)])
        self.offsets = nn.ParameterDict({"u": torch.ones(4)})
        self.chain = nn.Sequential(*self.layers)

    def forward(self, x: torch.Tensor) -> Any:
        for at, layer in enumerate(self.layers[1:]):
            x = layer(x) + at
        for name, module in self.table.items():
            x = module(x) + len(name)
        for name in self.table:
            x = self.table[name](x)
        for module in self.table.values():
            x = module(x)
        for factor in self.factors:
            x = x * factor
        for _, offset in self.offsets.items():
            x = x + offset
        x = self.chain[0](x) + self.chain[-1](x) + self.chain[:2](x)
        for layer in reversed(self.layers):
            x = layer(x)
        if "a" in self.table and "z" not in self.offsets:
            x = x + len(self.layers) + len(self.factors) + len(self.offsets) + len(self.chain)
        names = [name for name, _ in self.named_modules()]
        return x + sum(p.numel() for p in self.parameters()), names, len(list(self.children()))


def test_containers_of_modules_and_parameters() -> None:
    compiled = compare(calling(Containers), fullgraph=True, backward=True)
    assert kinds(compiled) == ["capture"]


def breaking(module: nn.Module, args: Any) -> Any:
    flambeau.compiler.graph_break()
    return tuple(x * 2 for x in args)


def breaking_behind(module: nn.Module, args: Any, result: Any) -> Any:
    flambeau.compiler.graph_break()
    return result + 1


def test_forwards_between_hooks_that_break_are_compiled() -> None:
    """The frames that call hooks cannot be resumed; what they call is captured apart."""

    def make() -> World:
        module = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)))
        for each in module:
            each.register_forward_pre_hook(breaking)
            each.register_forward_hook(breaking_behind)
        return World(module, lambda call: (torch.randn(2, 4),), lambda: module)

    compiled = compare(make, backward=True)
    graphs = flambeau.explain(compiled).graphs
    assert graphs
    assert not any(graph.fallback for graph in graphs)
