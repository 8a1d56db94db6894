"""Every kind of layer of torch.nn: evaluation and a training step, of fixed and of symbolic sizes,
against eager.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau
from tests.conftest import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable


def randn(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape)


def integers(high: int, *shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, high, shape)


class Layer:
    """How to make a layer, and what to call it with."""

    def __init__(
        self, make: Callable[[], nn.Module], *inputs: Callable[[], Any], **kwargs: Any
    ) -> None:
        self.make, self.inputs, self.kwargs = make, inputs, kwargs


class UnusedNorm(nn.Module):
    """A batch norm of which only the change of its statistics is left."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm(x)
        return self.linear(x) + self.norm.running_mean


class Optional(nn.Module):
    """Layers that may be None or empty, asked by their truth."""

    def __init__(self) -> None:
        super().__init__()
        self.linear: nn.Module | None = nn.Linear(3, 3)
        self.more = nn.ModuleList()
        self.none = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x) if self.linear else x
        return x + 1 if self.more or self.none else x


def instance_norm(dim: int) -> nn.Module:
    return getattr(nn, f"InstanceNorm{dim}d")(4, affine=True, track_running_stats=True)


LAYERS = {
    "lstm": Layer(
        lambda: nn.LSTM(5, 6, num_layers=2, bidirectional=True, dropout=0.2), randn(7, 3, 5)
    ),
    "lstm_states": Layer(
        lambda: nn.LSTM(5, 6, batch_first=True),
        randn(3, 7, 5),
        lambda: (torch.randn(1, 3, 6), torch.randn(1, 3, 6)),
    ),
    "gru": Layer(lambda: nn.GRU(5, 6), randn(7, 3, 5)),
    "rnn": Layer(lambda: nn.RNN(5, 6, nonlinearity="relu"), randn(7, 3, 5)),
    "lstm_cell": Layer(lambda: nn.LSTMCell(5, 6), randn(3, 5)),
    "attention": Layer(
        lambda: nn.MultiheadAttention(8, 2, dropout=0.1),
        randn(5, 3, 8),
        randn(6, 3, 8),
        randn(6, 3, 8),
    ),
    "attention_masked": Layer(
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        *[randn(3, 5, 8)] * 3,
        attn_mask=torch.ones(5, 5).triu(1).bool(),
        need_weights=False,
    ),
    "encoder": Layer(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), randn(3, 5, 8)
    ),
    "transformer": Layer(lambda: nn.Transformer(8, 2, 1, 1, 16), randn(6, 3, 8), randn(5, 3, 8)),
    "unused_norm": Layer(UnusedNorm, randn(5, 3)),
    "optional": Layer(Optional, randn(5, 3)),
    "batch_norm": Layer(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)), randn(2, 3, 7, 9)
    ),
    "instance_norm1d": Layer(lambda: instance_norm(1), randn(3, 4, 11)),
    "instance_norm2d": Layer(lambda: instance_norm(2), randn(3, 4, 5, 7)),
    "group_norm": Layer(lambda: nn.GroupNorm(2, 6), randn(3, 6, 5, 4)),
    "layer_norm": Layer(lambda: nn.LayerNorm((4, 5)), randn(3, 4, 5)),
    "rms_norm": Layer(lambda: nn.RMSNorm(5), randn(3, 4, 5)),
    "local_response_norm": Layer(lambda: nn.LocalResponseNorm(2), randn(3, 6, 5, 4)),
    "weight_norm": Layer(
        lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), randn(3, 5)
    ),
    "conv1d": Layer(
        lambda: nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), randn(2, 4, 11)
    ),
    "conv2d": Layer(
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), randn(2, 4, 13, 11)
    ),
    "conv3d": Layer(lambda: nn.Conv3d(2, 3, 3, padding="same"), randn(2, 2, 5, 6, 4)),
    "conv_transpose2d": Layer(
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), randn(2, 4, 5, 7)
    ),
    "max_pool": Layer(
        lambda: nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), randn(2, 3, 11, 9)
    ),
    "avg_pool": Layer(
        lambda: nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True), randn(2, 3, 11, 9)
    ),
    "adaptive_avg_pool": Layer(lambda: nn.AdaptiveAvgPool2d(3), randn(2, 3, 11, 9)),
    "adaptive_max_pool": Layer(lambda: nn.AdaptiveMaxPool1d(3), randn(2, 3, 11)),
    "lp_pool": Layer(lambda: nn.LPPool2d(2, 2), randn(2, 3, 11, 9)),
    "upsample_nearest": Layer(lambda: nn.Upsample(scale_factor=2), randn(2, 3, 5)),
    "upsample_bilinear": Layer(
        lambda: nn.Upsample(size=(13, 9), mode="bilinear", align_corners=True), randn(2, 3, 5, 7)
    ),
    "upsample_bicubic": Layer(
        lambda: nn.Upsample(scale_factor=2, mode="bicubic"), randn(2, 3, 5, 7)
    ),
    "reflection_pad": Layer(lambda: nn.ReflectionPad2d(2), randn(2, 3, 5, 7)),
    "replication_pad": Layer(lambda: nn.ReplicationPad1d(2), randn(2, 3, 5)),
    "pixel_shuffle": Layer(lambda: nn.PixelShuffle(2), randn(2, 8, 3, 5)),
    "unfold": Layer(lambda: nn.Unfold(3, padding=1, stride=2), randn(2, 3, 7, 9)),
    "fold": Layer(lambda: nn.Fold((8, 8), 3, padding=1, stride=2), randn(2, 18, 16)),
    "bilinear": Layer(lambda: nn.Bilinear(4, 5, 6), randn(3, 4), randn(3, 5)),
    "embedding": Layer(lambda: nn.Embedding(10, 4, padding_idx=0), integers(10, 3, 5)),
    "embedding_bag": Layer(
        lambda: nn.EmbeddingBag(10, 4), integers(10, 7), lambda: torch.tensor([0, 2, 5])
    ),
    "embedding_bag_weights": Layer(
        lambda: nn.EmbeddingBag(10, 4, mode="sum"),
        integers(10, 7),
        lambda: torch.tensor([0, 2, 5]),
        randn(7),
    ),
    "rrelu": Layer(nn.RReLU, randn(4, 5)),
    "prelu": Layer(nn.PReLU, randn(4, 5)),
    "glu": Layer(nn.GLU, randn(4, 6)),
    "softmax": Layer(lambda: nn.Softmax2d(), randn(2, 3, 4, 5)),
    "dropout2d": Layer(nn.Dropout2d, randn(4, 6, 3, 2)),
    "cross_entropy": Layer(
        lambda: nn.CrossEntropyLoss(torch.rand(7), label_smoothing=0.1, ignore_index=2),
        randn(5, 7),
        integers(7, 5),
    ),
    "nll2d": Layer(nn.NLLLoss, randn(2, 7, 3, 4), integers(7, 2, 3, 4)),
    "multi_margin": Layer(nn.MultiMarginLoss, randn(3, 4), integers(4, 3)),
    "multilabel_margin": Layer(
        nn.MultiLabelMarginLoss,
        randn(3, 4),
        lambda: torch.tensor([[3, 0, -1, 1], [1, -1, 0, 0], [0, 1, 2, 3]]),
    ),
    "huber": Layer(nn.HuberLoss, randn(4, 5), randn(4, 5)),
    "triplet": Layer(nn.TripletMarginLoss, *[randn(5, 4)] * 3),
    "kl": Layer(lambda: nn.KLDivLoss(reduction="batchmean"), randn(4, 5), lambda: torch.rand(4, 5)),
}


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, dynamic: bool | None) -> None:
    layer = LAYERS[name]
    module = layer.make()
    inputs = [make() for make in layer.inputs]
    for training in (False, True):
        ours = copy.deepcopy(module).train(training)
        theirs = copy.deepcopy(ours)
        compiled = flambeau.compile(ours, fullgraph=True, dynamic=dynamic)
        results = []
        for program, model in ((compiled, ours), (theirs, theirs)):
            arguments = copy.deepcopy(inputs)
            leaves = [
                t.requires_grad_(training) for t in tensors_in(arguments) if t.is_floating_point()
            ]
            torch.manual_seed(3)
            with torch.set_grad_enabled(training):
                outputs = tensors_in(program(*arguments, **layer.kwargs))
            if training:
                sum(out.sin().sum() for out in outputs).backward()
            gradients = [leaf.grad for leaf in (*leaves, *model.parameters())]
            results.append([*outputs, *model.buffers(), *gradients, torch.get_rng_state()])
        for found, expected in zip(*results, strict=True):
            if expected is None:
                assert found is None
                continue
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert found.requires_grad == expected.requires_grad
            assert not expected.numel() or found.stride() == expected.stride()


