"""Whole training steps beside eager: averages of weights, tied weights, clipping, scaled losses,
schedules inside of the step, functional training and ensembles.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from tests.worlds import World, compare, kinds

if TYPE_CHECKING:
    from collections.abc import Callable


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def rows(call: int) -> tuple[torch.Tensor]:
    return (torch.randn(5, 4),)


def pairs(call: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 4), torch.randn(5, 3)


def training(
    model: nn.Module, optimizer: optim.Optimizer, *after: Callable[[], Any]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A step on the mean square of a model's result, and what is called behind it."""

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for each in after:
            each()
        return loss.detach()

    return step


# ---------------------------------------------------------------- one graph


def functional_training() -> World:
    model = net()
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def loss(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        gradients, value = torch.func.grad_and_value(loss)(weights, x, y)
        return {name: w - 0.1 * gradients[name] for name, w in weights.items()}, value

    return World(step, pairs, lambda: weights)


def ensemble() -> World:
    members = [net() for _ in range(3)]
    weights, buffers = torch.func.stack_module_state(members)  # type: ignore[arg-type]
    skeleton = copy.deepcopy(members[0]).to("meta")

    def call(weights: Any, buffers: Any, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(skeleton, (weights, buffers), (x,))
        return result

    def loss(weights: Any, buffers: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(call(weights, buffers, x), y)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(0, 0, None, None))(
            weights, buffers, x, y
        )
        with torch.no_grad():
            for name, weight in weights.items():
                weight.sub_(0.1 * gradients[name])
        return torch.func.vmap(call, in_dims=(0, 0, None))(weights, buffers, x)

    return World(step, pairs, lambda: weights)


def gradients_of_samples() -> World:
    model = net()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(torch.func.functional_call(model, weights, (x[None],)), y[None])

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, y)

    return World(step, pairs)


def average_by_hand() -> World:
    model = net()
    shadow = copy.deepcopy(model).requires_grad_(False)

    def step(decay: float) -> None:
        with torch.no_grad():
            for mean, weight in zip(shadow.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 1 - decay)
            for mean, weight in zip(shadow.buffers(), model.buffers(), strict=True):
                mean.copy_(weight)

    def arguments(call: int) -> tuple[float]:
        for weight in model.parameters():
            weight.data.add_(0.1)
        return (0.9 + 0.01 * call,)

    return World(step, arguments, lambda: shadow)


def average_of_a_list() -> World:
    model = net()
    shadow = [weight.detach().clone() for weight in model.parameters()]

    def step() -> None:
        torch._foreach_lerp_(shadow, [w.detach() + 1 for w in model.parameters()], 0.1)

    return World(step, lambda call: (), lambda: shadow)


WHOLE = (
    functional_training, ensemble, gradients_of_samples, average_by_hand, average_of_a_list,
)  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("make", WHOLE)
def test_one_graph(make: Callable[[], World], backend: str) -> None:
    compiled = compare(make, calls=4, backend=backend, fullgraph=True)
    assert len(kinds(compiled)) <= 2


# ---------------------------------------------------------------- with a backward in it


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.tanh(self.embedding(x)))
        return result


def tied() -> World:
    model = Tied()
    optimizer = optim.AdamW(model.parameters(), 0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def seen() -> Any:
        return model, model.head.weight is model.embedding.weight

    return World(step, lambda call: (torch.randint(0, 11, (3, 4)),), seen)


def clipped() -> World:
    model = net()

    def step(x: torch.Tensor) -> Any:
        model(x).square().sum().backward()
        largest = nn.utils.clip_grad_norm_(
            model.parameters(), 1.0, norm_type=math.inf, error_if_nonfinite=True
        )
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        total = nn.utils.get_total_norm(gradients)
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.5, total)
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        return largest, total

    return World(step, rows, lambda: [weight.grad for weight in model.parameters()])


def scaled() -> World:
    model = net()
    optimizer = optim.Adam(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    def arguments(call: int) -> tuple[torch.Tensor]:
        return (torch.full((5, 4), 1e30) if call == 3 else torch.randn(5, 4),)

    return World(step, arguments, lambda: (model, scaler.state_dict()))


def averaged(**options: Any) -> World:
    model = net()
    mean = optim.swa_utils.AveragedModel(model, **options)
    step = training(
        model, optim.SGD(model.parameters(), 0.1), lambda: mean.update_parameters(model)
    )
    return World(step, rows, lambda: mean)


def exponential_average() -> World:
    return averaged(multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)


def own_average() -> World:
    return averaged(avg_fn=lambda mean, weight, count: mean * 0.9 + weight * 0.1)


def accumulated() -> World:
    model, count = net(), [0]
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(x: torch.Tensor) -> int:
        (model(x).square().mean() / 2).backward()
        count[0] += 1
        if count[0] % 2 == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return count[0]

    return World(step, rows, lambda: (model, [weight.grad for weight in model.parameters()]))


def stepped_in_hooks() -> World:
    """Each parameter by an optimizer of its own, as soon as its gradient is there."""
    model = net()
    optimizers = {weight: optim.SGD([weight], 0.1) for weight in model.parameters()}

    def apply(weight: torch.Tensor) -> None:
        optimizers[weight].step()  # type: ignore[index]
        optimizers[weight].zero_grad()  # type: ignore[index]

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(apply)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return World(step, rows, lambda: model)


BACKWARD = (
    tied, clipped, scaled, averaged, exponential_average, own_average, accumulated,
    stepped_in_hooks,
)  # fmt: skip


@pytest.mark.parametrize("make", BACKWARD)
def test_steps_with_a_backward(make: Callable[[], World]) -> None:
    compiled = compare(make, calls=6, backend="eager")
    assert "limit" not in kinds(compiled)


@pytest.mark.parametrize(("name", "options"), [
    ("CosineAnnealingLR", {"T_max": 10}), ("ExponentialLR", {"gamma": 0.9}),
    ("StepLR", {"step_size": 20}), ("PolynomialLR", {"total_iters": 9, "power": 2.0}),
    ("LambdaLR", {"lr_lambda": lambda epoch: 0.5 * (1 + math.cos(math.pi * epoch / 9))}),
])  # fmt: skip
def test_schedules_inside_of_a_step(name: str, options: dict[str, Any]) -> None:
    """Rates that Python computes from the number of the step are inputs of the graph."""

    def make() -> World:
        model = net()
        optimizer = optim.Adam(model.parameters(), 0.1)
        schedule = getattr(optim.lr_scheduler, name)(optimizer, **options)
        step = training(model, optimizer, schedule.step)
        return World(step, rows, lambda: (model, schedule.get_last_lr()))

    compiled = compare(make, calls=8, backend="eager")
    assert kinds(compiled).count("recompile") <= 2
