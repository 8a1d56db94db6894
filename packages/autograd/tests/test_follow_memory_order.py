"""follow_memory_order: the results and strides of eager, without copies that only kernels read."""

from __future__ import annotations

import pytest
import torch
from recording import GraphLog, clones, compile_program
from torch.nn import functional as F

from flambeau_prims import primitives as prims

aten = torch.ops.aten


def sums_of_groups(x, w):
    y = torch.sin(x).contiguous()
    n, c, h, width = y.shape
    return y.view(n, 2, c // 2, h, width).square().sum((2, 3, 4))


def group_norm(x, w):
    y = F.group_norm(torch.sin(x).contiguous(), 2, w[:, 0], w[:, 1])
    return F.silu(y).sum((2, 3)), F.conv2d(y.relu(), w[:, :, None, None])


def returned(x, w):
    y = torch.sin(x).contiguous()
    return y, y.flatten(2) * 2


def viewed(x, w):
    y = torch.sin(x).contiguous()
    return y[:, 1:], y.transpose(1, 2).cos()


def product(x, w):
    y = torch.sin(x).contiguous()
    return y.flatten(1) @ y.flatten(1).t() + y.mean()


def by_memory(x, w):
    y = torch.cos(torch.sin(x).contiguous())
    return torch.as_strided(y, (2, 3), (3, 1), 1) * 2


def twice(x, w):
    y = torch.sin(x).contiguous()
    z = (y + 1).contiguous(memory_format=torch.channels_last) * y
    return z.reshape(-1)[::2] * 2, z.amax((0, 2, 3))


def copied_input(x, w):
    y = x.contiguous()
    x.mul_(2)
    return y.sum((2, 3)) + 1, y.flatten(1) + 1


def expanded(x, w):
    y = torch.sin(x[:1, :, :1]).expand_as(x).contiguous()
    return y.view(x.shape[0], 2, -1).sum(2)


NEAR = {"rtol": 1e-3, "atol": 1e-4}


def enlarged(x, w):
    y = F.interpolate(torch.sin(x), scale_factor=2.0, mode="nearest")
    return torch.tanh(y).amax((2, 3)), y.contiguous().sum(3).cos(), y.argmax(1)


PROGRAMS = [
    sums_of_groups, group_norm, returned, viewed, product, by_memory, twice, copied_input, expanded,
    enlarged,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_equals_eager(program, dtype, grad):
    if program is copied_input and grad:
        pytest.skip("eager refuses to write to a leaf")
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 7).to(memory_format=torch.channels_last).to(dtype)
    inputs = [x.requires_grad_(grad), torch.randn(4, 4).to(dtype).requires_grad_(grad)]
    compiled = compile_program(program, inputs, GraphLog())
    ours, theirs = clones(inputs), clones(inputs)
    found, expected = compiled(*ours), program(*theirs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    close = {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {}
    for a, b in zip([*found, *ours], [*expected, *theirs], strict=True):
        torch.testing.assert_close(a, b, **close)
        assert a.stride() == b.stride()
    if grad:
        for results in (found, expected):
            results = [out for out in results if out.requires_grad]
            sum(
                (out * torch.linspace(0, 1, out.numel()).view(out.shape)).sum() for out in results
            ).backward()
        for a, b in zip(ours, theirs, strict=True):
            if b.grad is not None:
                torch.testing.assert_close(
                    a.grad, b.grad, **(close or {"rtol": 1e-3, "atol": 1e-4})
                )
                assert a.grad.stride() == b.grad.stride()


def test_groups_are_reduced_where_they_lie():
    log = GraphLog()
    x = torch.randn(3, 4, 5, 7).to(memory_format=torch.channels_last)
    compile_program(sums_of_groups, [x, torch.randn(4, 4)], log)
    (graph,) = log.graphs.values()
    assert not any(node.op is prims.clone for node in graph.nodes)
    (reduction,) = [node for node in graph.nodes if node.op is prims.sum]
    assert reduction.args[0].spec.stride == (140, 2, 1, 28, 4)


def test_what_a_library_reads_keeps_its_order():
    log = GraphLog()
    x = torch.randn(3, 4, 5, 7).to(memory_format=torch.channels_last)
    compile_program(product, [x, torch.randn(4, 4)], log)
    (graph,) = log.graphs.values()
    (call,) = [node for node in graph.nodes if node.op is aten.mm.default]
    assert [value.spec.stride for value in call.args] == [(140, 1), (1, 140)]


def test_results_of_reductions_lie_as_what_they_reduce():
    """Else a kernel would read channels-last gradients with strides."""
    log = GraphLog()
    x = torch.randn(3, 4, 6, 8).to(memory_format=torch.channels_last).requires_grad_()

    def program(x, w):
        return F.interpolate(torch.sin(x), scale_factor=2.0, mode="nearest")

    compile_program(program, [x, torch.randn(4, 4)], log)
    nodes = log.graphs["backward"].nodes
    (reduction,) = [node for node in nodes if node.op is prims.sum]
    assert reduction.outputs[0].spec.stride == (192, 1, 32, 4)
