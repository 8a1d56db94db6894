# ruff: noqa
"""The standard library as functions of tensors use it. `PROGRAMS` lists each with its arguments.
(Not a test module.)
"""

from __future__ import annotations

import abc
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import json
import logging
import math
import operator
import random
import re
import string
import sys
import time
import types
import typing
import warnings
import weakref
import torch

X = torch.arange(12.0).reshape(3, 4)
PROGRAMS = []


def program(*args):
    def declare(fn):
        PROGRAMS.append((fn, args))
        return fn

    return declare


@program()
def itertools_all(x):
    it = itertools
    a, b = it.tee([1, 2, 3])
    out = [
        list(it.chain([1], (2,))),
        list(it.chain.from_iterable([[1], [2]])),
        list(it.combinations("abc", 2)),
        list(it.combinations_with_replacement("ab", 2)),
        list(it.permutations([1, 2, 3], 2)),
        list(it.product([0, 1], repeat=2)),
        list(it.compress("abc", [1, 0, 1])),
        list(it.islice(it.count(2, 3), 3)),
        list(it.islice(it.cycle("ab"), 5)),
        list(it.repeat(x, 2)),
        list(it.accumulate([1, 2, 3], initial=5)),
        list(it.accumulate([1, 2, 3], lambda p, q: p * q)),
        list(it.accumulate([x, x])),
        list(it.starmap(lambda p, q: p + q, [(1, 2)])),
        list(it.takewhile(lambda v: v < 2, [1, 2, 1])),
        list(it.dropwhile(lambda v: v < 2, [1, 2, 1])),
        list(it.filterfalse(lambda v: v % 2, [1, 2])),
        list(it.filterfalse(None, [0, 1])),
        [(k, list(g)) for k, g in it.groupby([1, 1, 2])],
        [(k, [v for v in g]) for k, g in it.groupby("aAb", key=str.lower)],
        list(it.pairwise([1, 2, 3])),
        list(it.zip_longest([1], [1, 2], fillvalue=0)),
        list(a),
        list(b),
        list(zip(it.count(), "ab")),
        next(it.count(5)),
        list(it.islice([1, 2, 3, 4], 1, None, 2)),
        dict(zip("ab", it.repeat(1))),
        list(it.chain(v for v in range(2))),
        list(it.product(*[range(2), "a"])),
        [len(list(g)) for g in it.tee(range(3), 3)],
    ]
    if sys.version_info >= (3, 12):
        out.append(list(it.batched([1, 2, 3], 2)))
    return x, out


class TO:
    def __init__(self, v):
        self.v = v

    def __eq__(self, o):
        return self.v == o.v

    def __lt__(self, o):
        return self.v < o.v


TO = functools.total_ordering(TO)


@functools.singledispatch
def disp(v):
    return "obj"


@disp.register
def _(v: int):
    return "int"


@disp.register(list)
def _(v):
    return "list"


@disp.register(torch.Tensor)
def _(v):
    return "tensor"


class Meth:
    def __init__(self):
        self.calls = 0

    @functools.cached_property
    def cp(self):
        self.calls += 1
        return self.calls + 10

    def base(self, a, b=2):
        return a * b

    pm = functools.partialmethod(base, b=5)

    @functools.singledispatchmethod
    def sd(self, v):
        return "o"

    @sd.register
    def _(self, v: int):
        return "i"


@functools.lru_cache(maxsize=None)
def cached_pow(n):
    return 2**n


CALLS = []


@functools.cache
def cached_side_effect(n):
    CALLS.append(n)
    return n + 1


def deco(f):
    @functools.wraps(f)
    def w(*a, **k):
        return f(*a, **k) + 1

    return w


@deco
def wrapped(v):
    "doc"
    return v * 2


@program(Meth())
def functools_all(x, m):
    p = functools.partial(torch.add, x, alpha=2)
    q = functools.partial(p, other=x)
    r = functools.partial(int, base=2)
    return (
        p(x),
        q(),
        r("101"),
        p.func is torch.add,
        p.keywords,
        functools.reduce(lambda a, b: a + b, [1, 2, 3], 10),
        m.cp,
        m.cp,
        m.pm(3),
        m.sd(1),
        m.sd("a"),
        disp(1),
        disp([]),
        disp("a"),
        disp(x),
        wrapped(x),
        wrapped.__name__,
        wrapped.__doc__,
        wrapped.__wrapped__(2),
        TO(1) <= TO(2),
        TO(1) >= TO(2),
        TO(2) > TO(1),
        sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a)),
        cached_pow(5),
        cached_pow(5),
        Meth().cp,
        m.calls,
    )


