# ruff: noqa
"""Classes made inside the frame, exceptions of every kind, and other statements. `PROGRAMS` lists
each with its arguments. (Not a test module.)
"""

from __future__ import annotations

import abc, collections, contextlib, dataclasses, enum, functools, sys, typing, operator
import torch

X = torch.arange(12.0).reshape(3, 4)
PROGRAMS = []


def program(*args):
    def declare(fn):
        PROGRAMS.append((fn, args))
        return fn

    return declare


@program()
def plain_class(x):
    k = 3

    class A:
        base = 2
        vals = [i for i in range(3)]

        def __init__(self, v):
            self.v = v

        def f(self):
            return self.v * self.base * k

        @property
        def p(self):
            return self.v + 1

        @classmethod
        def mk(cls, v):
            return cls(v)

        @staticmethod
        def s(a):
            return a + 1

    class B(A):
        base = 5

        def f(self):
            return super().f() + 1

    b = B.mk(x)
    A.extra = 7
    return (
        b.f(),
        b.p,
        B.s(1),
        isinstance(b, A),
        A.vals,
        B.__name__,
        b.extra,
        B.__mro__[1] is A,
        A.__qualname__,
    )


@program()
def module_class(x):
    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 2

        def forward(self, x):
            return x * self.n

    return M()(x)


@program()
def dataclass_in_frame(x):
    @dataclasses.dataclass
    class P:
        a: int
        t: object = None
        l: list = dataclasses.field(default_factory=list)

        def __post_init__(self):
            self.l.append(self.a)

    p = P(2, x)
    q = dataclasses.replace(p, a=5)
    return (
        p.t * p.a,
        q.a,
        q.l,
        P(1) == P(1),
        repr(P(3)),
        [f.name for f in dataclasses.fields(P)],
        dataclasses.asdict(P(4)),
    )


@program()
def frozen_slots(x):
    @dataclasses.dataclass(frozen=True, slots=True, order=True)
    class P:
        a: int
        b: int = 2

    p = P(1)
    err = None
    try:
        p.a = 4
    except dataclasses.FrozenInstanceError as e:
        err = str(e)
    return x * p.b, err, P(1) < P(2), hash(P(1)) == hash(P(1)), sorted([P(3), P(1)])[0].a


@program()
def enum_in_frame(x):
    class C(enum.Enum):
        R = 1
        G = 2

        @property
        def twice(self):
            return self.value * 2

    class F(enum.IntFlag):
        A = enum.auto()
        B = enum.auto()

    return (
        x * C.R.value,
        C(2).name,
        [c.value for c in C],
        C.G.twice,
        int(F.A | F.B),
        F.A in (F.A | F.B),
        C["R"] is C.R,
    )


@program()
def namedtuples_in_frame(x):
    P = collections.namedtuple("P", "a b")

    class Q(typing.NamedTuple):
        a: int
        b: object = 3

        def s(self):
            return self.a + self.b

    p = P(x, 2)
    return p.a * p.b, Q(1).s(), Q(1, 5)._replace(a=2).s(), p._fields, tuple(Q(1)), Q(4)._asdict()


@program()
def abc_in_frame(x):
    class B(abc.ABC):
        @abc.abstractmethod
        def f(self): ...

    class D(B):
        def f(self):
            return 3

    try:
        B()
    except TypeError as e:
        m = "abstract" in str(e)
    return x * D().f(), m, isinstance(D(), B)


class Meta(type):
    log = []

    @classmethod
    def __prepare__(mcs, name, bases, **kw):
        return {"prepared": name}

    def __new__(mcs, name, bases, ns, **kw):
        ns["added"] = kw.get("tag", 0)
        return super().__new__(mcs, name, bases, ns)

    def __init__(cls, name, bases, ns, **kw):
        super().__init__(name, bases, ns)
        cls.inited = True

    def __instancecheck__(cls, o):
        return o == 5 or super().__instancecheck__(o)

    def __getattr__(cls, n):
        if n.startswith("dyn"):
            return n
        raise AttributeError(n)

    def __contains__(cls, k):
        return k == "in"

    def __iter__(cls):
        return iter([1, 2])

    def __getitem__(cls, k):
        return k * 2


