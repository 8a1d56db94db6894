"""What the data model says of operators, comparisons, slots, `match`, assignments and iterators:
programs of (x).
"""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import operator
import os
import sys
import types
from collections import Counter

import torch

from tools.fuzz import python_data_model
from tools.fuzz.data_model_classes import (
    Add,
    AddInherits,
    AddOverrides,
    RightOnly,
    Silent,
    SilentInt,
    SilentList,
    live,
)


def index_with_bounds(x):
    numbers = [-2, -1, 0, 0, 1, 2]
    found = [numbers.index(0, 3), tuple(numbers).index(0, 3), numbers.index(0, -4, -1)]
    for bounds in ((5,), (0, 2), (-1, 100)):
        try:
            found.append(numbers.index(0, *bounds))
        except ValueError as error:
            found.append(str(error))
    return x + 1, found


def not_implemented(x):
    return x + 1, [
        Counter("aab") == {"a": 2, "b": 1},
        Counter("aab") == {"a": 2, "b": 1},
        Counter("a") != {"a": 1},
        Silent(a=1) == {"a": 1},
        Silent(a=1) == {"a": 1},
        Silent(a=1) == Silent(a=1),
        Silent(a=1) != {"a": 1},
        SilentList([1]) == [1],
        SilentList([1]) == [1],
        SilentList([1]) < [2],
        SilentList([2]) > [1],
        [0] + SilentList([1]),
        SilentInt(1) == 1,
        SilentInt(1) == 1,
        SilentInt(1) < 2,
        SilentInt(1) > 2,
        SilentInt(1) + 2,
        2 + SilentInt(1),
    ]


class Bag(set):
    def __or__(self, other):
        return "or"


def reflected(x):
    bag = Bag([1])
    bag |= {2}
    return x + 1, [
        Add() + AddInherits(),
        Add() + AddOverrides(),
        AddInherits() + Add(),
        AddOverrides() + AddOverrides(),
        1.0 + RightOnly(2),
        RightOnly(1) + 1.0,
        sorted(bag),
    ]


class SlotList(list):
    __slots__ = ("__private", "a", "b")

    def hide(self, value):
        self.__private = value

    def shown(self):
        return self.__private


class SlotDict(dict):
    __slots__ = ("a",)


class SlotSet(set):
    __slots__ = ("a",)


class SlotText(str):
    __slots__ = ("a",)


def slots_across_a_break(x):
    items, table, group, text = SlotList([1]), SlotDict(k=1), SlotSet([1]), SlotText("t")
    items.hide(7)
    items.a, table.a, group.a, text.a = x, 2, 3, 4
    torch._dynamo.graph_break()
    return items.a, table.a, group.a, text.a, items.shown(), hasattr(items, "b"), items, table


_ITEMS, _TABLE, _GROUP = SlotList([1]), SlotDict(k=1), SlotSet([1])


def slots_of_the_program(x):
    items, table, group = _ITEMS, _TABLE, _GROUP
    items.a, items.b = 1, 2
    torch._dynamo.graph_break()
    seen = items.a, items.b, len(table)
    items.a, table.a, group.a = 5, x + 1, 6
    del items.b
    torch._dynamo.graph_break()
    return seen, items.a, hasattr(items, "b"), table.a, group.a


_NAMES = {"__name__": __name__, "collections": collections, "itertools": itertools}
CONSUMERS = [
    *(eval(text, _NAMES) for text in python_data_model.CONSUMERS),
    {1, 2, 3, 4}.issuperset,
    {1, 2, 3}.issubset,
    lambda it: {*it},
    lambda it: list(zip(it, [1, 2, 3], strict=False)),
    lambda it: next(it),
    lambda it: ",".join(map(str, it)),
    lambda it: functools.reduce(max, it),
    lambda it: (lambda found: (found.update(it), found)[1])(set()),
    lambda it: (lambda found: (found.update(it), found)[1])(Counter()),
    lambda it: (lambda found: (found.intersection_update(it), found)[1])({1, 9}),
]


