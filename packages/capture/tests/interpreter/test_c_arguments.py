"""Functions written in C that capture replaces refuse the arguments that they refuse eagerly, and
check what special methods answer.
"""

from __future__ import annotations

import copy
import enum
import functools
import itertools
import math
import operator
import random
import weakref

import pytest
import torch
from capture_harness import compiled, same

from flambeau_capture import CaptureOptions, compile, core_is_native, state_of
from flambeau_capture.guards import program as guard_programs
from flambeau_capture.interpreter import machine

WRONG_CALLS = [
    (bool, (1, 2), {}),
    (bool, (), {"x": 3}),
    (len, (), {}),
    (len, ([1], [2]), {}),
    (list.count, ([1],), {}),
    (list.count, (5,), {}),
    (list.index, ([1],), {}),
    (tuple.index, ((1,), 1, 0, 1, 2), {}),
    (list.append, ([1],), {}),
    (list.sort, ([2, 1], None), {}),
    (list.sort, ([2, 1],), {"order": 1}),
    (getattr, (1,), {}),
    (sum, (), {"start": 3}),
    (sum, ([1], 2, 3), {}),
    (max, (), {}),
    (max, (1, 2), {"by": 3}),
    (iter, (), {}),
    (next, (), {}),
    (pow, (2,), {"base": 3}),
    (round, (), {"ndigits": 3}),
    (complex, (1,), {"real": 2}),
    (isinstance, (1,), {}),
    (functools.reduce, (max,), {}),
    (itertools.starmap, (max,), {}),
    (operator.add, (1,), {}),
    (math.sqrt, (), {}),
    (math.floor, (1.5, 2.5), {}),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), WRONG_CALLS)
def test_wrong_arguments_raise_what_eager_raises(function, args, kwargs):
    def program(x):
        try:
            function(*args, **kwargs)
        except TypeError as error:
            return x + 1, str(error)
        return x

    assert program(0) != 0, "eager refuses it"
    captured = compiled(program, fullgraph=True)
    same(captured(torch.ones(2)), program(torch.ones(2)))


class Answers:
    """Special methods that return what the instance was made with."""

    def __init__(self, answer):
        self.answer = answer

    def answers(self, *args):
        return self.answer

    __len__ = __index__ = __int__ = __float__ = __complex__ = __bytes__ = __iter__ = answers


class BoolAnswers(Answers):
    __bool__ = Answers.answers


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("answer", [3, -1, True, 1 << 80, 2.5, 1j, "a", b"a", (1, 2)])
@pytest.mark.parametrize(
    "function", [len, bool, int, float, complex, bytes, list, range, operator.index, math.sqrt]
)
def test_answers_of_special_methods_are_checked(function, answer):
    def program(x):
        results = []
        for kind in (Answers, BoolAnswers):
            try:
                results.append(function(kind(answer)))
            except (TypeError, ValueError, OverflowError) as error:
                results.append((type(error).__name__, str(error)))
        return x + 1, results

    captured = compiled(program, fullgraph=True)
    same(captured(torch.ones(2)), program(torch.ones(2)))


def test_an_int_is_its_own_index():
    class Odd(int):
        def __index__(self):
            return 8

    def program(x):
        return x + 1, operator.index(Odd(7)), list(range(Odd(2))), "abcdefghij"[Odd(7)]

    same(compiled(program, fullgraph=False)(torch.ones(2)), program(torch.ones(2)))


class Refuses:
    __contains__ = __reversed__ = __bool__ = None

    def __len__(self):
        return 3

    def __iter__(self):
        return iter("abc")

    def __getitem__(self, index):
        return "abc"[index]


def test_special_methods_that_are_none_refuse():
    def program(x):
        errors = []
        for ask in (bool, reversed, functools.partial(operator.contains, b="a")):
            try:
                ask(Refuses())
            except TypeError as error:
                errors.append(str(error))
        return x + len(errors), errors

    same(compiled(program, fullgraph=False)(torch.ones(2)), program(torch.ones(2)))


def many_instructions(x, n):
    total = 0
    for i in range(n):
        total += i
    return x + total


def test_a_frame_of_too_many_instructions_is_given_up():
    options = CaptureOptions(instruction_limit=2_000)
    calls = []

    def backend(module, inputs):
        calls.append(module)
        return module.forward

    captured = compile(many_instructions, backend=backend, options=options)
    x = torch.ones(2)
    same(captured(x, 10_000), many_instructions(x, 10_000))
    assert not calls
    breaks = [event.reason.id for event in state_of(captured).events if event.kind == "break"]
    assert breaks == ["instruction-limit"]


def test_calls_of_the_graph_are_progress():
    def program(x):
        for i in range(400):
            x = x + i
        return x

    options = CaptureOptions(instruction_limit=500, fullgraph=True)
    captured = compile(program, backend=lambda module, inputs: module.forward, options=options)
    same(captured(torch.ones(2)), program(torch.ones(2)))


@pytest.mark.skipif(not core_is_native(), reason="the Python twin has no limit")
def test_a_frame_of_too_many_guards_is_given_up(monkeypatch):
    table = [(n, str(n)) for n in range(100)]

    def program(x, table):
        return x * sum(number for number, _ in table)

    for module, name in ((machine, "MOST_GUARDS"), (guard_programs, "_MAX_GUARDS")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, 50)
            captured = compiled(program, fullgraph=False)
            same(captured(torch.ones(2), table), program(torch.ones(2), table))
            breaks = [e.reason.id for e in state_of(captured).events if e.kind == "break"]
            assert breaks == ["guard-limit"]


class TakesItselfApart:
    def __init__(self):
        self.seen = []

    def __reduce__(self):
        self.seen.append(1)
        return ""


