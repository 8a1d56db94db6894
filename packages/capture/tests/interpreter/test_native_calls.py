"""C functions run at capture on what the frame owns; the Python functions that they call are
interpreted.
"""

from __future__ import annotations

import array
import bisect
import codecs
import collections
import contextlib
import copy
import datetime
import decimal
import enum
import functools
import heapq
import io
import itertools
import json
import operator
import pickle
import queue
import struct
import sys
import threading
import types
import warnings
import weakref
import zlib

import pytest
import torch
from capture_harness import run_graph

import flambeau_capture
from flambeau_capture import CaptureError, CaptureOptions, state_of


class Task:
    calls = 0

    def __init__(self, rank, value):
        self.rank, self.value = rank, value

    def __lt__(self, other):
        return self.rank < other.rank

    def __repr__(self):
        return f"Task({self.rank})"

    def __getstate__(self):
        return {"rank": self.rank + 1, "value": None}


class Bytes(bytearray):
    pass


class Queue(collections.deque):
    pass


class Recent(collections.deque):
    def __init__(self, items=()):
        super().__init__(items, 2)


def heaps(x):
    heap = []
    for rank in (3, 1, 2):
        heapq.heappush(heap, Task(rank, x * rank))
    return [heapq.heappop(heap).value for _ in range(3)]


def bisected(x):
    tasks = [Task(1, x), Task(5, x)]
    bisect.insort(tasks, Task(3, x + 1))
    return [task.value for task in tasks], bisect.bisect_left(
        [1, 2, 3], 2, key=lambda n: n + x.dim()
    )


def pickled(x):
    copied = pickle.loads(pickle.dumps({"a": [1, (2, None)], "task": Task(1, 0)}))
    return x, copied["a"], copied["task"].rank, list(pickle.loads(pickle.dumps(iter([1, 2]))))


def texts_in_memory(x):
    file = io.StringIO()
    file.write("one\n")
    data = io.BytesIO(b"abc")
    data.seek(1)
    return x, file.getvalue(), data.read(), json.dumps({"a": [1, None]}), json.loads("[1, {}]")


class Collector:
    def __init__(self):
        self.parts = []

    def write(self, text):
        self.parts.append(text)


def printed(x):
    file, collector = io.StringIO(), Collector()
    print("two", 2, sep="-", file=file)
    print("three", file=collector, end="!")
    with contextlib.redirect_stdout(io.StringIO()) as redirected:
        print("four")
    print(end="")
    return x, file.getvalue(), collector.parts, redirected.getvalue()


def bytes_taken_apart(x):
    view = memoryview(bytearray(b"abcd"))[1:3]
    made = Bytes(b"ab")
    made.append(99)
    return (
        x,
        bytes(view),
        bytes(made),
        struct.unpack("<H", struct.pack("<H", 7)),
        zlib.crc32(b"ab"),
        array.array("i", [1, 2]).tolist(),
    )


def rebuilt(x):
    file = io.StringIO()
    file.write("ab")
    numbers = array.array("d", [1.5])
    return file, numbers, Bytes(b"ab"), bytearray(b"c"), Queue([1, x]), datetime.date(2020, 1, 2)


def of_subclasses(x):
    recent = Recent([1, 2])
    recent.append(x + 1)
    return list(recent), datetime.date(2020, 1, 31).isoformat()


def enumerations(x):
    class Colour(enum.Enum):
        def __new__(cls, value, weight):
            made = object.__new__(cls)
            made._value_, made.weight = value, weight
            return made

        RED = (1, 0.5)
        BLUE = (2, 0.25)

    Shape = enum.Enum("Shape", "CIRCLE SQUARE")

    class Access(enum.IntFlag):
        READ = 1
        WRITE = 2

    both = Access.READ | Access.WRITE
    return x * Colour(2).weight, [str(c) for c in Colour], Shape(2).name, repr(both), int(both)


class Registered:
    names = ()

    def __init_subclass__(cls, /, tag="", **kwargs):
        super().__init_subclass__(**kwargs)
        cls.tag = tag


class Field:
    def __set_name__(self, owner, name):
        self.owner, self.name = owner.__name__, name


