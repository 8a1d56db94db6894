"""Programs in which Python refuses what a program asks, or asks back: each gives what happened, and
runs compiled as eagerly.
"""

from __future__ import annotations

import operator
import sys
from abc import ABCMeta

import torch


def raised(function, *args):
    """The type, message and context of what a call raises; its value, where it raises nothing."""
    try:
        return function(*args)
    except Exception as error:
        return type(error).__name__, str(error), repr(error.__context__)


class Equal:
    def __eq__(self, other):
        return True

    def __add__(self, other):
        return 5


class Refusing(Equal):
    __eq__ = None
    __iadd__ = None


class NotUnequal(Equal):
    __ne__ = None


class Unrelated:
    __eq__ = None


def methods_that_are_none(x):
    equal, refusing, unrelated = Equal(), Refusing(), Unrelated()
    pairs = [(equal, refusing), (refusing, equal), (unrelated, equal), (equal, unrelated)]
    found = [raised(operator.eq, a, b) for a, b in pairs]
    found += [raised(operator.ne, equal, NotUnequal()), raised(operator.ne, NotUnequal(), equal)]
    return found, raised(operator.iadd, refusing, 1), raised(lambda: equal == refusing)


class Abstract(metaclass=ABCMeta):  # noqa: B024
    def __init__(self, log):
        self.log = log

    def __eq__(self, other):
        self.log.append("abstract")
        return NotImplemented


class Virtual:
    def __init__(self, log):
        self.log = log

    def __eq__(self, other):
        self.log.append("virtual")
        return NotImplemented


Abstract.register(Virtual)


def virtual_subclasses_are_asked_second(x):
    log = []
    return Abstract(log) == Virtual(log), log


def names_of_generators(x):
    generator = (n for n in (1, 2))

    def delete():
        del generator.__name__

    return (
        raised(delete),
        raised(setattr, generator, "__name__", 3),
        raised(delattr, generator, "__name__"),
    )


class NotMade(Exception):
    def __new__(cls, *args):
        return cls


def exceptions_that_are_not_made(x):
    def catching():
        try:
            yield 1
        except TypeError as error:
            yield str(error)

    generator = catching()
    return next(generator), generator.throw(NotMade), raised(catching().throw, 3)


def methods_of_generators_across_breaks(x):
    def inner():
        try:  # noqa: SIM105
            yield sys._getframe().f_code.co_name
        except KeyError:
            pass
        sys._getframe()

    def outer():
        yield from inner()
        return 3

    def send(generator):
        return generator.send(None)

    def throw(generator):
        return generator.throw(KeyError)

    first, second = outer(), outer()
    return send(first), raised(send, first), send(second), raised(throw, second)


class Sized:
    def __init__(self, log, error=None):
        self.log, self.error = log, error

    def __iter__(self):
        self.log.append("iter")
        return iter(range(3))

    def __len__(self):
        self.log.append("len")
        if self.error is not None:
            raise self.error
        return 3


class Hinted:
    def __init__(self, log, error):
        self.log, self.error = log, error

    def __iter__(self):
        return iter(range(3))

    def __length_hint__(self):
        self.log.append("hint")
        raise self.error


def lengths_are_asked(x):
    log = []
    consumers = (list, tuple, sorted, [].extend, lambda a: [*a], set, sum)
    errors = (None, TypeError("no length"), RuntimeError("broken"))
    return [raised(consume, Sized(log, error)) for consume in consumers for error in errors], log


def hints_are_asked(x):
    log = []
    errors = (TypeError("no hint"), RuntimeError("broken"))
    return [raised(list, Hinted(log, error)) for error in errors], log


class Outer:
    class Inner:
        named = property()

    Inner.unnamed = property()


def properties_without_functions(x):
    inner = Outer.Inner()
    return [
        raised(function, inner, name, *value)
        for name in ("named", "unnamed")
        for function, value in ((getattr, ()), (setattr, (1,)), (delattr, ()))
    ]


def deleted_globals(x):
    global len, AssertionError

    def delete():
        global len
        del len

    def shadowing():
        global AssertionError
        AssertionError = TypeError
        try:
            assert False, "shadowed"
        except Exception as error:
            del AssertionError
            return type(error) is AssertionError

    len = 3
    del len
    return len([1]), raised(delete), shadowing()  # noqa: F821


def contexts_of_errors(x):
    def name():
        try:
            1 / 0
        except ZeroDivisionError:
            undefined_name  # noqa: F821

    def cause():
        raise IndexError from 5

    def cause_that_is_none():
        raise IndexError from None

    return raised(name), raised(cause), raised(cause_that_is_none)


class Named:
    def __call__(self):
        pass

    def __str__(self):
        return "a named one"


class Mapping:
    def keys(self):
        return ("a",)

    def __getitem__(self, key):
        return 1


def arguments_that_cannot_be_unpacked(x):
    def function(a=0):
        return a

    empty, twice = {}, {"a": 2}
    calls = [
        lambda: function(*3),
        lambda: function(**3),
        lambda: function(*(1,), *3),
        lambda: function(**empty, **3),
        lambda: function(**{1: 2}),
        lambda: function(**{1: 2}, **{1: 2}),
        lambda: function(a=1, **twice),
        lambda: function(a=1, **Mapping()),
        lambda: function(**Mapping()),
        lambda: len(*None),
        lambda: dict(*3, **4),
        lambda: [].append(*3),
        lambda: Named()(*3),
        lambda: Named()(**3),
        lambda: torch.add(*3),
        lambda: torch.nn.Linear(*3),
        lambda: x.sum(*3),
        lambda: x.sum(**3),
        lambda: {**3},
    ]
    return [raised(call) for call in calls], x.sum.__qualname__, x.__add__.__qualname__


def dtypes_that_kernels_refuse(x):
    b, c = x > 0, x.to(torch.complex64)
    calls = [
        lambda: -b,
        lambda: torch.neg(b),
        lambda: b - b,
        lambda: torch.sign(c),
        lambda: c.softmax(0),
        lambda: c.unsqueeze(1).softmax(0),
        lambda: x & 1,
        lambda: torch.floor(c),
    ]
    return [raised(call) for call in calls]


PROGRAMS = [
    methods_that_are_none,
    virtual_subclasses_are_asked_second,
    names_of_generators,
    exceptions_that_are_not_made,
    methods_of_generators_across_breaks,
    lengths_are_asked,
    hints_are_asked,
    properties_without_functions,
    deleted_globals,
    contexts_of_errors,
    arguments_that_cannot_be_unpacked,
    dtypes_that_kernels_refuse,
]
