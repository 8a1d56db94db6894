"""Training steps whose backward overwrites what the forward saved, beside eager, whatever callers
do with gradients, graphs and saved tensors in between.
"""

from __future__ import annotations

import copy
import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flambeau_runtime.graph_launch.other_threads import others_on_the_gpu
from tests.launches import (
    ALWAYS,
    WARM,
    assert_every_program_replayed,
    close,
    compiled_for,
    memory_after,
    randn,
    replays,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

WIDTH = 640
"""Gradients of 1.6 MB: from 1 MiB on they may stay in place."""


class Layers(nn.Module):
    """Products of which each saves its operand, in half precision or not, with dropout or not."""

    def __init__(self, half: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.half_precision = half
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half_precision):
            for layer in self.layers:
                x = F.dropout(F.gelu(layer(x)), self.dropout)
            return x


class Attention(nn.Module):
    """Attention whose kernel draws the dropout itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 3 * WIDTH)
        self.outer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            parts = self.inner(x).view(8, -1, 3, 10, WIDTH // 10).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(*parts.unbind(0), dropout_p=0.1)
            return self.outer(y.transpose(1, 2).reshape(x.shape)).float() + x


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": Layers,
    "half": lambda: Layers(half=True),
    "dropout": lambda: Layers(dropout=0.2),
    "attention": Attention,
}


RECORDED = ("plain", "half", "dropout")
"""The models whose backward is always recorded: no library call draws in it, which the main thread
could disturb.
"""


class Twins:
    """A model and its compiled copy, trained side by side."""

    def __init__(self, model: nn.Module) -> None:
        self.eager = model.cuda()
        self.ours = copy.deepcopy(self.eager)
        self.compiled = compiled_for(self.ours, ALWAYS)
        self.x = torch.empty(128, WIDTH, device="cuda")

    def each(self, step: Callable[[Any, nn.Module, torch.Tensor], Any], seed: int) -> None:
        """Run a step with both, from equal random states; results and gradients are equal."""
        self.x.normal_()
        results = []
        for call, model in ((self.eager, self.eager), (self.compiled, self.ours)):
            torch.cuda.manual_seed(seed)
            results.append(step(call, model, self.x))
        close(results[1], results[0])
        self.same_gradients()

    def same_gradients(self) -> None:
        """The parameters' gradients are equal, or missing on both sides."""
        pairs = zip(self.ours.named_parameters(), self.eager.parameters(), strict=True)
        for (name, ours), theirs in pairs:
            assert (ours.grad is None) == (theirs.grad is None), name
            if ours.grad is not None and theirs.grad is not None:
                scale = float(theirs.grad.abs().max()) + 1e-6
                torch.testing.assert_close(
                    ours.grad / scale, theirs.grad / scale, rtol=0, atol=2e-2, msg=name
                )


def zero_first(call: Any, model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    call(x).float().square().mean().backward()


def zero_between(call: Any, model: nn.Module, x: torch.Tensor) -> None:
    loss = call(x).float().square().mean()
    model.zero_grad()
    loss.backward()


def zero_to_zeros(call: Any, model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad(set_to_none=False)
    call(x).float().square().mean().backward()


def accumulate(call: Any, model: nn.Module, x: torch.Tensor) -> None:
    call(x).float().square().mean().backward()


def two_graphs(call: Any, model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    first, second = call(x), call(x + 1)
    first.float().square().mean().backward()
    second.float().square().mean().backward()


def two_graphs_backwards(call: Any, model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    first, second = call(x), call(x + 1)
    second.float().square().mean().backward()
    first.float().square().mean().backward()


def retained(call: Any, model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    y = call(x).float()
    y.square().mean().backward(retain_graph=True)
    y.sum().backward(retain_graph=True)
    y.mean().backward()


def some_gradients(call: Any, model: nn.Module, x: torch.Tensor) -> Any:
    model.zero_grad()
    y = call(x).float()
    weights = [p for p in model.parameters() if p.ndim == 2]
    first = torch.autograd.grad(y.square().mean(), weights[:1], retain_graph=True)
    last = torch.autograd.grad(y.sum(), weights)
    # Relative to what is summed: rounding in half precision is not.
    return [each.sum() / each.abs().sum() for each in (first[0], last[0])]


def forward_only(call: Any, model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    call(x)
    call(x).float().square().mean().backward()


def kept_by_hooks(call: Any, model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = call(x).float()
    y.square().mean().backward(retain_graph=True)
    y.sum().backward()


def moved_by_hooks(call: Any, model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    with torch.autograd.graph.save_on_cpu():
        y = call(x).float()
    y.square().mean().backward()


STEPS = (
    zero_first, zero_between, zero_to_zeros, accumulate, two_graphs, two_graphs_backwards, retained,
    some_gradients, forward_only, kept_by_hooks, moved_by_hooks,
)  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_steps(name: str, step: Callable[..., Any]) -> None:
    twins = Twins(MODELS[name]())
    for number in range(WARM):
        twins.each(step, number)
    assert replays(twins.compiled) > 0
    if step is zero_first and name in RECORDED:
        assert_every_program_replayed(twins.compiled)


@pytest.mark.parametrize("name", MODELS)
def test_steps_that_change(name: str) -> None:
    """Recorded for one way of training, called in all others, and in the first one again."""
    twins = Twins(MODELS[name]())
    for number in range(WARM):
        twins.each(zero_first, number)
    if name in RECORDED:
        assert_every_program_replayed(twins.compiled)
    for step in (*STEPS, *reversed(STEPS)):
        for number in range(2):
            twins.each(step, number)
    for number in range(WARM):
        twins.each(zero_first, number)


def test_gradients_that_are_held_are_never_overwritten() -> None:
    twins = Twins(Layers())
    for number in range(WARM):
        twins.each(zero_first, number)
    held = []
    for number in range(6):
        twins.each(zero_first, number)
        grads = [p.grad for p in twins.ours.parameters()]
        held += [(g, g.clone()) for g in grads[number % 3 :: 3] if g is not None]
    for got, want in held:
        assert torch.equal(got, want)


def test_a_graph_outlives_its_function() -> None:
    """What the forward saved stays valid when its recordings, and the pool, have been dropped."""
    twins = Twins(Layers())
    for number in range(WARM):
        twins.each(zero_first, number)
    x = randn(128, WIDTH)
    for model in (twins.eager, twins.ours):
        model.zero_grad()
    want = twins.eager(x).square().mean()
    got = twins.compiled(x).square().mean()
    del twins.compiled
    gc.collect()
    torch.cuda.empty_cache()
    noise = [randn(1 << 20) for _ in range(20)]
    want.backward()
    got.backward()
    twins.same_gradients()
    assert len(noise) == 20


def test_gradients_outlive_their_function() -> None:
    twins = Twins(Layers())
    for number in range(WARM):
        twins.each(zero_first, number)
    del twins.compiled
    gc.collect()
    torch.cuda.empty_cache()
    noise = [randn(1 << 20) for _ in range(20)]
    twins.same_gradients()
    assert len(noise) == 20


def peak(step: Callable[[], Any]) -> int:
    """Bytes allocated at the peak of a few steps beyond what is there before."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("name", RECORDED)
def test_the_peak_is_no_higher_than_eagers(name: str) -> None:
    """From the first call on, recordings included; saved tensors and gradients share memory."""
    model = MODELS[name]().cuda()
    x = randn(4096, WIDTH)
    zero_first(model, model, x)  # libraries are loaded
    model.zero_grad()
    theirs = peak(lambda: zero_first(model, model, x))
    model.zero_grad()
    compiled = compiled_for(model, ALWAYS)
    ours = peak(lambda: zero_first(compiled, model, x))
    assert_every_program_replayed(compiled)
    assert ours <= theirs + (2 << 20), f"{ours:,} bytes, eager {theirs:,}"


def test_what_plain_calls_used_is_given_back() -> None:
    """A large recording allocates its memory beside what torch keeps of the calls before."""
    if others_on_the_gpu():
        pytest.skip("another thread may launch")
    model = Layers().cuda()
    x = randn(1 << 17, WIDTH)
    compiled = compiled_for(model, ALWAYS)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM):
        zero_first(compiled, model, x)
    assert_every_program_replayed(compiled)
    assert torch.cuda.memory_reserved() <= 1.5 * torch.cuda.max_memory_allocated()


def test_what_is_recorded_again_holds_no_memory() -> None:
    """Gradients that are held when the forward runs again: its memory is given up, once."""
    twins = Twins(Layers())

    def call() -> None:
        zero_between(twins.compiled, twins.ours, twins.x.normal_())

    before = memory_after(call, 2 * WARM)
    assert_every_program_replayed(twins.compiled)
    assert memory_after(call, 2 * WARM) <= before + (1 << 20)
    twins.each(zero_between, 0)
