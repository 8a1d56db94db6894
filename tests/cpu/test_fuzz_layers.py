"""Random stacks of equal layers train as eagerly; `python -m tools.fuzz layers` runs more."""

from __future__ import annotations

import pytest

from tools.fuzz.layers.check import Shortened, check, difference
from tools.fuzz.layers.programs import CALLS, MODELS, PASSES, PURE, Stack


@pytest.mark.parametrize("first", [1000, 1040])
def test_random_stacks(first: int) -> None:
    texts = [check(seed, backend="aot_eager") for seed in range(first, first + 8)]
    found = [text for text in texts if text is not None]
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("statement", PURE[:6])
def test_stacks_are_shortened(statement: str) -> None:
    """Otherwise the stacks would say nothing about those that are."""
    counts = Shortened()
    stack = Stack(14, ((PURE[0], statement),), (), MODELS[0], CALLS[0], PASSES[:1])
    options = {"graph_cache": False}
    assert difference(stack, 1, counts=counts, options=options) is None
    assert counts.traced == 1


def test_a_difference_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that is computed twice."""
    from tools.fuzz.layers import check as checked

    stack = Stack(13, ((*PURE[:2],),), (), MODELS[1], CALLS[0], PASSES[:2])
    monkeypatch.setattr(checked, "stack_of", lambda seed: stack)
    compile_ = checked.flambeau.compile

    def compiled(program, **options):
        return compile_(lambda model, x: program(model, x) * 2.0, **options)

    monkeypatch.setattr(checked.flambeau, "compile", compiled)
    text = check(3, backend="aot_eager")
    assert text is not None and "class Layer0" in text and "Linear(8, 8, bias=False)" not in text