@program()
def operator_all(x):
    o = operator
    return (
        o.add(x, 1),
        o.itemgetter(1, 0)([5, 6]),
        o.attrgetter("shape", "dtype")(x),
        o.methodcaller("sum", 0)(x),
        o.methodcaller("upper")("a"),
        o.concat([1], [2]),
        o.contains([1], 1),
        o.countOf([1, 1], 1),
        o.indexOf([1, 2], 2),
        o.index(3),
        o.is_(1, None),
        o.is_not(x, None),
        o.iadd([1], [2]),
        o.imul(2, 3),
        o.inv(1),
        o.lshift(1, 2),
        o.matmul(x, x.T),
        o.mod(7, 4),
        o.neg(x),
        o.not_(0),
        o.or_(1, 2),
        o.pos(1),
        o.pow(2, 3),
        o.truth([1]),
        o.xor(1, 3),
        o.length_hint([1, 2]),
        o.getitem([1, 2], 1),
        o.ge(2, 1),
        o.eq(x, x),
        o.itemgetter(slice(1, 3))([1, 2, 3]),
        o.call(max, 1, 2),
    )


@program()
def math_all(x):
    m = math
    return x, (
        m.ceil(1.2),
        m.floor(1.8),
        m.trunc(-1.5),
        m.sqrt(4),
        m.isqrt(17),
        m.exp(1),
        m.log(8, 2),
        m.log2(8),
        m.log10(100),
        m.log1p(1),
        m.pow(2, 3),
        m.gcd(4, 6),
        m.lcm(4, 6),
        m.factorial(5),
        m.comb(5, 2),
        m.perm(5, 2),
        m.fsum([0.1] * 10),
        m.prod([1, 2, 3]),
        m.hypot(3, 4),
        m.dist([0, 0], [3, 4]),
        m.degrees(m.pi),
        m.radians(180),
        m.sin(1),
        m.atan2(1, 1),
        m.isclose(1, 1 + 1e-12),
        m.isnan(m.nan),
        m.isinf(m.inf),
        m.isfinite(1),
        m.copysign(1, -2),
        m.fabs(-1),
        m.fmod(7, 3),
        m.frexp(8),
        m.ldexp(0.5, 4),
        m.modf(1.5),
        m.remainder(7, 3),
        m.erf(1),
        m.gamma(5),
        m.tau,
        m.ulp(1.0),
        m.nextafter(1, 2),
        m.cbrt(8),
        m.exp2(3),
    )


@contextlib.contextmanager
def cm(log, n):
    log.append("e" + n)
    try:
        yield n
    except KeyError as e:
        log.append("K")
    finally:
        log.append("x" + n)


class CD(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *a):
        return False


@CD()
def decorated(v):
    return v + 1


@CD()
def decorated2(v):
    return v + 2


@program()
def contextlib_all(x):
    log = []
    with contextlib.ExitStack() as st:
        st.enter_context(cm(log, "a"))
        st.enter_context(cm(log, "b"))
        st.callback(log.append, "cb")
        st.push(lambda *a: log.append(a[0]))
        y = x + 1
    with contextlib.suppress(ValueError, KeyError):
        raise ValueError
    with contextlib.nullcontext(5) as five, cm(log, "z"):
        raise KeyError("inner")
    with contextlib.closing(types.SimpleNamespace(close=lambda: log.append("closed"))):
        pass
    with contextlib.ExitStack() as st:
        st.enter_context(cm(log, "k"))
        raise KeyError
    st2 = contextlib.ExitStack()
    st2.callback(log.append, 1)
    st3 = st2.pop_all()
    st2.close()
    st3.close()
    try:
        with cm(log, "r"):
            raise TypeError("t")
    except TypeError:
        log.append("T")
    return y, log, five, decorated(1), decorated2(1)