class WithSlots:
    __slots__ = ("__dict__", "width")


class NamedBytes(bytes):
    pass


def test_copies_are_made_as_the_class_says():
    def program(x):
        whole = TakesItselfApart()
        slotted = WithSlots()
        slotted.width, slotted.height = 3, 4
        named = NamedBytes(b"abcd")
        named.name = "n"
        parts = copy.copy(slotted), copy.copy(named)
        return (
            x + 1, copy.copy(whole) is whole, whole.seen, parts[0].width, parts[0].height,
            bytes(parts[1]), parts[1].name,
        )  # fmt: skip

    same(compiled(program, fullgraph=False)(torch.ones(2)), program(torch.ones(2)))


def test_what_cannot_be_unpacked_or_entered_is_named_as_eagerly():
    class OnlyEnters:
        def __enter__(self):
            return self

    def endless():
        yield from itertools.count()

    def program(x):
        errors = []
        for value in (3, OnlyEnters(), endless(), (1, 2, 3)):
            try:
                first, second = value
                errors.append((first, second))
            except (TypeError, ValueError) as error:
                errors.append(str(error))
        for manager in (3, OnlyEnters()):
            try:
                with manager:
                    pass
            except TypeError as error:
                errors.append(str(error))
        try:
            classmethod(len)([1])
        except TypeError as error:
            errors.append(str(error))
        return x + 1, errors

    same(compiled(program, fullgraph=True)(torch.ones(2)), program(torch.ones(2)))


def test_an_enumeration_made_by_a_call():
    def program(x):
        colour = enum.Enum("Colour", ("red", "green"))
        return x + colour.green.value, [member.name for member in colour]

    same(compiled(program, fullgraph=False)(torch.ones(2)), program(torch.ones(2)))


def described(x):
    """Describes."""
    return x


def test_fields_of_functions_are_checked_and_deleted_as_eagerly():
    def program(x):
        errors = []
        for name, value in (("__name__", 3), ("__globals__", {}), ("__code__", 3), ("__doc__", 3)):
            try:
                setattr(described, name, value)
            except (TypeError, AttributeError) as error:
                errors.append(str(error))
        described.__defaults__ = (3,)
        del described.__doc__, described.__defaults__
        return x + 1, errors, described.__doc__, described.__defaults__

    same(compiled(program)(torch.ones(2)), program(torch.ones(2)))
    assert described.__doc__ is None


def test_names_of_missing_names_survive_a_break():
    def program(x):
        try:
            nowhere
        except NameError as error:
            torch._dynamo.graph_break()
            first = error.name
        try:
            raise ImportError("no", name="a", path="b")
        except ImportError as error:
            torch._dynamo.graph_break()
            return x + 1, first, error.name, error.path

    same(compiled(program, fullgraph=False)(torch.ones(2)), program(torch.ones(2)))


class Referent:
    def __init__(self):
        self.width = 3


REFERENT = Referent()


def test_weak_proxies_are_looked_through():
    def program(x):
        proxy = weakref.proxy(REFERENT)
        torch._dynamo.graph_break()
        return x + proxy.width, str(proxy)

    same(compiled(program, fullgraph=False)(torch.ones(2)), program(torch.ones(2)))


def test_class_getitem_is_interpreted():
    def program(x):
        class Table(dict):
            asked = None

            def __class_getitem__(cls, item):
                cls.asked = item

        before = Table.asked
        Table[int]
        return x + 1, before, Table.asked

    same(compiled(program)(torch.ones(2)), program(torch.ones(2)))


def test_a_draw_is_a_number_to_the_math_module():
    def program(x):
        random.seed(3)
        return x + 1, math.ldexp(1.5, random.randrange(10)), math.comb(9, random.randrange(5))

    same(compiled(program, fullgraph=False)(torch.ones(2)), program(torch.ones(2)))


def test_what_raises_must_make_an_exception():
    class Makes(Exception):
        def __new__(cls):
            return cls

    def program(x):
        try:
            raise Makes
        except TypeError as error:
            return x + 1, str(error)

    same(compiled(program)(torch.ones(2)), program(torch.ones(2)))


def test_generators_that_run_themselves_or_fail_to_close():
    def program(x):
        trace = []

        def inner():
            try:
                yield 1
            finally:
                trace.append("inner")
                raise ValueError("closing")

        def outer():
            try:
                yield from inner()
            finally:
                trace.append("outer")

        def itself():
            yield 0
            try:
                yield from running
            except ValueError as error:
                trace.append(str(error))
            yield 2

        generator = outer()
        next(generator)
        try:
            generator.close()
        except ValueError as error:
            trace.append((str(error), type(error.__context__).__name__))
        running = itself()
        trace.append(list(running))
        empty = iter(())
        try:
            next(inner() if x is None else (n for n in empty))
        except StopIteration as error:
            trace.append(error.args)
        return x + 1, trace

    same(compiled(program)(torch.ones(2)), program(torch.ones(2)))


def test_an_exhausted_iterator_over_items_stays_exhausted():
    class Grows:
        def __init__(self):
            self.items = [1, 2]

        def __getitem__(self, index):
            return self.items[index]

    def program(x):
        grows = Grows()
        iterator = iter(grows)
        first = list(iterator)
        grows.items.append(3)
        return x + 1, first, list(iterator)

    same(compiled(program)(torch.ones(2)), program(torch.ones(2)))


def test_a_long_int_crosses_a_break():
    def program(x):
        long = 1 << 50_000
        torch._dynamo.graph_break()
        return x + 1, long.bit_length()

    same(compiled(program, fullgraph=False)(torch.ones(2)), program(torch.ones(2)))
