"""Whole models on a CPU, float32: each forward with 1 and 16 examples, and trained with 8.

A name is that of the model and the batch: `resnet50_1`, `resnet50_16`, `resnet50_training`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from examples.models import ResNet18, UNet, bert
from tools.bench.cases import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Network = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Bottleneck(nn.Module):
    """1x1, grouped 3x3 and 1x1 convolutions with a shortcut (He et al. 2015, figure 5 right)."""

    def __init__(self, before: int, width: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = _normed(before, width, 1)
        self.conv2 = _normed(width, width, 3, stride, groups)
        self.conv3 = _normed(width, after, 1)
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else _normed(before, after, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.conv2(self.relu(self.conv1(x))))
        return self.relu(self.conv3(y) + self.shortcut(x))


class InvertedResidual(nn.Module):
    """1x1, depthwise 3x3 and linear 1x1 convolutions (Sandler et al. 2018, figure 4)."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = before * expansion
        layers = [_normed(before, width, 1), nn.ReLU6(inplace=True)] if expansion != 1 else []
        layers += [_normed(width, width, 3, stride, width), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*layers, _normed(width, after, 1))
        self.residual = stride == 1 and before == after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


def _normed(before: int, after: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
    )


def _head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000)]


def resnet(groups: int = 1, group_width: int = 64) -> nn.Module:
    """ResNet-50; with 32 groups of 4 channels ResNeXt-50."""
    layers: list[nn.Module] = [_normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        width, after = groups * group_width << stage, 256 << stage
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(before, width, after, stride, groups))
            before = after
    return nn.Sequential(*layers, *_head(before))


def mobilenet() -> nn.Module:
    """MobileNet V2 (Sandler et al. 2018, table 2)."""
    layers: list[nn.Module] = [_normed(3, 32, 3, 2), nn.ReLU6(inplace=True)]
    before = 32
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
    for expansion, after, depth, stride in (*table, (6, 160, 3, 2), (6, 320, 1, 1)):
        for block in range(depth):
            layers.append(InvertedResidual(before, after, stride if block == 0 else 1, expansion))
            before = after
    return nn.Sequential(*layers, _normed(before, 1280, 1), nn.ReLU6(inplace=True), *_head(1280))


class Recurrent(nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self, vocabulary: int = 10_000, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the token that follows (batch, length) ids."""
        return self.head(self.lstm(self.embedding(ids))[0][:, -1])


class BagRecommender(nn.Module):
    """A click model: tables whose rows are summed in bags, pairwise dot products, two MLPs."""

    def __init__(self, tables: int = 26, rows: int = 10_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(),
            nn.Linear(64, 1),
        )  # fmt: skip
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """Logits of (batch, 13) numbers and (batch, tables, bag) categories."""
        x = self.bottom(dense)
        bags = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([x, *bags], 1)
        products = features @ features.transpose(1, 2)
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1))


def _images(model: nn.Module, batch: int) -> Network:
    return model, (torch.randn(batch, 3, 224, 224),)


def _ids(model: nn.Module, batch: int, length: int = 32, vocabulary: int = 10_000) -> Network:
    return model, (torch.randint(0, vocabulary, (batch, length)),)


def _gpt2(batch: int) -> Network:
    from transformers import GPT2Config, GPT2LMHeadModel

    return _ids(GPT2LMHeadModel(GPT2Config(use_cache=False)), batch)


class _T5(nn.Module):
    """T5-small, whose decoder reads the ids that its encoder reads."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5Model

        self.model = T5Model(T5Config(use_cache=False))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(batch, length) ids -> (batch, length, 512)."""
        return self.model(input_ids=ids, decoder_input_ids=ids).last_hidden_state


def _convnext(batch: int) -> Network:
    from transformers import ConvNextConfig, ConvNextModel

    return _images(ConvNextModel(ConvNextConfig()), batch)


def _clicks(batch: int) -> Network:
    return BagRecommender(), (torch.randn(batch, 13), torch.randint(0, 10_000, (batch, 26, 8)))


def _noisy(batch: int) -> Network:
    return UNet(), (torch.randn(batch, 3, 64, 64), torch.rand(batch) * 1000)


NETWORKS: dict[str, Callable[[int], Network]] = {
    "resnet18": lambda batch: _images(ResNet18(), batch),
    "resnet50": lambda batch: _images(resnet(), batch),
    "resnext50": lambda batch: _images(resnet(groups=32, group_width=4), batch),
    "bert": lambda batch: _ids(bert(), batch),
    "gpt2": _gpt2,
    "t5": lambda batch: _ids(_T5(), batch),
    "convnext": _convnext,
    "mobilenet": lambda batch: _images(mobilenet(), batch),
    "unet": _noisy,
    "lstm": lambda batch: _ids(Recurrent(), batch),
    "recommender": _clicks,
}
"""Each makes a model and its inputs for a batch."""


def forward(network: str, batch: int, device: str = "cpu") -> Case:
    """A forward pass without gradients."""
    model, inputs = NETWORKS[network](batch)
    inputs = _moved(inputs, device)
    return Case(model.to(device).eval(), lambda f: f(*inputs))


def training(network: str, device: str = "cpu") -> Case:
    """A forward and a backward pass; the loss is the mean square of the first result."""
    model, inputs = NETWORKS[network](8)
    model, inputs = model.to(device).train(), _moved(inputs, device)

    def call(f: Any) -> None:
        model.zero_grad(set_to_none=True)
        result = f(*inputs)
        if not isinstance(result, torch.Tensor):
            result = result[0]
        result.square().mean().backward()

    return Case(model, call, training=True)


def _moved(inputs: Sequence[torch.Tensor], device: str) -> list[torch.Tensor]:
    return [one.to(device) for one in inputs]


MODEL_CASES: dict[str, Callable[[str], Case]] = {
    **{f"{name}_1": partial(forward, name, 1) for name in NETWORKS},
    **{f"{name}_16": partial(forward, name, 16) for name in NETWORKS},
    **{f"{name}_training": partial(training, name) for name in NETWORKS},
}