def consuming(consume):
    """What a function makes of an iterator that the program did not make, and what that leaves."""

    def program(x):
        items = live([1, 2, 3])
        y = x + 1
        found = consume(items)
        return y * 2, type(found) if hasattr(found, "__next__") else found, list(items)

    return program


_LINEAR = torch.nn.Linear(2, 2)
_PARTIAL = functools.partial(len)


class Holder:
    __slots__ = ("a",)

    @property
    def constant(self):
        return 1


_HOLDER = Holder()


def assignments_that_are_refused(x):
    found = []
    for obj, name, value in (
        (_LINEAR, "weight", 3),
        (_LINEAR, "weight", torch.ones(2)),
        (_PARTIAL, "func", map),
        (_HOLDER, "b", 1),
        (_HOLDER, "constant", 1),
        (_HOLDER, "__class__", 5),
        (index_with_bounds, "__closure__", 5),
        (index_with_bounds, "__defaults__", 5),
        (slice(1), "start", 2),
        (1j, "real", 2),
        ([], "a", 2),
    ):
        try:
            setattr(obj, name, value)
        except (TypeError, AttributeError) as error:
            found.append((type(error).__name__, str(error)))
    return x + 1, found


class Twice:
    __match_args__ = ("a", "a")
    a = 1


class NotATuple:
    __match_args__ = ["a"]  # noqa: RUF012
    a = 1


class NotNames:
    __match_args__ = (1,)


class Nothing:
    pass


class Pair:
    __match_args__ = ("a", "b")
    a, b = 1, 2


class SmallInt(int):
    pass


def malformed_patterns(x):
    def twice():
        match Twice():
            case Twice(1, 1):
                return True

    def not_a_tuple():
        match NotATuple():
            case NotATuple(1):
                return True

    def not_names():
        match NotNames():
            case NotNames(1):
                return True

    def nothing():
        match Nothing():
            case Nothing(1):
                return True

    def named_twice():
        match Pair():
            case Pair(1, a=1):
                return True

    def too_many():
        match Pair():
            case Pair(1, 2, 3):
                return True

    def too_many_ints():
        match 5:
            case int(5, 6):
                return True

    def no_type():
        five = 5
        match 5:
            case five():
                return True

    def same_key():
        class K:
            a = b = 1

        match {1: 2, 3: 4}:
            case {K.a: first, K.b: second}:
                return first, second

    def subclass_of_int():
        match SmallInt(3):
            case SmallInt(n):
                return n

    def well_formed():
        match Pair():
            case Pair(a, b=b):
                return a, b

    found = []
    for pattern in (
        twice, not_a_tuple, not_names, nothing, named_twice, too_many, too_many_ints, no_type,
        same_key, subclass_of_int, well_formed,
    ):  # fmt: skip
        try:
            found.append(pattern())
        except (TypeError, ValueError) as error:
            found.append((type(error).__name__, str(error)))
    return x + 1, found


def wrong_arguments(x):
    calls = [
        lambda: [1].count(),
        lambda: (1,).count(1, 2),
        lambda: [1].index(),
        lambda: [1].index(5),
        lambda: (1,).index(5),
        lambda: [1].index(1, "a"),
        lambda: [1].remove(),
        lambda: [1].remove(3),
        lambda: len(),
        lambda: len(1, 2),
        lambda: bool(1, 2),
        lambda: iter(),
        lambda: iter(1, 2),
        lambda: next(),
        lambda: reversed(),
        lambda: sum(),
        lambda: any(),
        lambda: all(1, 2),
        lambda: functools.reduce(max),
        lambda: max(),
        lambda: max(1),
        lambda: min([]),
        lambda: sorted(),
        lambda: sorted([1], 1),
        lambda: [].append(),
        lambda: [].extend(),
        lambda: getattr(1),
        lambda: isinstance(1),
        lambda: max([1], other=1),
        lambda: [].sort(1),
    ]
    found = []
    for call in calls:
        try:
            call()
        except (TypeError, ValueError) as error:
            found.append((type(error).__name__, str(error)))
    return x + 1, found


