# ruff: noqa
"""The methods of builtin and library containers, of objects made in the frame and of objects that
existed before the call. `PROGRAMS` lists each with its arguments. (Not a test module.)
"""

from __future__ import annotations

import abc, collections, contextlib, dataclasses, enum, functools, typing, operator, itertools
import torch
from collections import deque, OrderedDict, defaultdict, Counter, ChainMap

X = torch.arange(12.0).reshape(3, 4)
PROGRAMS = []


def program(*args):
    def declare(fn):
        PROGRAMS.append((fn, args))
        return fn

    return declare


@program([3, 1, 2], [X, 5])
def list_outside(x, l, m):
    l.sort()
    l.reverse()
    l.insert(1, 9)
    a = l.pop(0)
    l.remove(9)
    l.extend((7, 8))
    l += [1]
    c = l.copy()
    l.clear()
    l.append(x)
    m[0] = x + 1
    del m[1:]
    m[:0] = [4]
    b = [1, 2, 3, 4, 5]
    b[::2] = [0, 0, 0]
    del b[::2]
    b *= 2
    return (
        a,
        c,
        c.index(7),
        c.count(1),
        b,
        7 in c,
        l,
        m,
        c[-1],
        c[1:],
        sorted(c),
        max(c),
        sum(c),
        list(reversed(c)),
        c == [1],
        c < [5],
        len(l),
    )


@program({"a": 1, "b": X, "c": {"d": [1]}})
def dict_outside(x, d):
    r = [
        d.setdefault("z", 4),
        d.setdefault("a", 9),
        d.pop("b").sum(),
        d.pop("nope", None),
        d.popitem(),
    ]
    d.update(k=1, **{"l": 2})
    d.update([("q", 3)])
    d.update({"q": 4})
    d |= {"r": x}
    e = d | {"s": 1}
    f = {"t": 1} | d
    d["c"]["d"].append(5)
    d["c"].setdefault("l", []).append(1)
    del d["a"]
    return (
        r,
        list(d),
        list(d.values())[-1],
        list(d.items())[0],
        e.keys() & {"s", "k"},
        sorted(e.keys() | {"zz"}),
        "k" in d,
        d.get("k"),
        d.get("no", 3),
        len(f),
        dict(d) == d,
        {**d}["q"],
        list(reversed(d)),
        d.copy() is d,
        dict.fromkeys("ab", 1),
        bool(d),
        next(iter(d)),
        d.keys() - {"k"},
        {"k": 1}.items() <= d.items(),
        d.keys().isdisjoint({"a"}),
    )


@program({1, 2, 3}, frozenset([3, 4]))
def set_outside(x, s, f):
    s.add(5)
    s.discard(9)
    s.remove(1)
    s.update([7], {8})
    s |= {10}
    s &= {2, 3, 5, 10}
    s -= {10}
    s ^= {2, 99}
    return (
        s | f,
        s & f,
        s - f,
        s ^ f,
        s.union([1], [2]),
        s.intersection(f),
        s.difference(f),
        s.symmetric_difference(f),
        s.issubset({3, 5, 99, 1}),
        s.issuperset([3]),
        s.isdisjoint(f),
        s <= f,
        len(s),
        3 in s,
        sorted(s),
        s.copy(),
        f | {1},
        s == {3},
        max(s),
        {frozenset([1])},
        f.union([9]),
        bool(s),
    )


@program({torch.float32, int, None}, {torch.float32: 1, (1, "a"): 2, int: 3})
def set_odd_items(x, s, d):
    return x.dtype in s, int in s, d[torch.float32], d[(1, "a")], d[int]


@program(deque([1, 2, 3], maxlen=4), deque([X]))
def deque_outside(x, d, e):
    d.append(4)
    d.append(5)
    d.appendleft(0)
    d.rotate(1)
    a = d.pop()
    b = d.popleft()
    d.extend([8])
    d.extendleft([9])
    d.remove(8)
    d.insert(1, 77)
    e.append(x + 1)
    d[0] = 6
    return (
        a,
        b,
        list(d),
        d[0],
        d[-1],
        len(d),
        d.maxlen,
        d.count(2),
        d.index(77),
        77 in d,
        d.copy(),
        list(reversed(d)),
        bool(d),
        e[0] + e[1],
        sum(d),
        [v for v in d],
        d,
    )


