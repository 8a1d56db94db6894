"""Hooks on gradients registered inside compiled functions and on compiled modules: called in
backward as eager calls them.

A hook sees the whole gradient of its tensor, its result replaces it, and hooks run in the order in
which they were registered.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.checkpoint import checkpoint

import flambeau
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS = ("eager", "aot_eager", "inductor")
LOG: list[Any] = []


def noting(name: Any, factor: float | None = None) -> Callable[[torch.Tensor], Any]:
    """A hook that writes its gradient down, and may scale it."""

    def hook(gradient: torch.Tensor) -> Any:
        LOG.append((name, gradient.detach().clone()))
        return None if factor is None else gradient * factor

    return hook


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return gradient * self.calls

    def look(self, gradient: torch.Tensor) -> None:
        LOG.append(("looked", self.calls, gradient.detach().clone()))


def used_before_and_after(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = (x @ w).sin()
    u = y + 1
    y.register_hook(lambda gradient: gradient * 3)
    y.register_hook(noting("y"))
    return (y * u).sum()


def of_an_input(x: torch.Tensor, w: torch.Tensor) -> Any:
    w.register_hook(lambda gradient: LOG.append(gradient.shape) or gradient * 2)
    return ((x @ w) ** 2).sum()


def with_what_the_frame_made(x: torch.Tensor, w: torch.Tensor) -> Any:
    seen: list[float] = []
    scale = x.mean()
    y = x @ w
    handle = y.register_hook(lambda gradient: seen.append(gradient) or gradient * scale)
    counter = Counter()
    y.register_hook(counter)
    return (y.relu() * y).sum(), seen, handle, counter


def removed(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    handle = y.register_hook(noting("removed", 100.0))
    handle.remove()
    with y.register_hook(noting("left", 100.0)):
        z = y.sum()
    return z, handle


def retained(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    y.retain_grad()
    return y.sin().sum(), y, y.retains_grad


def of_views(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    total = y.sum()
    row = y[0]
    row.register_hook(noting("row", 2.0))
    y.register_hook(noting("y"))
    first, rest = y.split([1, 2])
    rest.register_hook(noting("rest", 3.0))
    return total + (row * 3).sum() + (first.sum() * rest).sum()


def written_before(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    y.mul_(3)
    y.register_hook(noting("after", 2.0))
    return (y * y).sum()


def in_a_loop(x: torch.Tensor, w: torch.Tensor) -> Any:
    for at in range(3):
        x = (x @ w).tanh()
        x.register_hook(lambda gradient, at=at: LOG.append((at, gradient.detach().clone())))
    return x.sum()


SHARED = Counter()


def callables(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    for hook in (SHARED, SHARED.look, functools.partial(torch.mul, 2.0)):
        y.register_hook(hook)
    return y.sum()


def accumulated(x: torch.Tensor, w: torch.Tensor) -> Any:
    w.register_post_accumulate_grad_hook(lambda p: LOG.append(p.grad.clone()))
    return (x @ w).sum()


def checkpointed(x: torch.Tensor, w: torch.Tensor) -> Any:
    def part(rows: torch.Tensor) -> torch.Tensor:
        y = rows @ w
        y.register_hook(noting("y", 2.0))
        return y.sin()

    return checkpoint(part, x, use_reentrant=False).sum()


def asks_for_nodes(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    return y.sum(), y.grad_fn is None, y.grad_fn is y.grad_fn, y.grad_fn.name(), x.grad_fn


def without_gradients(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.register_hook(noting("x"))
    return x


def of_no_leaf(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    y.register_post_accumulate_grad_hook(noting("y"))
    return y


def copies(gradients: Any) -> list[Any]:
    return [None if each is None else each.detach().clone() for each in gradients]


def after_a_node(x: torch.Tensor, w: torch.Tensor) -> Any:
    def hook(given: Any, made: Any) -> Any:
        LOG.append((copies(given), copies(made)))
        return tuple(None if each is None else each * 2 for each in given)

    y = x @ w.sin()
    handle = y.grad_fn.register_hook(hook)
    return (y.cos() * y).sum(), handle


def before_a_node(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = torch.nn.functional.linear(x, w.sin())
    y.grad_fn.register_prehook(lambda made: (LOG.append(copies(made)), (made[0] * 3,))[1])
    y.register_hook(noting("y", 2.0))
    y.grad_fn.register_hook(lambda given, made: LOG.append(copies(given)))
    return (y.relu() * y).sum()


def of_nodes_of_parts(x: torch.Tensor, w: torch.Tensor) -> Any:
    first, rest = (x @ w).split([1, 2])
    first.grad_fn.register_prehook(lambda made: LOG.append(copies(made)))
    scaled = rest.clone().mul_(w.sum())
    removed = scaled.grad_fn.register_hook(lambda given, made: LOG.append("removed"))
    removed.remove()
    scaled.grad_fn.register_hook(lambda given, made: LOG.append(copies(given)))
    return (first.sum() * scaled).sum()


def of_several(x: torch.Tensor, w: torch.Tensor) -> Any:
    a, b, unused = x * w, w.sin(), w * 2
    seen = lambda gradients: LOG.append(copies(gradients))  # noqa: E731
    register_multi_grad_hook((a, b, w, unused), seen)
    with register_multi_grad_hook([a, b], seen):
        c = a @ b
    return (c.tanh() + a).sum(), register_multi_grad_hook((a, c), seen), unused


def of_any(x: torch.Tensor, w: torch.Tensor) -> Any:
    a, b = x * w, w.sin()
    register_multi_grad_hook((a, b), noting("any"), mode="any")
    try:
        register_multi_grad_hook((a, b), noting("none"), mode="none")
    except ValueError as error:
        return (a @ b).sum(), [error]
    return None


WHOLE: list[Any] = [
    after_a_node,
    before_a_node,
    of_nodes_of_parts,
    of_several,
    of_any,
    used_before_and_after,
    of_an_input,
    with_what_the_frame_made,
    removed,
    retained,
    of_views,
    written_before,
    in_a_loop,
    callables,
    accumulated,
    checkpointed,
    asks_for_nodes,
    without_gradients,
    of_no_leaf,
]


def written_after(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    y.register_hook(noting("before", 2.0))
    y.mul_(3)
    y.register_hook(noting("after"))
    return y.sum()


def broken(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    handle = y.register_hook(noting("y", 2.0))
    torch._dynamo.graph_break()
    z = y.sin()
    z.register_hook(noting("z"))
    return z.sum(), handle


def differentiated(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    y.register_hook(noting("y", 7.0))
    (gradient,) = torch.autograd.grad(y.sum(), w)
    return gradient.sum() + y.sum()


def described(value: Any) -> Any:
    """A value that `same` compares."""
    if isinstance(value, (tuple, list)):
        return [described(item) for item in value]
    if isinstance(value, torch.Tensor):
        return [value.detach(), value.grad if value.is_leaf or value.retains_grad else None]
    return value.calls if isinstance(value, Counter) else type(value).__name__


def outcome(program: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> list[Any]:
    LOG.clear()
    SHARED.calls = 0
    w = w.clone().requires_grad_()
    try:
        result = program(x, w)
        (result[0] if isinstance(result, tuple) else result).backward()
    except RuntimeError as error:
        return [str(error)]
    return [described(result), w.grad, list(LOG)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_hooks_in_one_graph(program: Callable[..., Any], backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        x, w = torch.randn(3, 3), torch.randn(3, 3)
        same(outcome(compiled, x, w), outcome(program, x, w), tolerance=1e-4, strides=False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program", [written_after, broken, differentiated], ids=lambda program: program.__name__
)
def test_hooks_between_graphs(program: Callable[..., Any], backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend)
    for _ in range(2):
        x, w = torch.randn(3, 3), torch.randn(3, 3)
        same(outcome(compiled, x, w), outcome(program, x, w), tolerance=1e-4, strides=False)
    assert len(flambeau.explain(compiled).breaks) == 1


# Modules
# ----------------------------------------------------------------------------


def see_gradients(net: Net) -> None:
    net.first.register_full_backward_hook(lambda m, given, made: LOG.append((given, made)))
    net.second.register_full_backward_hook(lambda m, given, made: (given[0] * 2,))


def see_gradients_first(net: Net) -> None:
    net.second[0].register_full_backward_pre_hook(lambda m, made: (made[0] * 2,))
    net.second.register_full_backward_pre_hook(lambda m, made: LOG.append(made))


def see_everything(net: Net) -> None:
    see_gradients(net)
    see_gradients_first(net)
    net.first.register_forward_hook(lambda m, args, y: (y.register_hook(noting("y", 3.0)), None)[1])
    net.first.weight.register_post_accumulate_grad_hook(lambda p: LOG.append(p.grad.clone()))
    net.first.weight.register_hook(noting("weight", 5.0))


class Net(nn.Module):
    def __init__(self, register: Callable[[Net], None] = lambda net: None) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        register(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return (self.second(y.tanh()) + y).sum()


class Registering(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        handle = self.first.register_full_backward_hook(lambda m, given, made: LOG.append(made))
        y = self.first(x).sin()
        handle.remove()
        return y.sum()


class Replacing(Net):
    handle: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.handle is not None:
            self.handle.remove()
        y = self.first(x).sin()
        self.handle = y.register_hook(noting("y", 2.0))
        return y.sum()


MODULES: dict[str, Callable[[], nn.Module]] = {
    "full": lambda: Net(see_gradients),
    "full_pre": lambda: Net(see_gradients_first),
    "everything": lambda: Net(see_everything),
    "registering": Registering,
    "replacing": Replacing,
}


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODULES)
def test_modules_with_hooks(name: str, backend: str) -> None:
    model, twin = MODULES[name](), MODULES[name]()
    twin.load_state_dict(model.state_dict())
    compiled = flambeau.compile(model, backend=backend, fullgraph=True)
    for call in range(3):
        x = torch.randn(2, 3)
        found = []
        for module, call_module in ((model, compiled), (twin, twin)):
            LOG.clear()
            module.zero_grad()
            given = x.clone().requires_grad_(call != 1)
            result = call_module(given)
            result.backward()
            gradients = [parameter.grad for parameter in module.parameters()]
            found.append([result.detach(), given.grad, gradients, list(LOG)])
        same(*found, tolerance=1e-4, strides=False)


class Heads(nn.Module):
    """Each head has one result; what `choice` computes has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.choice = nn.Linear(3, 4), nn.Linear(3, 2)
        self.policy, self.value = nn.Linear(4, 2), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.trunk(x).tanh()
        chosen = nn.functional.one_hot(self.choice(x).argmax(-1), 2)
        return self.policy(y) * chosen, self.value(y).exp()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
