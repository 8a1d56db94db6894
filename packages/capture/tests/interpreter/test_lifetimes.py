"""Objects that the program drops are freed where eager frees them, also after a graph break."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from captured import compiled


class Plain:
    pass


def dropped_after_a_break() -> Any:
    obj = Plain()
    gc.collect()
    reference = weakref.ref(obj)
    del obj
    return reference() is None


def dropped_between_breaks() -> Any:
    obj = Plain()
    gc.collect()
    reference = weakref.ref(obj)
    alive = reference() is obj
    gc.collect()
    del obj
    gc.collect()
    return alive, reference() is None


def dropped_behind_a_proxy() -> Any:
    obj = Plain()
    proxy = weakref.proxy(obj)
    del obj
    try:
        proxy.name
    except ReferenceError:
        return "dead"
    except AttributeError:
        return "alive"


def dropped_function() -> Any:
    def inner() -> None:
        pass

    reference = weakref.ref(inner)
    alive = reference() is inner
    del inner
    return alive, reference() is None


def callbacks_in_their_order() -> Any:
    order: list[Any] = []
    obj = Plain()
    reference = weakref.ref(obj, lambda _: order.append("callback"))
    obj.name = "name"
    del obj
    order.append("after")
    return order, reference() is None


def references_counted() -> Any:
    obj = Plain()
    gc.collect()
    held = [obj, obj]
    first = sys.getrefcount(obj)
    del held
    return first, sys.getrefcount(obj)


def _collects(obj: Any) -> int:
    gc.collect()
    return sys.getrefcount(obj)


def counted_in_a_call() -> Any:
    obj = Plain()
    gc.collect()
    return _collects(obj), sys.getrefcount(obj)


def freed_in_a_call() -> Any:
    def drop(held: list[Any], reference: Any) -> Any:
        gc.collect()
        held.clear()
        gc.collect()
        return reference() is None

    held = [Plain()]
    gc.collect()
    reference = weakref.ref(held[0])
    return drop(held, reference)


PROGRAMS = [
    dropped_after_a_break,
    dropped_between_breaks,
    dropped_behind_a_proxy,
    dropped_function,
    callbacks_in_their_order,
    references_counted,
    counted_in_a_call,
    freed_in_a_call,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_objects_die_where_eager_frees_them(program: Callable[[], Any]) -> None:
    fn = compiled(program)
    expected = program()
    assert [fn() for _ in range(3)] == [expected] * 3
