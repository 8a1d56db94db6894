"""What a frame reads of deques, hashes, texts, subclasses of builtin types, dispatch and caches: a
change of any is seen.
"""

from __future__ import annotations

import collections
import functools

import torch
from capture_harness import breaks, clone, compiled, same

X = torch.ones(3)
CALLS: list = []


class Key:
    def __init__(self, k):
        self.k = k

    def __hash__(self):
        return hash(self.k)

    def __eq__(self, other):
        return isinstance(other, Key) and self.k == other.k


class Text(str):
    pass


class Number(int):
    pass


class Bag(set):
    pass


@functools.singledispatch
def dispatched(value):
    return 1


class State:
    def __init__(self):
        self.key = Key(1)
        self.text = Text("a")
        self.number = Number(3)
        self.queue = collections.deque([1, 2], maxlen=3)
        self.plain, self.bag = {1}, Bag([1])
        self.pair = (1, [2])
        self.log = []


def program(x, s):
    table = {Key(1): 10, Key(2): 20}
    y = x * table[s.key] if s.key in table else x
    y = y + len(s.text.upper()) + (s.text == "a") + int(s.number) + sum(s.queue) + s.queue.maxlen
    y = y + len(s.bag) + (2 in s.plain) + s.pair[1][0] + dispatched(s)
    s.log.append(1)
    return y, f"{s.text}-{s.key.k}-{[s.number]}", [Key(3)] == [s.key]


CHANGES = [
    lambda s: setattr(s.key, "k", 2),
    lambda s: setattr(s.key, "k", 5),
    lambda s: setattr(s, "text", Text("abc")),
    lambda s: setattr(s, "number", Number(9)),
    lambda s: s.queue.append(7),
    lambda s: setattr(s, "queue", collections.deque([1], maxlen=9)),
    lambda s: s.plain.add(2),
    lambda s: s.bag.add(5),
    lambda s: s.pair[1].insert(0, 8),
    lambda s: setattr(s, "key", Key(3)),
    lambda s: dispatched.register(State)(lambda value: 100),
    lambda s: s.queue.popleft(),
]


def test_every_change_is_seen():
    fn, state = compiled(program), State()
    for change in (None, *CHANGES):
        if change is not None:
            change(state)
        for _ in range(2):
            eager = clone(state)
            same(fn(X, state), program(X, eager))
            same(state.log, eager.log)
    assert len(fn.entries) == len(CHANGES) + 1


@functools.cache
def with_side_effect(n):
    CALLS.append(n)
    return n


def test_effects_behind_a_cache_are_not_repeated():
    assert breaks(lambda x: x + with_side_effect(3), X).id == "side-effect"
    assert CALLS == [3]


@functools.cache
def table_of(n):
    return [torch.ones(n) * i for i in range(n)]


def test_one_call_gives_one_object_in_a_frame():
    def frame(x):
        first, second = table_of(3), table_of(3)
        return x + first[1], first is second

    fn = compiled(frame)
    same(fn(X), frame(X))
