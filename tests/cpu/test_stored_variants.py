"""Stored entries of data that violate an assumption: another process goes the way of the first one,
and captures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.hooks import RemovableHandle

import flambeau
from flambeau_capture.compiled import state_of
from flambeau_capture.entries.violations import VIOLATED, Violations
from flambeau_capture.events import assumption_violated

CAPTURES = {"capture", "recompile", "eager", "eager_replay"}
calls: list[bool] = []
"""Of each run of a program: whether it was a compiled one."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process stores entries, in a cache of the test."""
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FLAMBEAU_GRAPH_CACHE", "1")
    monkeypatch.setenv("FLAMBEAU_CHECK", "0")
    calls.clear()
    yield tmp_path / "cache"


def either(x: torch.Tensor) -> torch.Tensor:
    calls.append(torch.compiler.is_compiling())
    y = x * 2
    y = y.sin() + 1 if y.max() > 0 else y.cos() - 1
    return y * 3


def both(x: torch.Tensor) -> torch.Tensor:
    calls.append(torch.compiler.is_compiling())
    y = x.sin() if x[0] > 0 else x.cos()
    return y + 1 if x[1] > 0 else y - 1


def elements(x: torch.Tensor) -> torch.Tensor:
    calls.append(torch.compiler.is_compiling())
    some = x[x > 0].sin()
    if some.shape[0] > 3:
        some = some * 2
    return some.cumsum(0) + 1


def positive(count: int) -> torch.Tensor:
    """Eight numbers of which the first `count` are positive."""
    x = torch.rand(8) + 0.1
    return torch.where(torch.arange(8) < count, x, -x)


def signs(first: int, second: int) -> torch.Tensor:
    return (torch.rand(2) + 0.1) * torch.tensor([first, second])


def run(
    function: Callable[..., torch.Tensor],
    inputs: list[torch.Tensor],
    *,
    fullgraph: bool,
    **options: Any,
) -> list[str]:
    """What happened while a freshly compiled function was called beside eager."""
    compiled = flambeau.compile(function, fullgraph=fullgraph, options=options)
    for x in inputs:
        result = compiled(x)
        compiled_calls = list(calls)
        torch.testing.assert_close(result, function(x))
        calls[:] = compiled_calls
    return [event.kind for event in state_of(compiled).events]


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("counts", [[8, 0, 8, 0], [0, 8, 0, 8], [8, 8, 0]])
@pytest.mark.parametrize("function", [either, elements])
def test_another_process_captures_nothing(
    function: Callable[..., torch.Tensor], counts: list[int], fullgraph: bool
) -> None:
    run(function, [positive(count) for count in [8, 0, 8, 0]], fullgraph=fullgraph)
    calls.clear()
    kinds = run(function, [positive(count) for count in counts], fullgraph=fullgraph)
    assert CAPTURES.isdisjoint(kinds), kinds
    assert "violated" in kinds or (function is elements and not fullgraph)  # it breaks before
    assert all(calls), "a call that a stored entry serves ran eagerly"


@pytest.mark.parametrize("order", [1, -1])
def test_the_entry_is_tried_that_serves_the_call(order: int) -> None:
    """Of four, on the first call, whichever it is."""
    inputs = [signs(*pair) for pair in [(1, 1), (1, -1), (-1, 1), (-1, -1)]]
    first = run(both, inputs, fullgraph=True)
    assert first.count("recompile") == 3
    calls.clear()
    kinds = run(both, inputs[::order], fullgraph=True)
    assert CAPTURES.isdisjoint(kinds), kinds
    assert all(calls)
    for x in inputs:
        assert CAPTURES.isdisjoint(run(both, [x], fullgraph=True))


def test_entries_that_did_not_serve_count_to_no_limit() -> None:
    def steps(x: torch.Tensor) -> torch.Tensor:
        for n in range(5):
            if x.sum() < n:
                return x * n
        return x

    inputs = [torch.full((4,), n / 4 - 0.1) for n in range(6)]
    for x in inputs[:5]:
        run(steps, [x], fullgraph=True, recompile_limit=2)  # each stores one
    compiled = flambeau.compile(steps, fullgraph=True, options={"recompile_limit": 2})
    for x in (inputs[5], inputs[2]):
        torch.testing.assert_close(compiled(x), steps(x))
    assert len(state_of(compiled).entries) == 2


