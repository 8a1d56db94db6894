"""Optimizers' `step()` compiled: alone, with `zero_grad()`, under schedulers that change the
learning rate, and in a training loop.
"""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn, optim

import flambeau
import flambeau_capture
from tests.worlds import World, compare, kinds

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda parameters: optim.SGD(parameters, 0.1),
    "sgd_foreach": lambda parameters: optim.SGD(parameters, 0.1, foreach=True),
    "momentum": lambda parameters: optim.SGD(
        parameters, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "adam": lambda parameters: optim.Adam(parameters, 0.1),
    "adam_foreach": lambda parameters: optim.Adam(parameters, 0.1, foreach=True),
    "amsgrad": lambda parameters: optim.Adam(
        parameters, 0.1, amsgrad=True, weight_decay=0.1, maximize=True
    ),
    "adamw": lambda parameters: optim.AdamW(parameters, 0.1, foreach=True),
    "adamw_tensor_rate": lambda parameters: optim.AdamW(
        parameters, torch.tensor(0.1), foreach=False
    ),
    "rmsprop": lambda parameters: optim.RMSprop(parameters, 0.1, momentum=0.5, centered=True),
    "adagrad": lambda parameters: optim.Adagrad(parameters, 0.1),
    "adadelta": lambda parameters: optim.Adadelta(parameters, 0.1, foreach=True),
    "rmsprop_foreach": lambda parameters: optim.RMSprop(
        parameters, torch.tensor(0.1), momentum=0.5, weight_decay=0.1, foreach=True
    ),
    "nadam": lambda parameters: optim.NAdam(parameters, 0.1),
    "nadam_foreach": lambda parameters: optim.NAdam(parameters, 0.1, foreach=True),
    "adamax": lambda parameters: optim.Adamax(parameters, 0.1),
    "adamax_foreach": lambda parameters: optim.Adamax(
        parameters, 0.1, weight_decay=0.1, maximize=True, foreach=True
    ),
    "rprop": lambda parameters: optim.Rprop(parameters, 0.1),
    "rprop_foreach": lambda parameters: optim.Rprop(parameters, 0.1, foreach=True),
    "asgd": lambda parameters: optim.ASGD(parameters, 0.1),
    "asgd_foreach": lambda parameters: optim.ASGD(parameters, 0.1, foreach=True),
    "adafactor": lambda parameters: optim.Adafactor(parameters, 0.1),
    "adafactor_foreach": lambda parameters: optim.Adafactor(parameters, 0.1, foreach=True),
    "muon": lambda parameters: optim.Muon(matrices(parameters), 0.1),
    "muon_tensor_rate": lambda parameters: optim.Muon(matrices(parameters), torch.tensor(0.1)),
}
BRANCHING: dict[str, Callable[[Any], optim.Optimizer]] = {
    "radam": lambda parameters: optim.RAdam(parameters, 0.1),
    "radam_foreach": lambda parameters: optim.RAdam(parameters, torch.tensor(0.1), foreach=True),
    "asgd_foreach": lambda parameters: optim.ASGD(parameters, 0.1, t0=3, foreach=True),
}
"""Their steps branch once on what their counters hold."""


