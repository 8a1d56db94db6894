"""How often a sequence of calls is captured: what is made afresh for each call, alike in all that
is read, costs one capture.
"""

from __future__ import annotations

import collections
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
    """Each call is right, twice; `expected` captures serve them all. What the program changes, it
    changes on equal arguments.
    """
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
    "other code": (
        call_attribute,
        [(Thing(act=lambda x: x * 2),), (Thing(act=lambda x: x * 3),)],
        2,
    ),
    "bound method": (lambda x, f: f(x), made(lambda _: Thing(by=2).scaled), 1),
    "bound method of another": (lambda x, f: f(x), made(lambda at: Thing(by=at).scaled), 3),
    "partial": (
        lambda x, f: f(x),
        made(lambda _: functools.partial(lambda x, by: x * by, by=2)),
        1,
    ),
    "partial of other arguments": (
        lambda x, f: f(x),
        made(lambda at: functools.partial(make_closure(1), first=[at])),
        3,
    ),
    "instance": (lambda x, thing: thing.scaled(x), made(lambda _: Thing(by=2)), 1),
    "instance with more": (
        lambda x, thing: thing.scaled(x),
        made(lambda at: Thing(by=2, unread=at)),
        1,
    ),
    "returned": (lambda x, f: (f(x), f), made(lambda _: lambda x: x * 2), 1),
    "passed on": (lambda x, f: list(map(f, [x, x])), made(lambda _: lambda x: x * 2), 1),
    "hashed": (lambda x, f: x + len({f: 1}), made(lambda _: lambda x: x * 2), 3),
    "name": (lambda x, f: x + len(f.__name__), [(lambda x: x,), (lambda y: y,)], 2),
}


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


def padded(count: int, **entries: Any) -> dict[str, Any]:
    """A dict with some entries that nobody reads."""
    return {**entries, **{str(at): at for at in range(count)}}


def helper(x, batch, *, scale):
    if scale.get("by") is not None:
        x = x * scale["by"]
    return x * batch["a"] if isinstance(batch, dict) else x


class Passing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Identity()

    def forward(self, batch):
        return self.inner(batch["a"])


PASSING = Passing()
TABLE: dict[str, Any] = {}


def from_locals(x, thing):
    config = thing.config
    nested = config["nested"]
    return x * config["a"] + nested["b"]


def from_keywords(x, thing):
    return reads_keywords(x, **thing)


def reads_keywords(x, a=1.0, **rest):
    return x * a


def missing_entry(x, table):
    try:
        return x * table["missing"]
    except KeyError:
        return x - 1 if "other" not in table else x + 1


def whole_afterwards(x, table):
    first = table["a"]
    table["a"] = 5.0
    return x * first + table["a"] * len(table)


def in_order(x, table):
    return x * table["a"], list(table)


def last_of_list(x, items):
    return x * items[-1]


def first_of_list(x, items):
    return x * items[0]


def unused(x, thing):
    return x


def one_of_two(x, tables):
    first, second = tables["first"], tables["second"]
    second["a"] = 3.0
    return x * first["a"]