def class_hooks(x):
    class Point(Registered, tag="p"):
        a, b = Field(), Field()

    return x, Point.tag, Point.a.owner, Point.b.name, [n for n in vars(Point) if n[:2] != "__"]


SCALE = 2


def evaluated(x):
    namespace = {"x": x}
    exec("y = x + 1\ndef f(n):\n    return n * y + k\nk = 3\nz = f(x)", namespace)
    local: dict = {}
    exec(compile("a = 1\nb: int = a + 2\nfrom math import *", "<made>", "exec"), {}, local)
    names = [name for name in local if name in ("a", "b", "pi")]
    return namespace["z"], eval(" x.sum() * SCALE"), names, eval("[i for i in range(n)]", {"n": 3})


def evaluation_refused(x):
    found = []
    for run, arguments in ((exec, ("1 +",)), (eval, ("nope",)), (exec, ("x = 1", 3))):
        try:
            run(*arguments)
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return x, found


def named_after_their_module(x):
    return x, sys._getframe().f_code.co_name, collections.namedtuple("N", "a")(1).__module__


def partials(x):
    twin = functools.partial(pow, 2)
    return x, twin(3), repr(collections.namedtuple("N", "a b")(1, [2]))


def test_objects_of_c_types_are_made_in_each_call():
    compiled = one_graph(rebuilt)
    first, second = compiled(torch.ones(2)), compiled(torch.ones(2))
    for file, *others in (first, second):
        file.write("c")
        assert file.getvalue() == "abc"
        assert repr(others) == repr(list(rebuilt(torch.ones(2))[1:]))
    assert all(one is not other for one, other in zip(first[:5], second[:5], strict=True))


PROGRAMS = [
    heaps, bisected, pickled, texts_in_memory, printed, bytes_taken_apart, of_subclasses,
    enumerations,    class_hooks, evaluated, evaluation_refused, named_after_their_module, partials,
]  # fmt: skip


