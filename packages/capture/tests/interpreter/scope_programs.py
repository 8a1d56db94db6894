# ruff: noqa
"""Programs of comprehensions, cells, generators, classes and calls in each other, to be suspended
anywhere. (Not a test module.)
"""

from __future__ import annotations

import functools

import torch
from block_programs import CM

X = torch.arange(12.0).reshape(3, 4)
PROGRAMS = []


def program(*args):
    def declare(fn):
        PROGRAMS.append((fn, args))
        return fn

    return declare


@program()
def comp_inlined(x):
    i = 5
    a = [x * i for i in range(3)]
    b = {i: x + i for i in (1, 2)}
    c = {i % 2 for i in range(4) if i}
    d = [[i + j for j in range(i)] for i in range(3)]
    return a, b, c, d, i


@program()
def comp_unbound(x):
    log = []
    a = [v for v in range(3)]
    try:
        v
    except UnboundLocalError as e:
        log.append(str(e))
    v = 1
    return x + sum(a), log, v


@program()
def comp_unbound_del(x):
    k = 3
    del k
    out = [k * x for k in range(2)]
    try:
        out.append(k)
    except UnboundLocalError as e:
        out.append(type(e).__name__)
    return out


@program()
def comp_cell(x):
    i = 7
    fs = [lambda: i * 2 for i in range(3)]
    gs = [(lambda j=j: x + j + i) for j in range(2)]

    def h():
        return i

    return [f() for f in fs], [g() for g in gs], h(), i


@program()
def comp_outer_cell(x):
    def g():
        n = [(lambda: x) for x in range(3)]
        return [f() for f in n]

    def h():
        z = x + 1
        return [x * k + z for k in range(2)]

    return g(), h()


@program()
def comp_free_shadow(x):
    k = 4

    def inner():
        a = [k for k in range(3)]
        return a

    def inner2():
        a = [[k + m for m in range(2)] for k in range(2)]
        return a, k if False else None

    return inner(), k, x


@program()
def comp_walrus(x):
    a = [last := v * 2 for v in range(3)]
    if any((found := v) > 1 for v in a):
        x = x + found
    return a, last, x


@program()
def gens(x):
    log = []

    def inner(n):
        try:
            got = None
            for i in range(n):
                got = yield i
                log.append(got)
        except KeyError as e:
            log.append(("caught", str(e)))
            got = yield "after"
        finally:
            log.append("closed")
        return got

    def outer(n):
        r = yield from inner(n)
        log.append(("r", r))
        yield "end"

    g = outer(3)
    a = next(g)
    b = g.send("s")
    c = g.throw(KeyError("k"))
    d = list(g)
    h = outer(2)
    next(h)
    h.close()
    k = outer(2)
    z = [v for v in k]
    return x, a, b, c, d, z, log


@program()
def gens_lazy(x):
    data = (x + i for i in range(4))
    total = x * 0
    for t in data:
        total = total + t
    pairs = list(zip((i for i in range(3)), (j * j for j in range(5))))

    def tree(n):
        if n:
            yield from tree(n - 1)
            yield n
            yield from tree(n - 1)

    return total, pairs, list(tree(3)), sum(a * b for a in (1, 2) for b in (3, 4))


@program()
def gen_stopiteration(x):
    def g():
        yield 1
        raise StopIteration(3)

    log = []
    try:
        list(g())
    except RuntimeError as e:
        log.append((str(e), type(e.__cause__).__name__, type(e.__context__).__name__))

    def d():
        try:
            r = yield from iter([1, 2])
        except ValueError:
            yield "v"

    it = d()
    next(it)
    log.append(it.throw(ValueError()))
    return x, log


@program()
def fstrings(x):
    n, w, s = 3, 8, "ab"
    return (
        x,
        f"{n}",
        f"{s!r}",
        f"{n:>{w}}",
        f"{s!s:<{w}}|",
        f"{n=}",
        f"{x.shape[0]}{n}{s!a}",
        f"{2.5:.{n}f}",
    )


@program()
def kwcalls(x):
    def f(a, b=2, *c, d, e=5, **k):
        return (a, b, c, d, e, k)

    class K:
        def m(self, a, *, b=1):
            return (a, b)

        def __call__(self, *a, **k):
            return (a, k)

    o = K()
    return (
        x,
        f(1, d=2),
        f(1, 2, 3, d=4, z=5),
        o.m(1, b=2),
        o.m(a=3),
        o(1, q=2),
        f(*[1, 2], **{"d": 3}),
        torch.add(x, x, alpha=2),
    )


@program()
def supers(x):
    class A:
        def __init__(self, v):
            self.v = v

        def m(self):
            return self.v

        @property
        def p(self):
            return self.v * 2

        @classmethod
        def c(cls):
            return cls.__name__

    class B(A):
        def __init__(self, v):
            super().__init__(v + 1)
            self.w = v

        def m(self):
            return super().m() + super(B, self).m()

        @property
        def p(self):
            return super().p + 1

        @classmethod
        def c(cls):
            return super().c() + "!"

        def s(self):
            t = super()
            return t.m()

    b = B(3)
    return x + b.v, b.m(), b.p, B.c(), b.s(), b.w


