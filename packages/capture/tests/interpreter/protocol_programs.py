# ruff: noqa
"""Special methods, descriptors, super(), and caches of the program's own classes. `PROGRAMS` lists
each with its arguments. (Not a test module.)
"""

from __future__ import annotations

import collections
import functools
import torch
from collections import Counter

X = torch.arange(12.0).reshape(3, 4)
PROGRAMS = []


def program(*args):
    def declare(fn):
        PROGRAMS.append((fn, args))
        return fn

    return declare


class V:
    def __init__(self, v):
        self.v = v

    def __add__(self, o):
        return V(self.v + (o.v if isinstance(o, V) else o))

    def __radd__(self, o):
        return V(o + self.v + 100)

    def __iadd__(self, o):
        self.v += o
        return self

    def __sub__(self, o):
        return NotImplemented

    def __rsub__(self, o):
        return V(o - self.v)

    def __mul__(self, o):
        return V(self.v * o)

    def __matmul__(self, o):
        return "mm"

    def __rmatmul__(self, o):
        return "rmm"

    def __truediv__(self, o):
        return "td"

    def __floordiv__(self, o):
        return "fd"

    def __mod__(self, o):
        return "mod"

    def __pow__(self, o, m=None):
        return ("pow", o, m)

    def __divmod__(self, o):
        return ("dm", o)

    def __lshift__(self, o):
        return "<<"

    def __and__(self, o):
        return "&"

    def __ror__(self, o):
        return "ror"

    def __neg__(self):
        return V(-self.v)

    def __pos__(self):
        return "+"

    def __abs__(self):
        return "abs"

    def __invert__(self):
        return "~"

    def __eq__(self, o):
        return isinstance(o, V) and self.v == o.v

    def __hash__(self):
        return hash(("V", self.v))

    def __lt__(self, o):
        return self.v < o.v

    def __bool__(self):
        return self.v > 0

    def __len__(self):
        return 4

    def __int__(self):
        return int(self.v)

    def __float__(self):
        return float(self.v)

    def __complex__(self):
        return complex(self.v)

    def __index__(self):
        return int(self.v)

    def __round__(self, n=None):
        return ("round", n)

    def __trunc__(self):
        return 9

    def __floor__(self):
        return "floor"

    def __ceil__(self):
        return "ceil"

    def __str__(self):
        return f"V<{self.v}>"

    def __repr__(self):
        return f"V({self.v!r})"

    def __format__(self, s):
        return f"fmt[{s}]{self.v}"

    def __contains__(self, k):
        return k == self.v

    def __getitem__(self, k):
        return ("item", k)

    def __setitem__(self, k, v):
        self.set = (k, v)

    def __delitem__(self, k):
        self.deleted = k

    def __iter__(self):
        return iter([self.v, self.v + 1])

    def __reversed__(self):
        return "rev"

    def __call__(self, *a, **k):
        return ("call", a, sorted(k))

    def __getattr__(self, n):
        if n.startswith("dyn_"):
            return n
        raise AttributeError(n)

    def __bytes__(self):
        return b"V"

    def __dir__(self):
        return ["q", "p"]

    def __sizeof__(self):
        return 7

    def __length_hint__(self):
        return 3

    def __fspath__(self):
        return "path"


@program(V(2))
def operators(x, v):
    import math, operator, os

    w = V(3)
    w += 5
    out = [
        (v + w).v,
        (v + 1).v,
        (1 + v).v,
        (10 - v).v,
        (v * 3).v,
        v @ 1,
        1 @ v,
        v / 2,
        v // 2,
        v % 2,
        v**2,
        pow(v, 2, 3),
        divmod(v, 2),
        v << 1,
        v & 1,
        1 | v,
        (-v).v,
        +v,
        abs(v),
        ~v,
        v == V(2),
        v != V(2),
        v < w,
        v > w,
        sorted([w, v])[0].v,
        max(v, w).v,
        min([w, v]).v,
        bool(v),
        not v,
        len(v),
        int(v),
        float(v),
        complex(v),
        [1, 2, 3][v],
        list(range(v)),
        round(v),
        round(v, 2),
        math.floor(v),
        math.ceil(v),
        str(v),
        repr(v),
        f"{v}",
        f"{v:>3}",
        f"{v!r}",
        format(v, "x"),
        2 in v,
        5 in v,
        v[1],
        v[1:2],
        v[1, 2],
        list(v),
        [*v],
        tuple(v),
        reversed(v),
        v(1, a=2),
        v.dyn_q,
        hasattr(v, "nope"),
        getattr(v, "no", 5),
        bytes(v),
        dir(v),
        hex(v),
        operator.index(v),
        os.fspath(v),
        "%s %r %d" % (v, v, v),
        "{} {!r} {:>4}".format(v, v, v),
        f"{[v]}",
        str([v, (v,)]),
        repr({"a": v}),
        "%s" % [v],
        " ".join(map(str, [v])),
        sum([v, w]).v,
        v.v if v else 0,
        {v: 1}[V(2)],
        isinstance(v, collections.abc.Iterable),
        isinstance(v, collections.abc.Hashable),
        callable(v),
        print is None,
        [i for i in v],
        dict.fromkeys(v),
        a if (a := v.v) else 0,
    ]
    v[3] = 4
    del v[5]
    try:
        v - 1
    except TypeError as e:
        out.append(str(e))
    try:
        v >= w
    except TypeError as e:
        out.append(str(e))
    return x * v.v, out, v.set, v.deleted


