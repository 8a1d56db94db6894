# ruff: noqa
"""Small applications: registries, schedules, events, trees, functional style. `PROGRAMS` lists each
with its arguments. (Not a test module.)
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import copy
import math
import types
import typing
import contextlib
import dataclasses
import sys
import enum
import abc
import weakref
import random
import torch, torch.nn as nn

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
PROGRAMS = []


def program(*args):
    def declare(fn):
        PROGRAMS.append((fn, args))
        return fn

    return declare


class Base:
    registry = {}

    def __init_subclass__(cls, key=None, **kw):
        super().__init_subclass__(**kw)
        cls.key = key or cls.__name__
        Base.registry[cls.key] = cls


class Alpha(Base, key="alpha"):
    def run(self, x):
        return x + 1


class Beta(Base):
    def run(self, x):
        return x * 2


@program("alpha", {"kw": 2})
def factories(x, name, kw):
    obj = Base.registry[name]()
    objs = [c() for c in Base.registry.values()]
    return obj.run(x), [o.run(x) for o in objs], Beta.key, kw


class Interp:
    OPS = {"add": operator.add, "mul": operator.mul, "neg": operator.neg}

    def __init__(self):
        self.stack = []
        self.trace = collections.deque(maxlen=3)

    def __call__(self, prog, **env):
        for op, *args in prog:
            if op == "push":
                self.stack.append(env[args[0]] if isinstance(args[0], str) else args[0])
            else:
                f = self.OPS[op]
                n = 1 if op == "neg" else 2
                vals = [self.stack.pop() for _ in range(n)][::-1]
                self.stack.append(f(*vals))
            self.trace.append(op)
        return self.stack.pop()


@program(Interp(), (("push", "x"), ("push", 2), ("mul",), ("push", "x"), ("add",), ("neg",)))
def stack_machine(x, m, prog):
    return m(prog, x=x), list(m.trace), m


class Observable:
    def __init__(self):
        self._subs = collections.defaultdict(list)

    def on(self, ev, fn=None):
        if fn is None:
            return functools.partial(self.on, ev)
        self._subs[ev].append(fn)
        return fn

    def emit(self, ev, *a):
        return [f(*a) for f in self._subs.get(ev, ())]


@program()
def events(x):
    o = Observable()
    seen = []

    @o.on("a")
    def h(v):
        seen.append("h")
        return v + 1

    o.on("a", lambda v: v * 2)
    return o.emit("a", x), o.emit("b", x), seen, len(o._subs)


class EMA:
    def __init__(self, decay):
        self.decay, self.tracked, self.step = decay, {}, 0

    def update(self, params):
        self.step += 1
        d = min(self.decay, (1 + self.step) / (10 + self.step))
        for n, p in params.items():
            self.tracked[n] = self.tracked.get(n, p) * d + p * (1 - d)

    @contextlib.contextmanager
    def applied(self, params):
        backup = dict(params)
        params.update(self.tracked)
        try:
            yield params
        finally:
            params.clear()
            params.update(backup)


@program(EMA(0.9), {"w": X, "b": X[0]})
def ema(x, e, p):
    e.update(p)
    with e.applied(p) as q:
        y = x * q["w"] + q["b"]
    return y, e.step, sorted(e.tracked), p["w"]


class LRSched:
    def __init__(self, *ms):
        self.ms = sorted(ms)
        self.n = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.n > 5:
            raise StopIteration
        self.n += 1
        return 0.1 * 0.5 ** sum(self.n > m for m in self.ms)


@program(LRSched(2, 4))
def schedule(x, s):
    lrs = [next(s), next(s)]
    lrs += list(itertools.islice(s, 2))
    for lr in s:
        x = x - lr
    return x, lrs, next(s, "done"), s.n


@dataclasses.dataclass(frozen=True, order=True)
class Ver:
    major: int
    minor: int = 0

    @classmethod
    def parse(cls, s):
        return cls(*map(int, s.split(".")))

    def __str__(self):
        return f"{self.major}.{self.minor}"

    def __post_init__(self):
        if self.major < 0:
            raise ValueError(f"bad {self.major}")


@program("1.2")
def versions(x, s):
    v = Ver.parse(s)
    try:
        Ver(-1)
    except ValueError as e:
        m = str(e)
    return (
        x,
        v > Ver(1, 1),
        max(Ver(1), Ver(0, 9)),
        str(v),
        f"{v!s:>6}",
        {v: 1}[Ver(1, 2)],
        sorted([Ver(2), v])[0] == v,
        m,
        hash(v) == hash(Ver(1, 2)),
        v in {Ver(1, 2)},
        dataclasses.replace(v, minor=5).minor,
        dataclasses.astuple(v),
    )


class Chain:
    def __init__(self, x):
        self.x = x

    def __getattr__(self, name):
        f = getattr(torch, name)

        def call(*a, **k):
            return Chain(f(self.x, *a, **k))

        return call

    def __or__(self, f):
        return Chain(f(self.x))

    @property
    def value(self):
        return self.x


@program()
def fluent(x):
    return (Chain(x).sin().mul(2).sum(dim=0) | torch.relu).value, Chain(x).abs().value


def curry(f, n=None):
    n = n or f.__code__.co_argcount

    def c(*a):
        return f(*a) if len(a) >= n else (lambda *b: c(*a, *b))

    return c


def compose(*fs):
    return functools.reduce(lambda f, g: lambda *a, **k: f(g(*a, **k)), fs)


def memo(f):
    cache = {}

    @functools.wraps(f)
    def w(*a):
        if a not in cache:
            cache[a] = f(*a)
        return cache[a]

    w.cache = cache
    return w


@program()
def functional_style(x):
    @memo
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    add3 = curry(lambda a, b, c: a + b + c)
    tr = compose(torch.sin, torch.cos, lambda t: t + 1)
    ycomb = (lambda f: (lambda g: g(g))(lambda g: f(lambda *a: g(g)(*a))))(
        lambda s: lambda n: 1 if n == 0 else n * s(n - 1)
    )
    return tr(x), add3(x)(1)(2), add3(1, 2)(3), fib(12), len(fib.cache), fib.__name__, ycomb(5)


class Node:
    __slots__ = ("val", "left", "right")

    def __init__(self, v, l=None, r=None):
        self.val, self.left, self.right = v, l, r

    def __iter__(self):
        if self.left:
            yield from self.left
        yield self.val
        if self.right:
            yield from self.right

    def insert(self, v):
        side = "left" if v < self.val else "right"
        c = getattr(self, side)
        c.insert(v) if c else setattr(self, side, Node(v))
        return self


@program(Node(5))
def bst(x, t):
    for v in (3, 8, 1, 4):
        t.insert(v)
    u = functools.reduce(Node.insert, [2, 1, 3], Node(0))
    return x, list(t), list(u), sum(t), max(u), 4 in t, [v for v in t if v % 2], t


class Unit(nn.Module):
    registry: typing.ClassVar[dict] = {}

    def __init__(self, **kw):
        super().__init__()
        for k, v in kw.items():
            setattr(self, k, v)
        self.lin = nn.Linear(4, 4, bias=False)
        nn.init.ones_(self.lin.weight)

    @torch.no_grad()
    def stats(self, x):
        return {"mean": x.mean(), "n": x.numel()}

    def __getattr__(self, n):
        if n == "virtual":
            return 7
        return super().__getattr__(n)

    def forward(self, x):
        if not self.training and getattr(self, "skip", False):
            return x
        s = self.stats(x)
        self.last = s
        return (
            self.lin(x) + s["mean"] * self.virtual,
            s["n"],
            self.gain if hasattr(self, "gain") else None,
            isinstance(self.lin, (nn.Linear, nn.Conv2d)),
            [type(m).__name__ for m in self.modules()],
            {n: tuple(p.shape) for n, p in self.named_parameters()},
            "lin" in dict(self.named_children()),
            self.__class__.__name__,
            repr(self.lin),
        )


@program(Unit(gain=3, tags=["a"]))
def unit(x, m):
    return m(x)