@program()
def cells(x):
    count = 0

    def bump(by=1):
        nonlocal count
        count += by
        return count

    def two():
        nonlocal x
        x = x + 1

        def three():
            nonlocal count
            del count
            count = 40

        three()
        return x

    bump()
    bump(2)
    y = two()
    try:
        late
    except NameError as e:
        msg = str(e)

    def uses():
        return late

    try:
        uses()
    except NameError as e:
        msg += str(e)
    late = 3
    return x, y, count, msg, uses()


@program()
def assigns(x):
    a, b = 1, 2
    a, b = b, a
    a, b, c = b, a, a + b
    (p, (q, r)), *rest = (1, (2, 3)), 4, 5
    lst = [1, 2, 3, 4]
    lst[0], lst[1] = lst[1], lst[0]
    lst[1:3] = [9]
    del lst[0]
    d = {}
    d["a"] = d["b"] = x
    d.setdefault("c", []).append(a)
    lst += [7]
    x = x
    x += 1
    return a, b, c, p, q, r, rest, lst, d, x, 1 < a <= 2 < c, a if b else c, not a, a and b or c


@program()
def imports(x):
    import math
    from collections import OrderedDict as OD, deque
    import os.path as p

    return x * math.pi, OD(a=1), list(deque([1])), p.basename("a/b")


@program()
def classes(x):
    T = 3

    class A:
        y = T
        z = [y for _ in range(2)] if False else [1 for _ in range(2)]

        def m(self):
            self.q = self.y
            return __class__.__name__

        class In:
            w = 4

    a = A()
    return x + A.y, A.z, a.m(), a.q, A.In.w


@program()
def lambdas(x):
    fs = {k: (lambda v, k=k: v * k) for k in (1, 2)}
    return (
        [fs[k](x) for k in fs],
        sorted([3, 1, 2], key=lambda v: -v),
        (lambda *a, **k: (a, k))(1, b=2),
        functools.reduce(lambda a, b: a + b, [1, 2, 3]),
    )


@program()
def star_building(x):
    a = [1, 2]
    d = {"a": 1}
    return (
        [*a, 3, *a],
        (*a, *"xy"),
        {*a, 9},
        {**d, "b": x, **{"c": 2}},
        "%s" % (a,),
        [*range(2)],
        print,
    )


@program()
def type_params(x):
    class Box:
        __static = 1

        def __init__(self, v):
            self.v = v

        def get(self):
            return self.v, self.__static

    b = Box(x)
    return b.get()


@program()
def deep_gens(x):
    log = []

    class It:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n == 0:
                raise StopIteration("it")
            self.n -= 1
            return self.n

        def throw(self, e):
            log.append(type(e).__name__)
            return "thrown"

        def close(self):
            log.append("close")

    def a():
        try:
            r = yield from It(2)
            log.append(r)
            with CM(log):
                yield x + 1
        finally:
            log.append("a")
        return 5

    def b():
        v = yield from a()
        try:
            w = yield v
            while w:
                w = yield w - 1
        except GeneratorExit:
            log.append("exit")
            raise

    g = b()
    o = [next(g), g.throw(ValueError()), next(g), next(g), next(g), g.send(3), g.send(1)]
    g.close()
    h = b()
    next(h)
    h.close()
    return o, log


@program()
def gen_in_try(x):
    log = []

    def g(n):
        for i in range(n):
            try:
                yield i * x
            finally:
                log.append(i)

    for v in g(3):
        if v.shape[0] == 2:
            break
        log.append("b")
    for v in g(2):
        try:
            raise KeyError
        except KeyError:
            continue
        finally:
            log.append("c")
    a, *b = g(3)
    return a, b, log, {k: v for k, v in zip("ab", g(2))}


@program()
def kw_and_star(x):
    def f(*a, k=1, **kw):
        return a, k, kw

    n = 3
    return (
        f(*[n, x], k=n),
        f(n, *(), **{"z": n}, k=2),
        f(**dict(q=[i for i in range(n)])),
        sorted([3, 1], key=lambda v: -v, reverse=n > 4),
        max((1, 2), default=n),
        print and "{a}{b}".format(a=n, b=2),
        dict(a=n, b=x),
    )


@program()
def chained(x):
    n = x.shape[0]
    a = n if n > 5 else (n > 2 and "two" or "small")
    b = 1 < n < 5, n == 3 != 4, n in (1, 3) and n not in [2], not n, n is not None
    c = [n][0] if [] else {}.get("q", n)
    z = n or 1
    z &= 7
    z **= 2
    z //= 2
    z <<= 1
    z @= (
        torch.ones(())
        if False
        else 2
        if False
        else 1
        if False
        else x[0] @ x[0]
        if False
        else z
        if False
        else _M()
    )
    return x, a, b, c, z


class _M:
    def __rmatmul__(self, o):
        return ("m", o)


@program()
def delete_things(x):
    class O:
        pass

    o = O()
    o.a = 1
    o.b = 2
    d = {"a": 1, "b": 2}
    l = list(range(6))
    del o.a, d["a"], l[0], l[1:3]
    y = 1

    def f():
        nonlocal y
        del y

    f()
    try:
        y
    except NameError as e:
        m = str(e)
    del m, l
    try:
        m
    except UnboundLocalError as e:
        t = str(e)
    return x, vars(o), d, t
