# ruff: noqa
"""Metaclasses, abstract containers, patterns, scopes, loops and operators. `PROGRAMS` lists each
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
import torch, torch.nn as nn

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
PROGRAMS = []


def program(*args):
    def declare(fn):
        PROGRAMS.append((fn, args))
        return fn

    return declare


class Meta2(type):
    registry = {}

    def __new__(mcs, name, bases, ns):
        cls = super().__new__(mcs, name, bases, ns)
        return cls

    @property
    def kind(cls):
        return cls.__name__.lower()

    def make(cls, *a):
        return cls(*a)

    def __lt__(cls, o):
        return cls.__name__ < o.__name__

    def __eq__(cls, o):
        return cls is o

    def __hash__(cls):
        return hash(cls.__name__)

    def __len__(cls):
        return 3

    def __bool__(cls):
        return True

    def __add__(cls, o):
        return cls.__name__ + str(o)

    def __repr__(cls):
        return f"<{cls.__name__}>"


class K1(metaclass=Meta2):
    attr = 4

    def __init__(self, v=1):
        self.v = v


class K2(K1):
    pass


@program(K1)
def metaclass_ops(x, K):
    return (
        x * K.attr,
        K.kind,
        K.make(5).v,
        sorted([K2, K1])[0] is K1,
        len(K),
        bool(K),
        K + 1,
        repr(K),
        {K1: 1}[K],
        K2.kind,
        K == K1,
        isinstance(K(), K1),
        issubclass(K2, K1),
        type(K) is Meta2,
        K2().v,
        hasattr(K, "kind"),
        getattr(K2, "attr"),
    )


class Missing(dict):
    def __missing__(self, k):
        return k * 2


class Cont:
    def __init__(self, *a):
        self.a = list(a)

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        return self.a[i]

    def __contains__(self, v):
        return v in self.a

    def __iter__(self):
        return iter(self.a)

    def __add__(self, o):
        return Cont(*self.a, *o)

    def __iadd__(self, o):
        self.a.extend(o)
        return self

    def __eq__(self, o):
        return isinstance(o, Cont) and self.a == o.a

    def index(self, v):
        return self.a.index(v)


class Seq(collections.abc.Sequence):
    def __init__(self, *a):
        self.a = a

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        return self.a[i]


class Map(collections.abc.MutableMapping):
    def __init__(self, **k):
        self.d = dict(k)

    def __getitem__(self, k):
        return self.d[k]

    def __setitem__(self, k, v):
        self.d[k] = v

    def __delitem__(self, k):
        del self.d[k]

    def __iter__(self):
        return iter(self.d)

    def __len__(self):
        return len(self.d)


class SetLike(collections.abc.MutableSet):
    def __init__(self, it=()):
        self.s = list(dict.fromkeys(it))

    def __contains__(self, v):
        return v in self.s

    def __iter__(self):
        return iter(self.s)

    def __len__(self):
        return len(self.s)

    def add(self, v):
        self.s.append(v) if v not in self.s else None

    def discard(self, v):
        self.s.remove(v) if v in self.s else None


@program(Missing(a=1), Cont(1, 2), Seq(1, 2, 1), Map(a=1, b=X), SetLike([1, 2]))
def abstract_containers(x, m, c, s, d, st):
    c += [3]
    d["z"] = 5
    d.update(q=1)
    st.add(9)
    st |= {4}
    st -= {1}
    first, *rest = s
    return (
        x,
        m["q"],
        m.get("q"),
        "q" in m,
        len(c),
        c[0],
        2 in c,
        list(c),
        (c + [9]).a,
        c == Cont(1, 2, 3),
        c.index(3),
        s.index(2),
        s.count(1),
        2 in s,
        list(reversed(s)),
        first,
        rest,
        d["b"],
        d.pop("a"),
        d.get("no", 3),
        dict(d)["z"],
        list(d.items())[-1][0],
        "z" in d,
        d.setdefault("w", 7),
        {**d}.keys() == d.keys(),
        sorted(st),
        (st & {9, 2}).s,
        st == {2, 9, 4},
        isinstance(s, collections.abc.Sequence),
        st.isdisjoint({100}),
        c,
        d,
        st,
    )


@program()
def match_more(x):
    @dataclasses.dataclass
    class P:
        a: int
        b: object = None

    class Q:
        __match_args__ = ("u", "v")

        def __init__(self, u, v):
            self.u, self.v = u, v

    def m(s):
        match s:
            case P(1, b=None):
                return "P1"
            case P(a, b) if a > 5:
                return ("P", a, b)
            case Q(u, [v, *_]):
                return ("Q", u, v)
            case {"k": [1, {"z": z}], **rest} if rest:
                return ("deep", z, rest)
            case {"k": str(t)}:
                return t
            case {}:
                return "map"
            case [] | ():
                return "empty"
            case [x, y] | (x, y, _):
                return x + y
            case [int() | float() as n, *rest]:
                return n, rest
            case bool(b):
                return b
            case int(i) if i < 0:
                return "neg"
            case -1.5 | 2 | 3:
                return "num"
            case "ab":
                return "ab"
            case bytes():
                return "bytes"
            case torch.float32:
                return "f32"
            case None:
                return "none"
            case type():
                return "type"
            case _:
                return "other"

    subs = [
        P(1),
        P(7, 2),
        Q(1, [2, 3]),
        {"k": [1, {"z": 3}], "o": 1},
        {"k": "str"},
        {"n": 1},
        [],
        (),
        [1, 2],
        (3, 4, 5),
        [1.5, 2, 3, 4],
        True,
        -4,
        2,
        -1.5,
        "ab",
        b"x",
        torch.float32,
        None,
        int,
        object,
    ]
    return x, [m(s) for s in subs]


@program()
def comprehension_scopes(x):
    y = 5

    class C:
        z = [1, 2]
        w = [v for v in z]
        k = {v: v for v in z}

    a = [(i, j) for i in range(3) if i for j in range(i) if j >= 0]
    b = {(k, v) for k, v in zip("ab", [1, 2])}
    c = [lambda i=i: i + y for i in range(2)]
    d = [[(yield_ := i) for i in range(2)], yield_]

    def f():
        i = "outer"
        r = [i for i in range(2)]
        return i, r

    g = [n for n in (m for m in range(5) if m % 2) if n > 1]
    h = {k: [v for v in range(k)] for k in range(3)}
    return (
        x,
        C.w,
        C.k,
        a,
        sorted(b),
        [q() for q in c],
        d,
        f(),
        g,
        h,
        [*(q for q in "ab")],
        [x + i for i in range(2)],
        sum(i * j for i, j in enumerate([1, 2])),
        any(n == 1 for n in [0, 1]),
        [a for (a,) in [(1,)]],
        [[] for _ in range(2)],
    )


@program()
def slots_and_inherit(x):
    class A:
        __slots__ = ("a",)

        def __init__(self, a):
            self.a = a

    class B(A):
        __slots__ = ("b", "__dict__")

        def __init__(self, a, b):
            super().__init__(a)
            self.b = b
            self.extra = 1

    class Mixin:
        def both(self):
            return self.a, self.b

    class D(Mixin, B):
        pass

    d = D(x, 2)
    try:
        A(1).zz = 3
    except AttributeError as e:
        msg = str(e)
    try:
        del d.b
        d.b
    except AttributeError as e:
        msg2 = type(e).__name__
    d.b = 7
    return (
        d.both()[0],
        d.both()[1],
        d.extra,
        msg,
        msg2,
        [c.__name__ for c in D.__mro__],
        hasattr(d, "__dict__"),
        d.__dict__,
    )


@program()
def dunder_flow(x):
    class Ctx:
        def __init__(self, n, swallow=False):
            self.n, self.s = n, swallow

        def __enter__(self):
            log.append(("in", self.n))
            return self

        def __exit__(self, t, v, tb):
            log.append(("out", self.n, t and t.__name__, str(v)))
            return self.s

    log = []
    with Ctx(1) as a, Ctx(2, True) as b:
        log.append(a.n + b.n)
        raise ValueError("boom")
    for i in range(2):
        with Ctx(f"l{i}"):
            if i == 0:
                continue
            break

    def f():
        with Ctx("ret"):
            return 5

    try:
        with Ctx("out"):
            raise KeyError("k")
    except KeyError as e:
        log.append(repr(e))

    def nested():
        with Ctx("a"):
            try:
                raise TypeError("t")
            except TypeError:
                return "r"
            finally:
                log.append("fin")

    return x, log, f(), nested()


@program(5)
def numbers_of_loops(x, n):
    out = []
    i = 0
    while True:
        i += 1
        if i == 2:
            continue
        if i > n:
            break
        out.append(i)
    else:
        out.append("no")
    for i in range(3):
        for j in range(3):
            if j == 1:
                break
        else:
            out.append("inner")
        if i == 1:
            break
    else:
        out.append("outer")
    for i in range(0):
        pass
    else:
        out.append("empty-else")
    for a, (b, *c) in [(1, (2, 3, 4))]:
        out.append((a, b, c))
    for out_i, out[0] in enumerate("ab"):
        pass
    d = {}
    for d["k"] in range(3):
        pass
    for x.tag in [1, 2]:
        pass
    return x + n, out, i, d


@program()
def augmented(x):
    a = [1, 2]
    b = a
    b += [3]
    c = (1,)
    c += (2,)
    d = {1}
    e = d
    e |= {2}
    f = "a"
    f *= 3
    g = {"x": 1}
    g["x"] += 2
    h = [[0]]
    h[0][0] -= 1
    i = 7
    i //= 2
    i **= 2
    i %= 5
    i <<= 2
    i |= 1
    i ^= 3
    i &= 6
    i >>= 1
    j = 1.0
    j /= 4
    k = x
    k = k + 0
    k += 1
    k *= 2
    k -= x
    k /= 2
    m = x.clone()
    m @= torch.eye(4)

    class O:
        v = 1

    o = O()
    o.v += 5
    l = [x, x]
    l[0] = l[0] + 1
    y = x.clone()
    y[0] += 1
    y[1:] *= 2
    y[:, 0] = 5
    z = [y]
    z[0][2] -= 1
    return a, c, d, f, g, h, i, j, k, m, o.v, O.v, l, y


@program()
def string_building(x):
    parts = []
    for i, (n, v) in enumerate({"a": 1, "b": 2.5}.items()):
        parts.append(f"{i}:{n}={v:.1f}")
    s = ", ".join(parts)
    return (
        x,
        s,
        s.split(", "),
        "%d items %s" % (len(parts), parts),
        "{:>{w}}|{:<5}|{:^5}".format("a", "b", "c", w=4),
        f"{s!r}",
        f"{x.shape=}",
        f"{len(parts)=:>3}",
        "ab",
        r"\n",
        b"a" + b"b",
        "é".encode(),
        str(x.dtype).split(".")[-1],
        f"{x.device.type}",
        f"{tuple(x.shape)}",
        "x".join(str(d) for d in x.shape),
        f"{'nested ' + f'{1}'}",
        "\t".expandtabs(4),
        f"{3:{'0'}{5}d}",
        f"{1e6:,.0f}",
        repr("a\n"),
        ascii("ü"),
        "%(k)s" % {"k": 1},
        "%5.1f%%" % 99.5,
        "abc".translate({97: "z"}),
        "a-b_c".replace("-", "_").split("_"),
    )
