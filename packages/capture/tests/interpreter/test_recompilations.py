"""How often a sequence of calls is captured: what is made afresh for each call, alike in all that is read, costs one capture."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_harness import compiled, same

import flambeau_capture

X = torch.arange(6.0).reshape(2, 3)


class Thing:
    """An object with whatever attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def scaled(self, x):
        return x * self.by


def add_one(x):
    return x + 1


def make_closure(by, default=None, number=2):
    items = [default]

    def scale(x, first=items, *, second=("a", {}), third=number):
        return x * by + (first[0] or 0) + len(second) + third

    return scale


def captures(fn: Callable[..., Any]) -> int:
    events = flambeau_capture.state_of(fn).events
    assert all(event.kind in ("capture", "recompile") for event in events), events
    return len(events)


def check_calls(program: Callable[..., Any], calls: list[tuple[Any, ...]], expected: int) -> None:
    """Each call is right, twice; `expected` captures serve them all.  What the program changes, it changes on equal arguments."""
    fn = compiled(program)
    for args in calls:
        for _ in range(2):
            same(fn(X, *args), program(X, *args))
    assert captures(fn) == expected, [event.text for event in flambeau_capture.state_of(fn).events]


def made(make: Callable[[int], Any], count: int = 3) -> list[tuple[Any, ...]]:
    """The arguments of several calls; what is made for one is dropped with the next."""
    return [(make(at),) for at in range(count)]


def call_attribute(x, thing):
    return thing.act(x)


def call_item(x, things):
    return things[0](x)


def call_entry(x, things):
    return things["act"](x)


FRESH: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]], int]] = {
    "lambda": (lambda x, f: f(x), made(lambda _: lambda x: x * 2), 1),
    "closure": (lambda x, f: f(x), made(lambda _: make_closure(3)), 1),
    "closure over another number": (lambda x, f: f(x), made(lambda at: make_closure(at)), 3),
    "another default": (lambda x, f: f(x), made(lambda at: make_closure(3, at + 1)), 3),
    "a default that is not read": (lambda x, f: f(x, [2]), made(lambda at: make_closure(3, at)), 1),
    "another keyword default": (lambda x, f: f(x), made(lambda at: make_closure(3, number=at)), 3),
    "lambda in an object": (call_attribute, made(lambda _: Thing(act=lambda x: x * 2)), 1),
    "lambda in a list": (call_item, made(lambda _: [lambda x: x * 2]), 1),
    "lambda in a dict": (call_entry, made(lambda _: {"act": lambda x: x * 2}), 1),
    "other code": (call_attribute, [(Thing(act=lambda x: x * 2),), (Thing(act=lambda x: x * 3),)], 2),
    "bound method": (lambda x, f: f(x), made(lambda _: Thing(by=2).scaled), 1),
    "bound method of another": (lambda x, f: f(x), made(lambda at: Thing(by=at).scaled), 3),
    "partial": (lambda x, f: f(x), made(lambda _: functools.partial(lambda x, by: x * by, by=2)), 1),
    "partial of other arguments": (lambda x, f: f(x), made(lambda at: functools.partial(make_closure(1), first=[at])), 3),
    "instance": (lambda x, thing: thing.scaled(x), made(lambda _: Thing(by=2)), 1),
    "instance with more": (lambda x, thing: thing.scaled(x), made(lambda at: Thing(by=2, unread=at)), 1),
    "returned": (lambda x, f: (f(x), f), made(lambda _: lambda x: x * 2), 1),
    "passed on": (lambda x, f: list(map(f, [x, x])), made(lambda _: lambda x: x * 2), 1),
    "hashed": (lambda x, f: x + len({f: 1}), made(lambda _: lambda x: x * 2), 3),
    "name": (lambda x, f: x + len(f.__name__), [(lambda x: x,), (lambda y: y,)], 2),
}  # fmt: skip


@pytest.mark.parametrize("name", FRESH)
def test_what_is_made_afresh(name: str) -> None:
    check_calls(*FRESH[name])


def tells_apart(x, a, b):
    return x + 1 if a is b else x - 1


def equal_by_default(x, a, b):
    return x + 1 if a == b else x - 1


def among(x, a, b):
    return x + 1 if a in [b, None] else x - 1


@pytest.mark.parametrize("program", [tells_apart, equal_by_default, among])
@pytest.mark.parametrize("kind", [Thing, lambda: make_closure(2)])
def test_identity_that_is_looked_at(program: Callable[..., Any], kind: Callable[[], Any]) -> None:
    one, other = kind(), kind()
    check_calls(program, [(one, other), (one, one), (other, one), (other, other)], 2)


def test_identity_of_tensors() -> None:
    one, other = torch.ones(2, 3), torch.ones(2, 3)
    check_calls(tells_apart, [(one, other), (one, one), (other, one), (other, other)], 2)


def test_function_compared_with_a_known_one() -> None:
    def program(x, f):
        return x + 1 if f is add_one else f(x)

    check_calls(program, [(add_one,), (make_closure(2),), (make_closure(2),), (add_one,)], 2)


class Other(dict):
    def __getitem__(self, key):
        return 7.0

    def values(self):
        return [5.0]


@pytest.mark.parametrize("program", [lambda x, d: x * d["a"], lambda x, d: x * sum(d.values())])
def test_a_dict_of_another_type(program: Callable[..., Any]) -> None:
    check_calls(program, [({"a": 2.0},), (Other(a=2.0),), ({"a": 2.0},)], 2)
