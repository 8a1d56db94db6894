"""Context variables in captured frames: what is read is guarded, what is set is set at exit, in the
context of the call.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading

import pytest
import torch
from capture_harness import compiled, same

import flambeau_capture

X = torch.randn(3, 4)
SCALE: contextvars.ContextVar[float] = contextvars.ContextVar("SCALE")
DEPTH: contextvars.ContextVar[int] = contextvars.ContextVar("DEPTH", default=3)
SEEN: contextvars.ContextVar[list] = contextvars.ContextVar("SEEN")


@contextlib.contextmanager
def scaled(scale):
    token = SCALE.set(scale)
    try:
        yield
    finally:
        SCALE.reset(token)


def reads(x):
    return x * SCALE.get(2.0) + DEPTH.get() + DEPTH.get(5)


def reads_unset(x):
    try:
        return x * SCALE.get()
    except LookupError as error:
        return x, error.args[0] is SCALE


def sets_for_a_while(x):
    with scaled(4.0):
        with scaled(8.0):
            y = x * SCALE.get()
        y = y + SCALE.get()
    return y + SCALE.get(1.0)


def leaves_set(x):
    DEPTH.set(DEPTH.get() + 1)
    SCALE.set(x.sum())
    return x * SCALE.get()


def returns_its_token(x):
    return DEPTH.set(7), x + DEPTH.get()


def resets_twice(x):
    token = DEPTH.set(1)
    DEPTH.reset(token)
    with pytest.raises(RuntimeError):
        DEPTH.reset(token)
    with pytest.raises(ValueError):
        SCALE.reset(DEPTH.set(2))
    return x + DEPTH.get()


def breaks_while_set(x):
    token = DEPTH.set(5)
    y = x + DEPTH.get()
    y = y + float(y.sum() > 0)
    y = y * DEPTH.get()
    DEPTH.reset(token)
    return y + DEPTH.get()


def appends_to_what_it_holds(x):
    SEEN.get().append(x.shape[0])
    return x + len(SEEN.get())


def in_context(fn, *args, scale=None, depth=None):
    """The result of a call in a context of its own, and the variables after it."""

    def run():
        if scale is not None:
            SCALE.set(scale)
        if depth is not None:
            DEPTH.set(depth)
        return fn(*args), SCALE.get(None), DEPTH.get()

    return contextvars.copy_context().run(run)


@pytest.mark.parametrize(
    "program", [reads, reads_unset, sets_for_a_while, leaves_set, resets_twice]
)
def test_in_one_graph(program):
    run = compiled(program)
    for kwargs in ({}, {"scale": 3.0}, {"depth": 9}, {"scale": 3.5, "depth": 1}, {}):
        same(in_context(run, X, **kwargs), in_context(program, X, **kwargs))


def test_a_token_leaves_the_frame():
    run = compiled(returns_its_token)

    def program(fn):
        token, y = fn(X)
        held = DEPTH.get()
        DEPTH.reset(token)
        return y, held, DEPTH.get(), type(token)

    for depth in (None, 2):
        same(
            in_context(program, run, depth=depth),
            in_context(program, returns_its_token, depth=depth),
        )


def test_across_a_break():
    run = compiled(breaks_while_set, fullgraph=False)
    for depth in (None, 2, None):
        same(in_context(run, X, depth=depth), in_context(breaks_while_set, X, depth=depth))
    kinds = [event.kind for event in flambeau_capture.state_of(run).events]
    assert (
        kinds.count("break") == 2
    )  # at the data, and at the token, which is older than the rest of the frame


def test_a_list_held_by_a_variable():
    run = compiled(appends_to_what_it_holds)

    def program(fn):
        mine = []
        SEEN.set(mine)
        return fn(X), fn(X), mine

    same(in_context(program, run), in_context(program, appends_to_what_it_holds))


def test_each_thread_has_its_own_context():
    run = compiled(leaves_set)
    run(X)
    found = {}

    def work(number):
        DEPTH.set(number)
        found[number] = run(X), DEPTH.get()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (y, depth) in found.items():
        same(y, X * X.sum())
        assert depth == number + 1
