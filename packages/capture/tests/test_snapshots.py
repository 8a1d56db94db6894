"""What a guard program remembers of the last call it held for (csrc/snapshot.h) never hides a
change: random changes, judged by the reference.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import random
import types
import weakref
from typing import Any

import pytest
import torch

from flambeau_capture.guards import kinds, program
from flambeau_capture.guards.constants import Relation
from flambeau_capture.record import Guard
from flambeau_capture.sources import (
    Argument,
    Attribute,
    CallOf,
    CellContents,
    DictEntry,
    FunctionField,
    InstanceDict,
    Item,
    Source,
    TensorSize,
    TypeAttribute,
    TypeOf,
)
from flambeau_prims.size_floats import Condition
from flambeau_prims.sizes import SizeEnv

ROOT = Argument("self", 0)


class Node:
    def __init__(self) -> None:
        self.value = 1.5
        self.name = "node"
        self.hooks = collections.OrderedDict()
        self.table = {"a": 1, "b": 2, 3: "c"}
        self.items = [1, 2]
        self.pair = (1, "x")

    def method(self):
        return 0


class Other(Node):
    pass


def attribute(base: Source, name: str) -> Source:
    return DictEntry(InstanceDict(base), name)


def make_function(value: Any) -> types.FunctionType:
    def inner(x=1):
        return value, x

    return inner


def node_guards(node: Node, source: Source) -> list[Guard]:
    """Guards of all that a node is."""

    def guard(kind: str, what: Source, payload: Any) -> Guard:
        return Guard(kind, what, kinds.KINDS[kind].prepare(payload))

    function = attribute(source, "function")
    cell = CellContents(Item(FunctionField(function, "closure"), 0))
    return [
        guard("TYPE", source, type(node)),
        guard("EQUALS", attribute(source, "value"), node.value),
        guard("EQUALS", attribute(source, "name"), node.name),
        guard("LENGTH", attribute(source, "hooks"), len(node.hooks)),
        guard("KEYS", attribute(source, "hooks"), tuple(node.hooks)),
        guard("KEYS", attribute(source, "table"), tuple(node.table)),
        guard("EQUALS", DictEntry(attribute(source, "table"), "a"), node.table["a"]),
        guard("EQUALS", DictEntry(attribute(source, "table"), 3), node.table[3]),
        guard("TYPE", attribute(source, "items"), list),
        guard("LENGTH", attribute(source, "items"), len(node.items)),
        guard("EQUALS", Item(attribute(source, "items"), 1), node.items[1]),
        guard("EQUALS", Item(attribute(source, "pair"), 0), node.pair[0]),
        guard("ABSENT", InstanceDict(source), "late"),
        guard("IS", FunctionField(function, "code"), node.function.__code__),
        guard("EQUALS", FunctionField(function, "defaults"), node.function.__defaults__),
        guard("EQUALS", cell, node.function.__closure__[0].cell_contents),
        guard("IS", TypeAttribute(TypeOf(source), "method"), type(node).method),
    ]


def tree(size: int) -> Node:
    root = Node()
    root.children = {f"n{at}": Node() for at in range(size)}
    root.several = [Node(), Node()]
    for node in nodes_of(root):
        node.function = make_function(5)
    return root


def nodes_of(root: Node) -> list[Node]:
    return [root, *root.children.values(), *root.several]


def guards_of(root: Node) -> list[Guard]:
    found = node_guards(root, ROOT)
    children, several = attribute(ROOT, "children"), attribute(ROOT, "several")
    for name, child in root.children.items():
        found += node_guards(child, DictEntry(children, name))
    for at, node in enumerate(root.several):
        found += node_guards(node, Item(several, at))
    return found


def assign_class(node: Node) -> None:
    node.__class__ = Other if type(node) is Node else Node


def replace_dict(node: Node) -> None:
    node.__dict__ = dict(vars(node))


def replace_function(node: Node) -> None:
    node.function = make_function(random.choice((5, 6)))


CHANGES = [
    lambda node: setattr(node, "value", random.choice((1.5, 1.5, 2.5, 1))),
    lambda node: setattr(node, "name", random.choice(("node", "other", "".join("node")))),
    lambda node: setattr(node, "late", 1),
    lambda node: vars(node).pop("late", None),
    lambda node: setattr(node, "unread", object()),
    lambda node: node.hooks.update(h=1),
    lambda node: node.hooks.clear(),
    lambda node: node.table.update(a=random.choice((1, 1, 2))),
    lambda node: node.table.update({3: random.choice("cd")}),
    lambda node: node.table.update({True: 1}),
    lambda node: node.table.pop(1, None),
    lambda node: type(node.items) is list and node.items.append(3),
    lambda node: type(node.items) is list and node.items.__setitem__(slice(None), [1, 2]),
    lambda node: type(node.items) is list and node.items.__setitem__(1, random.choice((2, 3, 2.0))),
    lambda node: setattr(node, "items", [1, 2]),
    lambda node: setattr(node, "items", (1, 2)),
    lambda node: setattr(node, "pair", (random.choice((1, True)), "x")),
    lambda node: setattr(node.function, "__defaults__", random.choice(((1,), (2,), None))),
    lambda node: setattr(node.function.__closure__[0], "cell_contents", random.choice((5, 5, 7))),
    lambda node: setattr(node.function, "__code__", make_function(0).__code__),
    replace_function,
    assign_class,
    replace_dict,
]


def put_right(node: Node) -> None:
    """The node as `tree` made it, in other objects."""
    fresh = Node()
    kept = {name: vars(node)[name] for name in ("children", "several") if name in vars(node)}
    node.__class__ = Node
    node.__dict__.update(vars(fresh), function=make_function(5), **kept)
    vars(node).pop("late", None)


@pytest.mark.parametrize("calls_python", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_random_changes(seed: int, calls_python: bool) -> None:
    random.seed(seed)
    root = tree(6)
    guards = guards_of(root)
    if calls_python:  # such a program owns what its registers hold
        children = CallOf(len, (attribute(ROOT, "children"),))
        guards.insert(20, Guard("EQUALS", children, len(root.children)))
    inputs = [
        attribute(ROOT, "name"),
        attribute(DictEntry(attribute(ROOT, "children"), "n3"), "pair"),
    ]
    made = program.guard_program(guards, inputs, 1)
    reference = program.PythonProgram(guards, inputs)
    held = 0
    for _ in range(600):
        for _ in range(random.choice((0, 0, 1, 1, 2))):
            random.choice(CHANGES)(random.choice(nodes_of(root)))
        if random.random() < 0.5:
            for node in nodes_of(root):
                put_right(node) if random.random() < 0.9 else None
        if random.random() < 0.1:
            root.children[f"n{random.randrange(6)}"] = replacement = Node()
            replacement.function = make_function(5)
        if random.random() < 0.005:
            gc.collect()
        found, wanted = (
            made.load(test_random_changes, (root,)),
            reference.load(test_random_changes, (root,)),
        )
        assert (found is None) == (wanted is None)
        if found is not None:
            held += 1
            assert all(a is b for a, b in zip(found, wanted, strict=True))
    assert held > 30


def test_other_roots_and_functions_in_turn() -> None:
    first, second = tree(5), tree(5)
    guards = guards_of(first)
    made = program.guard_program(guards, [attribute(ROOT, "name")], 1)
    for at in range(60):
        root = (first, second)[at % 2]
        if at == 40:
            second.several[1].items.append(1)
        expected = not (at >= 40 and root is second)
        assert (made.failed(make_function(at), (root,)) is None) == expected


def test_a_root_made_afresh_at_the_same_place() -> None:
    guards = guards_of(tree(4))
    made = program.guard_program(guards, [attribute(ROOT, "pair")], 1)
    for at in range(200):
        root = tree(4)
        if at % 3 == 0:
            root.children["n2"].value = 9.0
        assert (made.failed(tree, (root,)) is None) == (at % 3 != 0)
        del root


def test_nothing_of_the_program_is_kept_alive() -> None:
    class Local(Node):
        pass

    root = tree(4)
    root.__class__ = Local
    guards = guards_of(root)
    made = program.guard_program(guards, [attribute(ROOT, "pair")], 1)
    for _ in range(3):
        assert made.failed(tree, (root,)) is None
    dead = [weakref.ref(root), weakref.ref(root.children["n1"]), weakref.ref(Local)]
    del root, Local
    gc.collect()
    assert [reference() for reference in dead] == [None] * 3
    assert made.failed(tree, (tree(4),)) is not None


def test_a_counter_that_changes_at_every_call_costs_no_guard() -> None:
    root = tree(5)
    made = program.guard_program(guards_of(root), [attribute(ROOT, "name")], 1)
    for at in range(100):
        root.steps = at
        root.children["n1"].steps = at
        assert made.failed(tree, (root,)) is None
    root.children["n1"].value = 2.0
    assert made.failed(tree, (root,)) is not None


def test_a_call_that_runs_the_same_program() -> None:
    """A guard's Python code may call the compiled callable whose guards are being checked, change
    what they read, and collect.
    """
    root = tree(5)
    depth = [0]
    made: list[Any] = []

    def probe(node: Node) -> int:
        if depth[0] < 2:
            depth[0] += 1
            for _ in range(3):
                made[0].failed(probe, (root,))
            root.children["n2"].hooks = collections.OrderedDict()
            root.several[0].table = {"a": 1, "b": 2, 3: "c"}
            gc.collect()
            depth[0] -= 1
        return 1

    guards = [*guards_of(root), Guard("EQUALS", CallOf(probe, (ROOT,)), 1)]
    made.append(program.guard_program(guards, [attribute(ROOT, "pair")], 1))
    for _ in range(3):
        assert made[0].failed(probe, (root,)) is None


def test_torch_parameters_beside_a_module() -> None:
    from flambeau_capture import CaptureOptions, state_of
    from flambeau_capture import compile as capture_compile

    model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(12)])
    compiled = capture_compile(
        model,
        backend=lambda module, inputs: module.forward,
        options=CaptureOptions(recompile_limit=64),
    )
    x = torch.randn(2, 3)
    for at in range(40):
        if at % 4 == 1:
            model[at % 12].weight = torch.nn.Parameter(torch.randn(3, 3))
        if at % 4 == 2:
            model[at % 12].weight.data = torch.randn(3, 3)
        if at == 30:
            model[3].bias.requires_grad_(False)
        torch.testing.assert_close(compiled(x), model(x))
    captures = [event.kind for event in state_of(compiled).events]
    assert captures == ["capture", "recompile"]


class Few:
    """An object whose attributes CPython keeps in the object."""

    def __init__(self) -> None:
        self.a, self.b, self.c = 1.5, "b", (1,)
        self.table = {"x": 1, "y": "two"}


class Many(Few):
    """An object whose attributes stand in a table of its own."""

    def __init__(self) -> None:
        super().__init__()
        for at in range(40):
            setattr(self, f"n{at}", at)


def store_a(obj: Any, value: Any) -> None:
    obj.a = value


def store_b(obj: Any, value: Any) -> None:
    obj.b = value


def store_late(obj: Any) -> None:
    obj.late = 1


def refill(table: dict[str, Any], *entries: tuple[str, Any]) -> None:
    table.clear()
    table.update(entries)


STORES: list[Any] = [
    *[lambda obj: store_a(obj, random.choice((1.5, 1.5, 2.5)))] * 4,
    *[lambda obj: store_b(obj, random.choice(("b", "b", "c")))] * 4,
    store_late,
    lambda obj: vars(obj).pop("late", None),
    lambda obj: vars(obj).pop("late", None),
    lambda obj: delattr(obj, "a"),
    lambda obj: setattr(type(obj)(), f"grown{random.randrange(40)}", 1),
    lambda obj: vars(obj).update(a=1.5),
    lambda obj: vars(obj).update(b="b"),
    lambda obj: setattr(obj, "__dict__", dict(vars(obj))),
    lambda obj: obj.__init__(),
    lambda obj: obj.__init__(),
    lambda obj: refill(obj.table, ("x", 1), ("y", "two")),
    lambda obj: refill(obj.table, ("y", "two"), ("x", 1)),
    lambda obj: refill(obj.table, ("y", 1), ("x", "two")),
    lambda obj: refill(obj.table, ("x", 1)),
    lambda obj: obj.table.pop("x", None),
    lambda obj: obj.table.update(x=1),
    lambda obj: obj.table.update({f"k{at}": at for at in range(30)}),
    lambda obj: obj.table.update({5: 5}),
    lambda obj: setattr(obj, "table", dict(obj.table)),
    lambda obj: setattr(obj, "c", (1,)),
]


@pytest.mark.parametrize("kind", [Few, Many])
@pytest.mark.parametrize("seed", range(4))
def test_entries_wherever_they_are_kept(kind: type, seed: int) -> None:
    """Stores by specialised bytecode, which says nothing to watchers of dicts in CPython 3.13.0;
    tables of every shape, at addresses used before.
    """
    random.seed(seed)
    made = type("Made", (kind,), {})  # with keys of its own
    objects = [made() for _ in range(12)]
    for _ in range(20):  # the stores are specialised
        for obj in objects:
            store_a(obj, 1.5)
            store_b(obj, "b")
            store_late(obj)
            del obj.late
    guards = []
    for at, obj in enumerate(objects):
        source = Item(ROOT, at)
        table = attribute(source, "table")
        facts = [
            ("TYPE", source, made),
            ("EQUALS", attribute(source, "a"), obj.a),
            ("IS", attribute(source, "b"), obj.b),
            ("EQUALS", attribute(source, "c"), (1,)),
            ("ABSENT", InstanceDict(source), "late"),
            ("ABSENT", InstanceDict(source), "never"),
            ("EQUALS", DictEntry(table, "x"), 1),
            ("EQUALS", DictEntry(table, "y"), "two"),
            ("HAS_KEY", table, "y"),
            ("ABSENT", table, "z"),
        ]
        guards += [Guard(kind, what, kinds.KINDS[kind].prepare(fact)) for kind, what, fact in facts]
    inputs = [attribute(Item(ROOT, 3), "b"), DictEntry(attribute(Item(ROOT, 5), "table"), "y")]
    program_made = program.guard_program(guards, inputs, 1)
    reference = program.PythonProgram(guards, inputs)
    held = 0
    for _ in range(1500):
        if random.random() < 0.6:
            change, obj = random.choice(STORES), random.choice(objects)
            with contextlib.suppress(AttributeError):  # deleted twice
                change(obj)
            if (
                random.random() < 0.8
            ):  # and back: what was read is the same again, perhaps elsewhere
                vars(obj).pop("late", None)
                if random.random() < 0.5:
                    obj.__init__()
                else:
                    obj.a, obj.b = 1.5, "b"
                    refill(obj.table, ("x", 1), ("y", "two"))
        found = program_made.load(make_function, (objects,))
        wanted = reference.load(make_function, (objects,))
        assert (found is None) == (wanted is None)
        if found is None:
            for obj in objects:
                vars(obj).pop("late", None)
                obj.__init__()
        else:
            held += 1
            assert all(a is b for a, b in zip(found, wanted, strict=True))
    assert held > 300


def test_relations_of_sizes_that_are_read_by_python() -> None:
    """Such sizes are read behind all else, and relations behind these."""
    root = tree(5)
    env = SizeEnv()
    rows, columns = (env.symbol(hint, None) for hint in (4, 4))
    weights = Attribute(ROOT, "weights")
    names = {str(rows): TensorSize(weights, 0), str(columns): TensorSize(weights, 1)}
    relation = Relation(Condition("==", rows, columns), names)
    guards = [*guards_of(root), Guard("RELATION", names[str(rows)], relation)]
    made = program.guard_program(guards, [weights], 1)
    random.seed(0)
    for _ in range(200):
        shape = random.choice(((4, 4), (7, 7), (4, 5), (2, 9)))
        root.weights = torch.ones(shape)
        assert (made.failed(tree, (root,)) is None) == (shape[0] == shape[1])
