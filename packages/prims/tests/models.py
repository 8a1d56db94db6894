"""Twelve small models of the kinds the compiler must serve: CNNs, transformers, a U-Net, an LSTM.

`MODELS[name]()` builds (module in training mode, example inputs). Few layers, small sizes, random
weights: nothing is downloaded.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

Built = tuple[nn.Module, tuple[Any, ...]]


# 1. Convolutional networks


class Bottleneck(nn.Module):
    """The residual block of ResNet-50; with groups, of ResNeXt."""

    def __init__(self, inner: int, width: int, groups: int = 1, stride: int = 1) -> None:
        super().__init__()
        outer = 4 * inner
        self.reduce = nn.Conv2d(outer // stride, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.spatial = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.grow = nn.Conv2d(width, outer, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outer)
        self.activation = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(outer // stride, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.norm1(self.reduce(x)))
        y = self.activation(self.norm2(self.spatial(y)))
        y = self.norm3(self.grow(y))
        y += self.shortcut(x)
        return self.activation(y)


class ResNet(nn.Module):
    """A stem, two stages of bottlenecks, a head."""

    def __init__(self, groups: int = 1, width_factor: int = 1) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 7, 2, 3, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        self.stages = nn.Sequential(
            Bottleneck(8, 8 * width_factor, groups),
            Bottleneck(16, 16 * width_factor, groups, stride=2),
        )
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.flatten(self.pool(self.stages(self.stem(x))), 1))


class SqueezeExcite(nn.Module):
    """Channel attention with a hard sigmoid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // 4, 1)
        self.up = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1)))
        return x * functional.hardsigmoid(self.up(scale))


class InvertedResidual(nn.Module):
    """The block of MobileNetV3."""

    def __init__(self, channels: int, expanded: int, stride: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(channels, expanded, 1, bias=False),
            nn.BatchNorm2d(expanded),
            nn.Hardswish(inplace=True),
            nn.Conv2d(expanded, expanded, 5, stride, 2, groups=expanded, bias=False),
            nn.BatchNorm2d(expanded),
            nn.Hardswish(inplace=True),
            SqueezeExcite(expanded),
            nn.Conv2d(expanded, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.residual = stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x) + x if self.residual else self.block(x)


def mobilenet() -> Built:
    """A MobileNetV3 of two blocks."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.Hardswish(inplace=True),
        InvertedResidual(16, 32, 1),
        InvertedResidual(16, 48, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(1),
        nn.Linear(16, 32),
        nn.Hardswish(inplace=True),
        nn.Dropout(0.2, inplace=True),
        nn.Linear(32, 10),
    )
    return model, (torch.randn(2, 3, 32, 32),)


class UNet(nn.Module):
    """A diffusion-style U-Net: group norm, SiLU, a time embedding, attention in the middle, nearest
    upsampling.
    """

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, channels, 3, padding=1)
        self.time = nn.Sequential(
            nn.Linear(channels, channels), nn.SiLU(), nn.Linear(channels, channels)
        )
        self.norm1 = nn.GroupNorm(4, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, 2 * channels, 3, 2, 1)
        self.norm2 = nn.GroupNorm(4, 2 * channels)
        self.qkv = nn.Conv1d(2 * channels, 6 * channels, 1)
        self.project = nn.Linear(2 * channels, 2 * channels)
        self.up = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.norm3 = nn.GroupNorm(4, 2 * channels)
        self.leave = nn.Conv2d(2 * channels, 3, 3, padding=1)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        half = self.enter.out_channels // 2
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, device=x.device) / half)
        angles = t.float()[:, None] * frequencies[None]
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        skip = self.enter(x)
        h = (
            self.conv1(self.dropout(functional.silu(self.norm1(skip))))
            + embedding[:, :, None, None]
        )
        h = self.down(h + skip)
        h = h + self._attend(self.norm2(h))
        h = self.up(functional.interpolate(h, scale_factor=2.0, mode="nearest"))
        return self.leave(functional.silu(self.norm3(torch.cat([h, skip], 1))))

    def _attend(self, h: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = h.shape
        q, k, v = self.qkv(h.flatten(2)).reshape(batch, 3, 2, channels // 2, -1).unbind(1)
        weights = torch.softmax(q.transpose(-1, -2) @ k * (channels // 2) ** -0.5, -1)
        mixed = (
            (weights @ v.transpose(-1, -2)).transpose(1, 2).reshape(batch, height * width, channels)
        )
        return self.project(mixed).transpose(1, 2).reshape(batch, channels, height, width)


class WordLSTM(nn.Module):
    """An embedding, a two-layer LSTM, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.rnn = nn.LSTM(12, 16, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(tokens))[0])


# 2. Transformers, from small configurations


def _tokens(below: int = 90) -> torch.Tensor:
    return torch.randint(3, below, (2, 8))


def _image() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32)


def bert() -> Built:
    """Two layers of BERT, with an attention mask."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        max_position_embeddings=64,
    )
    mask = torch.ones(2, 8, dtype=torch.int64)
    return BertModel(config), (_tokens(), mask)


def gpt2() -> Built:
    """Two layers of GPT2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, use_cache=False
    )
    return GPT2LMHeadModel(config), (_tokens(),)


def llama() -> Built:
    """Two layers of Llama, with grouped queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
    )
    return LlamaForCausalLM(config), (_tokens(),)


class _T5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        self.inner = T5ForConditionalGeneration(
            T5Config(
                vocab_size=99,
                d_model=32,
                d_kv=8,
                d_ff=37,
                num_layers=2,
                num_heads=4,
                use_cache=False,
                decoder_start_token_id=0,
            )
        )

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=tokens, decoder_input_ids=targets)[0]


def t5() -> Built:
    """Two encoder and two decoder layers of T5."""
    return _T5(), (_tokens(), _tokens())


def vit() -> Built:
    """Two layers of ViT."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        image_size=32,
        patch_size=8,
    )
    return ViTModel(config), (_image(),)


def convnext() -> Built:
    """Two stages of ConvNeXt."""
    from transformers import ConvNextConfig, ConvNextModel

    config = ConvNextConfig(
        num_stages=2,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        patch_size=4,
        image_size=32,
        drop_path_rate=0.1,
    )
    return ConvNextModel(config), (_image(),)


def swin() -> Built:
    """Two stages of Swin, with shifted windows."""
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        drop_path_rate=0.1,
    )
    return SwinModel(config), (_image(),)


MODELS: dict[str, Callable[[], Built]] = {
    "resnet": lambda: (ResNet(), (torch.randn(2, 3, 64, 64),)),
    "resnext": lambda: (ResNet(groups=4, width_factor=2), (torch.randn(2, 3, 64, 64),)),
    "mobilenet": mobilenet,
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "vit": vit,
    "convnext": convnext,
    "swin": swin,
    "unet": lambda: (UNet(), (torch.randn(2, 3, 16, 16), torch.tensor([3, 7]))),
    "lstm": lambda: (WordLSTM(), (torch.randint(0, 50, (3, 7)),)),
}


def first_tensor(outputs: Any) -> torch.Tensor:
    """The floating tensor to take a loss of: the model's first result."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    return outputs[0]
