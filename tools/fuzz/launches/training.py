"""Training steps, in the ways in which users write them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tools.fuzz.launches.half import Half, first, input_of, loss_of

if TYPE_CHECKING:
    from tools.fuzz.launches.half import Results

Step: TypeAlias = Callable[[Half, Random, torch.Tensor], list[torch.Tensor]]
"""A step from the forward to the last backward. It returns the loss, and what else is compared."""

_STEPS: dict[str, Step] = {}


def _step(step: Step) -> Step:
    _STEPS[step.__name__.lstrip("_")] = step
    return step


def train(half: Half, random: Random) -> Results:
    """Steps of one kind."""
    kind = random.choice(["plain", "plain", *_STEPS])
    half.pending.clear()
    results: Results = []
    for _ in range(random.choice([1, 2, 4, 7])):
        x = input_of(half, random, random.choice(["fresh", "same", "unaligned"]), 16)
        if kind not in ("accumulated", "cleared_between", "zeros"):
            half.model.zero_grad()
        loss, *others = _STEPS[kind](half, random, x)
        results += [loss.detach(), *others]
        if random.random() < 0.15:
            half.held_gradients += _gradients(half)[:3]
    return results


def optimise(half: Half, random: Random) -> Results:
    """The optimizer's step."""
    half.optimizer.step()
    if random.random() < 0.7:
        half.optimizer.zero_grad(set_to_none=random.random() < 0.7)
    return []


def _gradients(half: Half) -> list[torch.Tensor]:
    return [each.grad for each in half.model.parameters() if each.grad is not None]


def _backward(loss: torch.Tensor, **arguments: Any) -> list[torch.Tensor]:
    loss.backward(**arguments)  # type: ignore[no-untyped-call]
    return [loss]


@_step
def _plain(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    return _backward(loss_of(half.call(x)))


_STEPS["accumulated"] = _plain


@_step
def _cleared_between(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    loss = loss_of(half.call(x))
    half.model.zero_grad()
    return _backward(loss)


@_step
def _zeros(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    half.model.zero_grad(set_to_none=False)
    return _plain(half, random, x)


@_step
def _retained(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    loss = loss_of(half.call(x))
    _backward(loss, retain_graph=True)
    return _backward(loss)


@_step
def _two_forwards(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    losses = [loss_of(half.call(x)), loss_of(half.call(x * 0.5))]
    if random.random() < 0.5:
        losses.reverse()
    for loss in losses:
        _backward(loss)
    return losses


@_step
def _forward_alone_before(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    half.call(x)
    return _plain(half, random, x)


@_step
def _gradient_of_input(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().clone().requires_grad_()
    loss = _plain(half, random, x)
    return [*loss, *([] if x.grad is None else [x.grad.clone()])]


@_step
def _penalty(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().clone().requires_grad_()
    loss = loss_of(half.call(x))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return _backward(loss + gradient.float().square().sum())


@_step
def _hook(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    result = half.call(x)
    first(result).register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]
    return _backward(loss_of(result))


@_step
def _post_accumulate_hooks(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    """As optimizers that step in the backward have."""
    seen: list[torch.Tensor] = []

    def take(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        seen.append(parameter.grad.sum())
        parameter.grad = None

    handles = [
        each.register_post_accumulate_grad_hook(take)
        for each in half.model.parameters()
        if each.requires_grad
    ]
    loss = _plain(half, random, x)
    for handle in handles:
        handle.remove()
    return [*loss, torch.tensor(sorted(float(each) for each in seen))]


@_step
def _by_grad(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    parameters = [each for each in half.model.parameters() if each.requires_grad]
    loss = loss_of(half.call(x))
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return [loss]


@_step
def _checkpoint(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    return _backward(loss_of(checkpoint(half.call, x, use_reentrant=False)))


@_step
def _saved_tensors_hooks(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    hooks = random.choice(
        [
            lambda: saved_tensors_hooks(lambda saved: saved.detach().clone(), lambda kept: kept),
            lambda: saved_tensors_hooks(lambda saved: saved, lambda kept: kept),
            save_on_cpu,
        ]
    )
    with hooks():
        loss = loss_of(half.call(x))
    return _backward(loss)


@_step
def _in_a_thread(half: Half, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    loss = loss_of(half.call(x))
    thread = threading.Thread(target=_backward, args=(loss,))
    thread.start()
    thread.join()
    return [loss]
