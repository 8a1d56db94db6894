"""Operators, comparisons, slots, patterns and assignments as Python's data model has them: compiled
as eagerly.
"""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from capture_harness import run_graph
from data_model_programs import CONSUMERS, PROGRAMS, consuming
from refusal_programs import PROGRAMS as REFUSALS

import flambeau_capture
from flambeau_capture import CaptureOptions


@pytest.mark.parametrize(
    "program", [*PROGRAMS, *REFUSALS], ids=[p.__name__ for p in [*PROGRAMS, *REFUSALS]]
)
def test_same_as_eager(program):
    as_eager(program)


@pytest.mark.parametrize("consume", CONSUMERS)
def test_iterators_are_consumed_once(consume):
    as_eager(consuming(consume))


def test_extremes_of_tensors_and_numbers_are_one_graph():
    compiled = flambeau_capture.compile(
        lambda x: min(max(x.sum(), 0), 1) * x,
        backend=run_graph,
        options=CaptureOptions(fullgraph=True),
    )
    for x in (torch.ones(3), -torch.ones(3), torch.full((3,), 0.1)):
        torch.testing.assert_close(compiled(x), min(max(x.sum(), 0), 1) * x)


def as_eager(program):
    x = torch.ones(3)
    compiled = flambeau_capture.compile(program, backend=run_graph)
    wanted = repr(program(x))
    for _ in range(2):
        assert repr(compiled(x)) == wanted


def test_recompiles_for_ints_too_long_to_print():
    compiled = flambeau_capture.compile(lambda x, n: (x + 1, n % 7), backend=run_graph)
    for n in (10**5000, 10**5001, 10**5002):
        found, rest = compiled(torch.ones(3), n)
        assert rest == n % 7
        torch.testing.assert_close(found, torch.full((3,), 2.0))


def test_a_module_that_is_imported_once_more_has_the_same_functions():
    first = sys.modules.pop("_operator")
    try:
        again = importlib.import_module("_operator")
    finally:
        sys.modules["_operator"] = first
    assert again.add is not first.add
    compiled = flambeau_capture.compile(
        lambda x: again.add(x, again.mul(2, again.truth([]))),
        backend=run_graph,
        options=CaptureOptions(fullgraph=True),
    )
    torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3))


@pytest.mark.parametrize("left", [6, 10, 15, 20, 30])
def test_runs_eagerly_where_the_recursion_limit_leaves_no_stack_to_compile(left):
    def callee(x, n):
        return x + n

    def with_a_low_limit(x):
        limit, depth = sys.getrecursionlimit(), 1
        while True:
            try:
                sys.setrecursionlimit(depth)
                break
            except RecursionError:
                depth += 1
        sys.setrecursionlimit(depth + left)
        try:
            return callee(x, 2) + 1
        finally:
            sys.setrecursionlimit(limit)

    compiled = flambeau_capture.compile(with_a_low_limit, backend=run_graph)
    x = torch.ones(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), x + 3)
    events = flambeau_capture.state_of(compiled).events
    if left == 15:
        assert any(event.reason and event.reason.id == "inline-depth" for event in events)