def matrices(parameters: Any) -> list[nn.Parameter]:
    """The parameters that Muon takes."""
    return [parameter for parameter in parameters if parameter.ndim == 2]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def stepping(
    make: Callable[[Any], optim.Optimizer],
    program: Callable[[optim.Optimizer], None],
    schedule: Callable[[optim.Optimizer], Any] | None = None,
) -> World:
    """A program of an optimizer whose parameters get new gradients before each call."""
    model = net()
    optimizer = make(list(model.parameters()))
    scheduler = None if schedule is None else schedule(optimizer)

    def arguments(call: int) -> tuple[Any, ...]:
        if scheduler is not None and call:
            scheduler.step()
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        return ()

    def seen() -> Any:
        groups = [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        return model, list(optimizer.state.values()), groups

    return World(lambda: program(optimizer), arguments, seen)


AFTER_TORCH_COMPILE = """
import flambeau, flambeau_capture, torch
torch.compile(torch.sin, backend="eager")(torch.ones(2))
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], 0.5)
assert optimizer._init_group._torchdynamo_disable
weight.grad = torch.ones(2)
flambeau.compile(lambda: optimizer.step(), backend="eager", fullgraph=True)()
assert weight.tolist() == [0.5, 0.5]
asked = torch.compiler.disable(optimizer.step)
step = flambeau.compile(lambda: asked(), backend="eager")
step()
assert weight.tolist() == [0.0, 0.0]
kinds = [event.kind for event in flambeau_capture.state_of(step).events]
assert "break" in kinds, kinds
"""


def test_torch_compile_in_the_same_process_changes_nothing() -> None:
    """Its first use disables the optimizers' `_init_group` for itself; what the program disables
    stays disabled.
    """
    subprocess.run([sys.executable, "-c", AFTER_TORCH_COMPILE], check=True)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps(name: str) -> None:
    compiled = compare(
        lambda: stepping(OPTIMIZERS[name], lambda optimizer: optimizer.step()),
        calls=10,
        backend="eager",
        fullgraph=True,
    )
    assert kinds(compiled) in (["capture"], ["capture", "recompile"])


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", BRANCHING)
def test_steps_that_branch_on_contents(name: str, fullgraph: bool) -> None:
    """Counters pass a number once: one graph before, and one behind."""
    compiled = compare(
        lambda: stepping(BRANCHING[name], lambda optimizer: optimizer.step()),
        calls=9,
        backend="eager",
        fullgraph=fullgraph,
    )
    assert kinds(compiled) == ["capture", "recompile", "violated", "recompile"]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", [
    "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "Adadelta", "RMSprop", "Rprop",
])  # fmt: skip
def test_capturable_steps_on_a_cpu(name: str, foreach: bool) -> None:
    """Eager refuses them there, unless `is_compiling()`; the numbers are those of the others."""
    kind, models, kept = getattr(optim, name), (net(), net()), []
    models[1].load_state_dict(models[0].state_dict())
    for capturable, model in enumerate(models):
        options = {"capturable": bool(capturable), "foreach": foreach}
        optimizer = kind(model.parameters(), lr=0.01, **options)
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        step = optimizer.step
        if capturable:
            step = flambeau.compile(step, backend="eager", fullgraph=True)
        for call in range(7):
            torch.manual_seed(call)
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            step()
            schedule.step()
        kept.append(list(model.parameters()))
    torch.testing.assert_close(kept[1], kept[0], rtol=1e-4, atol=1e-5)
    assert kinds(step) == ["capture", "recompile"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", [
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "ASGD", "Adadelta", "Adagrad", "RMSprop",
])  # fmt: skip
def test_gradients_through_differentiable_steps(name: str, backend: str) -> None:
    def program(start: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        optimizer = getattr(optim, name)([leaf], lr=0.1, differentiable=True)
        parameter = start.clone()
        optimizer.param_groups[0]["params"] = [parameter]
        for _ in range(2):
            parameter.grad = gradient
            optimizer.step()
        return parameter

    leaf = torch.zeros(1, requires_grad=True)
    results = []
    for function in (program, flambeau.compile(program, backend=backend, fullgraph=True)):
        torch.manual_seed(3)
        given = [torch.randn(5, requires_grad=True) for _ in range(2)]
        result = function(*given)
        result.backward(torch.arange(1.0, 6.0))
        results.append([result.detach(), *(tensor.grad for tensor in given)])
    torch.testing.assert_close(results[1], results[0])


LEFT_TO_EAGER: dict[str, tuple[Callable[[Any], optim.Optimizer], str]] = {
    "sparse": (lambda parameters: optim.SparseAdam(parameters, 0.1), "unsupported-tensor"),
    "closures": (lambda parameters: optim.LBFGS(parameters, 0.1), "backward"),
}


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("name", LEFT_TO_EAGER)
def test_steps_that_break_say_why(name: str, marked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``marked``: torch's compiler has compiled in this process, and so disabled these steps."""
    make, reason = LEFT_TO_EAGER[name]
    for optimizer_class in (optim.SparseAdam, optim.LBFGS):
        step = inspect.unwrap(
            optimizer_class.step, stop=lambda f: not hasattr(f, "_torchdynamo_disable")
        )
        monkeypatch.setattr(
            optimizer_class, "step", torch.compiler.disable(step) if marked else step
        )

    def world() -> World:
        model: nn.Module = nn.Embedding(6, 2, sparse=True) if name == "sparse" else net().double()
        optimizer = make(list(model.parameters()))

        def closure(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        def program(x: torch.Tensor) -> None:
            optimizer.step(lambda: closure(x))

        def arguments(call: int) -> tuple[Any, ...]:
            if name == "sparse":
                return (torch.randint(0, 6, (4,)),)
            return (torch.randn(5, 4, dtype=torch.float64),)

        return World(program, arguments, lambda: model)

    compiled = compare(world, calls=3, backend="eager")
    events = flambeau_capture.state_of(compiled).events
    expected = "compiler-disable" if marked else reason
    assert expected in {event.reason.id for event in events if event.reason is not None}


@pytest.mark.parametrize("name", ["momentum", "adam", "adamw", "adamax_foreach", "adafactor"])
def test_ten_steps_in_kernels(name: str) -> None:
    compiled = compare(
        lambda: stepping(OPTIMIZERS[name], lambda optimizer: optimizer.step()),
        calls=10,
        fullgraph=True,
    )
    assert kinds(compiled) == ["capture", "recompile"]


def step_and_zero(optimizer: optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("schedule", [
    lambda optimizer: optim.lr_scheduler.StepLR(optimizer, 1, 0.9),
    lambda optimizer: optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
    lambda optimizer: optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.95**epoch),
], ids=["step", "cosine", "lambda"])  # fmt: skip
@pytest.mark.parametrize("name", ["momentum", "adam_foreach", "adamw_tensor_rate"])
def test_changing_learning_rates_do_not_recompile_for_ever(
    name: str, schedule: Callable[[optim.Optimizer], Any]
) -> None:
    compiled = compare(
        lambda: stepping(OPTIMIZERS[name], step_and_zero, schedule),
        calls=10,
        backend="eager",
        fullgraph=True,
    )
    assert len(kinds(compiled)) <= 3


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.SGD, optim.Adagrad])
def test_learning_rates_of_fused_steps_do_not_recompile_for_ever(kind: Any) -> None:
    compiled = compare(
        lambda: stepping(
            lambda parameters: kind(parameters, lr=0.1, fused=True),
            step_and_zero,
            lambda optimizer: optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ),
        calls=10,
        fullgraph=True,
    )
    assert len(kinds(compiled)) <= 3


def test_groups_and_set_to_zero() -> None:
    def make(parameters: Any) -> optim.Optimizer:
        groups = [{"params": parameters[:2], "lr": 0.3}, {"params": parameters[2:]}]
        return optim.SGD(groups, 0.1, momentum=0.9)

    def program(optimizer: optim.Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    compare(lambda: stepping(make, program), backend="eager", fullgraph=True)


def test_a_parameter_without_a_gradient_and_one_that_joins() -> None:
    def make() -> World:
        model = net()
        optimizer = optim.Adam(model.parameters(), 0.1)

        def arguments(call: int) -> tuple[Any, ...]:
            for at, parameter in enumerate(model.parameters()):
                parameter.grad = torch.randn_like(parameter) if at + call > 1 else None
            return ()

        return World(lambda: optimizer.step(), arguments, lambda: model)

    compare(make, calls=5, backend="eager", fullgraph=True)


def test_norms_and_values_are_clipped_in_one_graph() -> None:
    def make() -> World:
        model = net()

        def arguments(call: int) -> tuple[Any, ...]:
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter) * 3
            return ()

        def program() -> Any:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
            return norm

        return World(program, arguments, lambda: model)

    compare(make, fullgraph=True)


def test_a_loop_of_training() -> None:
    def make() -> World:
        model = net()
        optimizer = optim.Adam(model.parameters(), 0.1)

        def program(x: torch.Tensor) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return World(program, lambda call: (torch.randn(5, 4),), lambda: model)

    compare(make, calls=5)


def test_hooks_of_steps() -> None:
    def make() -> World:
        log: list[str] = []

        def hooked(parameters: Any) -> optim.Optimizer:
            optimizer = optim.SGD(parameters, 0.1)
            optimizer.register_step_pre_hook(lambda *_: log.append("before"))
            optimizer.register_step_post_hook(lambda *_: log.append("after"))
            return optimizer

        world = stepping(hooked, lambda optimizer: optimizer.step())
        return World(world.program, world.arguments, lambda: (world.seen(), log))

    compare(make, backend="eager")


def test_dicts_keyed_by_tensors_and_objects() -> None:
    def make() -> World:
        keys = [nn.Parameter(torch.ones(3)), nn.Linear(2, 2), "name"]
        table: dict[Any, Any] = {key: torch.full((3,), float(at)) for at, key in enumerate(keys)}

        def program(x: torch.Tensor) -> Any:
            table[x] = x * 2
            total = sum(table[key] for key in keys)
            del table[x]
            return total, len(table), keys[0] in table, x in table, list(table.values())[1] * 2

        return World(program, lambda call: (torch.randn(3),), lambda: list(table.values()))

    compare(make, backend="eager", fullgraph=True)


def test_a_change_of_such_a_dict_is_seen() -> None:
    def make() -> World:
        parameter = nn.Parameter(torch.ones(3))
        table = {parameter: 2.0}

        def arguments(call: int) -> tuple[Any, ...]:
            if call == 1:
                table[nn.Parameter(torch.zeros(3))] = 5.0
            if call == 2:
                table[parameter] = 3.0
            return (torch.randn(3),)

        return World(lambda x: (x * table[parameter], len(table)), arguments)

    compare(make, calls=4, backend="eager", fullgraph=True)


FUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "adam": (optim.Adam, {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}),
    "adam_of_a_tensor": (optim.Adam, {"lr": torch.tensor(0.1), "maximize": True}),
    "adamw": (optim.AdamW, {"lr": 0.01}),
    "sgd": (optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    "momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    "nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adagrad": (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", FUSED)
def test_fused_steps(name: str, dtype: torch.dtype, scaled: bool) -> None:
    """Also with the numbers of a gradient scaler, by which steps are left out."""
    kind, options = FUSED[name]
    if kind is optim.SGD and dtype is torch.bfloat16:
        pytest.skip("torch's fused SGD gives wrong bfloat16 numbers on a CPU")
    torch.manual_seed(0)
    own = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).to(dtype)
    models = [copy.deepcopy(own), own]
    optimizers = [kind(model.parameters(), fused=True, **options) for model in models]
    compiled = flambeau.compile(optimizers[1].step, fullgraph=True)
    tolerance = {"rtol": 0.1, "atol": 0.1} if dtype is torch.bfloat16 else {}
    for number in range(4):
        x = torch.randn(4, 5, dtype=dtype)
        for model, optimizer, step in zip(
            models, optimizers, (optimizers[0].step, compiled), strict=True
        ):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            if scaled:
                optimizer.grad_scale = torch.tensor(2.0)
                optimizer.found_inf = torch.tensor(float(number == 2))
            step()
        for eager, mine in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(mine, eager, **tolerance)
            torch.testing.assert_close(mine.grad, eager.grad, **tolerance)
        states = [optimizer.state_dict()["state"] for optimizer in optimizers]
        torch.testing.assert_close(states[1], states[0], **tolerance)
    assert not any(graph.fallback for graph in flambeau.explain(compiled).graphs)


def test_a_fused_step_in_half_precision() -> None:
    x, gradient = torch.randn(2, 100, dtype=torch.bfloat16)
    parameter = nn.Parameter(x.clone())
    parameter.grad = gradient
    optimizer = optim.SGD([parameter], 0.1, weight_decay=0.1, momentum=0.9, fused=True)
    flambeau.compile(optimizer.step, fullgraph=True)()
    exact = x.double() - 0.1 * (gradient.double() + 0.1 * x.double())
    torch.testing.assert_close(parameter.detach(), exact.bfloat16())