def extremes(x):
    total = x.sum()
    return [
        min(max(total, 0), 1),
        max(0, min(total, 1)),
        max(total, x.max(), 0.5),
        sorted([total, 0.5, -1], key=lambda value: -value),
        min([2, total], default=3),
    ]


def copies_of_generators(x):
    def numbers():
        yield x

    found = []
    for copier in (copy.copy, copy.deepcopy):
        try:
            found.append(copier(numbers()))
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


def function_of_an_extension(x):
    return x + 1, torch._C._jit_get_inline_everything_mode()


def profiled(x):
    with torch.profiler.profile() as profile:
        y = x + 1
    return y * 2, len(profile.key_averages()) > 0


def traced_by_fx(x):
    module = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    return x + 1, [node.op for node in module.graph.nodes]


def minimised(x):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=3, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = ((weight * x - 3) ** 2).sum()
        loss.backward()
        return loss

    return optimizer.step(closure).detach(), weight.detach()


def delegating_across_breaks(x):
    def inner():
        try:
            yield x + 1
            torch._dynamo.graph_break()
            yield x + 2
        except KeyError:
            torch._dynamo.graph_break()
            yield x + 3
        return 5

    def outer():
        result = yield from inner()
        torch._dynamo.graph_break()
        yield result
        yield from inner()

    generator = outer()
    found = [next(generator), next(generator)]
    torch._dynamo.graph_break()
    found += [next(generator), next(generator), generator.throw(KeyError)]
    return found, list(generator)


def deep_recursion(x):
    def descend(n, y):
        return y if n == 0 else descend(n - 1, y) + 1

    return descend(700, x)


def reversed_an_item_at_a_time(x):
    log = []

    class Sequence:
        def __len__(self):
            log.append("len")
            return 4

        def __getitem__(self, index):
            log.append(index)
            return index * 10

    class Pair(tuple):
        def __getitem__(self, index):
            log.append(index)
            return tuple.__getitem__(self, index) + 1

    class Sizeless:
        def __getitem__(self, index):
            return index

    class Itemless:
        def __len__(self):
            return 3

    items, pair = reversed(Sequence()), reversed(Pair((1, 2)))
    found = [next(items), log.append("between"), next(items), next(pair), type(items).__name__]
    for wrong in (Sizeless(), Itemless()):
        try:
            reversed(wrong)
        except TypeError as error:
            found.append(str(error))
    torch._dynamo.graph_break()
    return x + 1, found, next(pair), next(items), list(items), list(items), log


def structures_of_c(x):
    status = os.stat_result(range(10))
    return x + 1, repr(status), f"{status}", str([status]), "%s" % (status,)  # noqa: UP031


class NamesItself:
    def plainly(self):
        return super().__repr__()[:1]

    def in_a_cell(self):
        return super().__repr__()[:1], lambda: self


def first_argument_in_a_cell(x):
    instance = NamesItself()
    cell = (lambda: instance).__closure__[0]
    found = [NamesItself.plainly(instance), NamesItself.in_a_cell(instance)[0]]
    for method in (NamesItself.plainly, NamesItself.in_a_cell):
        try:
            method(cell)
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


def printing_that_is_refused(x):
    found = []
    for wrong in ({"sep": 3}, {"end": b""}, {"file": ""}, {"file": 3}, {"nope": 3}):
        try:
            print("", **wrong)
        except (TypeError, AttributeError) as error:
            found.append(repr(error))
    return x + 1, found


class Shown:
    def __repr__(self):
        return repr(self.value)


def texts_within_themselves(x):
    found = []
    for make in (
        lambda item: [item],
        lambda item: (item,),
        lambda item: {item},
        lambda item: frozenset([item]),
        lambda item: {1: item},
        lambda item: collections.deque([item], 3),
        lambda item: collections.OrderedDict({1: item}),
    ):
        item = Shown()
        item.value = make(item)
        found.append(repr(item.value))
    return x + 1, found


class Counted(int):
    hashed = 0

    def __hash__(self):
        self.hashed += 1
        return int.__hash__(self)