def one_graph(program):
    return flambeau_capture.compile(
        program, backend=run_graph, options=CaptureOptions(fullgraph=True)
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
def test_one_graph_as_eager(program):
    compiled = one_graph(program)
    for _ in range(2):
        x = torch.randn(3)
        assert repr(compiled(x)) == repr(program(x))


THRESHOLD = 2


class Limited:
    def __init__(self, rank):
        self.rank = rank

    def __lt__(self, other):
        return min(self.rank, THRESHOLD) < min(other.rank, THRESHOLD)


def limited(x):
    heap = [Limited(3), Limited(2), Limited(1)]
    heapq.heapify(heap)
    return x, [item.rank for item in heap]


def test_what_methods_read_below_c_code_is_guarded(monkeypatch):
    compiled, x = one_graph(limited), torch.ones(2)
    assert repr(compiled(x)) == repr(limited(x))
    monkeypatch.setitem(globals(), "THRESHOLD", 5)
    assert repr(compiled(x)) == repr(limited(x))
    monkeypatch.setattr(Limited, "__lt__", lambda one, other: one.rank > other.rank)
    assert repr(compiled(x)) == repr(limited(x))


class Counting:
    compared = 0

    def __init__(self, rank):
        self.rank = rank

    def __lt__(self, other):
        Counting.compared += 1
        return self.rank < other.rank


def test_what_methods_write_below_c_code_happens_in_each_call():
    def smallest(x):
        heap = [Counting(2), Counting(1)]
        heapq.heapify(heap)
        return x + heap[0].rank

    compiled = one_graph(smallest)
    for calls in range(1, 4):
        compiled(torch.ones(2))
        assert Counting.compared == calls


def test_a_file_from_outside_is_written_in_each_call():
    file = io.StringIO()

    def program(x):
        print("a", end="", file=file)
        return x + 1

    compiled = one_graph(program)
    for calls in range(1, 4):
        compiled(torch.ones(2))
        assert file.getvalue() == "a" * calls


def test_objects_from_outside_are_not_read_by_c_code():
    file = io.StringIO("abc")
    with pytest.raises(CaptureError, match="StringIO"):
        one_graph(lambda x: (x, file.read(1)))(torch.ones(2))
    compiled = flambeau_capture.compile(lambda x: (x + 1, file.read(1)), backend=run_graph)
    assert [compiled(torch.ones(2))[1] for _ in range(3)] == ["a", "b", "c"]


def test_a_break_below_c_code_breaks_the_call():
    class Shown:
        def __lt__(self, other):
            print(input)
            return bool(torch.ones(()).numpy() > open)

    def program(x):
        try:
            heap = [Shown(), Shown()]
            heapq.heapify(heap)
        except TypeError:
            return x + 1
        return x

    compiled = flambeau_capture.compile(program, backend=run_graph)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert any(event.kind == "break" for event in state_of(compiled).events)


def test_warnings_of_the_compiler_follow_the_filters():
    def program(x, action):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter(action)
            compile("1 is 1", "<made>", "exec")
        return x + 1, len(shown)

    compiled = flambeau_capture.compile(program, backend=run_graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for action in ("always", "ignore", "always"):
            x = torch.randn(2)
            assert repr(compiled(x, action)) == repr(program(x, action))


def _warning_calls():
    """What C code gives that may warn, from 3.12 on, or the warning."""
    state = b"citertools\ncycle\n(c__builtin__\niter\n((lI1\naI2\natRI1\nbtR((lI1\naI0\ntb."
    for call in (
        lambda: copy.copy(itertools.cycle("ab")),
        lambda: copy.deepcopy(itertools.count(1)),
        lambda: pickle.dumps(itertools.chain("a")),
        lambda: pickle.loads(state),
        lambda: itertools.repeat(2).__reduce__(),
        lambda: itertools.zip_longest("ab", "c").__setstate__(3),
        lambda: codecs.escape_decode(b"\\d"),
    ):
        try:
            yield type(call())
        except DeprecationWarning as warning:
            yield str(warning)


def test_c_code_warns_by_the_filters_that_the_frame_sets():
    def program(x, action):
        with warnings.catch_warnings():
            warnings.simplefilter(action, category=DeprecationWarning)
            return x + 1, list(_warning_calls())

    compiled = flambeau_capture.compile(program, backend=run_graph)
    for action in ("ignore", "error", "ignore", "error"):
        x = torch.randn(2)
        assert repr(compiled(x, action)) == repr(program(x, action))


def test_c_code_warns_by_the_filters_of_the_call():
    def program(x):
        return x + 1, list(_warning_calls())

    compiled = flambeau_capture.compile(program, backend=run_graph)
    for action in ("ignore", "error", "ignore", "error"):
        with warnings.catch_warnings():
            warnings.simplefilter(action, category=DeprecationWarning)
            x = torch.randn(2)
            assert repr(compiled(x)) == repr(program(x))


def test_methods_of_c_types_made_at_run_time_are_bound():
    def program(x, path):
        with open(path, "rb", buffering=0) as file:
            read = file.readinto  # since 3.12 such a method needs its class to be bound
            try:
                read(b"")
            except TypeError as error:
                return x + 1, str(error), type(read).__name__
        return x

    compiled = flambeau_capture.compile(program, backend=run_graph)
    for _ in range(2):
        x = torch.randn(2)
        assert repr(compiled(x, __file__)) == repr(program(x, __file__))


def ranked(x, ranks):
    heap = list(ranks)
    heapq.heapify(heap)
    return x, heapq.heappop(heap), heap


def test_c_functions_change_the_container_that_they_are_given():
    compiled = one_graph(ranked)
    for ranks in ([5, 3, 4], [6, 5, 4], [9, 7, 8]):  # from the second call on they are symbolic
        x = torch.randn(2)
        assert repr(compiled(x, ranks)) == repr(ranked(x, ranks))


def test_functions_of_executed_source_do_not_outlive_the_call():
    def program(x):
        namespace = {"n": 0}
        exec("def count():\n    global n\n    n += 1\n    return n", namespace)
        return x, namespace["count"]

    compiled = flambeau_capture.compile(program, backend=run_graph)
    first, second = compiled(torch.ones(2))[1], compiled(torch.ones(2))[1]
    assert [first(), first(), second()] == [1, 2, 1]


# ---------------------------------------------------------------- values of C types


def dated(x, day):
    return x, day > datetime.date(2020, 6, 1), str(day), day + datetime.timedelta(1), day in [day]


def priced(x, price):
    return x, price == decimal.Decimal(1), f"{price}", -price, price / 3, [price == 1]


@pytest.mark.parametrize(
    ("program", "values"),
    [
        (dated, [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1), datetime.date(2020, 7, 1)]),
        (priced, [decimal.Decimal("1.0"), decimal.Decimal("1.00"), decimal.Decimal(2)]),
    ],
)
def test_values_of_c_types_are_guarded(program, values):
    compiled = one_graph(program)
    for value in [*values, *values]:
        x = torch.randn(2)
        assert repr(compiled(x, value)) == repr(program(x, value))
    assert sum(event.kind == "break" for event in state_of(compiled).events) == 0


def test_comparisons_by_c_code_read_what_they_are_given():
    compiled = flambeau_capture.compile(
        lambda x, a: (x + 1, a == types.SimpleNamespace(n=1)), backend=run_graph
    )
    for n in (1, 2, 1):
        assert compiled(torch.ones(2), types.SimpleNamespace(n=n))[1] is (n == 1)


@pytest.mark.parametrize("values", [(2.5, 0.1, 1.5), (2, 7, 9)])
@pytest.mark.parametrize("convert", [decimal.Decimal, complex])
@pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.ge])
def test_numbers_that_change_are_compared_exactly(values, convert, compare):
    def program(x, number, other):
        try:
            return x + 1, compare(number, other), compare(other, number), number
        except TypeError as error:
            return x + 2, str(error)

    compiled = flambeau_capture.compile(program, backend=run_graph)
    for value in values:  # from the second call on it is symbolic
        for other in (convert(value), convert(str(value))):
            x = torch.randn(2)
            assert repr(compiled(x, value, other)) == repr(program(x, value, other))