@program()
def meta_in_frame(x):
    class A(metaclass=Meta, tag=4):
        pass

    return (
        x * A.added,
        A.inited,
        A.prepared,
        isinstance(5, A),
        isinstance(6, A),
        isinstance(A(), A),
        A.dyn_a,
        "in" in A,
        list(A),
        A[4],
    )


class Reg:
    seen = []

    def __init_subclass__(cls, *, key=None, **kw):
        super().__init_subclass__(**kw)
        cls.key = key


class Named:
    def __set_name__(self, o, n):
        self.n = n

    def __get__(self, o, t=None):
        return self.n


@program()
def init_subclass_in_frame(x):
    class A(Reg, key=3):
        d = Named()

    return x * A.key, A.d, A().d


@program()
def type_call(x):
    A = type("A", (), {"f": lambda self, k: k + 1, "z": 3})
    B = type("B", (A,), {})
    return x * B().f(1), B.z, B.__name__


@program()
def generic_in_frame(x):
    T = typing.TypeVar("T")

    class G(typing.Generic[T]):
        def __init__(self, v):
            self.v = v

    class Pr(typing.Protocol):
        def go(self): ...

    return x * G[int](3).v, G(2).v


@program()
def class_deco(x):
    def deco(c):
        c.k = 4
        return c

    @deco
    class A:
        n: int = 3
        __slots__ = ()

    @functools.total_ordering
    class O:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

        def __lt__(s, o):
            return s.v < o.v

    return x * A.k, A.__annotations__, O(1) <= O(2), O(3) > O(2)


@program()
def exception_class(x):
    class E(ValueError):
        def __init__(self, m, code):
            super().__init__(m)
            self.code = code

    try:
        raise E("hi", 4)
    except ValueError as e:
        return x * e.code, str(e), e.args


@program()
def autograd_free(x):
    class Ctx:
        def __enter__(self):
            return 2

        def __exit__(self, *a):
            return True

    with Ctx() as k:
        x = x * k
        raise KeyError
    return x


@program()
def except_star(x):
    log = []
    try:
        try:
            raise ExceptionGroup("g", [ValueError("a"), KeyError("b"), TypeError("c")])
        except* ValueError as e:
            log.append(("V", [str(i) for i in e.exceptions]))
        except* KeyError as e:
            log.append(("K", len(e.exceptions)))
    except ExceptionGroup as g:
        log.append([type(i).__name__ for i in g.exceptions])
        log.append(g.message)
    try:
        raise ValueError("naked")
    except* ValueError as e:
        log.append(type(e).__name__)
    try:
        try:
            raise ExceptionGroup(
                "g", [ValueError("a"), ExceptionGroup("h", [KeyError("b"), ValueError("z")])]
            )
        except* ValueError as e:
            raise
        except* KeyError as e:
            raise RuntimeError("new") from e
    except ExceptionGroup as g:
        log.append(repr(g))
    try:
        raise ExceptionGroup("q", [OSError(1)])
    except* (OSError, KeyError):
        log.append("done")
    else:
        log.append("no")
    finally:
        log.append("fin")
    return x, log


@program()
def chaining(x):
    out = []
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("b")
    except ValueError as e:
        out.append((type(e.__context__).__name__, e.__cause__, e.__suppress_context__))
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("b") from None
    except ValueError as e:
        out.append((type(e.__context__).__name__, e.__cause__, e.__suppress_context__))
    e1 = ValueError("one")
    try:
        try:
            raise KeyError("k")
        except KeyError as k:
            raise e1
    except ValueError as e:
        out.append(e is e1 and type(e.__context__).__name__)
    try:
        try:
            {}["x"]
        finally:
            [][1]
    except IndexError as e:
        out.append(type(e.__context__).__name__)
    e = ValueError("n")
    e.add_note("note")
    out.append(e.__notes__)
    return x, out


