"""Objects of C types in globals: another object there, or other contents, is another call."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flambeau_capture

HELD: Any = None
ENTRIES = {"a": 2.0, "b": 3.0}


def _view(name: str, contents: dict[str, Any]) -> Any:
    return types.MappingProxyType(contents) if name == "proxy" else getattr(contents, name)()


CASES: dict[str, tuple[Any, Any, Callable[[torch.Tensor], Any]]] = {
    "itemgetter": (operator.itemgetter("a"), operator.itemgetter("b"), lambda x: x * HELD(ENTRIES)),
    "attrgetter": (operator.attrgetter("real"), operator.attrgetter("imag"), lambda x: x * HELD(3)),
    "methodcaller": (operator.methodcaller("sin"), operator.methodcaller("cos"), lambda x: HELD(x)),
    "methodcaller with names": (
        operator.methodcaller("sum", dim=0),
        operator.methodcaller("sum", dim=1),
        lambda x: HELD(x.view(2, 2)),
    ),
    "itemgetter of a slice": (
        operator.itemgetter(slice(0, 2)),
        operator.itemgetter(slice(0, 3)),
        lambda x: HELD(x),
    ),
    "key": (
        functools.cmp_to_key(lambda a, b: a - b),
        functools.cmp_to_key(lambda a, b: b - a),
        lambda x: x + sorted([1, 3, 2], key=HELD)[0],
    ),
    "super": (super(bool, True), super(bool, False), lambda x: x + HELD.real),
    "proxy": (_view("proxy", {"a": 1}), _view("proxy", {"a": 2}), lambda x: x + HELD["a"]),
    "nested proxy": (
        _view("proxy", {"a": (1, (2,))}),
        _view("proxy", {"a": (1, (3,))}),
        lambda x: x + HELD["a"][1][0],
    ),
    "keys": (_view("keys", {"a": 1}), _view("keys", {"b": 1}), lambda x: x + ("a" in HELD)),
    "values": (_view("values", {"a": 1}), _view("values", {"a": 2}), lambda x: x + sum(HELD)),
    "items": (_view("items", {"a": 1}), _view("items", {"a": 2}), lambda x: x + dict(HELD)["a"]),
    "tensors": (
        _view("values", {"a": torch.ones(1)}),
        _view("values", {"a": torch.zeros(1)}),
        lambda x: x + next(iter(HELD)),
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_another_object_is_another_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, program = CASES[name]
    compiled = flambeau_capture.compile(program, backend=lambda gm, examples: gm.forward)
    x = torch.arange(4.0)
    for held in (first, second, first):
        monkeypatch.setitem(globals(), "HELD", held)
        assert torch.equal(compiled(x), program(x))


def test_contents_of_a_view_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {"a": 1}
    monkeypatch.setitem(globals(), "HELD", types.MappingProxyType(contents))

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + HELD["a"]

    compiled = flambeau_capture.compile(
        program,
        backend=lambda gm, examples: gm.forward,
        options=flambeau_capture.CaptureOptions(fullgraph=True),
    )
    x = torch.arange(4.0)
    for contents["a"] in (1, 2, 1):
        assert torch.equal(compiled(x), program(x))


def test_equal_getters_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []

    def backend(gm: Any, examples: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    compiled = flambeau_capture.compile(lambda x: HELD({"sum": x}).cos(), backend=backend)
    for _ in range(3):
        monkeypatch.setitem(globals(), "HELD", operator.itemgetter("sum"))
        compiled(torch.arange(4.0))
    assert len(graphs) == 1
