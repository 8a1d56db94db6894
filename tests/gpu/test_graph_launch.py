"""Programs beside eager however they are launched: kernel by kernel, as CUDA graphs where that is
faster, and as CUDA graphs always.
"""

from __future__ import annotations

import copy
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.launches import (
    ALWAYS,
    AUTO,
    LAUNCHES,
    NEVER,
    WARM,
    Beside,
    assert_every_program_replayed,
    assert_launched,
    close,
    compiled_for,
    memory_after,
    randn,
)
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("exact_convolutions", "any_device_time"),
]

Args = tuple[Any, ...]


@pytest.fixture
def exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN may round to TF32, in some layouts and not in others: not what is compared here."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def any_device_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes on the GPU make each call look limited by the device."""
    monkeypatch.setattr("flambeau_runtime.graph_launch.policy.HOST_BOUND", float("inf"))


class Attention(nn.Module):
    """Self-attention with an output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(-2))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).cuda()


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)
    ).cuda()


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.4), nn.ReLU(), nn.Dropout(0.2)).cuda()


def several(x: torch.Tensor) -> tuple[Any, ...]:
    y = x.sin()
    return y, y[1:], y.t(), x, x[0], x.shape[0], None, x.sum(), {"mean": x.mean(0)}


def in_place(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.cos() + 1


def draws(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.rand_like(x) + x, torch.randn(5, device=x.device), F.dropout(x, 0.5)


FORWARDS: dict[str, tuple[Callable[[], Any], Callable[[], Args]]] = {
    "one kernel": (lambda: lambda x: x.sin() * 2, lambda: (randn(10, 10),)),
    "scalar": (lambda: lambda x: x.sin() + x.cos(), lambda: (randn(),)),
    "matmul": (lambda: lambda x, y: (x @ y).relu() + 1, lambda: (randn(9, 7), randn(7, 5))),
    "matmul alone": (lambda: torch.mm, lambda: (randn(64, 64), randn(64, 64))),
    "large matmul": (lambda: torch.mm, lambda: (randn(1024, 64), randn(64, 1024))),
    "mlp": (mlp, lambda: (randn(5, 16),)),
    "convolutions": (convolutions, lambda: (randn(2, 3, 9, 9),)),
    "convolutions, eval": (lambda: convolutions().eval(), lambda: (randn(2, 3, 9, 9),)),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 4)).cuda(),
        lambda: (torch.randint(0, 50, (3, 7), device="cuda"),),
    ),
    "attention": (lambda: Attention().cuda(), lambda: (randn(2, 16, 32),)),
    "dropout": (dropout, lambda: (randn(6, 16),)),
    "random numbers": (lambda: draws, lambda: (randn(33),)),
    "several outputs": (lambda: several, lambda: (randn(4, 4),)),
    "mutated input": (lambda: in_place, lambda: (randn(4, 4),)),
    "views of the input": (lambda: lambda x: (x[1:], x.t(), x.sin()), lambda: (randn(4, 4),)),
    "sort": (lambda: lambda x: x.sort(-1), lambda: (randn(4, 40),)),
    "sliced input": (lambda: lambda x: x.softmax(-1), lambda: (randn(6, 20)[1:, 3:17],)),
    "transposed matmul": (lambda: lambda x, y: x.t() @ y, lambda: (randn(7, 9), randn(7, 5))),
    "expanded": (lambda: lambda x, y: x @ y, lambda: (randn(1, 7).expand(5, 7), randn(7, 3))),
    "sum": (lambda: lambda x: x.sum(), lambda: (randn(1001, 77),)),
    "cumsum": (lambda: lambda x: x.cumsum(0), lambda: (randn(301, 7),)),
    "int": (lambda: lambda x: x * 2 + 1, lambda: (torch.arange(9, device="cuda"),)),
}


@pytest.mark.parametrize("cuda_graphs", LAUNCHES)
@pytest.mark.parametrize("name", FORWARDS)
def test_forward(name: str, cuda_graphs: str) -> None:
    make, make_args = FORWARDS[name]
    beside = Beside(make(), cuda_graphs)
    with torch.no_grad():
        for _ in range(WARM):
            torch.cuda.synchronize()  # the time of the timed call is known at the next one
            beside(*make_args())
    beside.assert_replayed()


@pytest.mark.parametrize("cuda_graphs", LAUNCHES)
def test_empty_tensors(cuda_graphs: str) -> None:
    beside = Beside(lambda x, y: (x.sin() * 2, y + 1, x.sum(), y[:0]), cuda_graphs)
    for _ in range(WARM):
        torch.cuda.synchronize()
        beside(randn(0, 3), randn(4))
    beside.assert_replayed()


def test_a_seed_gives_the_same_numbers_however_it_is_launched() -> None:
    x, seen = randn(64), []
    for function in (draws, *(compiled_for(draws, launch) for launch in LAUNCHES)):
        torch.manual_seed(7)
        outputs = [function(x) for _ in range(WARM)]
        torch.manual_seed(7)
        again = [function(x) for _ in range(3)]
        same(again, outputs[:3], tolerance=0)
        seen.append(
            ([tuple(map(torch.clone, each)) for each in outputs], torch.cuda.get_rng_state())
        )
    for each in seen[1:]:
        same(each, seen[0], tolerance=0)


def test_replays_and_eager_draw_from_one_stream_of_numbers() -> None:
    x = randn(64)
    beside = Beside(draws)
    for _ in range(WARM):
        beside(x)
        torch.rand(3, device="cuda")
    state = torch.cuda.get_rng_state()
    first = [tensor.clone() for tensor in beside(x)]
    torch.cuda.set_rng_state(state)
    same([tensor.clone() for tensor in beside(x)], first, tolerance=0)
    beside.assert_replayed(at_least=5)


# Training

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (mlp, lambda: randn(5, 16)),
    "convolutions": (convolutions, lambda: randn(2, 3, 9, 9)),
    "attention": (lambda: Attention().cuda(), lambda: randn(2, 16, 32)),
    "dropout": (dropout, lambda: randn(6, 16)),
}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9),
    "Adam foreach": lambda parameters: torch.optim.Adam(parameters, 1e-3, eps=1e-3, foreach=True),
    "Adam fused": lambda parameters: torch.optim.Adam(parameters, 1e-3, eps=1e-3, fused=True),
}


class Training:
    """Two copies of a model, one compiled, that are trained on the same data."""

    def __init__(
        self, make: Callable[[], nn.Module], cuda_graphs: str = ALWAYS, optimizer: str = "SGD"
    ) -> None:
        self.cuda_graphs = cuda_graphs
        self.ours = make()
        self.theirs = copy.deepcopy(self.ours)
        self.compiled = compiled_for(self.ours, cuda_graphs)
        self.optimizers = [
            OPTIMIZERS[optimizer](model.parameters()) for model in (self.ours, self.theirs)
        ]

    def both(self, body: Callable[[Callable[..., Any]], Any]) -> None:
        """Run `body` with each model, from the same random state; results must be equal."""
        state = torch.cuda.get_rng_state()
        want = body(self.theirs)
        after = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state)
        got = body(self.compiled)
        assert torch.equal(torch.cuda.get_rng_state(), after)
        close(got, want)
        self.check()

    def check(self) -> None:
        """Parameters, gradients and buffers are equal."""
        pairs = zip(self.ours.parameters(), self.theirs.parameters(), strict=True)
        for number, (got, want) in enumerate(pairs):
            near(got.detach(), want.detach(), f"parameter {number}")
            assert (got.grad is None) == (want.grad is None), f"parameter {number}"
            if want.grad is not None:
                near(got.grad, want.grad, f"gradient {number}")
        for got, want in zip(self.ours.buffers(), self.theirs.buffers(), strict=True):
            near(got, want, "buffer")

    def step(self, *, set_to_none: bool = True) -> None:
        """One step of each optimizer."""
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
        self.check()

    def assert_replayed(self) -> None:
        assert_launched(self.compiled, self.cuda_graphs, at_least=3)
        if self.cuda_graphs == ALWAYS:
            assert_every_program_replayed(self.compiled)


def near(got: torch.Tensor, want: torch.Tensor, name: str) -> None:
    """As eager's but for rounding, which training amplifies."""
    scale = want.abs().max().item() if want.is_floating_point() else 0.0
    torch.testing.assert_close(
        got, want, rtol=1e-3, atol=1e-5 + 1e-3 * scale, msg=lambda text: f"{name}: {text}"
    )


