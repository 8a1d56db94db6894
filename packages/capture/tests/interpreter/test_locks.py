"""Frames that take locks: in one graph, with the locks held while guards are checked, the graph
runs and effects are done.
"""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from capture_harness import compiled, same

import flambeau_capture

X = torch.randn(3)


class Meter:
    """State under a lock."""

    def __init__(self, kind=threading.Lock):
        self.lock = kind()
        self.other = kind()
        self.calls = 0
        self.seen = []
        self.scale = torch.ones(3)

    def __deepcopy__(self, memo):
        return self


def counts(meter, x):
    with meter.lock:
        meter.calls += 1
        meter.seen.append(meter.calls)
        meter.scale.add_(1)
    return x * meter.scale


def nested(meter, x):
    with meter.lock, meter.other:
        meter.calls += 2
    meter.lock.acquire()
    try:
        return x + meter.calls
    finally:
        meter.lock.release()


def returns_early(meter, x):
    if meter.calls > 1:
        return x
    with meter.lock:
        if meter.calls > 1:
            return x
        meter.calls += 1
    return x + 1


def reentrant(meter, x):
    with meter.lock, meter.lock:
        meter.calls += 1
    return x + meter.calls


def one_after_another(meter, x):
    with meter.lock:
        meter.calls += 1
    with meter.other:
        meter.calls += 1
    return x + meter.calls


def breaks_inside(meter, x):
    with meter.lock:
        meter.calls += int(x.sum() > 100) + 1
        x = x * 2
    return x + meter.calls


def breaks_after(meter, x):
    with meter.lock:
        meter.calls += 1
    return x + float(x.sum())


def keeps_it(meter, x):
    meter.lock.acquire()
    return x + 1


def tries(meter, x):
    if meter.lock.acquire(blocking=False):
        meter.calls += 1
        meter.lock.release()
    return x + meter.calls


def raises(meter, x):
    with meter.lock:
        meter.calls += 1
        return x[torch.tensor([7])]


def state(meter):
    return (
        meter.calls,
        meter.seen,
        meter.scale,
        meter.lock.locked() if hasattr(meter.lock, "locked") else None,
    )


@pytest.mark.parametrize("program", [counts, nested, returns_early])
def test_in_one_graph(program):
    run = compiled(program)
    mine, yours = Meter(), Meter()
    for _ in range(4):
        same(run(mine, X), program(yours, X))
        same(state(mine), state(yours))


def test_a_reentrant_lock():
    run = compiled(reentrant)
    mine, yours = Meter(threading.RLock), Meter(threading.RLock)
    for _ in range(3):
        same(run(mine, X), reentrant(yours, X))
    assert mine.lock.acquire(blocking=False)


@pytest.mark.parametrize(
    "program", [one_after_another, breaks_inside, breaks_after, keeps_it, tries]
)
def test_with_breaks(program):
    run = compiled(program, fullgraph=False)
    mine, yours = Meter(), Meter()
    for _ in range(3):
        same(run(mine, X), program(yours, X))
        same(state(mine), state(yours))
        for meter in (mine, yours):
            meter.lock.release() if program is keeps_it else None
    assert "break" in [event.kind for event in flambeau_capture.state_of(run).events]


def test_an_error_gives_the_lock_back():
    run = compiled(raises)
    mine, yours = Meter(), Meter()
    for _ in range(2):
        for function, meter in ((run, mine), (raises, yours)):
            with pytest.raises(IndexError):
                function(meter, X)
        same(state(mine), state(yours))


def test_it_waits_for_the_lock_and_then_sees_what_it_guards():
    run = compiled(returns_early)
    meter = Meter()
    run(meter, X)
    meter.calls = 0
    meter.lock.acquire()
    results = []
    thread = threading.Thread(target=lambda: results.append(run(meter, X)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive() and not results
    meter.calls = 5
    meter.lock.release()
    thread.join()
    same(results[0], X)
    assert meter.calls == 5


def test_threads_lose_no_update():
    def add(meter, x):
        with meter.lock:
            meter.calls = meter.calls + 1
            meter.scale.add_(1)
        return x

    run = compiled(add, fullgraph=False, dynamic=None)
    meter = Meter()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [
            threading.Thread(target=lambda: [run(meter, X) for _ in range(60)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert meter.calls == 240 and meter.scale.tolist() == [241.0] * 3
