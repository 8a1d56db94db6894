"""Attributes of instances of subclasses of C types: they leave the frame with the instance, and C
code at capture reads what the frame has set.
"""

from __future__ import annotations

import array
import collections
import copy
import datetime
import decimal
import fractions
import pickle

import pytest
import torch
from capture_harness import run_graph

import flambeau_capture
from flambeau_capture import state_of

ARGUMENTS = {
    frozenset: ({1, 2},), bytes: (b"ab",), str: ("ab",), int: (3,), float: (2.5,),
    complex: (1j,), tuple: ((1, 2),), list: ([1],), dict: ({1: 2},), set: ({1},),
    bytearray: (b"a",), collections.deque: ([1, 2], 3), array.array: ("i", [1, 2]),
    collections.OrderedDict: ({1: 2},), collections.defaultdict: (list, {1: 2}),
    collections.Counter: ("aab",), datetime.date: (2020, 1, 2), datetime.datetime: (2020, 1, 2, 3),
    datetime.time: (3,), datetime.timedelta: (1,), decimal.Decimal: ("1.5",),
    fractions.Fraction: (1, 3),
}  # fmt: skip


def _subclass(base, slots):
    name = f"{base.__name__.title()}{'Slotted' if slots else ''}"
    namespace = {"__module__": __name__}
    if slots:
        namespace["__slots__"] = ("x", *(() if base.__dictoffset__ else ("__dict__",)))
    return type(name, (base,), namespace)


SUBCLASSES = [
    (_subclass(base, slots), arguments)
    for base, arguments in ARGUMENTS.items()
    for slots in (False, True)
    if not (slots and issubclass(base, (int, bytes, tuple)))  # which have none
]
globals().update({cls.__name__: cls for cls, _ in SUBCLASSES})


def made(x, value, cls, arguments):
    own = cls(*arguments)
    own.x, own.z = ["x"], ["z", 1]
    return x + 1, own


def copied(x, value, cls, arguments):
    own = cls(*arguments)
    own.x, own.z = ["x"], ["z", 1]
    return x + 1, copy.copy(own), copy.deepcopy(own), pickle.loads(pickle.dumps(own))


def pickled_with_what_is_set(x, value, cls, arguments):
    value.x, value.z = ["later"], 2
    found = pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)
    del value.x, value.z
    return x + 1, *found


def pickled_as_given(x, value, cls, arguments):
    return x + 1, pickle.loads(pickle.dumps(value))


def _shown(x, *values):
    attributes = [(getattr(value, "x", None), getattr(value, "z", None)) for value in values]
    return x, repr(values), [type(value) for value in values], attributes


@pytest.mark.parametrize(
    "program", [made, copied, pickled_with_what_is_set, pickled_as_given],
    ids=lambda program: program.__name__,
)  # fmt: skip
@pytest.mark.parametrize(("cls", "arguments"), SUBCLASSES, ids=[c.__name__ for c, _ in SUBCLASSES])
def test_attributes_of_subclasses_of_c_types(program, cls, arguments):
    compiled = flambeau_capture.compile(program, backend=run_graph)
    for mark in ("first", "second"):
        x, values = torch.randn(2), [cls(*arguments), cls(*arguments)]
        for value in values:
            value.x, value.z = [mark], mark
        expected = _shown(*program(x, values[0], cls, arguments))
        found = _shown(*compiled(x, values[1], cls, arguments))
        assert torch.equal(found[0], expected[0])
        assert found[1:] == expected[1:]
    if program is made and not issubclass(cls, complex):  # which the frame does not rebuild
        assert not [event for event in state_of(compiled).events if event.kind == "break"]


def test_known_immutable_values_are_read_by_c_code():
    compiled = flambeau_capture.compile(
        lambda x, value: (x + 1, pickle.dumps(value)), backend=run_graph
    )
    for value in (("a", 1), ("b", 2), ("b", (2.5,)), frozenset("a"), frozenset("b")):
        assert compiled(torch.ones(2), value)[1] == pickle.dumps(value)
    assert sum(event.kind == "break" for event in state_of(compiled).events) == 0


def test_a_break_in_a_loop_over_a_set_leaves_out_no_item():
    def program(x, outside):
        found = []
        for number in {*outside}:  # both belong in the last place of the table
            found.append(number)
            torch._dynamo.graph_break()
        return x + 1, found

    compiled = flambeau_capture.compile(program, backend=run_graph)
    for _ in range(2):
        x = torch.randn(2)
        assert repr(compiled(x, [7, 15])) == repr(program(x, [7, 15]))