def loss_of(model: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("cuda_graphs", LAUNCHES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_training(name: str, optimizer: str, cuda_graphs: str) -> None:
    make, make_input = MODELS[name]
    training = Training(make, cuda_graphs, optimizer)
    for _ in range(WARM + 5):
        torch.cuda.synchronize()
        x = make_input()
        training.both(lambda model, x=x: loss_of(model, x))
        training.step()
    if cuda_graphs != AUTO or name != "dropout":  # the thread of a backward may not draw there
        training.assert_replayed()


@pytest.mark.parametrize("set_to_none", [False, True])
def test_gradients_accumulate(set_to_none: bool) -> None:
    training = Training(mlp)
    for _ in range(WARM):
        for x in (randn(5, 16), randn(5, 16), randn(5, 16)):
            training.both(lambda model, x=x: loss_of(model, x))
        training.step(set_to_none=set_to_none)
    training.assert_replayed()


def test_gradients_that_the_caller_keeps_are_not_overwritten() -> None:
    training = Training(mlp)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(WARM + 10):
        x = randn(5, 16)
        training.both(lambda model, x=x: loss_of(model, x))
        for parameter in training.ours.parameters():
            assert parameter.grad is not None
            kept.append((parameter.grad, parameter.grad.clone()))
        training.step()
    for gradient, copied in kept:
        same(gradient, copied, tolerance=0)
    training.assert_replayed()


def twice_backward(model: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return loss.detach()


def forwards_first(model: Callable[..., Any], xs: list[torch.Tensor]) -> torch.Tensor:
    losses = [model(x).square().mean() for x in xs]
    for loss in losses:
        loss.backward()
    return torch.stack([loss.detach() for loss in losses])


def used_twice(model: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    loss = (model(x) * model(x + 1)).mean()
    loss.backward()
    return loss.detach()


def input_gradient(model: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    return gradient


def never_backward(model: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    model(x)
    return loss_of(model, x)


def hooked(model: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    out = model(x)
    out.register_hook(lambda gradient: seen.append(gradient) or gradient * 0.5)
    out.sum().backward()
    return seen


BACKWARDS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "retain_graph": twice_backward,
    "two forwards": lambda model, x: forwards_first(model, [x, x + 1]),
    "three forwards": lambda model, x: forwards_first(model, [x, x + 1, x + 2]),
    "used twice": used_twice,
    "input gradient": input_gradient,
    "a forward without backward": never_backward,
    "hook": hooked,
}


@pytest.mark.parametrize("cuda_graphs", [AUTO, ALWAYS])
@pytest.mark.parametrize("name", BACKWARDS)
def test_backward(name: str, cuda_graphs: str) -> None:
    training = Training(mlp, cuda_graphs)
    for _ in range(WARM + 5):
        torch.cuda.synchronize()
        x = randn(5, 16)
        training.both(lambda model, x=x: BACKWARDS[name](model, x))
        training.step()
    assert_launched(training.compiled, cuda_graphs)


def test_hooks_of_parameters() -> None:
    training = Training(mlp)
    counts = [0, 0]
    for number, model in enumerate((training.ours, training.theirs)):

        def count(gradient: torch.Tensor, number: int = number) -> torch.Tensor:
            counts[number] += 1
            return gradient * 3

        for parameter in model.parameters():
            parameter.register_hook(count)
    for _ in range(WARM):
        x = randn(5, 16)
        training.both(lambda model, x=x: loss_of(model, x))
        training.step()
    assert counts[0] == counts[1] > 0
    training.assert_replayed()


def test_frozen_and_thawed_parameters() -> None:
    training = Training(mlp)
    for turn in range(3):
        for model in (training.ours, training.theirs):
            next(model.parameters()).requires_grad_(turn != 1)
        for _ in range(WARM):
            x = randn(5, 16)
            training.both(lambda model, x=x: loss_of(model, x))
            training.step()
    assert_launched(training.compiled, ALWAYS)


def test_a_thread_that_has_not_used_the_gpu_captures_nothing() -> None:
    x = randn(64)
    compiled = compiled_for(lambda x: x.sin() * 2, ALWAYS)
    compiled(x)
    results = []
    thread = Thread(target=lambda: results.extend(compiled(x) for _ in range(2)))
    thread.start()
    thread.join()
    assert_launched(compiled, ALWAYS, at_least=0)
    for result in results:
        close(result, x.sin() * 2)


@pytest.mark.parametrize("cuda_graphs", [NEVER, ALWAYS])
def test_autocast(cuda_graphs: str) -> None:
    training = Training(mlp, cuda_graphs)

    def body(model: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            out = model(x)
        out.float().sum().backward()
        return out.detach().float()

    for _ in range(WARM):
        x = randn(5, 16)
        state = torch.cuda.get_rng_state()
        torch.testing.assert_close(
            body(training.compiled, x), body(training.theirs, x), rtol=0.05, atol=0.05
        )
        assert torch.equal(torch.cuda.get_rng_state(), state)
    training.assert_replayed()


@pytest.mark.parametrize("name", MODELS)
def test_training_does_not_take_more_and_more_memory(name: str) -> None:
    make, make_input = MODELS[name]
    model = make()
    compiled = compiled_for(model, ALWAYS)

    def step() -> None:
        loss_of(compiled, make_input())
        model.zero_grad()

    before = memory_after(step, 3 * WARM)
    assert memory_after(step, 100) <= before
    assert_launched(compiled, ALWAYS)