def test_a_counter_keeps_its_graphs() -> None:
    """Each process violates the assumption once, and none breaks the graph there."""

    def late(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return x * 2 if step > 2 else x + 1

    for captures in (2, 0, 0):
        compiled = flambeau.compile(late)
        for step in range(6):
            x, at = torch.randn(5), torch.tensor(step)
            torch.testing.assert_close(compiled(x, at), late(x, at))
        kinds = [event.kind for event in state_of(compiled).events]
        assert kinds.count("violated") == 1
        assert "break" not in kinds
        assert kinds.count("capture") + kinds.count("recompile") == captures


def test_reset_forgets_what_was_violated() -> None:
    compiled = flambeau.compile(either)
    for _ in range(2):
        for count in (8, 0, 8, 0):
            torch.testing.assert_close(compiled(x := positive(count)), either(x))
        state_of(compiled).reset()
    for count in (8, 0):
        torch.testing.assert_close(compiled(x := positive(count)), either(x))
    assert [event.kind for event in state_of(compiled).events] == ["stored", "violated", "stored"]


def test_candidates_are_those_of_a_process_that_knows_as_much() -> None:
    def stored(key: str, assumed: list[Any], lines: list[str], blocklisted: list[str]) -> Any:
        after = {"lines": lines, "blocklisted": blocklisted}
        return {"graph": {"key": key}, "assumptions": assumed, "after": after}

    first = stored("1", [["a.py:1", "x > 0"]], [], [])
    second = stored("2", [["a.py:1", "not x > 0"]], ["a.py:1"], [])
    third = stored("3", [], ["a.py:1"], ["a.py:1"])
    damaged: list[Any] = [{}, None, 3, {**first, "after": None}, {**first, "assumptions": [1]}]
    entries = [third, second, first, *damaged]
    assert Violations().candidates(entries) == [first, second]
    line = frozenset({"a.py:1"})
    tried = frozenset({("1", (("a.py:1", "x > 0"),))})
    assert Violations(line, tried=tried).candidates(entries) == [second]
    assert Violations(line, line, tried).candidates(entries) == [third]


# ---------------------------------------------------------------- what else kept entries out


def test_recurrent_layers_are_stored() -> None:
    """Their kernels are found in an object that replaces its module."""
    layer = torch.nn.LSTM(4, 5, batch_first=True)
    for expected in ("written", "read"):
        compiled = flambeau.compile(layer)
        x = torch.randn(2, 3, 4)
        torch.testing.assert_close(compiled(x), layer(x))
        assert [entry.info.stored for entry in state_of(compiled._compiled).entries] == [expected]


def double(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def hooking(x: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
    if not module._forward_hooks:
        module.register_forward_hook(double)
    return module.weight * x


def test_hooks_that_a_frame_registers_have_numbers_of_their_own() -> None:
    """Two processes, whose counters of hooks stand elsewhere."""
    other = torch.nn.Linear(4, 4)
    for _ in range(2):
        compiled = flambeau.compile(hooking, fullgraph=True)
        for _ in range(3):
            other.register_forward_hook(double)
            module, before = torch.nn.Linear(4, 4), RemovableHandle.next_id
            compiled(torch.randn(4), module).sum().backward()
            assert list(module._forward_hooks) == [before]
            assert RemovableHandle.next_id == before + 1
    assert len(other._forward_hooks) == 6


def test_what_registers_a_hook_once_is_read() -> None:
    number = RemovableHandle.next_id
    for expected in ("written", "read"):
        RemovableHandle.next_id = number  # as in another process
        compiled = flambeau.compile(hooking, fullgraph=True)
        compiled(torch.randn(4), torch.nn.Linear(4, 4)).sum().backward()
        assert [entry.info.stored for entry in state_of(compiled).entries] == [expected]
    RemovableHandle.next_id = number + 2


def test_a_compile_takes_no_numbers_of_hooks() -> None:
    before = RemovableHandle.next_id
    compiled = flambeau.compile(lambda x: x.sin().exp() * 2)
    compiled(torch.randn(4, requires_grad=True)).sum().backward()
    assert RemovableHandle.next_id == before


def test_hooks_that_a_frame_removes_cost_no_compile() -> None:
    module, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def program(x: torch.Tensor) -> torch.Tensor:
        handle = module.register_forward_hook(lambda module, args, out: out * 2)
        try:
            return module(x)
        finally:
            handle.remove()

    for expected in ("written", "read"):
        compiled = flambeau.compile(program, fullgraph=True)
        for _ in range(4):
            other.register_forward_hook(double)
            x, before = torch.randn(3, 4), RemovableHandle.next_id
            torch.testing.assert_close(compiled(x), module(x) * 2)
            assert RemovableHandle.next_id == before + 1 and not module._forward_hooks
        (entry,) = state_of(compiled).entries
        assert entry.info.stored == expected
    assert len(other._forward_hooks) == 8


def test_an_entry_is_withdrawn_once() -> None:
    """Two threads whose data an entry did not serve count it once."""
    for count in (8, 0):
        run(either, [positive(count)], fullgraph=True)
    compiled = flambeau.compile(either, fullgraph=True)
    compiled(positive(8))
    state = state_of(compiled)
    (entry,) = state.entries
    assert entry.info.stored == "read"
    failure = assumption_violated(entry.info.assumptions[0])
    for _ in range(2):
        VIOLATED.add(state, entry.info, failure)
        assert state._withdraw(entry)
    assert state._made == 0 and not state.entries


class Layer(torch.nn.Module):
    def __init__(self, number: int, width: int, slope: float) -> None:
        super().__init__()
        self.number, self.slope = number, slope
        self.linear = torch.nn.Linear(4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.leaky_relu(self.linear(x), self.slope)
        return y.sum(-1, keepdim=True) * self.number


def scaled(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.sin() * number


@pytest.mark.parametrize(
    "function", [lambda n: Layer(n, 3, 0.5), lambda n: Layer(2, n + 1, n / 8), scaled]
)
def test_each_of_many_equal_layers_has_its_entry(
    function: Callable[[int], Callable[..., Any]],
) -> None:
    def events() -> set[str]:
        seen = set()
        for number in range(12):
            compiled = flambeau.compile(function(number))
            compiled(torch.ones(2, 4))
            state = state_of(getattr(compiled, "_compiled", compiled))
            seen |= {event.kind for event in state.events}
        return seen

    assert events() == {"capture"}
    assert events() == {"stored"}


def test_writers_of_one_key_lose_no_entry() -> None:
    stores = [state_of(flambeau.compile(either)).entry_store for _ in range(6)]

    def write(key: tuple[str, ...], at: int) -> None:
        store = stores[at]
        assert store is not None
        store.write(key, {"number": at})

    for turn in range(8):
        key = ("a function", f"arguments {turn}")
        with ThreadPoolExecutor(len(stores)) as threads:
            list(threads.map(write, [key] * len(stores), range(len(stores))))
        assert stores[0] is not None
        assert sorted(entry["number"] for entry in stores[0].read(key)) == list(range(6))
