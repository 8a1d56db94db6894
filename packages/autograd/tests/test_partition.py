"""The partition: minimum cuts against networkx, what is saved, and equal gradients whatever is."""

from __future__ import annotations

import random

import pytest
import torch
from recording import record_calls, record_module
from test_models import bert, mlp

from flambeau_autograd import AutogradOptions
from flambeau_autograd.joint_trace import trace
from flambeau_autograd.min_cut import INFINITE, FlowNetwork
from flambeau_autograd.operators import Work, work
from flambeau_autograd.partition import partition, summarize
from flambeau_autograd.pipeline import prepare
from flambeau_autograd.recompute import saved_by_minimum_cut
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Value
from flambeau_prims.spec import Spec


@pytest.mark.parametrize("seed", range(20))
def test_minimum_cut_is_minimal_and_nearest_to_the_sink(seed):
    networkx = pytest.importorskip("networkx")
    rng = random.Random(seed)
    vertices = rng.randint(4, 30)
    mine, theirs = FlowNetwork(vertices), networkx.DiGraph()
    theirs.add_nodes_from(range(vertices))
    edges = []
    for _ in range(rng.randint(vertices, 4 * vertices)):
        tail, head = rng.sample(range(vertices), 2)
        if theirs.has_edge(tail, head):
            continue
        capacity = rng.randint(0, 12)
        edges.append((tail, head, capacity))
        mine.edge(tail, head, capacity)
        theirs.add_edge(tail, head, capacity=capacity)
    flow, after = mine.minimum_cut(0, 1)
    assert flow == networkx.maximum_flow_value(theirs, 0, 1)
    assert after[1] and not after[0]
    assert sum(c for tail, head, c in edges if after[head] and not after[tail]) == flow
    residual = networkx.algorithms.flow.build_residual_network(theirs, "capacity")
    residual = networkx.algorithms.flow.preflow_push(theirs, 0, 1, residual=residual)
    free = networkx.DiGraph(
        (u, v) for u, v, data in residual.edges(data=True) if data["capacity"] > data["flow"]
    )
    free.add_nodes_from(range(vertices))
    assert {v for v in range(vertices) if after[v]} == networkx.ancestors(free, 1) | {1}


def test_no_finite_cut():
    network = FlowNetwork(3)
    network.edge(0, 2, INFINITE)
    network.edge(2, 1, INFINITE)
    with pytest.raises(ValueError, match="no finite cut"):
        network.minimum_cut(0, 1)


def part_of(gm, examples, mode, **options):
    options = AutogradOptions(partition=mode, **options)
    traced = trace(gm, examples)
    joint = prepare(traced, options)
    return partition(joint, len(traced.tape.inputs) - len(traced.tangents), traced.results, options)


def part_of_program(program, examples, mode="min_cut", **options):
    return part_of(record_calls(program, examples), examples, mode, **options)


@pytest.mark.parametrize("make", [bert, mlp], ids=lambda make: make.__name__)
def test_min_cut_saves_less_than_all(make):
    torch.manual_seed(0)
    model, args, call = make()
    gm = record_module(model, args, call)
    examples = [*args, *model.parameters(), *model.buffers()]
    least, most = (
        sum(tensor.bytes for tensor in summarize(part_of(gm, examples, mode)).saved)
        for mode in ("min_cut", "save_all")
    )
    assert 0 < least < 0.8 * most


def test_pointwise_chains_are_recomputed_from_the_inputs():
    x = torch.randn(64, requires_grad=True)
    part = part_of_program(lambda x: (x.sin().exp().sigmoid().sum(),), [x])
    assert [kind for kind, _ in part.saved] == ["input", "tangent"]


def test_products_and_random_numbers_are_never_computed_twice():
    def program(x, w):
        y = torch.nn.functional.dropout((x @ w).sin(), 0.5)
        return (torch.softmax(y @ w, -1),)

    part = part_of_program(program, [torch.randn(8, 8, requires_grad=True) for _ in range(2)])
    forward = [node for node in part.forward.nodes if work(node.op) in (Work.HEAVY, Work.ONCE)]
    assert len(forward) == 3
    assert not any(work(node.op) is Work.ONCE for node in part.backward.nodes)
    products = [node for node in part.backward.nodes if node.op is torch.ops.aten.mm.default]
    assert len(products) == 4, "two products, two gradients each"


def test_views_are_taken_again_rather_than_saved():
    def program(x, w):
        y = x @ w
        return (y.t().expand(3, 8, 8) * y.exp(),)

    part = part_of_program(program, [torch.randn(8, 8, requires_grad=True) for _ in range(2)])
    saved = [part.forward.outputs[at] for kind, at in part.saved if kind == "output"]
    assert [value.spec.shape for value in saved] == [(8, 8)]


def test_pooling_keeps_a_byte_a_window():
    """Its backward compares numbers of taps: no windows are read again, and no indices kept."""

    def program(x):
        return (torch.nn.functional.max_pool2d(x * 2, 3, 2, 1),)

    image = torch.randn(2, 3, 9, 9).contiguous(memory_format=torch.channels_last)
    part = part_of_program(program, [image.requires_grad_()])
    saved = [part.forward.outputs[at] for kind, at in part.saved if kind == "output"]
    assert [(value.spec.dtype, value.spec.shape) for value in saved] == [(torch.int8, (2, 3, 5, 5))]


def test_halves_are_recomputed_together():
    def program(x):
        a, b = x.exp().chunk(2, -1)
        return (torch.sigmoid(a) * b,)

    part = part_of_program(program, [torch.randn(8, 8, requires_grad=True)])
    assert not [at for kind, at in part.saved if kind == "output"]