class Node:
    def __init__(self, v, kids=()):
        self.v = v
        self.kids = list(kids)


class WithCopy:
    def __init__(self, v):
        self.v = v

    def __copy__(self):
        return WithCopy(self.v + 1)

    def __deepcopy__(self, memo):
        return WithCopy(copy.deepcopy(self.v, memo))


@dataclasses.dataclass
class DC:
    a: list
    t: object = None


@program(Node(1, [Node(2), Node(X)]), {"a": [1, {2}], "t": X}, DC([1], X))
def copies(x, n, d, dc):
    a = copy.deepcopy(n)
    b = copy.copy(n)
    c = copy.deepcopy(d)
    e = copy.copy(d)
    f = copy.copy(dc)
    g = copy.deepcopy(dc)
    a.kids[0].v = 5
    b.v = 8
    c["a"].append(3)
    e["z"] = 1
    f.a.append(9)
    g.a.append(7)
    s = copy.deepcopy([x, x])
    w = copy.copy(WithCopy([1])) if False else copy.copy(WithCopy(1))
    q = copy.deepcopy(WithCopy([1]))
    y = copy.deepcopy(x)
    y.add_(1)
    z = copy.copy(x)
    return (
        a.kids[0].v,
        b.kids is n.kids,
        c["t"] + 1,
        s[0] is s[1],
        w.v,
        q.v,
        y,
        g.t,
        f.t is dc.t,
        copy.copy([1]),
        copy.deepcopy((1, [2])),
        copy.copy({1}),
        copy.deepcopy(None),
        copy.deepcopy(collections.OrderedDict(a=[1])),
        copy.deepcopy(collections.defaultdict(list, a=[1])),
        copy.deepcopy(collections.deque([1])),
        z,
    )


def copy_module(x, m):
    n = copy.deepcopy(m)
    return n(x)


class Base:
    pass


@program(Node(3))
def weak(x, n):
    r = weakref.ref(n)
    m = Node(4)
    w = weakref.ref(m)
    return x * r().v, w() is m, w().v, 1


class Proto(typing.Protocol):
    def go(self): ...


@typing.runtime_checkable
class RProto(typing.Protocol):
    def go(self): ...


class Goer:
    x: int
    y: typing.Optional[str]

    def go(self):
        return 1


@program(Goer())
def typings(x, g):
    return (
        x,
        typing.cast(int, 4),
        isinstance(g, RProto),
        isinstance(3, RProto),
        typing.get_type_hints(Goer)["x"],
        typing.get_origin(list[int]),
        typing.get_args(dict[str, int]),
        typing.Optional[int] == typing.Union[int, None],
        list[int] == list[int],
        isinstance(3, int | str),
        isinstance([], typing.List),
        typing.TYPE_CHECKING,
        issubclass(Goer, RProto),
        int | None,
    )


def sig(a, b=2, *c, d, e=5, **f):
    "ds"


@program()
def inspects(x):
    s = inspect.signature(sig)
    return (
        x,
        list(s.parameters),
        s.parameters["b"].default,
        s.parameters["c"].kind.name,
        inspect.isfunction(sig),
        inspect.isclass(Goer),
        inspect.getdoc(sig),
        inspect.getfullargspec(sig).args,
        str(s),
        s.bind(1, d=3).arguments,
        inspect.ismethod(Goer().go),
        dir(Goer())[-3:],
        callable(sig),
        inspect.getmodule(sig) is sys.modules[__name__],
        "a" in inspect.signature(sig).parameters,
        sig.__code__.co_varnames[:2],
        sig.__defaults__,
        sig.__kwdefaults__,
        sig.__doc__,
        inspect.iscoroutinefunction(sig),
        [p.name for p in s.parameters.values() if p.default is inspect.Parameter.empty],
    )


PAT = re.compile(r"(\w)(\d+)")


