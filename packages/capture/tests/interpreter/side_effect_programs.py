# ruff: noqa: RUF012 (odd forms are what is tested)
"""Programs that change what existed before the call, and classes of every kind. (Not a test
module.)
"""

from __future__ import annotations

import collections
import copy
import functools
import types
import warnings
from abc import ABC, abstractmethod

import torch
from torch import nn

COUNTER = 0
REGISTRY: dict = {}
LOG: list = []


def global_writes(x):
    global COUNTER
    COUNTER += 1
    REGISTRY["last"] = COUNTER
    LOG.append(COUNTER)
    return x * COUNTER


def argument_lists(x, items, table, bag):
    items.append(x + 1)
    items[0] = "changed"
    del items[1]
    table["new"] = x
    table["count"] = table.get("count", 0) + 1
    table.pop("old", None)
    table["inner"]["deep"].append(3)
    bag.add(7)
    bag.discard(1)
    return x, len(items), items[-1] * 2


class Plain:
    kind = "plain"

    def __init__(self, n):
        self.n = n
        self.history = []

    @property
    def doubled(self):
        return self.n * 2

    @doubled.setter
    def doubled(self, value):
        self.n = value // 2

    @classmethod
    def make(cls, n):
        return cls(n)

    @staticmethod
    def helper(x):
        return x + 1

    @functools.cached_property
    def costly(self):
        self.history.append("costly")
        return self.n + 100

    def __call__(self, x):
        return x + self.n

    def __eq__(self, other):
        return isinstance(other, Plain) and self.n == other.n

    def __hash__(self):
        return hash(self.n)

    def __add__(self, other):
        return type(self)(self.n + (other.n if isinstance(other, Plain) else other))

    __radd__ = __add__

    def __lt__(self, other):
        return self.n < other.n

    def __contains__(self, item):
        return item == self.n

    def __len__(self):
        return self.n

    def __repr__(self):
        return f"Plain({self.n})"


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a

    def __enter__(self):
        self.b = self.a
        return self

    def __exit__(self, *error):
        self.a = None


class Dynamic:
    def __init__(self):
        self.store = {"known": 5}

    def __getattr__(self, name):
        try:
            return self.store[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        if name == "store":
            super().__setattr__(name, value)
        else:
            self.store[name] = value


class Base(ABC):
    @abstractmethod
    def apply(self, x): ...

    def run(self, x):
        return self.apply(x) + 1


class Derived(Base):
    factor = 3

    def apply(self, x):
        return x * self.factor

    def run(self, x):
        return super().run(x) * 2


class Registry(dict):
    def __missing__(self, key):
        self[key] = key * 2
        return self[key]

    def __getitem__(self, key):
        return super().__getitem__(key)


def attribute_writes(x, p, q):
    p.n += 1
    p.doubled = p.doubled + 4
    p.fresh = x
    p.history.append(x * 2)
    del q.n
    q.n = 9
    return p(x), p.doubled, p.costly, hasattr(q, "gone"), p.fresh is x


def classes_made(x):
    p = Plain.make(2)
    q = Plain(3)
    s = Slotted(x)
    with s as entered:
        inner = entered.b
    d = Dynamic()
    d.other = 6
    r = Registry()
    return (
        p(x),
        p.doubled,
        Plain.helper(x),
        p.costly,
        p.costly,
        p.history,
        p == q,
        p != q,
        (p + q).n,
        (1 + p).n,
        sum([p, q]).n,
        sorted([q, p])[0].n,
        2 in p,
        len(p),
        bool(Plain(0)),
        repr(p),
        str(p),
        f"{p}",
        {p: 1}[Plain(2)],
        max(p, q).n,
        inner,
        s.a,
        d.known,
        d.other,
        getattr(d, "nope", None),
        Derived().run(x),
        isinstance(Derived(), Base),
        r["ab"],
        dict(r),
        p.kind,
        Plain.kind,
        type(p).__name__,
        copy.copy(p).n,
        vars(p)["n"],
    )


def objects_returned(x):
    p = Plain(4)
    p.tensor = x + 1
    p.me = p
    shared = [x]
    s = Slotted(2)
    return p.tensor, p.n, {"a": shared, "b": shared}, types.SimpleNamespace(a=1, t=x * 2).t, s.a, s


def identities(x, items):
    a = items
    b = {"k": items}
    made = [x]
    return a is items, b["k"] is items, b, made, (made, made), items


def mutated_tensors(x, y, out):
    x.add_(1)
    y[0] = x[0] * 2
    y[1:].mul_(3)
    out.append(x)
    z = x.clone()
    z += y
    z[:, 1] = 0
    z.requires_grad
    return z, x


def functions_returned(x):
    scale = x.sum()

    def scaled(y, k=2):
        return y * scale * k

    return scaled, functools.partial(torch.add, x), {"m": Plain(2).__call__}


def printed(x, n):
    print("n is", n, x.shape)
    print(f"twice {n * 2}", end="!\n")
    return x + n


def warned(x):
    warnings.warn("careful", UserWarning, stacklevel=2)
    return x + 1


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0
        self.cache = {}
        self.last = None

    def forward(self, x):
        self.calls += 1
        self.seen += 1
        self.cache[self.calls] = x.shape[0]
        self.last = self.norm(self.linear(x))
        self.scratch = [self.calls]
        return self.last.relu()


def hooked_call(x, module):
    return module(x)


class ListSubclass(list):
    def total(self):
        return sum(self)


def subclasses(x, ordered, default, listed):
    ordered["z"] = x
    ordered.move_to_end("a")
    default["q"].append(1)
    listed.append(4)
    listed.note = "n"
    return ordered, default["q"], listed.total(), collections.OrderedDict(ordered), listed


class Counted:
    made = 0
    names: list = []

    def __init__(self, x):
        type(self).made += 1
        Counted.names.append(self.made)
        self.x = x


def class_attributes(x):
    a, b = Counted(x), Counted(x + 1)
    return a.made, Counted.made, b.x


def function_attributes(x):
    function_attributes.calls = getattr(function_attributes, "calls", 0) + 1
    return x * function_attributes.calls


def make_accumulator():
    total, seen = 0, []

    def accumulate(x):
        nonlocal total
        total += x.shape[0]
        seen.append(total)
        return x + total

    return accumulate, lambda: (total, list(seen))


def two_lists(x, first, second):
    first.append(1)
    return x * len(second)


class Flag:
    def __init__(self):
        self.active = False
        self.depth = None


def flagged(x, flag):
    flag.active = True
    flag.depth = 1
    y = x + 1 if flag.active else x
    flag.depth = None
    flag.active = False
    return y
