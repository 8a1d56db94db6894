"""What is left to the interpreter, with a reason, and behaves as eagerly: coroutines, draws,
clocks, tracebacks, classes that escape.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
import traceback

import pytest
import torch
from capture_harness import breaks, compiled, same

X = torch.arange(12.0).reshape(3, 4)
ERROR = ValueError("made before")


async def coroutine(x):
    await asyncio.sleep(0)
    return x + 1


async def agenerator(x):
    for i in range(3):
        yield x + i


async def consumer(x):
    async with asyncio.Lock():
        found = [y async for y in agenerator(x)]
    return found, await coroutine(x)


def runs_a_loop(x):
    return asyncio.run(consumer(x * 2))


@pytest.mark.parametrize("fn", [coroutine, consumer])
def test_async_functions(fn):
    captured = compiled(fn, fullgraph=False)
    for _ in range(2):
        same(asyncio.run(captured(X)), asyncio.run(fn(X)))


def test_a_loop_inside():
    captured = compiled(runs_a_loop, fullgraph=False)
    same(captured(X), runs_a_loop(X))


def draws(x):
    x = x * random.random()
    items = [1, 2, 3, 4]
    random.shuffle(items)
    return x + random.randint(0, 9), items, random.choice(items), random.gauss(0, 1)


def test_random_draws_are_eagers():
    captured = compiled(draws, fullgraph=False)
    random.seed(3)
    want = [draws(X) for _ in range(3)], random.random()
    random.seed(3)
    same(([captured(X) for _ in range(3)], random.random()), want)


def test_clocks_run():
    captured = compiled(lambda x: (x + 1, time.perf_counter()), fullgraph=False)
    first, second = captured(X)[1], captured(X)[1]
    assert second > first


def formats_traceback(x):
    try:
        raise KeyError("inner")
    except KeyError:
        text = traceback.format_exc()
    return x + 1, text.splitlines()[-1], "formats_traceback" in text


def reads_traceback(x):
    try:
        raise KeyError("inner")
    except KeyError as error:
        name = error.__traceback__.tb_frame.f_code.co_name
    return x + 1, name


def reads_exc_info(x):
    try:
        raise KeyError("inner")
    except KeyError:
        kind, error, trace = sys.exc_info()
    return x + 1, kind, str(error), trace.tb_frame.f_code.co_name


@pytest.mark.parametrize("fn", [formats_traceback, reads_traceback, reads_exc_info])
def test_tracebacks(fn):
    assert breaks(fn, X).id == "traceback"


def raises_what_was_made_before(x):
    try:
        raise ERROR
    except ValueError as error:
        return x + 1, error is ERROR


def test_exceptions_made_before_are_not_raised_while_capturing():
    breaks(raises_what_was_made_before, X)


def class_escapes(x):
    class Made:
        value = 3

        def scaled(self, y):
            return y * self.value

    return x + 1, Made


def instance_escapes(x):
    class Made:
        def __init__(self, y):
            self.y = y

    return Made(x * 2)


def test_classes_that_escape_are_made_for_each_call():
    captured = compiled(class_escapes, fullgraph=False)
    first, second = captured(X)[1], captured(X)[1]
    assert first is not second
    same(first().scaled(X), X * 3)
    captured = compiled(instance_escapes, fullgraph=False)
    first, second = captured(X), captured(X)
    assert type(first) is not type(second)
    same(first.y, X * 2)