def test_layer_that_becomes_none() -> None:
    module, x = Optional(), torch.randn(5, 3)
    compiled = flambeau.compile(module, fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))
    module.linear = None
    torch.testing.assert_close(compiled(x), x)
    module.more.append(nn.Identity())
    torch.testing.assert_close(compiled(x), x + 1)


def test_statistics_written_while_read() -> None:
    def program(mean: torch.Tensor, var: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        torch.nn.functional.batch_norm(x, mean, var, training=True)
        return mean * 2

    x = torch.randn(5, 3)
    results = []
    for function in (flambeau.compile(program, fullgraph=True), program):
        mean, var = torch.zeros(3), torch.ones(3)
        results.append((function(mean, var, x), mean, var))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layers", [1, 2])
def test_lstm_of_halves_in_both_directions(layers: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    eager = nn.LSTM(8, 9, layers, bidirectional=True).to(dtype)
    compiled, exact = copy.deepcopy(eager), copy.deepcopy(eager).double()
    x = torch.randn(5, 3, 8).to(dtype)
    gradients = []
    for run, module in ((eager, eager), (flambeau.compile(compiled), compiled), (exact, exact)):
        data = x.double() if module is exact else x.clone()
        data.requires_grad_()
        run(data)[0].double().pow(2).mean().backward()
        gradients.append([data.grad, *(weight.grad for weight in module.parameters())])
    for theirs, ours, right in zip(*gradients, strict=True):
        assert ours is not None and ours.dtype == theirs.dtype
        allowed = 2 * (theirs.double() - right).norm() + torch.finfo(dtype).eps * right.norm()
        assert (ours.double() - right).norm() <= allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_aot_eager_trains_an_lstm(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    eager = nn.LSTM(8, 9, batch_first=True).to(dtype)
    compiled = flambeau.compile(copy.deepcopy(eager), backend="aot_eager", fullgraph=True)
    x = torch.randn(5, 3, 8).to(dtype)
    gradients = []
    for module in (eager, compiled):
        data = x.clone().requires_grad_()
        module(data)[0].pow(2).mean().backward()
        gradients.append([data.grad, *(weight.grad for weight in module.parameters())])
    torch.testing.assert_close(*gradients)
