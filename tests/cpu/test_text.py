# ruff: noqa: UP031 (forms of formatting are what is tested)
"""Text of tensors in compiled programs: eager's, whatever the backend, in order with other effects,
and right where a check fails.
"""

from __future__ import annotations

import collections
import contextlib
import io
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from flambeau_capture import CaptureError
from tests.same import same
from tests.worlds import kinds

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS = ("eager", "aot_eager", "inductor")


def logs(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    log.append(f"in: {x}")
    print(f"first {x.long().sum()} {x.dtype}")
    x.add_(2)
    log.append(f"{x.long()[0]} {x[0] > 0}")
    print("second", x.long(), {"x": x.long().sum()})
    y = x.round() * 2
    log += [str(y), repr(y.max()), "%d of %s" % (y.long().max(), y[:1].bool())]
    x.zero_()
    y = y.reshape(-1)
    y[0] = 0
    log.append(f"{y}")
    return y


def counts(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    for step in range(3):
        positive = (x > 0).sum()
        log.append(f"{step}: {positive} of {x.numel()}")
        x = x - 1
    return x


def trains(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    weight = torch.ones(3, requires_grad=True)
    loss = (x.round() * weight).sum()
    log.append(f"loss {loss:.2f}, {loss.detach()}, {weight}")
    return loss


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [logs, counts, trains])
def test_in_one_graph(program: Callable[..., torch.Tensor], backend: str) -> None:
    run = flambeau.compile(program, backend=backend, fullgraph=True)
    for _ in range(3):
        x = torch.randn(3) * 9
        results = []
        for function in (run, program):
            mine, log = x.clone(), ["begin"]
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                returned = function(mine, log)
            results.append((returned.detach(), log, shown.getvalue(), mine))
        same(*results, "run")
    assert kinds(run) == ["capture"]


def gradient(x: torch.Tensor) -> tuple[torch.Tensor, str, str]:
    y = x * 2
    text = f"{y.sum():.1f}"
    with torch.no_grad():
        y.detach().zero_()
    return (y + x).square().sum(), text, f"{x.detach()}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend: str) -> None:
    run = flambeau.compile(gradient, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(4).round().requires_grad_()
        results = []
        for function in (run, gradient):
            loss, *texts = function(x)
            (grad,) = torch.autograd.grad(loss, x)
            results.append((loss.detach(), texts, grad))
        same(*results, "run")


def numbers(x: torch.Tensor) -> Any:
    total, count = x.sum().item(), (x > 0).sum().item()
    text = f"{total:.1f} {count} {count + 1:3d}"
    assert count < 9, f"{count} are positive in {x}"
    return text, str(count), x * count


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_in_the_data(backend: str) -> None:
    run = flambeau.compile(numbers, backend=backend, fullgraph=True)
    for _ in range(3):
        x = torch.randn(3, 3).round()
        same(run(x), numbers(x), "run")
    with pytest.raises(AssertionError, match="9 are positive in tensor"):
        run(torch.ones(3, 3))


@pytest.mark.parametrize("dynamic", [True, None])
def test_dynamic_sizes(dynamic: bool | None) -> None:
    def program(x: torch.Tensor) -> Any:
        return f"{x.round()} {x.numel() + x.sum().round():.0f}", x + 1

    run = flambeau.compile(program, backend="aot_eager", dynamic=dynamic)
    for size in (3, 4, 7, 2000):
        x = torch.randn(size)
        same(run(x), program(x), "run")
    assert "break" not in kinds(run)


def put_on(text: str, x: torch.Tensor) -> tuple[str, list[str]]:
    return f"{text}: {x.sum().round()}", [text]


def before_and_after_a_break(x: torch.Tensor, log: list[Any]) -> Any:
    first = f"{x.sum().round()}"
    log.append(first)
    flambeau.compiler.graph_break()
    x = x * 2
    log.append(first)
    log.append(first + f" {x.sum().round()}")
    print(first, f"{first!r:>9}|")
    return first, {"text": first}, put_on(first, x)


def with_a_history(x: torch.Tensor, log: list[Any]) -> Any:
    weight = x * torch.ones(3, requires_grad=True)
    print(f"weight {weight}, {weight.sum().round()}")  # broken at, and the text is on the stack
    return (weight * 2).detach()


@pytest.mark.parametrize("program", [before_and_after_a_break, with_a_history])
def test_a_text_that_a_break_hands_on(program: Callable[..., Any]) -> None:
    """Another one in each call: seen to change, it is not looked at where it is only stored and
    shown.
    """
    run = flambeau.compile(program, backend="eager")
    for scale in range(1, 7):
        x = torch.randn(3).abs() + 100 * scale
        results = []
        for function in (run, program):
            log: list[str] = []
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                results.append((function(x, log), log, shown.getvalue()))
        same(*results, "run")
    assert kinds(run).count("recompile") == 1 and "limit" not in kinds(run)


def test_a_text_that_a_break_hands_on_and_that_is_read() -> None:
    def program(x: torch.Tensor) -> Any:
        way = f"{x[0] > 0}"
        flambeau.compiler.graph_break()
        shown = [way]
        if way == "True":
            return x + 1, shown[0] + "!"
        return (
            x - 1,
            f"{way}",
            shown[0] in ("a", "False"),
            len(shown[0]),
            shown[0].upper(),
            {shown[0]: 1},
        )

    run = flambeau.compile(program, backend="eager")
    for sign in (1, 1, -1, -1, 1, -1, 1):
        x = torch.full((3,), float(sign))
        same(run(x), program(x), "run")
    assert "limit" not in kinds(run)


def test_the_characters_are_asked_for() -> None:
    def program(x: torch.Tensor) -> Any:
        return f"{x.sum():.2f}".split("."), x + 1

    x = torch.randn(3)
    with pytest.raises(CaptureError, match=r"str\.split of the text of a tensor"):
        flambeau.compile(program, backend="eager", fullgraph=True)(x)
    run = flambeau.compile(program, backend="eager")
    for _ in range(2):
        x = torch.randn(3)
        same(run(x), program(x), "run")
    assert "break" in kinds(run)


class Tagged(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3).as_subclass(Tagged),
        lambda: torch.randn(3).to_sparse(),
        lambda: torch.randn(3, requires_grad=True) * 2,
        lambda: torch.nn.Parameter(torch.randn(3)),
        lambda: torch.randn(3, requires_grad=True),
        lambda: torch.randn((), dtype=torch.complex64),
        lambda: torch.empty(3, device="meta"),
        lambda: torch.randn(2, 3).T,
        lambda: torch.randn(3).conj(),
    ],
)
def test_inputs_of_other_kinds(make: Callable[[], torch.Tensor]) -> None:
    def program(x: torch.Tensor) -> Any:
        return f"{x}", str(x), repr([x])

    for run in (flambeau.compile(program, backend="eager"),):
        for _ in range(2):
            x = make()
            assert run(x) == program(x)


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys = {f"k{at}": at for at in range(9)}
        for at in range(9):
            setattr(self, f"scale{at}", float(at))

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        return x * getattr(self, f"scale{step}") + self.keys[f"k{step}"]


LAYERS = Layers()


def shows(x: torch.Tensor, step: int, rate: float) -> Any:
    print(f"step {step}: {rate:.3f} {x.shape}", step, rate, x.shape, [step, (rate,)])
    told = f"{step} at {rate}: {x.sum():.2f}"
    return told, f"{told!r:>40}", "%d/%5.2f" % (step, rate), f"{step + 1:03d}", [str(step)], x + 1


def keys(x: torch.Tensor, step: int, rate: float) -> Any:
    name = f"k{step}"
    return (
        {name: 1},
        name in LAYERS.keys,
        LAYERS.keys[name],
        LAYERS.keys.get(name),
        name == "k2",
        {name},
        len(name),
        name.startswith("k2"),
        "k2".startswith(name),
        name.upper() == "K2",
        dict(zip((name,), (step,), strict=True)),
        {f"{at}": at for at in range(step)},
        LAYERS(x, step),
    )


def reads(x: torch.Tensor, step: int, rate: float) -> Any:
    name = f"k{step}"
    try:
        raise KeyError(name)
    except KeyError as error:
        caught = str(error), error.args[0] == "k3"
    return (
        name.split("k"),
        int(name[1:]),
        name + "!",
        f"{name:>5}",
        sorted([name, "k2"]),
        max(name, "a"),
        name * 2,
        list(name),
        name.encode(),
        re.match(r"k(\d)", name),
        hasattr(LAYERS, f"scale{step}"),
        caught,
        (name + " %s") % step,
        f"%s {step}" % x.shape[0],
        collections.Counter([name]),
    )


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [shows, keys, reads])
def test_texts_of_numbers_that_change(program: Callable[..., Any], dynamic: bool | None) -> None:
    """A number that is only shown is not guarded; one whose text is looked at is."""
    run = flambeau.compile(program, backend="eager", dynamic=dynamic)
    for step in range(1, 7):
        x = torch.randn(3 + step)
        results = []
        for function in (run, program):
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                results.append((repr(function(x, step, step / 3)), shown.getvalue()))
        same(*results, "run")
    assert "break" not in kinds(run)
    assert (kinds(run).count("recompile") <= 1) is (program is shows)


