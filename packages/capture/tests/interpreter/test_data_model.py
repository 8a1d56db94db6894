"""Operators, comparisons, slots, patterns and assignments as Python's data model has them: compiled as eagerly."""

from __future__ import annotations

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
