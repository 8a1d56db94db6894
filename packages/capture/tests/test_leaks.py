"""Compiled callables keep nothing of the program alive, and do not grow with calls."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import pytest
import torch
from captured import compiled
from torch import nn

import flambeau_capture


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.rest = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x))


class Broken(Whole):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if x.sum().item() > 0:
            x = x + 1
        rows = sorted([x, -x], key=lambda row: float(row.sum()))
        return self.rest(rows[0])


@pytest.mark.parametrize("kind", [Whole, Broken])
@pytest.mark.parametrize("how", ["module", "argument", "closure"])
def test_a_dropped_model_is_freed(kind: type[nn.Module], how: str) -> None:
    x = torch.randn(2, 3)
    model = kind()

    def of_argument(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x) * 2

    def of_closure(x: torch.Tensor) -> torch.Tensor:
        return model(x) * 2

    target = {"module": model, "argument": of_argument, "closure": of_closure}[how]
    fn = compiled(target)
    for _ in range(3):
        fn(model, x) if how == "argument" else fn(x)
    dead = [weakref.ref(model), weakref.ref(model.first.weight), weakref.ref(model.rest[0])]
    if how == "argument":
        del model, target, of_closure  # the callable lives on
    else:
        del model, target, fn, of_closure
    gc.collect()
    assert [reference() is None for reference in dead] == [True] * 3


def test_entries_of_dead_objects_are_removed() -> None:
    fn = compiled(lambda model, x: model(x) + 1)
    x = torch.randn(2, 3)
    for _ in range(12):
        model = Whole()
        torch.testing.assert_close(fn(model, x), model(x) + 1)
        del model
        gc.collect()
    assert len(flambeau_capture.state_of(fn).entries) <= 2


def test_a_function_that_breaks_does_not_grow() -> None:
    model = Broken()
    fn = compiled(model)
    x = torch.randn(2, 3)
    with torch.no_grad():
        for _ in range(50):
            fn(x)
        gc.collect()
        objects = len(gc.get_objects())
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(2000):
            fn(x)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert len(gc.get_objects()) - objects < 100
    assert grown < 100_000


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_generator_that_dies_with_the_capture_says_nothing():
    def program(x: torch.Tensor) -> torch.Tensor:
        items = (item for item in [1, 2, 3])
        y = x + next(items)
        gc.collect()
        return y * 2

    x = torch.ones(2)
    assert torch.equal(compiled(program)(x), program(x))
    gc.collect()
