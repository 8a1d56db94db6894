"""Where collectives start, and where they are waited for."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import InductorOptions
from flambeau_inductor.pipeline import schedule_graph
from flambeau_inductor.scheduler import overlap_collectives
from flambeau_prims.graph import Node, Value
from flambeau_prims.spec import Spec

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without distributed"
)

CHECKED = InductorOptions(debug_checks=True)


def call(b, op, *args, shape=None):
    result = Value(b.fresh_name(), Spec.of(shape or args[0].spec.shape))
    result.producer = Node(op, args, {}, (result,))
    b.nodes.append(result.producer)
    return result


def product(b, x, y):
    return call(b, torch.ops.aten.mm.default, x, y)


def start(b, x):
    return call(b, torch.ops._c10d_functional.all_reduce.default, x, "sum", "0")


def gather(b, x):
    rows, columns = x.spec.shape
    op = torch.ops._c10d_functional.all_gather_into_tensor.default
    return call(b, op, x, 2, "0", shape=(2 * rows, columns))


def wait(b, x):
    return call(b, torch.ops._c10d_functional.wait_tensor.default, x)


def steps(tester, build, *tensors):
    """What runs, in order: calls by the ends of their names, kernels as "kernel"."""
    schedule = schedule_graph(tester.graph(build, tensors), CHECKED)
    return [
        group.nodes[0].op.split(".")[-2] if group.is_extern else "kernel"
        for group in schedule.groups
    ]


def test_a_wait_moves_to_the_first_reader(tester):
    def build(b, x):
        total = wait(b, start(b, b.exp(x)))
        return b.add(total, product(b, x, x))

    order = steps(tester, build, torch.randn(8, 8))
    assert order == ["kernel", "all_reduce", "mm", "wait_tensor", "kernel"]


def test_a_start_moves_to_what_it_reads(tester):
    def build(b, x):
        y = b.exp(x)
        z = product(b, product(b, x, x), y)
        return b.add(wait(b, start(b, y)), z)

    order = steps(tester, build, torch.randn(8, 8))
    assert order == ["kernel", "all_reduce", "mm", "mm", "wait_tensor", "kernel"]


def test_a_result_that_only_the_caller_reads_is_waited_for_last(tester):
    def build(b, x):
        totals = [wait(b, start(b, y)) for y in (b.exp(x), product(b, x, x))]
        return *totals, b.tanh(product(b, x, b.sin(x)))

    order = steps(tester, build, torch.randn(8, 8))
    assert order[-2:] == ["wait_tensor", "wait_tensor"]
    assert order.index("all_reduce") < order.index("mm")


def layers(b, x, *parts):
    """Each layer gathers its weight when the one before it is done."""
    for part in parts:
        x = b.tanh(product(b, x, wait(b, gather(b, part))))
    return x


def test_weights_are_gathered_one_layer_ahead(tester):
    order = steps(tester, layers, torch.randn(8, 8), *(torch.randn(4, 8) for _ in range(3)))
    layer = ["wait_tensor", "all_gather_into_tensor", "mm", "kernel"]
    assert order == ["all_gather_into_tensor", *layer, *layer, "wait_tensor", "mm", "kernel"]


def test_memory_bounds_how_far_they_move(tester, monkeypatch):
    monkeypatch.setattr(overlap_collectives, "LEAST_RISE", 0)
    monkeypatch.setattr(overlap_collectives, "RISE", 0.0)
    order = steps(tester, layers, torch.randn(8, 8), *(torch.randn(4, 8) for _ in range(3)))
    # The second layer holds most: what it is given, its weight and its product.
    assert order[-4:] == ["all_gather_into_tensor", "wait_tensor", "mm", "kernel"]


def test_collectives_start_in_the_order_of_the_program(tester):
    def build(b, x):
        late = start(b, product(b, x, b.exp(x)))
        early = gather(b, x)
        return wait(b, late), wait(b, early)

    order = steps(tester, build, torch.randn(8, 8))
    assert order.index("all_reduce") < order.index("all_gather_into_tensor")


def test_what_is_in_flight_is_not_overwritten(tester):
    def build(b, x):
        y = b.exp(x)
        total = wait(b, gather(b, y))
        z = product(b, product(b, x, x), x)
        return b.sum(total, (0,)), b.tanh(z)

    schedule = schedule_graph(tester.graph(build, (torch.randn(400, 400),)), CHECKED)
    steps = {node.op: n for n, g in enumerate(schedule.groups) for node in g.nodes if g.is_extern}
    (sent,) = (name for group in schedule.groups[:1] for name in group.stores)
    ended = next(n for n, names in enumerate(schedule.memory.free) if sent in names)
    reused = [
        n
        for n, given in enumerate(schedule.memory.allocate)
        for each in given
        if each.reuse == sent
    ]
    assert min([ended, *reused]) >= steps["_c10d_functional.wait_tensor.default"]