PARTS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]], int]] = {
    "entry of a dict": (lambda x, d: x * d["a"], made(lambda at: padded(at, a=2.0)), 1),
    "entry that changes": (lambda x, d: x * d["a"], made(lambda at: padded(0, a=at)), 3),
    "entry under a computed key": (
        lambda x, d: x * d["".join(["a"])],
        made(lambda at: padded(at, a=2.0)),
        1,
    ),
    "get": (lambda x, d: x * d.get("a", 3.0), made(lambda at: padded(at, a=2.0)), 1),
    "get of what is not there": (lambda x, d: x * d.get("a", 3.0), made(lambda at: padded(at)), 1),
    "get of what comes": (lambda x, d: x * d.get("a", 3.0), [({},), ({"a": 2.0},)], 2),
    "in": (lambda x, d: x * (1 + ("a" in d)), made(lambda at: padded(at, a=at)), 1),
    "not in": (lambda x, d: x * (1 + ("a" not in d)), made(lambda at: padded(at)), 1),
    "in, and it comes": (lambda x, d: x * (1 + ("0" in d)), made(padded), 2),
    "entry of an OrderedDict": (
        lambda x, d: x * d["a"],
        made(lambda at: collections.OrderedDict(padded(at, a=2.0))),
        1,
    ),
    "entry of a defaultdict": (
        lambda x, d: x * d["a"],
        made(lambda at: collections.defaultdict(int, padded(at, a=2.0))),
        1,
    ),
    "entry of another type of dict": (lambda x, d: x * d["a"], [({"a": 2.0},), (Other(a=2.0),)], 2),
    "entry of a dict in a dict": (
        lambda x, d: x * d["n"]["a"],
        made(lambda at: padded(at, n=padded(at, a=2.0))),
        1,
    ),
    "dicts in locals": (
        from_locals,
        made(lambda at: Thing(config=padded(at, a=2.0, nested=padded(at, b=1.0)))),
        1,
    ),
    "passed to a function": (
        lambda x, d: helper(x, d, scale=d),
        made(lambda at: padded(at, a=2.0)),
        1,
    ),
    "passed to a module": (lambda x, d: PASSING(d) * x, made(lambda at: padded(at, a=2.0)), 1),
    "keywords": (from_keywords, made(lambda at: padded(at, a=2.0)), 3),
    "missing entry": (missing_entry, made(lambda at: padded(at, a=2.0)), 1),
    "missing entry that comes": (missing_entry, [({},), ({"other": 1},), ({"missing": 2},)], 3),
    "length": (lambda x, d: x * len(d), made(padded), 3),
    "truth": (lambda x, d: x + 1 if d else x, made(padded), 3),
    "keys": (lambda x, d: [x, *d], made(padded), 3),
    "values": (lambda x, d: x * sum(d.values()), made(padded), 3),
    "an entry, then all": (in_order, made(lambda at: padded(at, a=2.0)), 3),
    "item of a list": (first_of_list, made(lambda at: [2.0] * (at + 1)), 1),
    "item of a list that changes": (first_of_list, made(lambda at: [at]), 3),
    "item from the end": (last_of_list, made(lambda at: [2.0] * (at + 1)), 3),
    "unused list": (unused, made(lambda at: [1] * at), 1),
    "unused tensor": (unused, made(torch.ones), 1),
    "unused object": (unused, [(Thing(),), (None,), ("text",)], 1),
    "returned as it is": (lambda x, d: d, made(padded), 1),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_read_in_part(name: str) -> None:
    check_calls(*PARTS[name])


def test_keyword_arguments_that_are_not_read() -> None:
    fn = compiled(reads_keywords)
    for at in range(3):
        same(fn(X, a=2.0, **padded(at)), reads_keywords(X, a=2.0))
    assert captures(fn) == 1


def test_what_is_written_after_an_entry_was_read() -> None:
    fn = compiled(whole_afterwards)
    for at in (0, 2):
        own, eager = padded(at, a=2.0), padded(at, a=2.0)
        same(fn(X, own), whole_afterwards(X, eager))
        same(own, eager)


def test_one_dict_as_two() -> None:
    fn = compiled(one_of_two)
    for shared in (False, True, False):
        own, eager = {"a": 2.0}, {"a": 2.0}
        same(
            fn(X, {"first": own, "second": own if shared else {}}),
            one_of_two(X, {"first": eager, "second": eager if shared else {}}),
        )
        same(own, eager)


def global_entry(x):
    return x * TABLE["a"]


def test_entry_of_a_global_dict() -> None:
    fn = compiled(global_entry)
    for at, value in enumerate((2.0, 2.0, 3.0)):
        TABLE.clear()
        TABLE.update(padded(at, a=value))
        same(fn(X), global_entry(X))
    assert captures(fn) == 2


def appends_to_entry(x, thing):
    thing.logs["x"].append(x.sum())
    return x


def appends_through_local(x, thing):
    log = thing.logs["x"]
    if log is not None:
        log.append(1)
    return x


def appends_in_list(x, thing):
    thing.lists[1].append(x.shape[0])
    return x


def add_to(log, value):
    log.append(value)


def appends_in_helper(x, thing):
    add_to(thing.logs["x"], 2)
    add_to(thing.lists[0], 3)
    return x


def appends_and_reads_first(x, thing):
    thing.lists[2].append(7)
    return x * thing.lists[2][0]


@pytest.mark.parametrize(
    "program",
    [
        appends_to_entry,
        appends_through_local,
        appends_in_list,
        appends_in_helper,
        appends_and_reads_first,
    ],
)
def test_lists_in_containers_that_are_appended_to(program: Callable[..., Any]) -> None:
    own, eager = (Thing(logs={"x": [], "y": 1}, lists=[[], [], [5]]) for _ in range(2))
    fn = compiled(program)
    for at in range(4):
        same(fn(X, own), program(X, eager))
        same(vars(own), vars(eager))
        own.logs[at] = eager.logs[at] = "unread"
    assert captures(fn) == 1
