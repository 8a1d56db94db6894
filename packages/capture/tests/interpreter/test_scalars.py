"""Numbers that change become inputs of the graph; code that needs their value guards it."""

from __future__ import annotations

import collections
import math

import pytest
import torch
from capture_harness import compiled, same

from flambeau_capture import state_of

X = torch.arange(6.0).reshape(2, 3)
GLOBAL = {"scale": 0.5}


def run(function, calls, entries):
    """Equal to eager on every call, in this many entries."""
    captured = compiled(function, dynamic=None)
    for args in calls:
        same(captured(*args), function(*args))
    assert len(state_of(captured).entries) == entries
    return state_of(captured).entries


@pytest.mark.parametrize("number", [0.25, -0.0, 2.0, math.nan, math.inf])
def test_extremes_of_floats_are_symbolic(number):
    def program(x, k):
        held = x.sum().item()
        return (
            x * max(1.0, held, k), x * min(held, 0.5), max(k, 0.0), min(0.0, k), max(held, 0.0),
            min(k, held),
        )  # fmt: skip

    captured = compiled(program, dynamic=None)
    for call in range(4):
        for x in (torch.full((3,), number), torch.full((3,), 1.0 - call)):
            args = (x, number + call)
            for ours, theirs in zip(captured(*args), program(*args), strict=True):
                assert type(ours) is type(theirs)
                ours, theirs = torch.as_tensor(ours), torch.as_tensor(theirs)
                torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
                assert torch.equal(torch.signbit(ours), torch.signbit(theirs))
    assert len(state_of(captured).entries) <= 2


def test_math_of_ints_of_the_program_is_computed_before_the_graph():
    def program(x, step):
        return x * (0.1 * (1 + math.cos(math.pi * step / 10)) / 2), math.sqrt(step), math.exp(-step)

    run(program, [(X, step) for step in range(2, 12)], 2)


def test_a_float_argument_is_a_placeholder():
    entries = run(lambda x, k: x * k + 1, [(X, k / 7) for k in range(30)], 2)
    graph = entries[0].info.graph_module.graph
    assert [node.name for node in graph.nodes if node.op == "placeholder"] == ["x", "k"]
    assert "L['k'] is a float" in entries[0].info.guard_texts()


def test_what_python_computes_of_floats_is_an_input_of_its_own():
    entries = run(lambda x, k: x * (math.sqrt(k) + k * 2), [(X, k / 7) for k in range(1, 30)], 2)
    assert any(
        text.endswith("is a float") and "sqrt" in text for text in entries[0].info.guard_texts()
    )


Point = collections.namedtuple("Point", "left right")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda k: [k, 1],
        lambda k: (k, 1),
        lambda k: {"a": k},
        lambda k: Point(k, 2),
        lambda k: ((k,),),
    ],
)
def test_inside_containers(wrap):
    def program(x, box):
        while not isinstance(box, (int, float)):
            box = next(iter(box.values())) if isinstance(box, dict) else box[0]
        return x * box

    run(program, [(X, wrap(k * 0.3)) for k in range(20)], 2)


def test_globals_closures_and_attributes():
    class Holder:
        scale = 2.0

    holder, cell = Holder(), 1.0

    def program(x):
        return x * GLOBAL["scale"] + holder.scale - cell

    captured = compiled(program, dynamic=None)
    for step in range(20):
        GLOBAL["scale"], holder.scale, cell = step * 0.1, step * 0.2, step * 0.3
        same(captured(X), program(X))
    assert len(state_of(captured).entries) == 2


def test_ints_of_either_sign_and_counters():
    run(lambda x, n: (x * n, n + 1, n // 3, n % 5, -n), [(X, n) for n in range(-20, 20)], 2)


def test_numbers_come_back_as_python_numbers():
    def program(x, k, n):
        return k, k * 2, n * 3, k > 1e9, [k + n], {"a": n}

    run(program, [(X, k * 0.5, k) for k in range(2, 20)], 2)


def test_a_float_that_becomes_an_int_is_another_entry():
    run(lambda x, k: (x * k).sum(), [(X, 0.5), (X, 0.7), (X, 3), (X, 0.9), (X, True)], 4)


def test_control_flow_text_and_keys():
    def program(x, k):
        table = {0.5: 1, 1.5: 2}
        return x + 1 if k < 1 else x - 1, table.get(k), f"{k}", repr(round(k, 1)), math.isnan(k)

    run(program, [(X, k) for k in (0.5, 1.5, 0.5, math.nan, math.inf)], 4)


def test_nan_and_signed_zeros_keep_their_branches():
    def program(x, k):
        return x * 2 if k >= 0 else x * 3 if k < 0 else x * 4

    values = [1.0, 2.0, -1.0, math.nan, 0.0, -0.0, -3.0, math.inf]
    run(program, [(X, k) for k in values], 4)


def test_arithmetic_is_pythons():
    def program(x, k):
        return x, (k // 0.1, k % 0.3, k**3, (-k) ** 2, divmod(k, 0.7), abs(k), -k, k / 3, 3 - k)

    run(program, [(X, k / 10) for k in range(1, 40)], 2)


def test_tensors_made_of_numbers():
    def program(x, k, n):
        return (
            torch.tensor(k),
            torch.tensor(n),
            torch.as_tensor(k, dtype=torch.float64),
            torch.full((2,), k),
        )

    run(program, [(X, k / 3, k) for k in range(2, 12)], 2)


def test_static_means_static():
    captured = compiled(lambda x, k: x * k, dynamic=False)
    for k in (0.1, 0.2, 0.3):
        same(captured(X, k), X * k)
    assert len(state_of(captured).entries) == 3