def checked_in_words(x: torch.Tensor) -> torch.Tensor:
    y = x.exp() - 2
    message = f"negative: {y}"
    if (y < -1.5).any():
        raise ValueError(message)
    return y * 2


@pytest.mark.parametrize("fullgraph", [False, True])
def test_text_with_a_gradient_function_that_is_not_needed(fullgraph: bool) -> None:
    run = flambeau.compile(checked_in_words, backend="eager", fullgraph=fullgraph)
    good = torch.rand(3, requires_grad=True)
    torch.testing.assert_close(run(good), checked_in_words(good))
    assert kinds(run) == ["capture"]
    bad = torch.full((3,), -5.0, requires_grad=True)
    with pytest.raises(ValueError, match="negative") as want:
        checked_in_words(bad)
    with pytest.raises(ValueError, match="negative") as got:
        run(bad)
    assert str(got.value) == str(want.value) and "grad_fn" in str(got.value)


def test_text_with_a_gradient_function_that_leaves_the_frame() -> None:
    def program(x: torch.Tensor) -> tuple[str, torch.Tensor]:
        y = x.exp()
        return f"{y}", y * 2

    x = torch.rand(3, requires_grad=True)
    run = flambeau.compile(program, backend="eager")
    assert run(x)[0] == program(x)[0]
    assert kinds(run) == ["capture", "break", "capture"]
