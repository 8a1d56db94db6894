"""Programs in which Python refuses what a program asks, or asks back: each gives what happened, and
runs compiled as eagerly.
"""

from __future__ import annotations

import operator
import sys
import types
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


LEVEL = 0


class Meta(type):
    def __new__(cls, name, bases, namespace):
        made = super().__new__(cls, name, bases, {**namespace, "level": LEVEL})
        made.twin = type(name, (), namespace)
        return made

    def __init__(cls, name, bases, namespace):
        cls.initialised = True


class MetaWithKeywords(type):
    def __new__(cls, name, bases, namespace):
        return super().__new__(cls, name=name, bases=bases, dict=namespace)


class MetaWithoutInit(type):
    def __init__(cls, name, bases, namespace, **kwargs):
        super().__init__(name, bases, namespace, **kwargs)

    def __new__(cls, name, bases, namespace, **kwargs):
        return super().__new__(cls, name, bases, namespace)


class MetaInitByKeyword(MetaWithoutInit):
    def __init__(cls, name, bases, namespace, **kwargs):
        type.__init__(cls, name, **kwargs)


def classes_of_too_many_or_few_arguments(x):
    calls = [
        type,
        lambda: type("A", ()),
        lambda: type("A", (), {}, 1),
        lambda: type(name="A", bases=(), dict={}),
        lambda: type(x.ndim, key=1),
        lambda: type.__new__(type),
        lambda: type.__new__(int, "A", (), {}),
        lambda: type.__init__(type),
        lambda: type.__init__(type, "A", key=1),
    ]
    return [raised(call) for call in calls], type("A", (object,), {"x": 1}).x


def classes_of_arguments_of_wrong_types(x):
    calls = [
        lambda: type(1, (), {}),
        lambda: type("A", [], {}),
        lambda: type("A", (), [()]),
        lambda: type("A", (x.ndim,), {}),
        lambda: type("A", (int, str), {}),
    ]
    return [raised(call) for call in calls]


def bases_with_entries(x):
    class Entries:
        def __mro_entries__(self, bases):
            return (int,)

    return raised(lambda: type("A", (Entries(),), {}))


def class_statements_that_metaclasses_refuse(x):
    def keywords():
        class A(metaclass=MetaWithKeywords):
            pass

    def initialised_by_keyword():
        class A(metaclass=MetaInitByKeyword, key=1):
            pass

    def wrong_cell():
        class A(metaclass=Meta):
            def f(self):
                return __class__

    def cell_of_none():
        class A(metaclass=lambda name, bases, namespace: type(name, bases, {})):
            def f(self):
                return __class__

    return [raised(f) for f in (keywords, initialised_by_keyword, cell_of_none)], raised(
        wrong_cell
    )[:1]


class Prepared(type):
    @classmethod
    def __prepare__(cls, name, bases, namespace=None):
        return namespace


class Preparing:
    def __prepare__(self, name, bases=()):
        return None

    def __call__(self, name, bases, namespace):
        return name


def namespaces_that_are_no_mappings(x):
    def by_class():
        class A(metaclass=Prepared):
            pass

    def by_number():
        class A(metaclass=Prepared, namespace=x.ndim):
            pass

    def by_instance():
        class A(metaclass=Preparing()):
            pass

    return [raised(f) for f in (by_class, by_number, by_instance)]


def classes_of_a_more_derived_metaclass(x):
    global LEVEL

    class Base(metaclass=Meta):
        pass

    LEVEL = x.ndim + 4
    made = type("Made", (Base,), {"x": 1})
    LEVEL = 0
    return type(made) is Meta, made.level, made.initialised, made.x, made.twin.__name__


class Refused:
    def __set_name__(self, owner, name):
        raise ZeroDivisionError(name)

    def __repr__(self):
        return "Refused()"


class RefusedWithoutArguments:
    def __set_name__(self):  # noqa: PLE0302
        pass

    def __repr__(self):
        return "RefusedWithoutArguments()"


def members_that_refuse_their_name(x):
    def error_of(kind):
        try:

            class A:
                member = kind()
        except Exception as error:
            cause = repr(error.__cause__)
            return type(error).__name__, str(error), cause, getattr(error, "__notes__", None)

    return error_of(Refused), error_of(RefusedWithoutArguments)


module = types.ModuleType("module")
module.module = print


class Modules(types.ModuleType):
    pass


others = Modules("others")
others.others = print


def calls_of_what_is_not_callable(x):
    values = [1, "a", None, x, x.ndim, [1], types, module, others, Equal()]
    return [raised(lambda value=value: value()) for value in values]


PROGRAMS = [
    classes_of_too_many_or_few_arguments,
    classes_of_arguments_of_wrong_types,
    bases_with_entries,
    class_statements_that_metaclasses_refuse,
    namespaces_that_are_no_mappings,
    classes_of_a_more_derived_metaclass,
    members_that_refuse_their_name,
    calls_of_what_is_not_callable,
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
