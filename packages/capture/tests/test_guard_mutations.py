"""Each change of a guarded object is seen, and no other: objects, dicts, classes, modules."""

from __future__ import annotations

import collections
import gc
import random
import types
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from guard_verdicts import Thing, X, function, slotted, tensor_guard, verdict

from flambeau_capture.guards import kinds, program
from flambeau_capture.record import Guard
from flambeau_capture.sources import (
    ABSENT,
    Attribute,
    CallOf,
    CapturedFunction,
    CellContents,
    Closure,
    DictEntry,
    DictKeyAt,
    FunctionField,
    Global,
    GlobalsDict,
    InstanceDict,
    Item,
    MethodPart,
    TypeAttribute,
    TypeOf,
    WeakrefTo,
    module_table_entry,
)


@dataclass
class Row:
    """`make()` gives the argument, `guards(value)` what is guarded of it, `change(value)` what must
    be seen (None: must not be).
    """

    name: str
    make: Any
    guards: Any
    change: Any
    seen: bool = True


def _set(name, value):
    return lambda thing: setattr(thing, name, value)


def _cell_function():
    inner = [1]

    def closed():
        return inner

    return closed


def _retarget(closed):
    closed.__closure__[0].cell_contents = [1]


def _own(name):
    return DictEntry(InstanceDict(X), name)