def test_repeated_calls_stand_right_before_their_use():
    def program(x, w):
        for _ in range(4):
            x = (x @ w).sin().exp()
        return (x,)

    part = part_of_program(program, [torch.randn(8, 8, requires_grad=True) for _ in range(2)])
    position = {node: index for index, node in enumerate(part.backward.nodes)}
    for node in part.backward.nodes:
        users = [position[user] for out in node.outputs for user in part.backward.users()[out]]
        if users:
            assert min(users) - position[node] < 12


def test_what_is_computed_to_be_saved_stands_behind_what_it_reads():
    def program(x, w):
        for _ in range(4):
            x = x + (x @ w).relu() * 0.5
        return (x,)

    part = part_of_program(program, [torch.randn(8, 8, requires_grad=True) for _ in range(2)])
    nodes = part.forward.nodes
    saved = {part.forward.outputs[at] for kind, at in part.saved if kind == "output"}
    masks = [at for at, node in enumerate(nodes) if node.outputs[0].spec.dtype is torch.bool]
    assert len(masks) == 4
    for at in masks:
        assert nodes[at].outputs[0] in saved
        assert set(nodes[at].operands()) <= set(nodes[at - 1].outputs)


def test_long_chains_are_cut():
    def program(x):
        y = x * 1.5
        for _ in range(30):
            y = y.sin()
        return (y.sum(),)

    x = torch.randn(64, requires_grad=True)
    short = part_of_program(program, [x], recompute_chain=10)
    assert sum(kind == "output" for kind, _ in short.saved) >= 2
    assert (
        sum(
            kind == "output" for kind, _ in part_of_program(program, [x], recompute_chain=100).saved
        )
        == 0
    )


def test_long_chains_of_positions_are_not_cut():
    def program(x):
        place = x.argmax(1, keepdim=True) - torch.arange(64)
        for _ in range(15):
            place = (place ^ 5) + 1
        return (x * 2 * (place > 0),)

    part = part_of_program(program, [torch.randn(64, 64, requires_grad=True)])
    saved = [part.forward.outputs[at].spec.shape for kind, at in part.saved if kind == "output"]
    assert saved == [(64,)]


def test_dropout_masks_are_saved_as_booleans():
    def program(x, w):
        return (torch.nn.functional.dropout(x @ w, 0.5),)

    part = part_of_program(program, [torch.randn(8, 8, requires_grad=True) for _ in range(2)])
    saved = [part.forward.outputs[at] for kind, at in part.saved if kind == "output"]
    assert [value.spec.dtype for value in saved] == [torch.bool]


class Checked(torch.autograd.Function):
    """Draws in its backward, and checks there what it has kept and what it is given."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        torch._assert_async((x < 9).all(), "kept")
        torch._assert_async((grad < 9).all(), "given")
        return grad * 2 + torch.rand(4).sin()


def checked(x):
    return Checked.apply(x)


@pytest.mark.parametrize("mode", ["min_cut", "save_all"])
def test_what_the_backward_checks_and_draws_is_the_backwards(mode):
    def calls(graph):
        ops = [node.op for node in graph.nodes]
        return [node.args[1] for node in graph.nodes if node.op is aten._assert_async.msg] + [
            op for op in ops if op is aten.rand.default
        ]

    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(checked, (x,)),))
    gm = torch.fx.GraphModule({}, graph)
    part = part_of(gm, [torch.randn(4, requires_grad=True)], mode)
    assert calls(part.forward) == []
    assert calls(part.backward) == ["kept", "given", aten.rand.default]


@pytest.mark.parametrize("mode", ["min_cut", "save_all"])
def test_checks_of_the_forward_are_not_repeated(mode):
    """Though what they check is computed again, also as the inside of a checkpointed region."""

    def program(x):
        y = x.sin()
        torch._assert_async((y < 2).all(), "in range")
        return ((y * y).exp(),)

    examples = [torch.randn(4, requires_grad=True)]
    gm = record_calls(program, examples)
    for region in (0, 1):
        for node in gm.graph.nodes:
            node.meta["region"] = region
        if not any(node.target is torch._assert_async for node in gm.graph.nodes):
            pytest.fail("the check is not in the graph")
        part = part_of(gm, examples, mode)
        counts = [
            sum(node.op is torch.ops.aten._assert_async.msg for node in graph.nodes)
            for graph in (part.forward, part.backward)
        ]
        assert counts == [1, 0]


@pytest.mark.parametrize(("drawn", "readers"), [(True, 2), (True, 1), (False, 2)])
def test_what_several_calls_read_is_not_drawn_again(drawn, readers):
    """Residuals behind dropout: kernels of the forward leave them in memory."""
    cpu = torch.device("cpu")
    x, r = (Value(name, Spec.of((64, 64), dtype=torch.float32)) for name in "xr")
    state = Value("state", Spec.of((2,), dtype=torch.int64))
    graph = Graph([x, r, state])
    b = Builder(graph.nodes, ["x", "r", "state"])
    if drawn:
        bits = b.random_words(state, (64, 64), 256, "strided", 0, cpu)
    else:
        bits = b.reshape(b.iota(4096, 0, 1, torch.int64, cpu), (64, 64))
    residual = b.add(r, b.mul(x, b.cast(bits, torch.float32)))
    results = [b.exp(residual), b.sin(residual)][:readers]
    saved = saved_by_minimum_cut(
        graph, graph.inputs, results, graph.nodes[:-1] if readers == 1 else graph.nodes,
        set(), [residual], set(), set(), AutogradOptions(),
    )  # fmt: skip
    assert (residual in saved) == (drawn and readers == 2)
