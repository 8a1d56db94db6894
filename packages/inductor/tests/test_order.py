"""The order of groups: for the least memory, and never against a dependency."""

from __future__ import annotations

import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.reference import ReferenceBackend
from flambeau_inductor.pipeline import schedule_graph
from flambeau_inductor.scheduler.groups import dependencies
from flambeau_prims.graph import Node, Value
from flambeau_prims.spec import Spec
from flambeau_runtime.peak_memory import live_bytes, planned_peak

CHECKED = InductorOptions(debug_checks=True)


def outer(b, x, w):
    """A large matrix of a column and a row, which a library computes."""
    result = Value(b.fresh_name(), Spec.of((x.spec.shape[0], w.spec.shape[1])))
    result.producer = Node(torch.ops.aten.mm.default, (x, w), {}, (result,))
    b.nodes.append(result.producer)
    return result


def products_first(b, x, w):
    """The program computes all matrices before it reads any."""
    matrices = [outer(b, x, w) for _ in range(6)]
    narrow = [outer(b, matrix, b.clone(b.permute(w, (1, 0)))) for matrix in matrices]
    return tuple(narrow)


def test_large_values_are_read_as_soon_as_they_are_there(tester):
    tensors = torch.randn(300, 1), torch.randn(1, 300)
    program = tester.check(products_first, *tensors, options=CHECKED, rtol=1e-4, atol=1e-3)
    matrix = 300 * 300 * 4
    assert planned_peak(program) - live_bytes(program)[0] < 2 * matrix
    as_given = compile_graph(
        tester.graph(products_first, tensors),
        InductorOptions(reuse_memory=False),
        backends={"cpu": ReferenceBackend()},
    )
    assert planned_peak(as_given) > 6 * matrix


def test_the_order_of_the_program_stays_where_nothing_is_gained(tester):
    def build(b, x, w):
        y = outer(b, x, w)
        return outer(b, b.tanh(y), x), b.sum(x, (0,)), b.sum(w, (1,))

    schedule = schedule_graph(tester.graph(build, (torch.randn(9, 9), torch.randn(9, 9))), CHECKED)
    orders = [group.nodes[0].order for group in schedule.groups]
    assert orders == sorted(orders)


def test_no_group_runs_before_what_it_needs(tester):
    def build(b, x, w):
        matrices = [outer(b, x, w) for _ in range(6)]
        total = matrices[0]
        for matrix in matrices[1:]:
            total = b.add(b.tanh(total), b.exp(matrix))
        return outer(b, total, b.clone(b.permute(w, (1, 0)))), *(b.sum(m, (1,)) for m in matrices)

    tensors = torch.randn(64, 1), torch.randn(1, 64)
    tester.check(build, *tensors, options=CHECKED, rtol=1e-4, atol=1e-3)
    schedule = schedule_graph(tester.graph(build, tensors), CHECKED)
    step = {id(n): number for number, group in enumerate(schedule.groups) for n in group.nodes}
    nodes = schedule.lowered.nodes
    for node, needs in zip(nodes, dependencies(schedule.lowered), strict=True):
        assert all(step[id(nodes[other])] <= step[id(node)] for other in needs)