@program("a12 b3")
def regex(x, s):
    m = PAT.match(s)
    return (
        x,
        m.group(1),
        m.groups(),
        m.span(),
        PAT.findall(s),
        [q.group(2) for q in PAT.finditer(s)],
        PAT.sub(r"\2", s),
        re.sub("a", lambda q: q.group().upper(), s),
        re.split(" ", s),
        bool(re.search("z", s)),
        re.fullmatch("a.*", s) is not None,
        re.compile("b").search(s).start(),
        m[0],
        m.groupdict(),
        PAT.pattern,
        re.escape("."),
        re.findall("b", s),
        re.IGNORECASE,
        re.match("A", s, re.I).end(),
    )


@program({"a": 1, "b": [1, 2.5, None, True, "x"]})
def jsons(x, d):
    return (
        x,
        json.dumps(d),
        json.loads('{"a": [1, 2]}'),
        json.dumps({"z": 1, "a": 2}, sort_keys=True, indent=1),
        string.ascii_letters[:3],
        string.Template("$a b").substitute(a=1),
        string.capwords("ab cd"),
        string.digits,
    )


@program()
def simple_ns(x):
    n = types.SimpleNamespace(a=1)
    n.b = x
    m = types.MappingProxyType({"a": 1})
    return (
        n.a,
        n.b,
        m["a"],
        types.MethodType(lambda s, k: s + k, 3)(4),
        isinstance(lambda: 0, types.FunctionType),
        isinstance(len, types.BuiltinFunctionType),
        n == types.SimpleNamespace(a=1, b=n.b),
        "a" in m,
        list(m),
        isinstance((i for i in ()), types.GeneratorType),
        type(None) is types.NoneType,
    )


@program(3)
def recursion_data(x, n):
    def walk(t):
        if isinstance(t, (list, tuple)):
            return type(t)(walk(v) for v in t)
        if isinstance(t, dict):
            return {k: walk(v) for k, v in t.items()}
        return t + 1

    return walk([x, (x, 1), {"a": x, "b": [2]}])


def vararg(*args, **kwargs):
    return len(args), sorted(kwargs.items())


@program([1, 2], {"a": 1})
def calls(x, l, d):
    return (
        vararg(*l, *"ab", **d, b=2),
        vararg(*{1: 2}, **collections.OrderedDict(z=1)),
        vararg(*(i for i in range(2))),
        vararg(**{"q": x.shape[0]}),
        (lambda *a, k=1: (a, k))(1, k=2),
        (lambda a, /, b, *, c: a + b + c)(1, b=2, c=3),
        max(*l),
        print is print,
    )


def err(f):
    try:
        return f()
    except Exception as e:
        return type(e).__name__, str(e)


@program()
def error_texts(x):
    def two(a, b):
        pass

    def kwo(*, k):
        pass

    return x, [
        err(lambda: two(1)),
        err(lambda: two(1, 2, 3)),
        err(lambda: two(1, 2, b=3)),
        err(lambda: two(1, c=3)),
        err(kwo),
        err(lambda: [][1]),
        err(lambda: {}["a"]),
        err(lambda: int("z")),
        err(lambda: None.foo),
        err(lambda: 1 + "a"),
        err(lambda: "a" + 1),
        err(lambda: [1] < ["a"]),
        err(lambda: len(3)),
        err(lambda: (1, 2)[5]),
        err(lambda: iter(3)),
        err(lambda: next(iter([]))),
        err(lambda: [].pop()),
        err(lambda: {}.pop("a")),
        err(lambda: [].remove(1)),
        err(lambda: "a".index("z")),
        err(lambda: 1 / 0),
        err(lambda: float("q")),
        err(lambda: object().x),
        err(lambda: (1)()),
        err(lambda: int.nope),
        err(lambda: math.sqrt(-1)),
        err(lambda: {[]: 1}),
        err(lambda: set([[]])),
        err(lambda: Goer().nope),
        err(lambda: Goer(1)),
        err(lambda: max([])),
        err(lambda: [1, 2, 3].index(9)),
        err(lambda: dict([1])),
        err(lambda: range(1.5)),
        err(lambda: 3 in 5),
        err(lambda: 5[0]),
        err(lambda: Goer()[0]),
        err(lambda: -"a"),
        err(lambda: "a" @ 3),
        err(lambda: sum(["a"])),
        err(lambda: super()),
        err(lambda: (lambda a: a)(**{"a": 1, "b": 2})),
        err(lambda: [*3]),
        err(lambda: {**3}),
    ]