@program(OrderedDict(a=1, b=2, c=3))
def ordered_outside(x, d):
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    p = d.popitem(last=False)
    d["z"] = x
    q = d.popitem()
    d.update(m=1)
    d.setdefault("n", 2)
    return (
        p,
        q[0],
        list(d.items()),
        list(reversed(d)),
        d == OrderedDict(b=2),
        d | {"u": 1},
        OrderedDict.fromkeys("xy"),
        d.copy(),
        d,
    )


@program(defaultdict(list, a=[1]), defaultdict(int))
def default_outside(x, d, n):
    d["a"].append(2)
    d["b"].append(x)
    n["k"] += 1
    n["k"] += 1
    n["j"]
    try:
        defaultdict(None)["q"]
    except KeyError as e:
        m = e.args
    f = defaultdict(lambda: 5)
    f["z"]
    return (
        d["a"],
        n["k"],
        dict(n),
        "c" in d,
        d.get("c"),
        m,
        f["y"],
        d.default_factory is list,
        d,
        n,
        n.copy(),
    )


@program(Counter("abca"))
def counter_outside(x, c):
    c.update("aa")
    c["z"] += 1
    c.subtract({"a": 1})
    return (
        c.most_common(1),
        c["a"],
        c["nope"],
        sorted(c.elements()),
        c + Counter("a"),
        c - Counter("a"),
        c & Counter("ab"),
        c | Counter("q"),
        c.total(),
        Counter(a=1, b=2),
        dict(c),
        len(c),
        +c,
        c,
    )


@program({"a": 1}, {"b": 2})
def chainmap(x, a, b):
    m = ChainMap(a, b)
    m["c"] = 3
    ch = m.new_child({"a": 9})
    return (
        m["b"],
        m["a"],
        ch["a"],
        list(m),
        len(m),
        dict(m),
        m.maps[0] is a,
        "b" in m,
        m.get("q"),
        ch.parents["a"],
        list(ch.items()),
    )


NT = collections.namedtuple("NT", "a b", defaults=[4])


@program(NT(1, X))
def nt_outside(x, n):
    a, b = n
    return (
        n.a,
        n[1] + x,
        n._replace(a=2),
        n._asdict()["a"],
        n._fields,
        NT._make([1, 2]),
        NT(3),
        NT(1, 2).count(1),
        len(n),
        a,
        n[:1],
        n + (1,),
        NT(1, 2) == (1, 2),
        hash(NT(1, 2)) == hash((1, 2)),
        NT(1) < NT(2),
        isinstance(n, NT),
        n._field_defaults,
    )


class Color(enum.Enum):
    R = 1
    G = "g"

    @classmethod
    def dflt(cls):
        return cls.R

    def low(self):
        return self.name.lower()

    @property
    def pr(self):
        return self.value


class Perm(enum.Flag):
    A = 1
    B = 2
    C = 4


class SE(str, enum.Enum):
    X = "x"
    Y = "y"


class IE(enum.IntEnum):
    ONE = 1
    TWO = 2


@program(Color.G, Perm.A | Perm.B, SE.X, IE.TWO)
def enums_outside(x, c, p, s, i):
    match c:
        case Color.R:
            r = "r"
        case Color.G:
            r = "g"
    return (
        x * i,
        c.name,
        c.value,
        c.low(),
        c.pr,
        Color.dflt(),
        c is Color.G,
        c == Color.R,
        c in (Color.R,),
        Color["R"],
        Color("g"),
        [e.name for e in Color],
        len(Color),
        r,
        Perm.A in p,
        bool(p & Perm.C),
        p ^ Perm.A,
        ~p & Perm.C,
        s == "x",
        s.upper(),
        f"{s.value}",
        i + 1,
        i == 2,
        i > IE.ONE,
        sorted(IE),
        {c: 1}[Color.G],
        isinstance(c, Color),
        str(c),
        repr(c),
        hash(c) == hash(Color.G),
        Color.__members__["R"],
        c.R if False else 0,
        SE("y"),
        [*Perm],
        p.value,
        (Perm.A | Perm.C).name,
    )


@program(range(2, 10, 3), slice(1, 3))
def ranges(x, r, s):
    return (
        list(r),
        r[1],
        r[-1],
        len(r),
        5 in r,
        r.start,
        r.stop,
        r.step,
        r.index(5),
        r.count(5),
        r[::-1],
        list(reversed(r)),
        x[s],
        [1, 2, 3, 4][s],
        s.start,
        s.indices(2),
        slice(None),
        r == range(2, 10, 3),
        sum(r),
        range(3)[1:],
        bool(range(0)),
        max(r),
        x[r.start - 1],
    )


