"""Checks of data that the program writes itself (`assert`, `if ...: raise`) stay in the graph, and raise what they raise eagerly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from tests.programs.checks_of_data import CHECKED, Refused, ambiguous, data_sizes, handles, raises
from tests.worlds import kinds

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS = ("eager", "aot_eager", "inductor")


def inputs() -> list[torch.Tensor]:
    """Some that pass and some that do not; strided, and one whose first element is zero."""
    fine, zero = torch.rand(3, 4) + 0.1, torch.rand(3, 4)
    zero[0, 0] = 0
    infinite = torch.rand(3, 4)
    infinite[1, 2] = float("inf")
    return [
        fine, torch.rand(4, 3).T + 0.1, fine - 20, fine * 20, torch.rand(3, 4) - 7, zero, infinite,
        torch.full((3, 4), 2.9), torch.full((3, 8), float("nan"))[:, ::2], torch.rand(3, 4) + 0.1,
    ]  # fmt: skip


def outcome(function: Callable[..., Any], x: torch.Tensor, log: list[Any]) -> Any:
    try:
        return function(x, log)
    except (AssertionError, Refused) as error:
        return type(error), error.args, error.__suppress_context__


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, equal_nan=True)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for mine, yours in zip(got, want, strict=True):
            same(mine, yours)
    else:
        assert got == want


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", CHECKED)
def test_in_one_graph(program: Any, backend: str) -> None:
    run = flambeau.compile(program, backend=backend, fullgraph=True, dynamic=False)
    outcomes = set()
    for x in inputs():
        mine, yours = x.clone(), x.clone()
        my_log: list[Any] = []
        your_log: list[Any] = []
        want = outcome(program, yours, your_log)
        same(outcome(run, mine, my_log), want)
        same(my_log, your_log)
        same(mine, yours)
        outcomes.add(type(want))
    assert outcomes == {torch.Tensor, tuple}, "some raise, and some do not"
    assert "break" not in kinds(run) and "rerun" in kinds(run)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend: str) -> None:
    run = flambeau.compile(raises, backend=backend, fullgraph=True)
    x = torch.rand(3, 4, requires_grad=True)
    run(x, []).square().sum().backward()
    got, x.grad = x.grad, None
    raises(x, []).square().sum().backward()
    torch.testing.assert_close(got, x.grad)
    with pytest.raises(Refused):
        run(x * 100, [])


def test_a_handled_exception_is_an_ordinary_way() -> None:
    """It would run again, call after call: it is a graph break."""
    run = flambeau.compile(handles, backend="eager")
    for x in (torch.ones(2), -torch.ones(2), torch.ones(2)):
        same(run(x), handles(x))
    assert "break" in kinds(run) and "rerun" not in kinds(run)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_in_the_data(backend: str) -> None:
    run = flambeau.compile(data_sizes, backend=backend, fullgraph=True)
    for x in (
        torch.tensor([3, 0, 1]),
        torch.tensor([2, 11]),
        torch.zeros(4, dtype=torch.int64),
        torch.tensor([-12]),
    ):
        results = []
        for function in (run, data_sizes):
            try:
                results.append(function(x))
            except (AssertionError, Refused) as error:
                results.append((type(error), error.args))
        same(*results)


def test_a_condition_that_has_no_truth() -> None:
    run = flambeau.compile(ambiguous, backend="eager")
    for x in (torch.ones(2), torch.ones(0)):
        with pytest.raises(RuntimeError) as mine:
            run(x)
        with pytest.raises(RuntimeError) as yours:
            ambiguous(x)
        assert str(mine.value) == str(yours.value)
    same(run(torch.ones(1)), torch.ones(1))
