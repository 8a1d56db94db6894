"""Which updates happen in the memory of what they update, on a CPU and on a GPU (planned only)."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.pipeline import schedule_graph
from flambeau_inductor.scheduler.update_in_place import copy_of
from flambeau_prims.builder import Builder
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.spec import Spec
from flambeau_runtime import load

CHECKED = InductorOptions(debug_checks=True)


def call(b, op, *args, shape=None):
    """A call of ATen; its result is like the first argument unless its shape is given."""
    spec = args[0].spec
    out = Value(b.fresh_name(), spec if shape is None else spec.fresh(shape))
    out.producer = Node(op, args, {}, (out,))
    b.nodes.append(out.producer)
    return out


def fill(b, x, rows):
    return call(b, torch.ops.aten.index_fill.int_Scalar, x, 0, rows, 2.0)


def put(b, x, rows, k):
    return b.index_put(x, [rows], k, False)


def scheduled(build, device):
    """The schedule of build(b, x, rows, k) -> (outputs, what x holds at the end)."""
    spec = Spec.of((64, 8), device=torch.device(device))
    x, k = Value("x", spec), Value("k", spec.fresh((3, 8)))
    rows = Value("rows", Spec.of((3,), dtype=torch.int64, device=torch.device(device)))
    graph = Graph([x, rows, k])
    b = Builder(graph.nodes, ["x", "rows", "k"])
    graph.outputs, new = build(b, x, rows, k)
    graph.writes = [(x, new)] if new is not None else []
    return schedule_graph(graph, CHECKED)


def large_buffers(schedule):
    """The buffers as large as x that the program allocates."""
    buffers = schedule.lowered.buffers
    wide = [n for n, b in buffers.items() if b.role != "input" and b.spec.shape == (64, 8)]
    return [name for name in wide if name not in schedule.memory.internal]


def one(b, x, rows, k):
    y = put(b, x, rows, k)
    return [b.sum(y, (0, 1))], y


def chain(b, x, rows, k):
    y = put(b, put(b, x, rows, k), rows, b.mul(k, 2.0))
    return [b.sum(y, (0, 1))], y


def old_value_first(b, x, rows, k):
    total = b.sum(x, (0,))
    y = put(b, x, rows, k)
    return [b.add(b.sum(y, (0,)), total)], y


def old_value_later(b, x, rows, k):
    """The last reader of the old value comes later in the program."""
    y = put(b, x, rows, k)
    new = b.sum(y, (0,))
    return [b.add(new, b.sum(x, (0,)))], y


def old_value_needed(b, x, rows, k):
    """The old value is read with what the new one gives."""
    y = put(b, x, rows, k)
    scale = b.expand(b.unsqueeze(b.sum(y, (1,)), 1), (64, 8))
    return [b.sum(b.mul(x, b.exp(scale)), (0,))], y


def returned(b, x, rows, k):
    y = put(b, x, rows, k)
    return [y], y


def of_its_own_rows(b, x, rows, k):
    y = put(b, x, rows, b.mul(b.slice(x, 0, 0, 3, 1), 2.0))
    return [b.sum(y, (0, 1))], y


def unwritten(b, x, rows, k):
    """The input keeps its contents."""
    return [b.sum(put(b, x, rows, k), (0, 1))], None


def of_a_result(b, x, rows, k):
    y = b.exp(x)
    return [b.sum(y, (0,)), put(b, y, rows, k)], None


def read_again(b, x, rows, k):
    y = b.exp(x)
    z = put(b, y, rows, k)
    return [call(b, torch.ops.aten.mm.default, y, b.permute(z, (1, 0)), shape=(64, 64))], None


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (one, 0), (chain, 0), (old_value_first, 0), (old_value_later, 0), (old_value_needed, 1),
        (returned, 1), (of_its_own_rows, 0), (unwritten, 1), (of_a_result, 1), (read_again, 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_updates_without_a_copy(build, count, device):
    schedule = scheduled(build, device)
    assert len(large_buffers(schedule)) == count
    copies = [copy_of(node) for group in schedule.groups for node in group.nodes]
    assert sum(copy is not None and copy.node.outer != () for copy in copies) <= count + 1


@pytest.mark.parametrize(("device", "count"), [("cpu", 1), ("cuda:0", 0)])
def test_a_call_that_may_raise_does_not_write_to_an_input(device, count):
    def build(b, x, rows, k):
        y = fill(b, x, rows)
        return [b.sum(y, (0, 1))], y

    schedule = scheduled(build, device)
    assert len(large_buffers(schedule)) == count
    (update,) = [n for g in schedule.groups for n in g.nodes if getattr(n, "mutates", ())]
    assert update.mutates == ("arg0",) or count


@pytest.mark.parametrize(("device", "count"), [("cpu", 1), ("cuda:0", 0)])
def test_nothing_raises_once_an_input_is_written(device, count):
    """A read at indices that come from the new value stays behind the write."""

    def build(b, x, rows, k):
        y = put(b, x, rows, k)
        places = b.cast(b.sum(y, (1,)), torch.int64)
        return [b.index(b.mul(x, 2.0), [places])], y

    def early(b, x, rows, k):
        y = put(b, x, rows, k)
        return [b.sum(b.index(k, [rows]), (0,)), b.sum(y, (0, 1))], y

    late = scheduled(build, device)
    # The old value is read behind the new one.
    assert len(large_buffers(late)) >= 1
    assert not large_buffers(scheduled(early, device))
    order = [node for group in scheduled(early, device).groups for node in group.nodes]
    writes = [n for n, node in enumerate(order) if "arg0" in node.writes]
    raising = [n for n, node in enumerate(order) if node.can_raise]
    assert not raising or max(raising) < min(writes)
    assert bool(raising) == bool(count)


def test_sums_at_known_places_are_no_copies() -> None:
    """`zeros.index_put(arange, x, accumulate)`, twice in one sum: gradients of a table of which one
    row is read apart.
    """
    x, y = Value("x", Spec.of((2, 70))), Value("y", Spec.of((2, 4, 70)))
    graph = Graph([x, y])
    b = Builder(graph.nodes, ["x", "y"])
    places = [b.iota(n, 0, 1, torch.int64, torch.device("cpu")) for n in (4, 70)]
    zeros = [b.full(shape, 0.0, torch.float32, torch.device("cpu")) for shape in ((70,), (4, 70))]
    row = b.index_put(zeros[0], [places[1]], b.sum(x, (0,)), True)
    at = [b.expand(b.reshape(places[0], (4, 1)), (4, 70)), b.expand(places[1], (4, 70))]
    table = b.index_put(zeros[1], at, b.sum(y, (0,)), True)
    graph.outputs = [b.add(b.pad(b.unsqueeze(row, 0), (0, 0), (3, 0), 0), table)]
    given = [torch.randn(2, 70), torch.randn(2, 4, 70)]
    (expected,) = run_graph(graph, given)
    (got,) = load(compile_graph(graph, CHECKED))(*given)
    torch.testing.assert_close(got, expected)


def test_checks_walk_only_what_they_check():
    """Indices of rows are checked once each, not once for each element of a row."""
    schedule = scheduled(one, "cpu")
    (check,) = [n for g in schedule.groups for n in g.nodes if getattr(n, "label", "") == "check"]
    assert [axis.size for axis in check.outer] == [3]
