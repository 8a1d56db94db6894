# ruff: noqa
"""Programs in less usual forms of Python. `PROGRAMS` lists each with its arguments. (Not a test
module.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import typing

import torch

X = torch.arange(12.0).reshape(3, 4)
PROGRAMS = []


def program(*args):
    def declare(fn):
        PROGRAMS.append((fn, args))
        return fn

    return declare


@program()
def decorators(x):
    def deco(f):
        @functools.wraps(f)
        def w(*a, **k):
            return f(*a, **k) + 1

        return w

    @deco
    def g(a):
        return a * 2

    return g(x), g.__name__


@program()
def exc_group_free(x):
    try:
        try:
            raise ValueError("a")
        finally:
            x = x + 1
    except ValueError:
        x = x * 2
    for i in range(3):
        try:
            if i == 1:
                continue
            if i == 2:
                break
        finally:
            x = x + i
    return x


@program()
def nested_with(x):
    with contextlib.ExitStack() as st:
        st.callback(lambda: None)
        st.enter_context(contextlib.nullcontext())
        y = x + 1
    with contextlib.suppress(KeyError):
        {}["a"]
    return y


@program()
def kwonly(x, *, a=1, b=2):
    return x + a * b


@program()
def lambda_default(x):
    fs = [lambda v, i=i: v + i for i in range(3)]
    return functools.reduce(lambda acc, f: f(acc), fs, x)


@program()
def recursion(x):
    def fact(n):
        return 1 if n < 2 else n * fact(n - 1)

    return x * fact(5)


class Meta(type):
    def __call__(cls, *a):
        o = super().__call__(*a)
        o.tag = "m"
        return o

    def __len__(cls):
        return 7


class WithMeta(metaclass=Meta):
    def __init__(self, a):
        self.a = a


@program()
def metaclasses(x):
    o = WithMeta(3)
    return x + o.a, o.tag, len(WithMeta)


class Desc:
    def __set_name__(self, o, n):
        self.n = "_" + n

    def __get__(self, o, t=None):
        return self if o is None else getattr(o, self.n, 0) + 1

    def __set__(self, o, v):
        setattr(o, self.n, v * 2)


class UsesDesc:
    d = Desc()


@program()
def descriptors(x):
    u = UsesDesc()
    u.d = 5
    return x * u.d, type(UsesDesc.d).__name__


T = typing.TypeVar("T")


class G(typing.Generic[T]):
    def __init__(self, v: T):
        self.v = v


@program()
def generics(x):
    return x + G[int](3).v, typing.cast(int, 4), typing.Optional[int] is not None


class F(enum.IntFlag):
    A = 1
    B = 2


@program()
def flags(x):
    return x * (F.A | F.B), F.A in (F.A | F.B), F(3).value, [m.name for m in F]


@program()
def chain_iter(x):
    it = iter([1, 2, 3])
    a = next(it)
    rest = list(it)
    z = zip(*[(1, 2), (3, 4)])
    return (
        x + a,
        rest,
        list(z),
        dict(zip("ab", [x, x])),
        list(map(torch.sin, [x, x])),
        list(map(int.__add__, [1], [2])),
    )


@program()
def string_ops(x):
    return (
        "a,b".split(","),
        "x".join(map(str, range(3))),
        f"{x.shape[-1]:>5}",
        "{} {a}".format(1, a=2),
        "abc"[::-1],
        "%s" % (x.shape,),
        b"ab".decode(),
        "a" in "abc",
        "A".lower() * 3,
    )


@program()
def setops(x):
    s = {1, 2, 3}
    s.add(4)
    s -= {1}
    return s & {2, 4}, s | {9}, len(s), sorted(s), {k for k in s if k > 2}


@program()
def dictcomp_unpack(x):
    d = {"a": 1}
    e = {**d, "b": 2}
    f = d | e
    f |= {"c": x}
    ((k, v),) = d.items()
    return e, f, k, v, [*d], list(d.items()), {v: k for k, v in d.items()}


@program()
def star_expr(x):
    def f(*a, **k):
        return len(a), sorted(k)

    return f(*[1, 2], *(3,), a=1, **{"b": 2}), x


@program()
def tensor_iter(x):
    a, b, c = x
    r = [v.sum() for v in x]
    p, q = x.shape
    first, *o = x.shape
    return a + b + c, r, p * q, first, o, torch.stack(list(x)), tuple(x[0])


@program()
def cond_expr(x):
    y = x if x.ndim == 2 and not x.is_cuda else None
    assert y is not None, f"bad {x.shape}"
    return y or 1 if x.ndim == 0 else y


@program()
def glob_mut(x):
    global GM
    GM = 5
    del GM
    return x


@program()
def dataclass_order(x):
    return x


@dataclasses.dataclass(order=True)
class O:
    k: int
    t: object = dataclasses.field(compare=False, default=None)


@program()
def ordering(x):
    l = [O(3, x), O(1), O(2)]
    return (
        sorted(l)[0].k,
        max(l).k,
        min(l, key=lambda o: -o.k).k,
        l[0] > l[1],
        sorted(l, reverse=True)[0].t,
    )


@program([O(3), O(1)])
def ordering_known(x, l):
    l[0].k = 0
    return x + sorted(l)[0].k, max(l).k


class NT(typing.NamedTuple):
    a: int
    b: typing.Any = None

    def tot(self):
        return self.a * 2


@program(NT(4, X))
def ntup(x, n):
    return n.tot(), n.b + x, n._asdict()["a"], isinstance(n, tuple), NT(*n), n


@program()
def getattr_dyn(x):
    return (
        getattr(torch, "sin")(x),
        getattr(x, "sum")(dim=0),
        hasattr(torch.nn.functional, "nope"),
        getattr(x, "shape")[0],
    )


@program()
def try_else(x):
    log = []
    for e in (ValueError, TypeError, None):
        try:
            if e:
                raise e("m")
        except (ValueError,) as er:
            log.append(repr(er))
        except TypeError:
            log.append("T")
        else:
            log.append("else")
        finally:
            log.append("f")
    return x, log


@program()
def gen_expr_nested(x):
    return (
        [list(j * i for j in range(i)) for i in range(3)],
        sum(a * b for a in (1, 2) for b in (3, 4)),
        any(v is None for v in [1, None]),
        x,
    )


@program()
def closures_cell(x):
    fs = []
    for i in range(3):

        def f():
            return i

        fs.append(f)
    return [f() for f in fs], x


@program()
def tuple_ops(x):
    return (
        (1, 2) + (3,),
        (1, 2) * 2,
        (1, 2) < (1, 3),
        (x,)[0],
        (1, 2) == (1, 2),
        x.shape == (3, 4),
        x.shape + (1,),
        list(x.shape),
    )


@program()
def slicing_obj(x):
    s = slice(1, None)
    return x[s], x[(s, 0)], [1, 2, 3][s], s.start, x[tuple([0, 1])]


@program(
    torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4)}),
    torch.nn.ParameterList([torch.nn.Parameter(torch.ones(4))]),
)
def containers_nn(x, d, p):
    return (
        d["a"](x),
        [k for k in d],
        list(d.keys()),
        p[0] + x,
        len(p),
        [q.shape for q in d.parameters()],
        "a" in d,
        [n for n, _ in d.named_modules()],
        sum(q.numel() for q in d.parameters()),
    )


class PM(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.l = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
        s.emb = torch.nn.Embedding(5, 4)
        s.register_buffer("b", torch.ones(4), persistent=False)

    def forward(s, x):
        return s.l(x) + s.emb(torch.tensor([0])) + s.b


@program(PM())
def modmix(x, m):
    return m(x)


@program()
def seqs(x):
    m = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())
    return m(x), len(m), m[0](x), m[-1](x)


@program([1, 2, 3])
def list_mut_iter(x, l):
    for i, v in enumerate(l):
        l[i] = v * 2
    l.sort(reverse=True)
    l.append(x.shape[0])
    return sum(l), x
