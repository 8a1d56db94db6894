"""Training steps, in the ways in which users write them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tools.fuzz.launches.side import Side, first, input_of, loss_of

if TYPE_CHECKING:
    from tools.fuzz.launches.side import Results

Step: TypeAlias = Callable[[Side, Random, torch.Tensor], list[torch.Tensor]]
"""A step from the forward to the last backward. It returns the loss, and what else is compared."""

_STEPS: dict[str, Step] = {}


def _step(step: Step) -> Step:
    _STEPS[step.__name__.lstrip("_")] = step
    return step


def train(side: Side, random: Random) -> Results:
    """Steps of one kind."""
    kind = random.choice(["plain", "plain", *_STEPS])
    side.pending.clear()
    results: Results = []
    for _ in range(random.choice([1, 2, 4, 7])):
        x = input_of(side, random, random.choice(["fresh", "same", "unaligned"]), 16)
        if kind not in ("accumulated", "cleared_between", "zeros"):
            side.model.zero_grad()
        loss, *others = _STEPS[kind](side, random, x)
        results += [loss.detach(), *others]
        if random.random() < 0.15:
            side.held_gradients += _gradients(side)[:3]
    return results


def optimise(side: Side, random: Random) -> Results:
    """The optimizer's step."""
    side.optimizer.step()
    if random.random() < 0.7:
        side.optimizer.zero_grad(set_to_none=random.random() < 0.7)
    return []


def _gradients(side: Side) -> list[torch.Tensor]:
    return [each.grad for each in side.model.parameters() if each.grad is not None]


def _backward(loss: torch.Tensor, **arguments: Any) -> list[torch.Tensor]:
    loss.backward(**arguments)  # type: ignore[no-untyped-call]
    return [loss]


@_step
def _plain(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    return _backward(loss_of(side.call(x)))


_STEPS["accumulated"] = _plain


@_step
def _cleared_between(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    loss = loss_of(side.call(x))
    side.model.zero_grad()
    return _backward(loss)


@_step
def _zeros(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    side.model.zero_grad(set_to_none=False)
    return _plain(side, random, x)


@_step
def _retained(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    loss = loss_of(side.call(x))
    _backward(loss, retain_graph=True)
    return _backward(loss)


@_step
def _two_forwards(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    losses = [loss_of(side.call(x)), loss_of(side.call(x * 0.5))]
    if random.random() < 0.5:
        losses.reverse()
    for loss in losses:
        _backward(loss)
    return losses


@_step
def _forward_alone_before(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    side.call(x)
    return _plain(side, random, x)


@_step
def _gradient_of_input(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().clone().requires_grad_()
    loss = _plain(side, random, x)
    return [*loss, *([] if x.grad is None else [x.grad.clone()])]


@_step
def _penalty(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().clone().requires_grad_()
    loss = loss_of(side.call(x))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return _backward(loss + gradient.float().square().sum())


@_step
def _hook(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    result = side.call(x)
    first(result).register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]
    return _backward(loss_of(result))


@_step
def _post_accumulate_hooks(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    """As optimizers that step in the backward have."""
    seen: list[torch.Tensor] = []

    def take(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        seen.append(parameter.grad.sum())
        parameter.grad = None

    handles = [
        each.register_post_accumulate_grad_hook(take)
        for each in side.model.parameters()
        if each.requires_grad
    ]
    loss = _plain(side, random, x)
    for handle in handles:
        handle.remove()
    return [*loss, torch.tensor(sorted(float(each) for each in seen))]


@_step
def _by_grad(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    parameters = [each for each in side.model.parameters() if each.requires_grad]
    loss = loss_of(side.call(x))
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return [loss]


@_step
def _checkpoint(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    return _backward(loss_of(checkpoint(side.call, x, use_reentrant=False)))


def _transposed(saved: torch.Tensor) -> torch.Tensor:
    """The same numbers in other strides."""
    return saved.mT.contiguous().mT if saved.ndim > 1 else saved.clone()


@_step
def _saved_tensors_hooks(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    hooks = random.choice(
        [
            lambda: saved_tensors_hooks(lambda saved: saved.detach().clone(), lambda kept: kept),
            lambda: saved_tensors_hooks(lambda saved: saved, lambda kept: kept),
            lambda: saved_tensors_hooks(torch.Tensor.contiguous, lambda kept: kept),
            lambda: saved_tensors_hooks(_transposed, lambda kept: kept),
            save_on_cpu,
        ]
    )
    with hooks():
        loss = loss_of(side.call(x))
    return _backward(loss)


@_step
def _in_a_thread(side: Side, random: Random, x: torch.Tensor) -> list[torch.Tensor]:
    loss = loss_of(side.call(x))
    thread = threading.Thread(target=_backward, args=(loss,))
    thread.start()
    thread.join()
    return [loss]
