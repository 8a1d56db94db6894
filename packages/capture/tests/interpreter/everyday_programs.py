# ruff: noqa
"""Closures, defaults, try statements, sentinels and other everyday Python. `PROGRAMS` lists each
with its arguments. (Not a test module.)
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import random
import time
import weakref
import copy
import math
import types
import typing
import contextlib
import dataclasses
import sys
import os
import datetime
import decimal
import fractions
import heapq
import bisect
import array
import struct
import uuid
import hashlib
import textwrap
import numbers
import queue
import threading
import warnings
import statistics
import inspect
import abc
import string
import pathlib
import enum
import builtins
import torch

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
PROGRAMS = []
M = torch.nn.Linear(4, 4)
SENTINEL = object()


class Thing:
    def __init__(self, n):
        self.n = n

    def __eq__(self, o):
        return isinstance(o, Thing) and self.n == o.n

    def __hash__(self):
        return hash(self.n)


def program(*args):
    def declare(fn):
        PROGRAMS.append((fn, args))
        return fn

    return declare


@program()
def heap(x):
    h = [3, 1, 2]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    return (
        x,
        heapq.heappop(h),
        heapq.nsmallest(2, h),
        heapq.nlargest(1, h),
        bisect.bisect([1, 2, 3], 2),
        bisect.insort(h, 5),
        h,
        bisect.bisect_left([1, 2], 2),
    )


@program()
def paths(x):
    return (
        x,
        os.path.join("a", "b"),
        os.path.basename("/a/b.c"),
        os.path.splitext("a.b"),
        os.sep,
        os.path.exists is not None,
    )


@program()
def module_keys(x):
    d = {M: 1}
    return d[M], M in d, x


@program()
def dunder_info(x):
    def f(a: int, *, b: str = "q") -> float:
        "doc"

    class C:
        "cdoc"

        y: int = 1

    return (
        x,
        f.__name__,
        f.__qualname__,
        f.__doc__,
        f.__annotations__,
        f.__kwdefaults__,
        f.__module__ == __name__,
        C.__doc__,
        C.__name__,
        C.__module__ == __name__,
        C.__dict__["y"],
        f.__code__.co_argcount,
        (lambda: 0).__name__,
        f.__closure__,
        type(f).__name__,
        C().__class__ is C,
        hasattr(f, "__wrapped__"),
        f.__defaults__,
    )


@program(
    lambda v: v + 1,
    functools.partial(torch.add, alpha=2),
    torch.sin,
    torch.nn.ReLU(),
    Thing(1).__eq__,
    str.upper,
    operator.itemgetter(0),
    len,
)
def callables_outside(x, f, p, s, r, b, u, g, l):
    return (
        f(x),
        p(x, x),
        s(x),
        r(x),
        b(Thing(1)),
        u("a"),
        g([x]),
        l([1]),
        f.__name__,
        callable(p),
        p.func is torch.add,
        [h.__name__ for h in (f, s, l)],
    )


@program()
def nested_functions(x):
    def outer(n):
        acc = []

        def inner(m):
            nonlocal n
            n += m
            acc.append(n)
            return lambda: (n, list(acc))

        return inner

    o = outer(1)
    l1 = o(2)
    l2 = o(3)

    def rec(n, memo={}):
        if n not in memo:
            memo[n] = n if n < 2 else rec(n - 1) + rec(n - 2)
        return memo[n]

    def attr():
        attr.calls += 1
        return attr.calls

    attr.calls = 0
    return x, l1(), l2(), rec(10), attr(), attr(), attr.calls


def default_list(x, acc=[]):
    acc.append(x.shape[0])
    return len(acc)


@program()
def mutable_defaults(x):
    def g(a, acc=[]):
        acc.append(a)
        return list(acc)

    return x, g(1), g(2)


@program(weakref.WeakKeyDictionary(), weakref.WeakValueDictionary())
def weak_dicts(x, w, v):
    return x, len(w), len(v)


@program(types.SimpleNamespace(a=1, t=X))
def namespaces_outside(x, n):
    n.a += 1
    n.b = x
    return n.a, n.t + n.b, vars(n)["a"], "b" in vars(n), getattr(n, "zz", 3), n


@program(collections.UserDict(a=1), collections.UserList([1, 2]), collections.UserString("ab"))
def user_collections(x, d, l, s):
    d["b"] = 2
    l.append(3)
    l[0] = 9
    return x, dict(d), list(l), s.upper() + "c", len(d), "a" in d, l[1:], d, l


@program()
def big_loops(x):
    total = 0
    for i in range(200):
        if i % 3 == 0:
            continue
        total += i
    grid = {(i, j): i * j for i in range(5) for j in range(5)}
    return x + total, grid[2, 3], sum(grid.values()), sorted(grid, key=lambda k: (-grid[k], k))[0]


@program()
def async_defined(x):
    async def co():
        return 1

    return x + 1, inspect.iscoroutinefunction(co), co.__name__


@program()
def sentinels(x):
    s = SENTINEL
    MISSING = object()
    d = {}
    return (
        x,
        d.get("a", MISSING) is MISSING,
        s is s,
        s == s,
        bool(s),
        hash(s) == hash(s),
        isinstance(s, object),
    )


@program(Ellipsis, NotImplemented, None, 3j, 1e-30, -0.0, 2**70, "é", b"\x00", True)
def scalars_outside(x, *a):
    return x, a, a[0] is ..., a[6] + 1, [type(v).__name__ for v in a]


@program({"x": X, "cfg": {"deep": {"er": [1, {"t": X}]}}, "l": [[X]]})
def deep_structures(x, d):
    d["cfg"]["deep"]["er"][1]["new"] = x + 1
    d["cfg"]["deep"]["er"].append(d["l"])
    d["l"][0][0] = x * 2
    d["self"] = d["cfg"]
    return (
        d["cfg"]["deep"]["er"][1]["t"] + x,
        d["cfg"]["deep"]["er"][2][0][0],
        d["self"]["deep"] is d["cfg"]["deep"],
    )


@program()
def try_forms(x):
    def f(n):
        try:
            if n == 0:
                return "ret"
            if n == 1:
                raise ValueError
            if n == 2:
                raise KeyError("k")
        except ValueError:
            return "V"
        except (KeyError, TypeError) as e:
            try:
                raise RuntimeError("r") from e
            except RuntimeError as r:
                return repr(r.__cause__)
        else:
            return "else"
        finally:
            log.append(n)
        return "end"

    log = []

    def loop():
        out = []
        for i in range(4):
            try:
                if i == 1:
                    continue
                if i == 3:
                    break
            finally:
                out.append(i)
        while True:
            try:
                return out
            finally:
                out.append("f")

    def override():
        try:
            return 1
        finally:
            return 2

    def nested():
        try:
            try:
                1 / 0
            finally:
                log.append("inner")
        except ZeroDivisionError as e:
            return str(e)

    def with_return():
        with contextlib.suppress(KeyError):
            return 5

    def gen_ex():
        try:
            yield 1
        finally:
            log.append("gen")

    for v in gen_ex():
        break
    return x, [f(i) for i in range(4)], log, loop(), override(), nested(), with_return()


@program()
def assertion(x):
    assert x.shape[0] == 3, "bad"
    assert isinstance(x, torch.Tensor)
    try:
        assert x.ndim == 5, f"got {x.ndim}"
    except AssertionError as e:
        return x, e.args


@program()
def drop(x):
    log = []

    def g(n):
        try:
            yield 1
            yield 2
        finally:
            log.append(n)

    for v in g("loop"):
        break

    def inner():
        a = g("inner")
        next(a)
        log.append("before")
        return 3

    inner()
    log.append("after")
    b = g("b")
    next(b)
    b = None
    log.append("b dropped")

    def d():
        yield from g("deleg")

    c = d()
    next(c)
    del c
    log.append("end")
    h = g("outer")
    next(h)
    un = g("never")
    return x + 1, log