class Kept:
    kept = None

    def __hash__(self):
        if self.kept is None:
            self.kept = 5
        return self.kept


def hashes_with_effects(x):
    table = dict.fromkeys(map(Counted, range(3)))
    found = [[key.hashed for key in table]]
    copies = set(table), frozenset(table), dict.fromkeys(set(table), 1)
    found += [[key.hashed for key in table], [len(copy) for copy in copies]]
    key, kept = Counted(4), Kept()
    {key: 1}[key] += 1
    return x + 1, found, key in {key}, key.hashed, {kept: 1}[kept], kept.kept


def class_of_a_generator(x):
    generator = (i for i in range(3))

    @types.coroutine
    def make():
        return generator

    wrapper = make()
    classes = generator.__class__ is types.GeneratorType, type(generator) is generator.__class__
    return x + 1, classes, wrapper.__await__() is generator, next(wrapper)


class Hinted:
    def __init__(self, answer):
        self.answer = answer

    def __length_hint__(self):
        if isinstance(self.answer, type):
            raise self.answer
        return self.answer

    __sizeof__ = __length_hint__


class HintedList(list):
    def __length_hint__(self):
        return 77


class SizedAndHinted(Hinted):
    def __len__(self):
        raise TypeError


def length_hints(x):
    found = []
    for answer in (2, NotImplemented, TypeError, "abc", -2, LookupError):
        for kind in (Hinted, SizedAndHinted):
            for ask in (operator.length_hint, sys.getsizeof):
                for default in ((), (4,)):
                    try:
                        found.append(ask(kind(answer), *default) + 0)
                    except (TypeError, ValueError, LookupError) as error:
                        found.append(repr(error))
    return x + 1, found, operator.length_hint(HintedList((1, 2))), operator.length_hint(3, 5)


def attributes_of_generators(x):
    def generate():
        yield 1
        yield from iter([2])

    generator = generate()
    found = [generator.__name__, generator.__qualname__, generator.gi_running]
    found += [hasattr(generator, name) for name in ("gi_code", "finished", "frame")]
    found += [generator.gi_yieldfrom, generator.gi_code.co_name]
    found += [next(generator), next(generator), generator.gi_yieldfrom is None]
    for name in ("__name__", "__qualname__", "gi_running", "send", "finished"):
        for change in (
            lambda name: setattr(generator, name, 3),
            lambda name: delattr(generator, name),
        ):
            try:
                change(name)
            except (AttributeError, TypeError) as error:
                found.append(type(error))
    generator.__name__, generator.__qualname__ = "other", "another"
    found += [generator.__name__, generator.__qualname__]
    return x + 1, found, list(generator), generator.gi_frame


class EqualByGlobal:
    def __eq__(self, other):
        return KEYS_ARE_EQUAL or self is other

    def __hash__(self):
        return 0


class HashedByGlobal:
    def __hash__(self):
        return KEYS_HASH


def keys_that_read_new_globals(x):
    global KEYS_ARE_EQUAL, KEYS_HASH
    KEYS_ARE_EQUAL, KEYS_HASH = False, x.ndim
    found = [len({EqualByGlobal() for _ in range(3)}), len({HashedByGlobal(), HashedByGlobal()})]
    del KEYS_ARE_EQUAL, KEYS_HASH
    return found, x + 1


PROGRAMS = [
    keys_that_read_new_globals,
    extremes,
    copies_of_generators,
    function_of_an_extension,
    profiled,
    traced_by_fx,
    minimised,
    delegating_across_breaks,
    deep_recursion,
    index_with_bounds,
    not_implemented,
    reflected,
    slots_across_a_break,
    slots_of_the_program,
    assignments_that_are_refused,
    malformed_patterns,
    wrong_arguments,
    length_hints,
    attributes_of_generators,
    reversed_an_item_at_a_time,
    structures_of_c,
    first_argument_in_a_cell,
    printing_that_is_refused,
    texts_within_themselves,
    hashes_with_effects,
    class_of_a_generator,
]
