"""In-place changes between forward and backward: a compiled call raises where eager raises."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import flambeau

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