@program()
def generator_throw_close(x):
    log = []

    def g():
        try:
            while True:
                try:
                    got = yield len(log)
                    log.append(got)
                except ValueError as e:
                    log.append("V" + str(e))
        except GeneratorExit:
            log.append("exit")
            raise
        finally:
            log.append("fin")

    def outer():
        r = yield from g()
        log.append(r)

    it = outer()
    next(it)
    it.send(3)
    it.throw(ValueError("q"))
    it.close()
    try:
        next(it)
    except StopIteration:
        log.append("stop")

    def sub():
        yield 1
        return "ret"

    def top():
        v = yield from sub()
        yield v
        w = yield from [7, 8]
        yield w

    return x, log, list(top())


@program()
def comp_cells(x):
    fs = [lambda: i for i in range(3)]
    gs = [lambda i=i: i for i in range(3)]
    nested = {k: [(lambda: (k, j)) for j in range(2)] for k in "ab"}
    return (
        x,
        [f() for f in fs],
        [g() for g in gs],
        {k: [f() for f in v] for k, v in nested.items()},
        [[y for y in range(z)] for z in range(3)],
    )


@program(3)
def locals_and_del(x, n):
    a = 1
    del a
    try:
        a
    except UnboundLocalError as e:
        m = str(e)
    try:
        undefined_name_here
    except NameError as e:
        m2 = str(e)
    d = dict(locals())
    return x, m, m2, sorted(k for k in d)


@program()
def imports(x):
    import os.path as p
    import collections.abc
    from math import sqrt as s, pi
    from collections import OrderedDict as OD
    import torch.nn.functional as F

    try:
        import nope_nothing
    except ImportError as e:
        m = str(e)
    try:
        from math import nope
    except ImportError as e:
        m2 = str(e)[:25]
    return (
        F.relu(x) * s(4),
        p.join("a", "b"),
        m,
        m2,
        isinstance([], collections.abc.Sequence),
        OD(a=1),
        pi,
    )


@program()
def fstrings(x):
    v, w = 3.14159, 8
    return (
        f"{v:{w}.{2}f}|{v!r}|{v=}|{x.shape}|{x.dtype!s:>20}|{'a':*^7}|{w:#x}|{1000000:,}|"
        f"{True}|{None}|{[1, 'a']}|{(1,)!r:>8}|{x.size(0)}",
        f"{{}}",
        f"{x.ndim:02d}",
        "%5.2f|%s|%r" % (v, w, "q"),
        "{:>{}}".format("a", 5),
        "{0[a]} {1.real}".format({"a": 1}, 3),
    )


@program()
def attributes_of_metaclasses(x):
    class Meta(type):
        pass

    found = []
    for owner in (type, Meta, Meta("A", (), {"__annotations__": {"a": 1}})):
        for name in ("__abstractmethods__", "__annotations__", "__base__", "__text_signature__"):
            try:
                value = getattr(owner, name)
            except AttributeError:
                value = AttributeError
            found.append((owner.__name__, name, repr(value)))
    return x, found


@program()
def frames_below_a_generator_that_is_thrown_into(x):
    def names():
        found, frame = [], sys._getframe(1)
        while frame.f_code.co_name != "frames_below_a_generator_that_is_thrown_into":
            found.append(frame.f_code.co_name)
            frame = frame.f_back
        return found

    def inner(log):
        try:
            yield
        except KeyError:
            log.append(names())
        yield
        log.append(names())

    def outer(log):
        yield from inner(log)
        log.append(names())

    def throw(generator):
        return generator.throw(KeyError)

    log = []
    generator = outer(log)
    next(generator)
    throw(generator)
    list(generator)
    return x, log
