"""Methods of C types, bound and kept: their types, texts and receivers are eager's."""

from __future__ import annotations

import gc
import operator
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured import compiled


class Doubling(list):
    def append(self, item: Any) -> None:
        super().append(item * 2)

    def native_append(self) -> Any:
        return super().append

    def __repr__(self) -> str:
        return "doubling " + list.__repr__(self)


class Plain:
    pass


OUTSIDE = Doubling([3])


def types_of_methods() -> Any:
    obj = Plain()
    methods = [obj.__init__, obj.__str__, (42).__lt__, [].append, Doubling().extend, obj.__eq__]
    return [type(method).__name__ for method in methods], methods[0].__objclass__


def method_of_a_base_across_breaks() -> Any:
    made = Doubling([1])
    made.append(2)
    native, own, extend = made.native_append(), made.append, made.extend
    native(5)
    gc.collect()
    native(6)
    own(7)
    extend([8])
    return list(made), type(native).__name__, native == made.native_append(), native == own


def methods_that_leave_the_frame() -> Any:
    made = Doubling([1])
    native = made.native_append()
    return native, made


def test_methods_of_tensors_that_leave_the_frame() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x + 1
        return x.add_, y.sum, y.__add__, y.norm, y.__len__

    x = torch.randn(3)
    found, want = compiled(program)(x), program(x)
    assert [type(method) for method in found] == [type(method) for method in want]
    assert [method.__name__ for method in found] == [method.__name__ for method in want]
    assert found[0].__self__ is x
    torch.testing.assert_close(found[1](), want[1]())
    torch.testing.assert_close(found[2](1), want[2](1))


def used_outside(make: Callable[[], Any]) -> Any:
    native, made = make()
    native(4)
    return list(made), type(native).__name__, native.__self__ is made


def method_of_an_argument() -> Any:
    extend, pop = OUTSIDE.extend, getattr(OUTSIDE, "pop")  # noqa: B009
    extend([1])
    pop()
    return list(OUTSIDE), operator.attrgetter("index")(OUTSIDE)(3)


def text_of_contents() -> Any:
    made = Doubling([1, "a"])
    list.append(made, made)
    return repr(made), list.__repr__([1]), tuple.__repr__((made,)), dict.__repr__({1: made})


def refused_dict_of_a_function() -> Any:
    def inner() -> None:
        pass

    gc.collect()
    try:
        inner.__dict__ = UserDict(known=7)  # type: ignore[assignment]
    except TypeError as error:
        return str(error), inner.__dict__


@pytest.mark.parametrize(
    "program",
    [
        types_of_methods,
        method_of_a_base_across_breaks,
        method_of_an_argument,
        text_of_contents,
        refused_dict_of_a_function,
    ],
)
def test_same_as_eager(program: Callable[[], Any]) -> None:
    fn = compiled(program)
    expected = program()
    assert [fn() for _ in range(3)] == [expected] * 3


def test_each_call_makes_its_own() -> None:
    expected = used_outside(methods_that_leave_the_frame)
    fn = compiled(methods_that_leave_the_frame)
    assert [used_outside(fn) for _ in range(3)] == [expected] * 3


def test_text_of_numbers_that_change() -> None:
    fn = compiled(lambda items: (repr(Doubling(items)), list.__repr__(items), len(repr(items))))
    for items in ([1, 2], [3, 4], [50, 6]):
        made = Doubling(items)
        assert fn(items) == (repr(made), list.__repr__(items), len(repr(items)))
