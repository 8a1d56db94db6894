"""In-place changes between forward and backward: a compiled call raises where eager raises."""

from __future__ import annotations

import gc
import random
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import flambeau
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable

    Program = Callable[..., tuple[torch.Tensor, ...]]
    Change = Callable[[list[torch.Tensor], tuple[torch.Tensor, ...]], Any]

MODIFIED = "one of the variables needed for gradient computation has been modified"
FREED = "Trying to backward through the graph a second time"


def exp(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = w.exp()
    return y.sum(), y


def aliases(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = w.exp()
    return y.sum(), y, y[1:], y.detach(), y.t()


def row(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = w.exp()
    return y[:2].sum(), y[1]


def detached_row(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = w @ w
    return y.sin().sum(), y.detach()[0]


def flat(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = w @ w
    return y.sin().sum(), y.view(-1)


def recomputed(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = w.exp()
    z = y.reshape(9).tanh()
    return z.sum(), y, z


def constant(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x * 1
    return (w * z).sum(), z


def product(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (w * x).sum(), x[0]


def written(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (w * x.add_(1).mul_(2)).sum(), x[0]


def unsaved(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = w * 2
    return (y + x).sum(), y


def apart(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = w.exp()
    return (w * 2).sum(), y, y.sum()


def computed(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (w * x.cos()).sum(), torch.where(x > 0, w, w * 2), w * x.clone()


def activations(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (w * 2).sigmoid()
    z = y + 1
    return (z * z).sum() + torch.nn.functional.softplus(w.exp()).sum(), y * 1, w[0] + x


def returned(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = w + x
    return (y * 2).sin().sum(), y, y * 3


def partly(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (w * 2).sum() + x.sum(), w.sin(), (w * x).exp()


CHANGES: dict[str, Change] = {
    "nothing": lambda inputs, outputs: None,
    "output": lambda inputs, outputs: outputs[1].mul_(3),
    "last output": lambda inputs, outputs: outputs[-1].mul_(3),
    "alias": lambda inputs, outputs: outputs[1].view(-1)[0].mul_(3),
    "detached": lambda inputs, outputs: outputs[1].detach().mul_(3),
    "input": lambda inputs, outputs: inputs[1].mul_(3),
    "first input": lambda inputs, outputs: inputs[0].mul_(3),
    "hidden": lambda inputs, outputs: inputs[0].data.mul_(1),
    "input's view": lambda inputs, outputs: inputs[1][0].mul_(3),
}
PROGRAMS = [exp, aliases, row, detached_row, flat, recomputed, constant, product, written, unsaved,
            apart, computed, activations, returned, partly]  # fmt: skip


def attempt(
    program: Program, change: Change, *, interior: bool, backward: int = 0
) -> list[torch.Tensor] | str:
    torch.manual_seed(0)
    w, x = torch.randn(3, 3, requires_grad=True), torch.randn(3, requires_grad=interior)
    inputs = [w, x * 1 if interior else x]
    outputs = program(*inputs)
    with torch.no_grad():
        change(inputs, outputs)
    try:
        outputs[backward].sum().backward()
    except RuntimeError as error:
        assert "at version" in str(error)
        return str(error)[: len(MODIFIED)]
    return [t.grad for t in (w, x) if t.grad is not None]


@pytest.mark.parametrize("interior", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_changes_before_the_backward(program: Program, change: str, interior: bool) -> None:
    wanted = attempt(program, CHANGES[change], interior=interior)
    compiled = flambeau.compile(program)
    for _ in range(2):
        found = attempt(compiled, CHANGES[change], interior=interior)
        if isinstance(wanted, str):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("partition", ["min_cut", "save_all"])
@pytest.mark.parametrize("change", ["output", "input", "first input"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_either_partition_raises_alike(program: Program, change: str, partition: str) -> None:
    wanted = attempt(program, CHANGES[change], interior=False)
    compiled = flambeau.compile(program, options={"partition": partition})
    found = attempt(compiled, CHANGES[change], interior=False)
    assert type(found) is type(wanted)
    torch.testing.assert_close(found, wanted) if isinstance(wanted, list) else None


@pytest.mark.parametrize("change", ["output", "input", "first input"])
@pytest.mark.parametrize("backward", [0, 1, 2])
@pytest.mark.parametrize("program", [apart, computed, activations, returned, partly])
def test_only_what_the_gradient_needs_is_checked(
    program: Program, backward: int, change: str
) -> None:
    wanted = attempt(program, CHANGES[change], interior=True, backward=backward)
    compiled = flambeau.compile(program)
    found = attempt(compiled, CHANGES[change], interior=True, backward=backward)
    assert type(found) is type(wanted)
    torch.testing.assert_close(found, wanted) if isinstance(wanted, list) else None


def test_casts_of_parameters_are_computed_again() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(64, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight.bfloat16() * 2

    explanation = flambeau.explain(Scaled())(torch.ones(64, 64, requires_grad=True))
    assert "saves 0 tensors" in str(explanation)


def test_a_kept_graph_is_checked_each_time() -> None:
    for program in (exp, flambeau.compile(exp)):
        w = torch.ones(3, 3, requires_grad=True)
        total, y = program(w, w)
        total.backward(retain_graph=True)
        total.backward(retain_graph=True)
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(RuntimeError, match=MODIFIED):
            total.backward()


def test_a_freed_graph_says_so_first() -> None:
    for program in (exp, flambeau.compile(exp)):
        total, y = program(torch.ones(3, 3, requires_grad=True), torch.ones(3))
        total.backward()
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(RuntimeError, match=FREED):
            total.backward()


def test_saved_tensors_hooks_are_not_checked() -> None:
    grads = []
    for program in (exp, flambeau.compile(exp)):
        w = torch.ones(3, 3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda packed: packed):
            total, y = program(w, w)
        with torch.no_grad():
            y.mul_(2)
        total.backward()
        grads.append(w.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_an_optimizer_step_between_forward_and_backward(kind: str) -> None:
    for wrap in (lambda model: model, flambeau.compile):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
        optimizer = getattr(torch.optim, kind)(model.parameters())
        compiled, x = wrap(model), torch.ones(2, 3)
        first, second = compiled(x).sum(), compiled(x).sum()
        first.backward()
        optimizer.step()
        with pytest.raises(RuntimeError, match=MODIFIED):
            second.backward()


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("preserve", [True, False])
def test_checkpoints_draw_again_as_eager_does(use_reentrant: bool, preserve: bool) -> None:
    def program(w: torch.Tensor) -> torch.Tensor:
        return checkpoint(
            torch.nn.functional.dropout,
            w.sin(),
            use_reentrant=use_reentrant,
            preserve_rng_state=preserve,
        )

    results = []
    for run in (program, flambeau.compile(program)):
        torch.manual_seed(0)
        w = torch.ones(50, requires_grad=True)
        run(w).sum().backward()
        results.append((w.grad, torch.rand(3)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("program", [exp, aliases, detached_row, flat])
def test_outputs_die_with_their_last_reference(program: Program) -> None:
    compiled = flambeau.compile(program)
    outputs = compiled(torch.ones(3, 3, requires_grad=True), torch.ones(3))
    alive = [weakref.ref(output) for output in outputs]
    gc.disable()
    try:
        del outputs
        assert [ref() for ref in alive] == [None] * len(alive)
    finally:
        gc.enable()


def _trained_apart(seed: int) -> tuple[list[torch.nn.Parameter], Program, list[tuple[Any, ...]]]:
    """Parameters, a program that computes three results from some of them, and what happens then:
    (result to go back from, whether its graph is kept) and (parameter to write to,).
    """
    draw = random.Random(seed)
    torch.manual_seed(seed)
    weights = [torch.nn.Parameter(torch.randn(3, 3)) for _ in range(4)]
    plan = [draw.choices(range(4), k=draw.randint(1, 3)) for _ in range(3)]
    starts = [draw.choice(["x", "last", "detached"]) for _ in range(3)]
    actions: list[tuple[Any, ...]] = [(index, draw.random() < 0.3) for index in range(3)]
    actions += [(draw.randrange(3), False), *((draw.randrange(4),) for _ in range(2))]
    draw.shuffle(actions)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        for start, chosen in zip(starts, plan, strict=True):
            y = x if start == "x" or not results else results[-1]
            y = y.detach() if start == "detached" else y
            for index in chosen:
                y = (y @ weights[index]).tanh() * weights[index - 1][0]
            results.append(y)
        return tuple(results)

    return weights, program, actions


@pytest.mark.parametrize("seed", range(40))
def test_parameters_are_checked_for_the_results_that_need_them(seed: int) -> None:
    found: list[list[Any]] = []
    for wrap in (lambda program: program, flambeau.compile):
        weights, program, actions = _trained_apart(seed)
        results = wrap(program)(torch.ones(2, 3, requires_grad=True))
        seen: list[Any] = []
        for action in actions:
            if len(action) == 1:
                with torch.no_grad():
                    weights[action[0]].add_(1)
                continue
            try:
                results[action[0]].sum().backward(retain_graph=action[1])
            except RuntimeError:
                # Eager has accumulated some gradients. Its first node to run says whether a
                # parameter was modified or the graph was freed, where both are true.
                seen.append("raises")
                break
            seen.append([w.grad.clone() if w.grad is not None else None for w in weights])
        found.append(seen)
    same(found[1], found[0], tolerance=1e-4, strides=False)


def test_two_players_train_in_one_function() -> None:
    found = []
    for wrap in (lambda step: step, flambeau.compile):
        torch.manual_seed(0)
        maker = torch.nn.Linear(2, 3)
        judge = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        players = [torch.optim.SGD(player.parameters(), lr=0.1) for player in (maker, judge)]

        def step(z: torch.Tensor) -> torch.Tensor:
            made = maker(z)  # noqa: B023
            players[1].zero_grad()  # noqa: B023
            loss = judge(made.detach()).mean()  # noqa: B023
            loss.backward()
            players[1].step()  # noqa: B023
            players[0].zero_grad()  # noqa: B023
            judge(made).mean().neg().backward()  # noqa: B023
            players[0].step()  # noqa: B023
            return loss.detach()

        run = wrap(step)
        losses = [run(torch.randn(4, 2)) for _ in range(3)]
        found.append([losses, *(p.detach() for p in (*maker.parameters(), *judge.parameters()))])
    same(found[1], found[0], tolerance=1e-4)


def test_hooks_on_saved_tensors_see_parameters() -> None:
    maker, judge = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    kinds: list[set[bool]] = []
    for wrap in (lambda program: program, flambeau.compile):
        seen: set[bool] = set()

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.shape == (3, 3):
                seen.add(isinstance(tensor, torch.nn.Parameter) or tensor._base is not None)  # noqa: B023
            return tensor

        def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made = maker(x).sin()
            return made, judge(made.detach().sin()).sin()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            _, second = wrap(program)(torch.ones(2, 3, requires_grad=True))
        second.sum().backward()
        kinds.append(seen)
    assert kinds == [{True}, {True}]