TABLE = [
    Row("attribute value", Thing, lambda t: [Guard("EQUALS", _own("value"), 1)], _set("value", 2)),
    Row(
        "attribute type", Thing, lambda t: [Guard("EQUALS", _own("value"), 1)], _set("value", True)
    ),
    Row(
        "attribute equal again",
        Thing,
        lambda t: [Guard("EQUALS", _own("value"), 1)],
        _set("value", 1),
        seen=False,
    ),
    Row(
        "other attribute",
        Thing,
        lambda t: [Guard("EQUALS", _own("value"), 1)],
        _set("new", 1),
        seen=False,
    ),
    Row(
        "attribute deleted",
        Thing,
        lambda t: [Guard("EQUALS", _own("value"), 1)],
        lambda t: delattr(t, "value"),
    ),
    Row(
        "instance dict replaced",
        Thing,
        lambda t: [Guard("EQUALS", _own("value"), 1)],
        lambda t: setattr(t, "__dict__", {"value": 3}),
    ),
    Row(
        "class replaced",
        Thing,
        lambda t: [Guard("TYPE", X, Thing)],
        lambda t: setattr(t, "__class__", type("Other", (Thing,), {})),
    ),
    Row(
        "shadowing attribute",
        Thing,
        lambda t: [Guard("ABSENT", InstanceDict(X), "method")],
        _set("method", None),
    ),
    Row(
        "attribute still absent",
        Thing,
        lambda t: [Guard("ABSENT", InstanceDict(X), "method")],
        _set("other", None),
        seen=False,
    ),
    Row(
        "list item",
        Thing,
        lambda t: [Guard("EQUALS", Item(_own("items"), 1), 2.5)],
        lambda t: t.items.__setitem__(1, 2.25),
    ),
    Row(
        "list shorter",
        Thing,
        lambda t: [Guard("EQUALS", Item(_own("items"), 2), "a")],
        lambda t: t.items.pop(),
    ),
    Row(
        "list length",
        Thing,
        lambda t: [Guard("LENGTH", _own("items"), 3)],
        lambda t: t.items.append(0),
    ),
    Row(
        "dict length",
        Thing,
        lambda t: [Guard("LENGTH", _own("table"), 2)],
        lambda t: t.table.clear(),
    ),
    Row(
        "dict value",
        Thing,
        lambda t: [Guard("EQUALS", DictEntry(_own("table"), "a"), 1)],
        lambda t: t.table.update(a=2),
    ),
    Row(
        "dict key added",
        Thing,
        lambda t: [Guard("KEYS", _own("table"), ("a", "b"))],
        lambda t: t.table.update(c=0),
    ),
    Row(
        "dict key replaced",
        Thing,
        lambda t: [Guard("KEYS", _own("table"), ("a", "b"))],
        lambda t: (t.table.pop("b"), t.table.update(c=0)),
    ),
    Row(
        "dict order",
        Thing,
        lambda t: [Guard("KEYS", _own("table"), ("a", "b"))],
        lambda t: t.table.update(a=t.table.pop("a")),
    ),
    Row(
        "dict values only",
        Thing,
        lambda t: [Guard("KEYS", _own("table"), ("a", "b"))],
        lambda t: t.table.update(a=9),
        seen=False,
    ),
    Row(
        "dict key at",
        Thing,
        lambda t: [Guard("EQUALS", DictKeyAt(_own("table"), 1), "b")],
        lambda t: t.table.update(a=t.table.pop("a")),
    ),
    Row(
        "key gone",
        Thing,
        lambda t: [Guard("HAS_KEY", _own("table"), "a")],
        lambda t: t.table.pop("a"),
    ),
    Row(
        "key of another type",
        lambda: {1: 0},
        lambda d: [Guard("KEYS", X, (1,))],
        lambda d: (d.pop(1), d.update({True: 0})),
    ),
    Row(
        "ordered dict moved",
        lambda: collections.OrderedDict(a=1, b=2),
        lambda d: [Guard("KEYS", X, ("a", "b"))],
        lambda d: d.move_to_end("a"),
    ),
    Row(
        "ordered dict same",
        lambda: collections.OrderedDict(a=1, b=2),
        lambda d: [Guard("KEYS", X, ("a", "b"))],
        lambda d: d.update(b=3),
        seen=False,
    ),
    Row("slot", slotted, lambda s: [Guard("EQUALS", Attribute(X, "value"), 5)], _set("value", 6)),
    Row(
        "slot deleted",
        slotted,
        lambda s: [Guard("EQUALS", Attribute(X, "value"), 5)],
        lambda s: delattr(s, "value"),
    ),
    Row(
        "identity",
        Thing,
        lambda t: [Guard("IS", _own("items"), t.items)],
        lambda t: setattr(t, "items", list(t.items)),
    ),
    Row(
        "None no more",
        lambda: [None],
        lambda t: [Guard("IS", Item(X, 0), None)],
        lambda t: t.__setitem__(0, 0),
    ),
    Row(
        "None now",
        lambda: [1],
        lambda t: [Guard("IS_NOT", Item(X, 0), None)],
        lambda t: t.__setitem__(0, None),
    ),
    Row(
        "cell",
        _cell_function,
        lambda f: [
            Guard(
                "IS",
                CellContents(Item(FunctionField(X, "closure"), 0)),
                f.__closure__[0].cell_contents,
            )
        ],
        _retarget,
    ),
    Row(
        "cell emptied",
        _cell_function,
        lambda f: [Guard("LENGTH", CellContents(Item(FunctionField(X, "closure"), 0)), 1)],
        lambda f: delattr(f.__closure__[0], "cell_contents"),
    ),
    Row(
        "code",
        _cell_function,
        lambda f: [Guard("IS", FunctionField(X, "code"), f.__code__)],
        lambda f: setattr(f, "__code__", f.__code__.replace(co_name="g")),
    ),
    Row(
        "defaults",
        lambda: types.FunctionType(function.__code__, {}, "f", (1,)),
        lambda f: [Guard("EQUALS", Item(FunctionField(X, "defaults"), 0), 1)],
        lambda f: setattr(f, "__defaults__", (2,)),
    ),
    Row(
        "no defaults",
        lambda: types.FunctionType(function.__code__, {}),
        lambda f: [Guard("IS", FunctionField(X, "defaults"), None)],
        lambda f: setattr(f, "__defaults__", (2,)),
    ),
    Row("set", lambda: {1, "a"}, lambda s: [Guard("EQUALS", X, {1, "a"})], lambda s: s.add(2)),
    Row(
        "set same",
        lambda: {1, "a"},
        lambda s: [Guard("EQUALS", X, {"a", 1})],
        lambda s: s.discard(9),
        seen=False,
    ),
    Row(
        "predicate",
        lambda: [1, 2],
        lambda v: [Guard("PREDICATE", X, (lambda v: sum(v) == 3, "sums to 3"))],
        lambda v: v.append(1),
    ),
    Row(
        "call",
        lambda: [1, 2],
        lambda v: [Guard("EQUALS", CallOf(sum, (X,)), 3)],
        lambda v: v.append(1),
    ),
    Row(
        "call raises",
        lambda: [1, 2],
        lambda v: [Guard("EQUALS", CallOf(sum, (X,)), 3)],
        lambda v: v.append("x"),
    ),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_mutation_table(row):
    value = row.make()
    guards = [kinds.prepared(guard) for guard in row.guards(value)]
    for guard in guards:
        assert kinds.guard_text(guard)
    assert verdict(guards, (value,)) is None
    lasting = program.guard_program(guards, (), 1)
    assert lasting.failed(function, (value,)) is None and lasting.failed(function, (value,)) is None
    row.change(value)
    assert (verdict(guards, (value,)) is not None) == row.seen
    assert (lasting.failed(function, (value,)) is not None) == row.seen


def test_what_is_remembered_of_dicts_is_dropped_with_every_change():
    """One program through random changes of objects' attributes, which it reads in groups; reads
    are compared with the objects.
    """
    rng = random.Random(5)
    names = ["a", "b", "c", "d", "e"]

    class Plain:
        pass

    def read(name):
        return DictEntry(InstanceDict(X), name)

    def mutate(thing):
        name, other = rng.sample(names, 2)
        own = thing.__dict__
        choice = rng.randrange(12)
        if choice == 0:
            setattr(thing, name, object())
        elif choice == 1:
            thing.__dict__ = dict(own)
        elif choice == 2:
            thing.__dict__ = {key: object() for key in own}
        elif choice == 3:
            own.update({name: object()})
        elif choice == 4 and name in own:
            own[other] = own.pop(name)
        elif choice == 5 and name in own:
            delattr(thing, name)
        elif choice == 6:
            own.setdefault("absent" if rng.random() < 0.2 else name, object())
        elif choice == 7:
            own.pop("absent", None)
        elif choice == 8:
            own.clear()
        elif choice == 9:
            own |= {each: object() for each in names}
        elif choice == 10:
            vars(thing).popitem() if own else None
        else:
            object.__setattr__(thing, other, object())

    guards = [
        kinds.prepared(guard)
        for guard in (
            Guard("HAS_KEY", InstanceDict(X), "a"),
            Guard("ABSENT", InstanceDict(X), "absent"),
        )
    ]
    sources_read = [read(name) for name in names]
    lasting = program.guard_program(guards, sources_read, 1)
    things = [Plain(), Plain(), Plain()]
    outcomes = {True: 0, False: 0}
    for _ in range(6000):
        thing = rng.choice(things)
        for _ in range(rng.randint(0, 2)):
            mutate(thing)
        own = thing.__dict__
        expected = (
            None
            if "absent" in own or not all(name in own for name in names)
            else [own[name] for name in names]
        )
        found = lasting.load(function, (thing,))
        assert (found is None) == (expected is None)
        assert expected is None or all(a is b for a, b in zip(found, expected, strict=True))
        outcomes[found is None] += 1
    assert min(outcomes.values()) > 500, outcomes


def test_class_attributes_globals_and_closures():
    class Base:
        def run(self):
            return 1

    class Derived(Base):
        pass

    namespace = {"__builtins__": __builtins__, "torch": torch}
    exec("def make(cell):\n def called(x): return cell\n return called", namespace)
    called = namespace["make"](7)
    guards = [
        Guard("IS", TypeAttribute(TypeOf(X), "run"), Base.run),
        Guard("IS", TypeAttribute(TypeOf(X), "absent"), ABSENT),
        Guard("IS", Global(namespace, "torch"), torch),
        Guard("ABSENT", GlobalsDict(namespace, "module"), "len"),
        Guard("EQUALS", CellContents(Closure("cell", 0)), 7),
        Guard("IS", FunctionField(CapturedFunction("called"), "defaults"), None),
    ]
    guards = [kinds.prepared(guard) for guard in guards]
    changes = [
        (lambda: setattr(Derived, "run", lambda self: 2), lambda: delattr(Derived, "run"), 0),
        (lambda: setattr(Base, "absent", 1), lambda: delattr(Base, "absent"), 1),
        (lambda: namespace.update(torch=1), lambda: namespace.update(torch=torch), 2),
        (lambda: namespace.update(len=1), lambda: namespace.pop("len"), 3),
        (
            lambda: setattr(called.__closure__[0], "cell_contents", 8),
            lambda: setattr(called.__closure__[0], "cell_contents", 7),
            4,
        ),
        (
            lambda: setattr(called, "__defaults__", (1,)),
            lambda: setattr(called, "__defaults__", None),
            5,
        ),
    ]
    value = Derived()
    for change, undo, index in changes:
        assert verdict(guards, (value,), called) is None
        change()
        assert verdict(guards, (value,), called) == index
        undo()
    assert verdict(guards, (value,), called) is None


def test_module_tables_methods_and_weak_references():
    module = torch.nn.Sequential(torch.nn.Linear(2, 3))
    weight = module_table_entry(module_table_entry(X, "_modules", "0"), "_parameters", "weight")
    assert weight.text() == "L['x'][0].weight"
    guards = [
        kinds.prepared(guard)
        for guard in (
            tensor_guard(weight, module[0].weight),
            Guard("IS", WeakrefTo.of(module, "module"), module),
        )
    ]
    assert verdict(guards, (module,)) is None
    module[0].weight = torch.nn.Parameter(torch.zeros(3, 2))
    assert verdict(guards, (module,)) is None
    module[0].weight = torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))
    assert verdict(guards, (module,)) == 0
    other = torch.nn.Sequential(torch.nn.Linear(2, 3))
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None, "guards keep the user's module alive"
    assert verdict(guards, (other,)) == 1

    thing = Thing()
    method = [
        Guard("IS", MethodPart(X, "func"), Thing.method),
        Guard("IS", MethodPart(X, "self"), thing),
    ]
    method = [kinds.prepared(guard) for guard in method]
    assert verdict(method, (thing.method,)) is None
    assert verdict(method, (Thing().method,)) == 1
    assert verdict(method, (Thing.method,)) == 0