def test_hooks_of_parameters_without_a_gradient(used: tuple[int, ...], backend: str) -> None:
    model = Heads()
    for name, parameter in model.named_parameters():
        parameter.register_hook(noting(name, 0.5))
    compiled = flambeau.compile(model, backend=backend, fullgraph=True)
    x, found = torch.randn(2, 3), []
    for module in (compiled, model):
        LOG.clear()
        module.zero_grad()
        results = module(x)
        sum(results[at].sum() for at in used).backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        found.append([gradients, sorted(LOG, key=lambda entry: entry[0])])
    same(*found, tolerance=1e-4, strides=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_all_modules(backend: str) -> None:
    model = Net()
    compiled = flambeau.compile(model, backend=backend, fullgraph=True)
    handle = nn.modules.module.register_module_full_backward_hook(
        lambda m, given, made: LOG.append((type(m).__name__, made))
    )
    try:
        x = torch.randn(2, 3)
        logs = []
        for module in (compiled, model):
            LOG.clear()
            module(x.clone().requires_grad_()).backward()
            logs.append(list(LOG))
        same(*logs, tolerance=1e-4, strides=False)
        assert len(logs[0]) == 5
    finally:
        handle.remove()


def of_inputs_of_one_head(x: torch.Tensor, w: torch.Tensor) -> Any:
    w.register_hook(noting("w", 2.0))
    w.register_post_accumulate_grad_hook(lambda w: LOG.append(("done", w.grad.clone())))
    register_multi_grad_hook((x, w), lambda gradients: LOG.append(list(gradients)))
    return x.sin(), (x @ w).sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
def test_hooks_that_the_program_registers_on_its_inputs(
    used: tuple[int, ...], backend: str
) -> None:
    found = []
    for function in (
        flambeau.compile(of_inputs_of_one_head, backend=backend, fullgraph=True),
        of_inputs_of_one_head,
    ):
        LOG.clear()
        torch.manual_seed(0)
        x, w = torch.randn(2, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True)
        results = function(x, w)
        sum(results[at].sum() for at in used).backward()
        found.append([sorted(LOG, key=str), x.grad, w.grad])
    same(*found, tolerance=1e-4, strides=False)