@program("Hello World", b"ab\x00")
def texts(x, s, b):
    ba = bytearray(b"xyz")
    ba2 = bytearray(b)
    ba2.append(65)
    ba2.extend(b"q")
    ba2[0] = 66
    return (
        s.upper(),
        s.lower(),
        s.title(),
        s.swapcase(),
        s.casefold(),
        s.split(),
        s.rsplit("o", 1),
        s.partition(" "),
        s.rpartition("o"),
        s.find("o"),
        s.rfind("o"),
        s.index("W"),
        s.count("l"),
        s.replace("l", "L"),
        s.startswith(("He", "x")),
        s.endswith("d"),
        s.strip("Hd"),
        s.lstrip("H"),
        s.rstrip("d"),
        s.center(20, "*"),
        s.ljust(15, "."),
        s.rjust(15),
        s.zfill(15),
        s.isalpha(),
        s.isdigit(),
        s.encode(),
        s.removeprefix("He"),
        s.removesuffix("ld"),
        s.splitlines(),
        s.translate(str.maketrans("lo", "01")),
        s[::-1],
        s * 2,
        s + "!",
        "W" in s,
        s.expandtabs(),
        s.format(),
        "{:>5}".format(3),
        "{a}".format_map({"a": 1}),
        s.isidentifier(),
        min(s),
        sorted(s)[0],
        ",".join("abc"),
        b.decode("latin1"),
        b.hex(),
        bytes.fromhex("ff"),
        b + b"c",
        b[0],
        b[1:],
        list(b),
        bytes(3),
        bytes([1, 2]),
        b.find(b"b"),
        ba[0],
        len(ba),
        bytes(ba2),
        ba2.decode("latin1"),
        int.from_bytes(b"\x01\x02", "big"),
        (258).to_bytes(2, "little"),
        ord("a"),
        chr(98),
        ascii("é"),
        s > "A",
        hash(s) == hash("Hello World"),
    )


@program(7, 2.5, 1 + 2j)
def numbers(x, i, f, c):
    return (
        i.bit_length(),
        i.bit_count(),
        (-i).__abs__(),
        i.conjugate(),
        i.real,
        i.numerator,
        f.is_integer(),
        f.as_integer_ratio(),
        f.hex(),
        float.fromhex("0x1p1"),
        c.real,
        c.imag,
        c.conjugate(),
        abs(c),
        round(f),
        round(2.345, 2),
        round(f, 0),
        divmod(-7, 2),
        -7 // 2,
        -7 % 3,
        2**-1,
        pow(2, 5, 7),
        int("ff", 16),
        int(3.9),
        float("inf"),
        float("nan") != float("nan"),
        bin(5),
        oct(8),
        hex(255),
        f // 1,
        i << 2,
        i >> 1,
        i & 3,
        i | 8,
        i ^ 1,
        ~i,
        +i,
        -f,
        i / 2,
        complex(1, 2) * c,
        bool(0),
        int(True),
        1 < i <= 7,
        3 if f else 4,
        i.__index__(),
        (5).__add__(3),
        max(1, 2.5),
        min([3, 1], default=0),
        min([], default=9),
        sum([0.1] * 3),
        i == 7.0,
        isinstance(True, int),
        10_000,
        1e3,
    )


class P:
    def __init__(self, k):
        self.k = k

    def __hash__(self):
        return hash(self.k)

    def __eq__(self, o):
        return isinstance(o, P) and self.k == o.k


@program()
def user_keys(x):
    d = {P(1): "a", P(2): "b"}
    d[P(1)] = "c"
    s = {P(1), P(1), P(3)}
    return (
        d[P(1)],
        len(d),
        len(s),
        P(3) in s,
        P(9) in d,
        d.get(P(2)),
        d.pop(P(2)),
        [P(1), P(2)].index(P(2)),
        [P(1)].count(P(1)),
        P(1) in [P(1)],
        {P(1)} == {P(1)},
        {P(1): 2} == {P(1): 2},
        [P(1)] == [P(1)],
        (P(1),) == (P(1),),
        [P(1)] != [P(2)],
        frozenset([P(1)]) == frozenset([P(1)]),
        Counter([P(1), P(1)])[P(1)],
        dict.fromkeys([P(1), P(1)]).__len__(),
        list(set([P(5)]))[0].k,
    )


Q1 = P(1)


def user_keys_outside(x, d):
    return x * d[P(1)]


class Bag:
    def __init__(self):
        self.items = []

    def add(self, v):
        self.items.append(v)
        return self


