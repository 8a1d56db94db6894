"""What Python 3.12 and 3.13 have and 3.11 does not: type parameters and aliases, nested f-strings,
classes that know their attributes.
"""

from __future__ import annotations

import sys
import types

import pytest
from capture_harness import check_in_steps

SOURCE = """
def generic_function(x):
    def first[T](items: list[T]) -> T:
        return items[0]

    return first([x]) + 1, first.__type_params__[0].__name__, first([3])


def bounds_and_constraints(x):
    def f[T: int, *Ts, **P](a: T) -> T:
        return a

    class Box[T: (int, str)]:
        def __init__(self, v: T):
            self.v = v

        def get[U](self, u: U) -> tuple[T, U]:
            return self.v, u

    parameters = len(f.__type_params__), Box.__type_params__[0].__constraints__
    return x * f(2), Box[int](3).get("u"), parameters, Box.__name__


def aliases(x):
    type Pair[T] = tuple[T, T]
    type Plain = int
    return x, Pair.__name__, str(Plain), Plain.__value__ is int


def nested_strings(x):
    n = {"a": [1, 2]}
    return x, f"{n["a"][0]} {f"{f"{x.shape[0]}"}"} {'-'.join(['a', 'b'])}"


def attributes_of_classes(x):
    class A:
        z: int = 3

        def __init__(self):
            self.a, self.b = 1, 2

        def m(self):
            self.c = 3
            return self.z

    a = A()
    known = getattr(A, "__static_attributes__", ())
    return x + a.m(), sorted(known), getattr(A, "__firstlineno__", 0) > 0, a.c


def comprehensions_in_classes(x):
    class B:
        n = 4
        items = [i for i in range(n)]
        held = {i: [j for j in range(i)] for i in range(2)}

        def g(self):
            return [__class__.__name__ for _ in range(1)]

    return x, B.items, B.held, B().g()


def local_names(x):
    k = 2
    inside = [sorted(locals()) for _ in range(1)]
    before = locals()
    before["k"] = before["new"] = 5
    after = locals()

    class A:
        q = 1
        r = sorted(name for name in locals() if name[0] != "_")

    return x * k, inside, sorted(before), sorted(after), before is after, after["k"], A.r
"""


def _functions():
    module = types.ModuleType("newer_syntax")
    if sys.version_info >= (3, 12):
        sys.modules["newer_syntax"] = module
        exec(compile(SOURCE, "newer_syntax.py", "exec"), module.__dict__)
    return [value for value in vars(module).values() if isinstance(value, types.FunctionType)]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 has no such syntax")
@pytest.mark.parametrize("steps", [None, 4, 9, 15])
@pytest.mark.parametrize("fn", _functions(), ids=lambda fn: fn.__name__)
def test_same_as_eager(fn, steps, monkeypatch):
    check_in_steps(fn, steps, monkeypatch)
