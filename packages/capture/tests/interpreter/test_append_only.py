"""Lists that a frame only appends to: no entry depends on their length, and what is appended is
there afterwards.
"""

from __future__ import annotations

import pytest
import torch
from capture_harness import compiled, same

import flambeau_capture

X = torch.arange(12.0).reshape(3, 4)
LOG: list = []


class Recorder:
    def __init__(self, history=()):
        self.history = list(history)
        self.optional = None

    @property
    def recent(self):
        return self.history

    def step(self, x):
        self.history.append(x.sum())
        if self.optional is not None:
            self.optional.append(1)
        LOG.append(x.shape[0])
        return x + 1


def captures(fn):
    return sum(
        event.kind in ("capture", "recompile") for event in flambeau_capture.state_of(fn).events
    )


def appends(x, out, recorder):
    out.append(x * 2)
    if out is not None:
        out.extend([1, 2])
    return recorder.step(x)


def test_length_is_not_guarded():
    fn = compiled(appends)
    own, eager = ([], Recorder()), ([], Recorder())
    LOG.clear()
    for _ in range(4):
        same(fn(X, *own), appends(X, *eager))
        same(own, eager)
    assert captures(fn) == 1 and len(LOG) == 8
    own[1].optional, eager[1].optional = [], []
    same(fn(X, *own), appends(X, *eager))
    same(own, eager)
    assert captures(fn) == 2


def read_in_between(x, recorder):
    recorder.history.append(5)
    recorder.recent.append(6)
    n = len(recorder.history)
    recorder.history.append(7)
    return x * n, list(recorder.history)


def missing_first(x, recorder):
    try:
        recorder.missing.append(1)
    except AttributeError:
        items = recorder.history
    return x * len(items), items[0]


def captured_by_closure(x, items):
    def count():
        return len(items)

    items.append(1)
    return x * count()


def seen_in_locals(x, items):
    items.append(1)
    return x, list(locals()["items"])


@pytest.mark.parametrize(
    ("fn", "make"),
    [
        (read_in_between, Recorder),
        (missing_first, lambda: Recorder([3])),
        (captured_by_closure, lambda: [4]),
        (seen_in_locals, lambda: [4]),
    ],
)
def test_what_is_read_is_guarded(fn, make):
    own, eager, compiled_fn = make(), make(), compiled(fn)
    for _ in range(3):
        same(compiled_fn(X, own), fn(X, eager))
        same(own, eager)


def two_names(x, first, second):
    first.append(1)
    return x * len(second)


def test_one_list_under_two_names():
    fn = compiled(two_names)
    same(fn(X, [], [2]), X)
    one = [1]
    same(fn(X, one, one), X * 2)
    assert one == [1, 1]
