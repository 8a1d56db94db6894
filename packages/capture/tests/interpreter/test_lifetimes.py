"""Objects that the program drops are freed where eager frees them, also after a graph break."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured import compiled, run_graph

import flambeau_capture


class Plain:
    def method(self) -> None:
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


def held_by_a_dead_variable() -> Any:
    obj = Plain()
    reference = weakref.ref(obj)
    gc.collect()
    return reference() is None


def held_behind_a_weak_method() -> Any:
    obj = Plain()
    gc.collect()
    reference = weakref.WeakMethod(obj.method)
    gc.collect()
    return reference() is None


def held_by_a_caller_behind_a_weak_method() -> Any:
    def inner(reference: Any) -> Any:
        gc.collect()
        return reference() is None

    obj = Plain()
    gc.collect()
    reference = weakref.WeakMethod(obj.method)
    first = inner(reference)
    return first, inner(reference)


def held_in_a_dead_list_behind_a_weak_method() -> Any:
    held = [Plain()]
    gc.collect()
    reference = weakref.WeakMethod(held[0].method)
    gc.collect()
    return reference() is None


def held_behind_a_weak_method_in_a_handler() -> Any:
    obj = Plain()
    gc.collect()
    reference = weakref.WeakMethod(obj.method)
    try:
        gc.collect()
        raise ValueError
    except ValueError:
        gc.collect()
        return reference() is None


def held_in_a_dead_list() -> Any:
    held = [Plain()]
    reference = weakref.ref(held[0])
    gc.collect()
    return reference() is None


def held_by_a_caller() -> Any:
    def inner(reference: Any) -> Any:
        gc.collect()
        return reference() is None

    obj = Plain()
    reference = weakref.ref(obj)
    first = inner(reference)
    return first, inner(reference)


def held_in_a_weak_set() -> Any:
    members: Any = weakref.WeakSet()
    obj = Plain()
    members.add(obj)
    gc.collect()
    return len(members)


def held_in_a_weak_dictionary() -> Any:
    members: Any = weakref.WeakValueDictionary()
    obj = Plain()
    members["key"] = obj
    gc.collect()
    return len(members)


def held_until_bound_again() -> Any:
    obj: Any = Plain()
    reference = weakref.ref(obj)
    gc.collect()
    before = reference() is None
    obj = None
    gc.collect()
    return before, reference() is None


def held_while_an_exception_is_handled() -> Any:
    obj = Plain()
    reference = weakref.ref(obj)
    try:
        gc.collect()
        raise ValueError
    except ValueError:
        gc.collect()
        return reference() is None


def held_by_a_generator() -> Any:
    def values() -> Any:
        obj = Plain()
        reference = weakref.ref(obj)
        gc.collect()
        yield reference() is None
        gc.collect()
        yield reference() is None

    return list(values())


def finalized_in_their_order() -> Any:
    order: list[Any] = []
    obj = Plain()
    first = weakref.finalize(obj, order.append, "first")
    second = weakref.finalize(obj, order.append, "second")
    alive = first.alive, second.alive
    del obj
    order.append("after")
    return alive, first.alive, second.alive, order


def finalized_when_bound_again() -> Any:
    order: list[Any] = []
    obj: Any = Plain()
    finalizer = weakref.finalize(obj, order.append, "finalized")
    gc.collect()
    obj = None
    order.append("after")
    return finalizer.alive, order


def dropped_behind_proxies_with_callbacks() -> Any:
    order: list[Any] = []
    obj = Plain()
    first = weakref.proxy(obj, lambda _: order.append("first"))
    second = weakref.proxy(obj, lambda _: order.append("second"))
    del obj
    gc.collect()
    return order, type(first) is type(second)


def held_by_a_suspended_generator() -> Any:
    def values() -> Any:
        obj = yield
        yield weakref.ref(obj)
        yield "end"

    made = values()
    next(made)
    reference = made.send(Plain())
    gc.collect()
    first = reference() is None
    made.close()
    return first, reference() is None


def held_by_a_generator_that_holds_itself() -> Any:
    ended = []

    def values() -> Any:
        try:
            itself = yield
            yield itself is None
        finally:
            ended.append(True)

    made = values()
    next(made)
    made.send(made)
    count = sys.getrefcount(made)
    del made
    gc.collect()
    return count, ended


def dropped_class() -> Any:
    class Local:
        @staticmethod
        def one() -> int:
            return 1

        @property
        def two(self) -> int:
            return 2

    reference = weakref.ref(Local)
    gc.collect()
    total = Local.one() + Local().two
    gc.collect()
    total += Local.one()
    del Local
    gc.collect()
    return total, reference() is None


PROGRAMS = [
    finalized_in_their_order,
    finalized_when_bound_again,
    dropped_behind_proxies_with_callbacks,
    held_by_a_suspended_generator,
    held_by_a_generator_that_holds_itself,
    dropped_class,
    held_by_a_dead_variable,
    held_behind_a_weak_method,
    held_by_a_caller_behind_a_weak_method,
    held_in_a_dead_list_behind_a_weak_method,
    held_behind_a_weak_method_in_a_handler,
    held_in_a_dead_list,
    held_by_a_caller,
    held_in_a_weak_set,
    held_in_a_weak_dictionary,
    held_until_bound_again,
    held_while_an_exception_is_handled,
    held_by_a_generator,
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


def test_a_dead_class_does_not_hinder_capture() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        class Local:
            number = 2

        y = x + Local.number
        gc.get_count()  # which breaks the graph
        return y * 2

    graphs: list[Any] = []

    def backend(module: Any, example_inputs: list[Any]) -> Any:
        graphs.append(module)
        return module.forward

    fn = flambeau_capture.compile(program, backend=backend)
    x = torch.ones(2)
    assert torch.equal(fn(x), program(x))
    assert len(graphs) == 2


class Linked:
    """A node of a tree, whose children refer to it weakly."""

    def __init__(self, x: torch.Tensor, parent: Linked | None = None) -> None:
        self.x, self.children = x, []
        self.parent = None if parent is None else weakref.ref(parent)


def tree_of(x: torch.Tensor) -> Linked:
    root = Linked(x + 1)
    root.children.append(Linked(x * 2, root))
    return root


def child_of_a_dead_parent(x: torch.Tensor) -> Linked:
    return Linked(x * 2, Linked(x + 1))


def references_to_tensors(x: torch.Tensor) -> Any:
    y, z = x + 1, x * 2
    return [y, weakref.ref(y), weakref.ref(y), weakref.ref(z), weakref.ref(x)]


@pytest.mark.parametrize("eager", [False, True])
def test_weak_references_are_returned(eager: bool) -> None:
    def call(function: Callable[..., Any]) -> Any:
        if eager:
            return function
        options = flambeau_capture.CaptureOptions(fullgraph=True)
        return flambeau_capture.compile(function, backend=run_graph, options=options)

    x = torch.randn(3)
    root = call(tree_of)(x)
    assert root.children[0].parent() is root
    reference = weakref.ref(root.children[0])
    del root
    gc.collect()
    assert reference() is None
    assert call(child_of_a_dead_parent)(x).parent() is None
    y, first, second, dead, of_input = call(references_to_tensors)(x)
    assert first() is y and first is second and dead() is None and of_input() is x
    del y
    assert first() is None
