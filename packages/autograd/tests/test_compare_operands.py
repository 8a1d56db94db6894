"""compare_operands: gradients of relu as eager's, from what batch norm's backward reads."""

from __future__ import annotations

import pytest
import torch
from recording import GraphLog, clones, compile_program
from torch.nn import functional as F

from flambeau_prims import primitives as prims

aten = torch.ops.aten


def normalised(x, w, b):
    return F.conv2d(F.batch_norm(F.conv2d(x, w), None, None, b, b, training=True).relu(), w)


def residual(x, w, b):
    y = F.conv2d(x, w, padding=1)
    return F.conv2d((F.batch_norm(y, None, None, b, b, training=True) + x).relu(), w)


def plain(x, w, b):
    return F.conv2d(F.conv2d(x, w, b).relu(), w)


def scaled(x, w, b):
    y = torch.tanh(x)
    return torch.relu(y * 2 - 1) * y


PROGRAMS = [normalised, residual, plain, scaled]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gradients_equal_eager(program, dtype):
    torch.manual_seed(0)
    x = torch.randn(2, 4, 9, 7)
    x[0, 0, :2] = 0
    inputs = [
        value.to(dtype).requires_grad_()
        for value in (x, torch.randn(4, 4, 3, 3) / 4, torch.rand(4) - 0.3)
    ]
    compiled = compile_program(program, inputs, GraphLog())
    ours, theirs = clones(inputs), clones(inputs)
    exact = [value.detach().double().requires_grad_() for value in inputs]
    for call, tensors in ((compiled, ours), (program, theirs), (program, exact)):
        result = call(*tensors)
        result = result[0] if isinstance(result, tuple) else result
        (result * torch.linspace(-1, 1, result.numel()).view(result.shape)).sum().backward()
    for a, b, reference in zip(ours, theirs, exact, strict=True):
        if b.grad is not None:
            error, eager = ((v.grad.double() - reference.grad).norm() for v in (a, b))
            assert error <= 3 * eager + 1e-6 * reference.grad.norm()


def test_infinite_and_missing_numbers_are_masked_as_eager_masks_them():
    x = torch.tensor([-1.0, 0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45])
    inputs = [x.requires_grad_(), torch.zeros(1), torch.zeros(1)]

    def program(x, w, b):
        y = x * 1.0
        return torch.relu(y) * 3, y.square()

    compiled = compile_program(program, inputs, GraphLog())
    ours, theirs = clones(inputs), clones(inputs)
    for call, tensors in ((compiled, ours), (program, theirs)):
        a, b = call(*tensors)
        (a.sum() + 0 * b.nan_to_num(0, 0, 0).sum()).backward()
    torch.testing.assert_close(ours[0].grad, theirs[0].grad, equal_nan=True)


def compared(program) -> list[torch.Tensor]:
    """What the masks of the backward are computed from, through casts: the nodes that made it."""
    log = GraphLog()
    inputs = [torch.randn(2, 4, 9, 7), torch.randn(4, 4, 3, 3), torch.rand(4)]
    compile_program(program, [value.requires_grad_() for value in inputs], log)
    nodes = log.graphs["backward"].nodes
    return [node.args[0].producer for node in nodes if node.op is prims.le]


def test_only_what_is_at_hand_is_compared():
    (node,) = compared(normalised)
    assert node is not None and node.op is prims.add
    for program in (residual, plain):
        assert compared(program) == [None]  # the saved result of the relu
