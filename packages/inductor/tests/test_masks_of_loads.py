"""Which conditions loads in parts of a concatenation have: those that bear on their addresses."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import InductorOptions
from flambeau_inductor.emit_program import build_kernels
from flambeau_inductor.ir import Load
from flambeau_inductor.pipeline import schedule_graph
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Value
from flambeau_prims.spec import Spec

OPTIONS = InductorOptions(debug_checks=True)


def kernels_of(build, device, *tensors):
    inputs = [
        Value(f"x{n}", Spec.of(tuple(t.shape), dtype=t.dtype, device=torch.device(device)))
        for n, t in enumerate(tensors)
    ]
    graph = Graph(list(inputs))
    graph.outputs = [build(Builder(graph.nodes, [value.name for value in inputs]), *inputs)]
    return list(build_kernels(schedule_graph(graph, OPTIONS), OPTIONS).values())


def scaled_and_padded(b, x, scale):
    """Rows times a number each, then zeros."""
    rows, row = x.spec.shape
    y = b.mul(x, b.expand(b.unsqueeze(scale, 1), (rows, row)))
    return b.pad(y, (0, 0), (0, 3), 0.0)


def picked_and_padded(b, x, at):
    """The elements that an index picks, as rows of equal numbers, between zeros."""
    picked = b.index(x, [at])
    rows, row = at.spec.shape[0], x.spec.shape[0]
    return b.pad(b.expand(b.unsqueeze(picked, 1), (rows, row)), (1, 2), (0, 1), 0.0)


def first_padded_row(b, x):
    """The first row of x with a row of zeros before: nothing of x."""
    return b.exp(b.slice(b.pad(x, (1, 0), (0, 0), 0.0), 0, 0, 1, 1))


def last_padded_row(b, x):
    """The last row of x with a row of zeros before: all of the last one of x."""
    rows = x.spec.shape[0]
    return b.exp(b.slice(b.pad(x, (1, 0), (0, 0), 0.0), 0, rows, rows + 1, 1))


def loads_of(kernel):
    return {s.buffer: s.mask is not None for s in kernel.body if isinstance(s, Load)}


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_load_has_no_condition_on_other_axes(device):
    x, scale = torch.randn(5, 13), torch.randn(5)
    (launch,) = kernels_of(scaled_and_padded, device, x, scale)
    assert sorted(loads_of(launch.kernel).values()) == [False, True]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_load_keeps_the_condition_of_the_index_that_it_follows(device):
    x, at = torch.randn(5), torch.tensor([4, 0, 2])
    (launch,) = kernels_of(picked_and_padded, device, x, at)
    assert list(loads_of(launch.kernel).values()) == [True, True]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_load_keeps_a_condition_that_no_place_meets(device):
    (launch,) = kernels_of(first_padded_row, device, torch.randn(3, 40))
    assert list(loads_of(launch.kernel).values()) == [True]
    (launch,) = kernels_of(first_padded_row, device, torch.randn(0, 40))
    assert list(loads_of(launch.kernel).values()) == [True]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_load_has_no_condition_that_all_places_meet(device):
    (launch,) = kernels_of(last_padded_row, device, torch.randn(3, 40))
    assert list(loads_of(launch.kernel).values()) == [False]


def test_values(tester):
    tester.check(first_padded_row, torch.randn(3, 40))
    tester.check(last_padded_row, torch.randn(3, 40))
    tester.check(scaled_and_padded, torch.randn(5, 13), torch.randn(5))
    tester.check(scaled_and_padded, torch.randn(1, 70), torch.randn(1))
    tester.check(scaled_and_padded, torch.randn(3, 0), torch.randn(3))
    tester.check(picked_and_padded, torch.randn(5), torch.tensor([4, 0, 2]))
