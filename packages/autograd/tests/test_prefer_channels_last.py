"""prefer_channels_last: the same results and strides as eager, with convolutions in channels-last
layout.
"""

from __future__ import annotations

import pytest
import torch
from recording import GraphLog, clones, compile_program
from torch.nn import functional as F

aten = torch.ops.aten


def chain(x, w, v):
    for _ in range(3):
        x = F.conv2d(x, w, padding=1).relu() + x
    return x, x.mean((2, 3)), F.max_pool2d(x, 2)


def flattened(x, w, v):
    for _ in range(3):
        x = torch.tanh(F.conv2d(x, w, padding=1))
    return x.flatten(1) * 2, x.reshape(-1)


def normalised(x, w, v):
    for _ in range(3):
        x = F.batch_norm(F.conv2d(x, w, padding=1), None, None, v, v, training=True)
    return x.transpose(1, 3)


def dropped(x, w, v):
    for _ in range(3):
        x = F.dropout(F.conv2d(x, w, padding=1), 0.3)
    return x


def by_memory(x, w, v):
    for _ in range(3):
        x = F.conv2d(x, w, padding=1)
    return torch.as_strided(x, (2, 3), (3, 1), 1)


def written(x, w, v):
    y = x
    for _ in range(3):
        y = F.conv2d(y, w, padding=1)
    x.copy_(y)
    return y.sin()


def depthwise(x, w, v):
    for _ in range(3):
        x = F.conv2d(x, w[:, :1], groups=x.shape[1]) * 2
    return x


PROGRAMS = [chain, flattened, normalised, dropped, by_memory, written, depthwise]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("grad", [False, True])
def test_equals_eager(program, layout, grad):
    if program is written and grad:
        pytest.skip("eager refuses to write to a leaf")
    torch.manual_seed(0)
    x = torch.randn(2, 5, 9, 7).to(memory_format=layout).requires_grad_(grad)
    inputs = [
        x,
        (torch.randn(5, 5, 3, 3) / 5).requires_grad_(grad),
        torch.rand(5).requires_grad_(grad),
    ]
    log = GraphLog()
    compiled = compile_program(program, inputs, log)
    ours, theirs = clones(inputs), clones(inputs)
    torch.manual_seed(1)
    found = compiled(*ours)
    torch.manual_seed(1)
    expected = program(*theirs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for a, b in zip([*found, *ours], [*expected, *theirs], strict=True):
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


def convolution_inputs(log: GraphLog) -> list[tuple[int, ...]]:
    return [
        node.args[0].spec.stride
        for graph in log.graphs.values()
        for node in graph.nodes
        if node.op is aten.convolution.default
    ]


def test_convolutions_read_channels_last():
    log = GraphLog()
    inputs = [torch.randn(2, 5, 9, 7), torch.randn(5, 5, 3, 3), torch.rand(5)]
    compile_program(chain, inputs, log)
    assert convolution_inputs(log) == [(5 * 63, 1, 35, 5)] * 3
    compile_program(chain, inputs, log, channels_last=False)
    assert convolution_inputs(log) == [(5 * 63, 63, 7, 1)] * 3


@pytest.mark.parametrize("grad", [False, True])
def test_convolutions_by_much_larger_weights_stay_row_major(grad):
    def program(x, w, v):
        for _ in range(2):
            x = F.relu(F.conv2d(x, v, groups=8))
        return F.conv2d(F.relu(F.conv2d(x, w, padding=1)), v, groups=8)

    torch.manual_seed(0)
    shapes = (9, 256, 4, 4), (256, 256, 3, 3), (256, 32, 1, 1)
    inputs = [(torch.randn(shape) / 16).requires_grad_(grad) for shape in shapes]
    log = GraphLog()
    compiled = compile_program(program, inputs, log)
    ours, theirs = clones(inputs), clones(inputs)
    (found,), expected = compiled(*ours), program(*theirs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.stride() == expected.stride()
    assert [stride[1] for stride in convolution_inputs(log)] == [1, 1, 16, 1]
    if not grad:
        return
    for result in (found, expected):
        result.square().sum().backward()
    backward = log.graphs["backward"]
    calls = [node for node in backward.nodes if node.op is aten.convolution_backward.default]
    assert {call.args[2].spec.shape: call.args[0].spec.stride[1] for call in calls} == {
        shapes[1]: 16,
        shapes[2]: 1,
    }
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)
        assert a.grad.stride() == b.grad.stride()


def biased(x, w, b):
    for _ in range(3):
        x = F.silu(F.conv2d(x, w, b, padding=1))
    return x, F.conv2d(x, w, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_weights_and_biases_as_on_a_gpu(monkeypatch, dtype, grad):
    """Weights are copied once for forward and backward, and biases are added apart."""
    from flambeau_autograd import prefer_channels_last
    from flambeau_prims import convolution_bias

    monkeypatch.setattr(
        prefer_channels_last, "_takes_channels_last_weight", lambda weight, node: True
    )
    monkeypatch.setattr(
        convolution_bias,
        "has_separate_bias",
        lambda node: node.op is aten.convolution.default and node.args[2] is not None,
    )
    torch.manual_seed(0)
    shapes = (2, 5, 9, 7), (5, 5, 3, 3), (5,)
    inputs = [(torch.randn(shape) / 4).to(dtype).requires_grad_(grad) for shape in shapes]
    log = GraphLog()
    compiled = compile_program(biased, inputs, log)
    ours, theirs = clones(inputs), clones(inputs)
    found, expected = compiled(*ours), biased(*theirs)
    close = {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {}
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **close)
        assert a.stride() == b.stride()
    nodes = [node for graph in log.graphs.values() for node in graph.nodes]
    calls = [node for node in nodes if node.op is aten.convolution.default]
    assert {call.args[1] for call in calls} == {calls[0].args[1]}
    assert calls[0].args[1].spec.stride == (45, 1, 15, 5)
    if not grad:
        return
    assert {call.args[2] for call in calls} == {None}
    exact = [x.detach().double().requires_grad_() for x in inputs]
    for results in (found, expected, biased(*exact)):
        sum(out.square().sum() for out in results).backward()
    for a, b, reference in zip(ours, theirs, exact, strict=True):
        error, eager = ((x.grad.double() - reference.grad).norm() for x in (a, b))
        assert error <= 2 * eager + 1e-6 * reference.grad.norm()
        assert a.grad.stride() == b.grad.stride()


@pytest.mark.parametrize(
    ("device", "groups", "copied"), [("cuda", 1, 1), ("cuda", 4, 0), ("cpu", 1, 0)]
)
def test_weights_of_which_a_library_takes_in_channels_last(device, groups, copied):
    from flambeau_autograd.prefer_channels_last import prefer_channels_last
    from flambeau_prims.graph import Graph, Node, Value
    from flambeau_prims.rules.registry import infer
    from flambeau_prims.spec import Spec

    place = torch.device(device)
    x, w = (
        Value(n, Spec.of(s, device=place))
        for n, s in (("x", (2, 4, 9, 9)), ("w", (4, 4 // groups, 3, 3)))
    )
    graph = Graph([x, w])
    for number in range(3):
        args = (x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)
        spec = infer(aten.convolution.default, tuple(getattr(a, "spec", a) for a in args), {})
        node = Node(aten.convolution.default, args, {})
        x = Value(f"y{number}", spec, node)
        node.outputs = (x,)
        graph.nodes.append(node)
    graph.outputs = [x]
    converted = prefer_channels_last(graph)
    copies = [n for n in converted.nodes if n.op is aten.clone.default and n.args[0] is w]
    assert len(copies) == copied
