"""pad_products: the results and strides of eager, with padded matrices."""

from __future__ import annotations

import pytest
import torch
from recording import GraphLog, clones, compile_program
from torch.nn import functional as F

from flambeau_autograd import pad_products
from flambeau_prims.check import check_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def all_products_gain(monkeypatch):
    """Products gain on a CPU and in every size, so that the pass can be run and compared here."""
    monkeypatch.setattr(pad_products, "_gains", lambda spec: spec.dtype.is_floating_point)
    monkeypatch.setattr(pad_products, "SLOWDOWN", dict.fromkeys((1, 2, 4), 1e9))


def vocabulary_loss(x, w, b):
    return F.cross_entropy(x @ w.t(), torch.arange(len(x)) % len(w))


def logits_too(x, w, b):
    y = x @ w.t()
    return F.cross_entropy(y, torch.arange(len(x)) % len(w)), y


def with_bias(x, w, b):
    return torch.tanh(F.linear(x, w, b)) @ w


def batched(x, w, b):
    scores = (x.view(2, -1, x.shape[1]) @ w.t().expand(2, -1, -1)).softmax(-1)
    return scores @ w.expand(2, -1, -1)


def shifted(x, w, b):
    y = (x @ w.t()).view(2, -1, len(w))[:, :-1].contiguous().view(-1, len(w))
    return F.log_softmax(y, -1).sum(0) @ w


def sequences(x, w, b):
    y = F.linear(x.view(2, -1, x.shape[1]), w)
    return F.cross_entropy(y.view(-1, len(w)), torch.arange(len(x)) % len(w)), y


def flattened(x, w, b):
    y = (x @ w.t()).tanh()
    return y.reshape(-1)[:5] + (y @ w).sum(), torch.as_strided(y, (2, 2), (3, 1), 1)


def returned_with_a_view(x, w, b):
    y = x @ w.t()
    return y, y.view(-1), y @ w


def written(x, w, b):
    y = x @ w.t()
    z = torch.zeros_like(y)
    z[:, 1:] = y[:, 1:] * 2
    return z @ w, z


def odd_inputs(x, w, b):
    return w.t() @ w, (w @ w.t()) @ w


PROGRAMS = [
    vocabulary_loss, logits_too, sequences, with_bias, batched, shifted, flattened,
    returned_with_a_view, written, odd_inputs,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("sizes", [(6, 7, 13), (4, 8, 300), (2, 1, 5)])
@pytest.mark.parametrize("grad", [False, True])
def test_equals_eager(program, sizes, grad):
    torch.manual_seed(0)
    rows, width, vocabulary = sizes
    inputs = [
        torch.randn(rows, width, requires_grad=grad),
        (torch.randn(vocabulary, width) / 3).requires_grad_(grad),
        torch.randn(vocabulary, requires_grad=grad),
    ]
    compiled = compile_program(program, inputs, GraphLog())
    ours, theirs = clones(inputs), clones(inputs)
    found, expected = compiled(*ours), program(*theirs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert a.stride() == b.stride()
    if grad:
        for results in (found, expected):
            sum(
                (out * torch.linspace(0, 1, out.numel()).view(out.shape)).sum() for out in results
            ).backward()
        for a, b in zip(ours, theirs, strict=True):
            if b.grad is not None:
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)
                assert a.grad.stride() == b.grad.stride()


def shapes(log, op):
    """The shapes of the matrices of every product, by graph."""
    return {
        kind: [
            (*(arg.spec.shape for arg in node.args), node.outputs[0].spec.shape)
            for node in graph.nodes
            if node.op is op
        ]
        for kind, graph in log.graphs.items()
    }


def test_sizes_become_multiples_of_8():
    log = GraphLog()
    inputs = [torch.randn(6, 8, requires_grad=True), torch.randn(13, 8, requires_grad=True)]
    compile_program(lambda x, w: F.cross_entropy(x @ w.t(), torch.arange(6)), inputs, log)
    assert shapes(log, aten.mm.default) == {
        "forward": [((6, 8), (8, 16), (6, 16))],
        "backward": [((16, 6), (6, 8), (16, 8)), ((6, 16), (16, 8), (6, 8))],
    }


def test_a_result_leaves_in_eagers_strides():
    log = GraphLog()
    compile_program(lambda x, w: x @ w.t(), [torch.randn(6, 8), torch.randn(13, 8)], log)
    (graph,) = log.graphs.values()
    assert [str(node.op) for node in graph.nodes][-3:] == [
        "aten.mm.default", "prims.slice", "prims.clone",
    ]  # fmt: skip
    assert graph.outputs[0].spec.stride == (13, 1)


def test_a_matrix_from_outside_is_copied_once():
    log = GraphLog()
    compile_program(lambda x, w: (x @ w, x.t() @ w), [torch.randn(8, 8), torch.randn(8, 13)], log)
    (graph,) = log.graphs.values()
    assert sum(str(node.op) == "prims.clone" for node in graph.nodes) == 2  # the results
    assert sum(str(node.op) == "prims.pad" for node in graph.nodes) == 1  # w


def half(*shape, stride=None):
    return Spec.of(shape, stride=stride, dtype=torch.bfloat16, device=torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("shapes", "worth"),
    [
        (((8192, 768), (768, 50257)), True),
        (((8, 768), (768, 50257)), False),
        (((8192, 768), (768, 10)), False),
        (((4096, 1023), (1023, 4096)), True),
    ],
)
def test_products_that_gain(monkeypatch, shapes, worth):
    monkeypatch.undo()
    graph = Graph([Value(name, half(*shape)) for name, shape in zip("ab", shapes, strict=True)])
    out = Value("y", half(shapes[0][0], shapes[1][1]))
    out.producer = Node(aten.mm.default, tuple(graph.inputs), {}, (out,))
    graph.nodes.append(out.producer)
    graph.outputs = [out]
    assert (len(pad_products.pad_products(graph).nodes) > 1) == worth


def test_sizes_beside_symbolic_ones_are_padded():
    env = SizeEnv()
    rows = env.symbol(8192, "rows")
    graph = Graph([Value("a", half(rows, 768)), Value("b", half(768, 50257))], env=env)
    out = Value("y", half(rows, 50257))
    out.producer = Node(aten.mm.default, tuple(graph.inputs), {}, (out,))
    graph.nodes.append(out.producer)
    graph.outputs = [out]
    guards = list(env.guards)
    pad_products.pad_products(graph)
    check_graph(graph)
    (product,) = [node for node in graph.nodes if node.op is aten.mm.default]
    assert product.outputs[0].spec.shape == (rows, 50304)
    assert env.guards == guards
    other = Graph([Value("a", half(768, rows)), Value("b", half(rows, 768))], env=env)
    out = Value("y", half(768, 768))
    out.producer = Node(aten.mm.default, tuple(other.inputs), {}, (out,))
    other.nodes.append(out.producer)
    other.outputs = [out]
    assert pad_products.pad_products(other).nodes == [out.producer]
