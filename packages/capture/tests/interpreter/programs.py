# ruff: noqa: B905, C416, C417, PLE0643, RUF015, UP031 (odd forms are what is tested)
"""Programs made of what ordinary Python functions are made of. (Not a test module: pytest would
rewrite its asserts.)
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import math
import operator
from contextlib import contextmanager
from typing import NamedTuple

import torch

SCALE = 2.5


def tutorial(x):
    return torch.sin(torch.cos(x))


def branches(x, n, flag=True):
    if n > 3 and flag:
        x = x + n
    elif n == 3 or not flag:
        x = x - n
    else:
        x = x * (n if n else 1)
    return x if x.shape[0] == 3 else -x


def loops(x, n):
    total = torch.zeros(4)
    for i in range(n):
        if i == 1:
            continue
        for j, row in enumerate(x):
            if j > i:
                break
            total = total + row * j
        else:
            total = total - 1
    while n > 0:
        n -= 2
        total = total * 1.5
    else:
        total = total + 1
    return total, n


def comprehensions(x):
    squares = [x * i for i in range(4) if i % 2]
    table = {f"k{i}": v for i, v in enumerate(squares)}
    nested = [[a + b for a in range(2)] for b in range(2)]
    lazy = sum(v for v in squares)
    return squares, table, {i % 2 for i in range(5)}, nested, lazy, max(i for i in range(4))


def unpacking(x):
    a, b, c = x
    first, *middle, last = [1, 2, 3, 4]
    (d, e), f = (a, b), c
    *g, h = "abc"
    pair = {"p": a, "q": b}
    merged = [*middle, first, *(5, 6)]
    return a + b + c, d, e, f, first, middle, last, g, h, pair, merged


def slices(x):
    items = list(range(10))
    del items[2]
    items[1:3] = [7, 8, 9]
    return (
        x[1:],
        x[:, ::2],
        x[..., 0],
        x[None],
        x[[0, 2]],
        x[-1, 1:3],
        items[::-2],
        items[2:5],
        "hello"[1:3],
    )


def strings(x):
    name, width = "abc", 7
    return (
        f"{name!r:>{width}} {x.shape[0]:03d} {SCALE:.2f} {tuple(x.shape)}",
        "%s-%d" % (name, width),
        name.upper().center(9, "*"),
        " ".join([name, str(x.dtype)]),
    )


def walrus_and_chained(x):
    if (n := x.shape[0]) > 2 and 1 < n <= 3 != 4:
        x = x + n
    a = b = x
    return a is b, n, x if n in (3, 4) else None, "k" not in {"k": 1}


def closures(x):
    count = 0

    def add(y, *, by=1):
        nonlocal count
        count += by
        return y + count

    def twice(f):
        return lambda y: f(f(y))

    return (
        twice(add)(x),
        add(x, by=3),
        count,
        [f(x) for f in [lambda y, k=k: y * k for k in range(3)]],
    )


def star_arguments(x, *args, key=1, **kwargs):
    def inner(a, b=2, /, c=3, *rest, d, e=5, **more):
        return a + b, c, rest, d, e, more

    arguments = (x, 10)
    return inner(*arguments, *args, d=key, **kwargs), inner(x, d=4), kwargs


def matching(x, subject):
    match subject:
        case {"op": "add", "n": n, **rest}:
            return x + n, rest
        case [1, *others]:
            return x * len(others)
        case Point(px, y=0) if px > 1:
            return x - px
        case Color.RED | Color.BLUE:
            return x / 2
        case str() as text:
            return x, text
        case (a, b):
            return x + a + b
        case None:
            return -x
        case _:
            return x * 0


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0

    def scaled(self, k):
        return dataclasses.replace(self, x=self.x * k)


@dataclasses.dataclass(frozen=True)
class Frozen:
    t: torch.Tensor
    names: list = dataclasses.field(default_factory=list)


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Pair(NamedTuple):
    left: torch.Tensor
    right: int = 3


def dataclass_values(x):
    p = Point(3)
    q = p.scaled(2)
    f = Frozen(x + q.x, ["a"])
    f.names.append("b")
    return p, q, f, p == Point(3, 0), p != q, repr(q), dataclasses.asdict(p)


def named_tuples(x, pair):
    made = Pair(x + pair.left)
    left, right = made
    return made, made._replace(right=5), left * right, pair.right


def enums(x, color):
    table = {Color.RED: 2.0, Color.BLUE: 3.0}
    return x * table[color], color.name, Color("b") is Color.BLUE, [c.value for c in Color]


def builtin_functions(x):
    values = [3, 1, 2]
    return (
        sorted(values, key=lambda v: -v),
        min(values),
        max(values, key=lambda v: v % 3),
        sum(values),
        any(v > 2 for v in values),
        all(values),
        list(map(lambda v: v + 1, values)),
        list(filter(lambda v: v > 1, values)),
        list(zip(values, "abc")),
        list(reversed(values)),
        list(enumerate(values, 1)),
        len(x),
        abs(-2),
        divmod(7, 2),
        pow(2, 5),
        round(2.567, 1),
        isinstance(x, torch.Tensor),
        hasattr(x, "nope"),
        getattr(x, "nope", 4),
        callable(tutorial),
        type(x) is torch.Tensor,
        sum([x, x]),
        int("3"),
        float(2),
        bool([]),
        str(3),
        chr(97),
        ord("a"),
        hex(255),
        list(range(2, 9, 3)),
        tuple("ab"),
        iter([1]).__next__(),
        next(iter([]), None),
        sum([x[0], x[1]], start=x[2]),
    )


def library_functions(x):
    add = functools.partial(torch.add, alpha=2)
    return (
        add(x, x),
        functools.reduce(lambda a, b: a + b, [x, x, x]),
        list(itertools.chain([1], [2, 3])),
        list(itertools.product("ab", [1, 2])),
        list(itertools.accumulate([1, 2, 3])),
        math.sqrt(16),
        math.prod([2, 3]),
        operator.add(x, 1),
        operator.itemgetter(1)([1, 2]),
        functools.reduce(operator.mul, [x, x]),
        list(itertools.islice(itertools.count(), 3)),
        list(itertools.starmap(pow, [(2, 3)])),
        [list(g) for _, g in itertools.groupby([1, 1, 2], key=lambda v: v)],
        operator.attrgetter("real")(3),
    )


def collection_types(x):
    ordered = collections.OrderedDict(a=x)
    ordered["b"] = x + 1
    ordered.move_to_end("a")
    counts = collections.Counter("abca")
    groups = collections.defaultdict(list)
    groups["k"].append(x)
    queue = collections.deque([1, 2], maxlen=2)
    queue.append(3)
    return (
        ordered,
        dict(counts),
        groups,
        list(queue),
        {1, 2} | {3},
        frozenset([1]),
        {"a": 1} | {"b": 2},
    )


def dict_methods(x):
    d = {"a": x, "b": 2}
    d.setdefault("c", []).append(1)
    popped = d.pop("b")
    d.update(e=5)
    return (
        d,
        popped,
        list(d.keys()),
        list(d.items())[0][0],
        d.get("zz"),
        "a" in d,
        len(d),
        {**d}.popitem()[0],
    )


def list_methods(x):
    items = [3, 1]
    items.append(x)
    items.insert(0, "s")
    items.extend((4, 5))
    items.remove(3)
    last = items.pop()
    items.reverse()
    items += [7]
    return items, last, items.index("s"), [1, 2] * 2, [1, 2, 3].count(2), [x] + [x]


@contextmanager
def added(log, name):
    log.append(f"enter {name}")
    try:
        yield name.upper()
    finally:
        log.append(f"exit {name}")


class Manager:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append(kind.__name__ if kind else "none")
        return kind is ValueError


def with_blocks(x):
    log = []
    with added(log, "a") as name, Manager(log) as manager:
        x = x + len(name)
        manager.extra = 1
    with Manager(log):
        raise ValueError("swallowed")
    with torch.no_grad():
        y = x * 2
    return x, y, log


def generator_functions(x):
    def count(n):
        received = []
        for i in range(n):
            got = yield x + i
            received.append(got)
        return received

    def delegate(n):
        result = yield from count(n)
        yield len(result)

    generator = count(3)
    first = next(generator)
    second = generator.send("hello")
    rest = list(generator)
    return (
        first,
        second,
        rest,
        list(delegate(2)),
        [v for v in (i * x for i in range(2))],
        tuple(zip(count(2), range(2))),
    )


def generator_cleanup(x):
    log = []

    def numbers():
        try:
            yield 1
            yield 2
        except KeyError as error:
            log.append(str(error))
            yield 3
        finally:
            log.append("closed")

    g = numbers()
    next(g)
    thrown = g.throw(KeyError("k"))
    g.close()
    h = numbers()
    next(h)
    h.close()
    return x + thrown, log


def iterators_of_classes(x):
    class_made = Countdown(3)
    return (
        [x * i for i in class_made],
        list(Countdown(2)),
        sum(Countdown(3)),
        2 in Countdown(3),
        list(zip(Countdown(2), Indexed())),
        list(Indexed()),
        len(Indexed()),
        Indexed()[1],
        bool(Indexed()),
        max(Countdown(3)),
    )


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n + 1


class Indexed:
    def __getitem__(self, index):
        if index > 2:
            raise IndexError(index)
        return index * 10

    def __len__(self):
        return 3


def exceptions(x, n):
    log = []
    try:
        try:
            if n == 0:
                raise ValueError("zero")
            if n == 1:
                raise KeyError("one") from ValueError("cause")
            {}["missing"] if n == 2 else [][0]
        except ValueError as error:
            log.append(str(error))
            raise RuntimeError("again") from error
        except KeyError as error:
            log.append((type(error.__cause__).__name__, error.args))
        else:
            log.append("else")
        finally:
            log.append("finally")
            x = x + 1
    except (RuntimeError, IndexError) as error:
        log.append(type(error).__name__)
        log.append(type(error.__cause__).__name__)
    try:
        assert n > 5, "small"
    except AssertionError as error:
        log.append(str(error))
    return x, log


def return_in_finally(x):
    def f():
        for i in range(3):
            try:
                if i == 1:
                    return i
            finally:
                x_seen.append(i)
        return None

    x_seen = []
    return x + f(), x_seen


def reraised(x):
    def deep():
        raise LookupError("deep")

    def middle():
        try:
            deep()
        except LookupError:
            raise

    try:
        middle()
    except LookupError as error:
        return x * 2, str(error), error.__context__ is None
    return None