class Prop:
    def __init__(self):
        self._a = 1
        self.log = []

    @property
    def a(self):
        self.log.append("get")
        return self._a

    @a.setter
    def a(self, v):
        self.log.append("set")
        self._a = v

    @a.deleter
    def a(self):
        self.log.append("del")
        self._a = None

    def __getattribute__(self, n):
        return super().__getattribute__(n)


class Desc:
    def __set_name__(self, o, n):
        self.n = "_" + n

    def __get__(self, o, t=None):
        return self if o is None else o.__dict__.get(self.n, "unset")

    def __set__(self, o, v):
        o.__dict__[self.n] = v * 2

    def __delete__(self, o):
        del o.__dict__[self.n]


class NonData:
    def __get__(self, o, t=None):
        return ("nd", t.__name__)


class HasDesc:
    d = Desc()
    n = NonData()
    __slots__ = ("__dict__", "s")


class SetA:
    def __setattr__(self, n, v):
        object.__setattr__(self, n, v)
        self.__dict__["last"] = n

    def __delattr__(self, n):
        super().__delattr__(n)


@program(Prop(), HasDesc(), SetA())
def attributes(x, p, h, s):
    p.a = 5
    r = [p.a]
    del p.a
    r.append(p.a)
    r.append(h.d)
    h.d = 3
    r.append(h.d)
    del h.d
    r.append(h.d)
    r.append(h.n)
    h.n = 4
    r.append(h.n)
    h.s = 8
    r.append(h.s)
    s.k = 1
    r.append(s.last)
    del s.k
    r.append(hasattr(s, "k"))
    setattr(s, "q", 2)
    r.append(vars(s))
    r.append(getattr(s, "q"))
    r.append(type(HasDesc.d).__name__)
    r.append(Prop.a.fget(p))
    delattr(s, "q")
    r.append(p.__class__.__name__)
    r.append(p.__dict__["_a"])
    p.__dict__["z"] = 3
    r.append(p.z)
    return x, r, p, h, s


class A:
    def f(self):
        return ["A"]

    @classmethod
    def c(cls):
        return [cls.__name__]

    @staticmethod
    def st():
        return "s"

    @property
    def pr(self):
        return "prA"


class B(A):
    def f(self):
        return ["B"] + super().f()

    @classmethod
    def c(cls):
        return ["Bc"] + super().c()

    @property
    def pr(self):
        return "B" + super().pr


class C(A):
    def f(self):
        return ["C"] + super(C, self).f()

    def __init__(self, *a, **k):
        super().__init__(*a, **k)


class D(B, C):
    def f(self):
        return ["D"] + super().f()

    def g(self):
        return [
            super(B, self).f(),
            (lambda: super(D, self).f())(),
            [super(D, self).f() for _ in range(1)],
        ]

    def __new__(cls, *a):
        return super().__new__(cls)

    def st2(self):
        return super().st()


@program(D())
def supers(x, d):
    e = D()
    return (
        x,
        d.f(),
        e.f(),
        d.g(),
        D.c(),
        d.pr,
        d.st2(),
        [k.__name__ for k in D.__mro__],
        isinstance(d, A),
        issubclass(D, (C, int)),
        D.f(d),
        A.f(d),
        super(D, d).f(),
    )


@functools.lru_cache
def table(n):
    return [i * 2 for i in range(n)]


@functools.lru_cache(maxsize=4)
def mask(n):
    return torch.ones(n, n).tril()


@program(4)
def lru(x, n):
    return x[:, :3] @ mask(3), table(3), table(3) is table(3), mask(3) is mask(3), sum(table(n))
