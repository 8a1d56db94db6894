"""torch-level calls: functions, methods, operators, namespaces, in-place and out= forms, results of
every shape.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from capture_harness import breaks, check

X = torch.arange(12.0).reshape(3, 4)


@torch.library.custom_op("flambeau_capture_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def functions(x):
    return (
        torch.add(x, 1, alpha=2),
        torch.where(x > 3, x, -x),
        torch.cat([x, x], dim=1),
        torch.stack((x, x)),
        torch.einsum("ij,kj->ik", x, x),
        torch.split(x, 2, dim=1),
        torch.chunk(x, 2),
        x.unbind(0),
        torch.arange(3),
        torch.zeros_like(x),
        torch.full((2,), 1.5),
        torch.linspace(0, 1, 3),
        torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij"),
        torch.tensor([1.0, 2.0]),
        torch.outer(x[0], x[1]),
        torch.clamp(x, 1, 5),
    )


def methods(x):
    return (
        x.sum(),
        x.mean(dim=0, keepdim=True),
        x.T,
        x.mT,
        x.view(-1),
        x.reshape(2, 6).transpose(0, 1).contiguous(),
        x.permute(1, 0).size(0),
        x.to(torch.float64),
        x.double().dtype,
        x.long(),
        x.float() is x,
        x.new_ones(2),
        x.expand(2, 3, 4).shape,
        x.numel(),
        x.dim(),
        x.is_contiguous(),
        x.type(torch.int32),
        x.to("cpu"),
        x.detach(),
        x.clone().fill_(2),
        x.masked_fill(x > 2, 0.0),
        x.size(),
        x.stride(),
        x.element_size(),
        x.unsqueeze(-1).squeeze(-1),
        x.flatten(),
        x.device.type,
        x.requires_grad,
        x.is_floating_point(),
        x.argmax(-1),
        x.data + 1,
        len(x),
    )


def operators(x):
    y = 2 - x
    y /= 3
    y **= 2
    return (
        -x,
        ~(x > 2),
        abs(y),
        x @ x.T,
        x // 2,
        x % 2,
        2**x,
        x >= 3,
        x == x,
        x != 1,
        (x > 1) & (x < 5),
        1 / (x + 1),
        y,
        x[0] @ x[1],
        x is not None,
    )


def named_results(x):
    values, indices = x.max(dim=1)
    top = torch.topk(x, 2)
    return values, indices, top.values, top[1], torch.sort(x), x.min(0), torch.var_mean(x)


def indexing(x):
    y = x.clone()
    y[0, 1:] = 7
    y[:, 0] += x[:, 1]
    y[torch.tensor([0, 2])] = 0
    return (
        y,
        x[torch.tensor([0, 2])],
        x[:, [1, 3]],
        x[..., None, 0],
        x[1:, ::2],
        x.index_select(1, torch.tensor([0])),
        x.gather(1, torch.zeros(3, 1, dtype=torch.long)),
    )


def written(x):
    out = torch.empty(3, 4)
    torch.mul(x, 2, out=out)
    y = x.clone()
    view = y[1]
    view.add_(10)
    y.relu_()
    F.relu(y, inplace=True)
    y.copy_(out)
    return out, y, view


def functional(x):
    w = torch.ones(4)
    return (
        F.relu(x),
        F.gelu(x),
        F.layer_norm(x, (4,), w),
        F.softmax(x, dim=-1),
        F.cross_entropy(x, torch.tensor([0, 1, 2])),
        F.pad(x, (1, 1)),
        F.linear(x, torch.ones(2, 4)),
        F.scaled_dot_product_attention(x[None], x[None], x[None]),
        F.mse_loss(x, x + 1),
        F.one_hot(torch.tensor([0, 2]), 3),
        F.interpolate(x[None, None], scale_factor=2.0),
        F.max_pool2d(x[None], 2),
        F.embedding(torch.tensor([0, 1]), x),
        F.normalize(x),
        F.dropout(x, 0.5),
    )


def namespaces(x):
    return (
        torch.ops.aten.add(x, 1),
        torch.ops.aten.mul.Tensor(x, x),
        twice(x),
        torch.special.expit(x),
        torch.linalg.norm(x),
        torch.fft.rfft(x).real,
        math.pi * x,
    )


def random(x):
    return (
        torch.rand(3),
        torch.randn_like(x),
        torch.bernoulli(torch.full((4,), 0.5)),
        torch.randint(0, 5, (2,)),
        x.clone().normal_(),
    )


def literals(x):
    n = torch.tensor(3)
    return x * n.item() if bool(n > 2) else x, int(n), x + float(torch.tensor(2.5))


@pytest.mark.parametrize(
    "fn",
    [
        functions,
        methods,
        operators,
        named_results,
        indexing,
        written,
        functional,
        namespaces,
        random,
        literals,
    ],
    ids=lambda fn: fn.__name__,
)
def test_same_as_eager(fn):
    check(fn, X)
    if fn in (functional, operators, named_results):
        check(fn, X.clone().requires_grad_())


def test_gradients_flow():
    def fn(x, w):
        return F.linear(x, w).tanh().sum(), w.grad, w.is_leaf, x.requires_grad

    check(fn, X, torch.ones(2, 4, requires_grad=True))


def test_masks_break():
    def fn(x):
        return x[x > 2]

    assert breaks(fn, X).id == "data-dependent"