def third(x):
    return x, decimal.Decimal(1) / 3


def test_the_decimal_context_is_guarded_and_its_flags_are_raised():
    compiled = one_graph(third)
    with decimal.localcontext() as context:
        for precision in (5, 7, 5):
            context.prec = precision
            context.clear_flags()
            assert compiled(torch.ones(2))[1] == third(None)[1]
            context.clear_flags()
            compiled(torch.ones(2))
            assert context.flags[decimal.Inexact]
        context.clear_flags()
        one_graph(third)(torch.ones(2))
        assert context.flags[decimal.Inexact]


# ---------------------------------------------------------------- weak proxies, locks, garbage


class Node:
    def __init__(self, value):
        self.value = value

    def __getitem__(self, index):
        return self.value[index]


def proxied(x):
    node = Node([1, 2])
    proxy = weakref.proxy(node)
    proxy.next = x + 1
    found = proxy.value, proxy[0], node.next, weakref.proxy(node) is proxy, type(proxy).__name__
    del node
    try:
        proxy.value
    except ReferenceError as error:
        return found, str(error)
    return found


def locked(x):
    lock, nested, guarded = threading.Lock(), threading.RLock(), queue.Queue()
    with lock:
        taken = lock.acquire(blocking=False)
    with nested, nested:
        guarded.put(x * 2)
    return taken, lock.locked(), guarded.get_nowait(), guarded.qsize()


@pytest.mark.parametrize("program", [proxied, locked])
def test_references_and_locks_of_the_frame(program):
    compiled = one_graph(program)
    for _ in range(2):
        x = torch.randn(3)
        assert repr(compiled(x)) == repr(program(x))


def test_a_lock_leaves_the_frame_free():
    compiled = one_graph(lambda x: (x + 1, threading.Lock()))
    first, second = compiled(torch.ones(2))[1], compiled(torch.ones(2))[1]
    assert first is not second
    assert first.acquire(blocking=False)
    assert second.acquire(blocking=False)


def test_a_weak_proxy_leaves_the_frame_with_its_object():
    def linked(x):
        root = Node(x)
        root.link = weakref.proxy(root)
        return root

    root = one_graph(linked)(torch.ones(2))
    assert root.link.value is root.value