@program(Bag(), [P(1), P(2)], {"p": P(3)})
def nested_objects(x, b, l, d):
    b.add(1).add(x)
    l[0].k = 9
    d["p"].k += 1
    d["q"] = l[1]
    l.append(P(7))
    b.other = l
    return b.items[1], l[0].k, d["p"].k, d["q"].k, l[-1].k, b.other is l


def iterators_inside(x, l):
    return x


@program([[1, 2], [3, 4]], ((1, (2, X)), [X]))
def nested_lists(x, l, t):
    l[0].append(5)
    l[1] = l[0]
    l.append(l[0])
    (a, (b, c)), [d] = t
    return (
        l[1] is l[0],
        a + b,
        c + d,
        [v for r in l for v in r],
        [*map(sum, l)],
        list(zip(*[[1, 2], [3, 4]])),
        t[0][1][1] is c,
    )


@dataclasses.dataclass
class Cfg:
    a: int = 1
    b: list = dataclasses.field(default_factory=list)
    c: object = None

    def __post_init__(self):
        self.d = self.a * 2


@dataclasses.dataclass(frozen=True)
class Fz:
    a: int
    t: object = None


@dataclasses.dataclass(slots=True)
class Sl:
    a: int
    t: object = None


@dataclasses.dataclass
class Sub(Cfg):
    e: int = dataclasses.field(default=7, repr=False, compare=False)
    k: dataclasses.InitVar[int] = 3

    def __post_init__(self, k):
        super().__post_init__()
        self.kk = k


@program(Cfg(3, [1], X), Fz(2, X), Sl(4, X))
def dataclasses_outside(x, c, f, s):
    c.a += 1
    c.b.append(9)
    s.a = 8
    r = dataclasses.replace(c, a=10)
    g = dataclasses.replace(f, a=7)
    try:
        f.a = 3
    except dataclasses.FrozenInstanceError as e:
        m = str(e)
    sub = Sub(5, k=8)
    return (
        x * c.a,
        r.a,
        r.d,
        g.a,
        g.t,
        m,
        s.t + 1,
        dataclasses.asdict(Cfg(1, [2])),
        dataclasses.astuple(Cfg(1)),
        [q.name for q in dataclasses.fields(c)],
        c == r,
        f == Fz(2, None) if False else 0,
        repr(Cfg()),
        dataclasses.is_dataclass(c),
        hash(Fz(1)) == hash(Fz(1)),
        sub.kk,
        sub.d,
        sub.e,
        repr(sub),
        Sl(1) == Sl(1),
        c,
        s,
        sub,
    )


class MyList(list):
    def __getitem__(self, i):
        return super().__getitem__(i) * 2

    def first(self):
        return self[0]


class MyDict(dict):
    def __getattr__(self, k):
        try:
            return self[k]
        except KeyError:
            raise AttributeError(k)

    def __setattr__(self, k, v):
        self[k] = v


class MyTuple(tuple):
    def __new__(cls, a, b=3):
        return super().__new__(cls, a if isinstance(a, tuple) else (a, b))

    @property
    def s(self):
        return self[0] + self[1]


class MyStr(str):
    def shout(self):
        return self.upper() + "!"


class MyInt(int):
    def __add__(self, o):
        return MyInt(int(self) + o + 1)


class MySet(set):
    def __contains__(self, k):
        return k == "x" or super().__contains__(k)


class UD(collections.UserDict):
    def __setitem__(self, k, v):
        super().__setitem__(k, v * 2)


@program(MyList([1, 2]), MyDict(a=1), MyTuple(1, 2), MyStr("q"), MyInt(3), MySet([1]), UD(a=1))
def subclasses_outside(x, l, d, t, s, i, st, u):
    l.append(3)
    d.b = x
    d["c"] = 2
    st.add(4)
    u["z"] = 4
    l2 = MyList([4])
    d2 = MyDict(q=1)
    t2 = MyTuple(5, 6)
    s2 = MyStr("w")
    i2 = MyInt(1) + 2
    st2 = MySet()
    u2 = UD(b=3)
    return (
        l[0],
        l.first(),
        len(l),
        d.a,
        d.b,
        hasattr(d, "zz"),
        t.s,
        s.shout(),
        i + 1,
        "x" in st,
        u["a"],
        l2[0],
        d2.q,
        t2.s,
        s2.shout(),
        i2,
        "x" in st2,
        u2["b"],
        u2.data,
        list(u),
        isinstance(i2, int),
        l,
        d,
        st,
        list(l2),
        u,
    )
