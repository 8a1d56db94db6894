"""The models that the demo, the benchmarks and the end-to-end tests share. Nothing is downloaded:
weights are random.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from transformers import BertModel


def sin_cos(x: torch.Tensor) -> torch.Tensor:
    """The function of the torch.compile tutorial."""
    return torch.sin(torch.cos(x))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al. 2015, figure 5 left)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels_in, H, W) -> (N, channels, H / stride, W / stride)."""
        residual = x if self.shortcut is None else self.shortcut(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        x += residual
        return self.relu(x)


class ResNet18(nn.Module):
    """ResNet-18 for 1000 classes (He et al. 2015, table 1)."""

    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        channels_in = width
        for stage in range(4):
            channels = width << stage
            for block in range(2):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(BasicBlock(channels_in, channels, stride))
                channels_in = channels
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels_in, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) images -> (N, classes) logits."""
        return self.head(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


def bert(
    *, layers: int = 12, hidden: int = 768, heads: int = 12, vocabulary: int = 30522
) -> BertModel:
    """Hugging Face's BertModel with random weights; the defaults are BERT-base."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )
    return BertModel(config)


class Linears(nn.Module):
    """A chain of Linear layers: what guarding a module's parameters costs."""

    def __init__(self, count: int = 20, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) -> (..., width)."""
        for layer in self.layers:
            x = layer(x)
        return x


class ResidualBlock(nn.Module):
    """Group norm, SiLU and convolution, twice, with an embedding of the time between."""

    def __init__(self, before: int, after: int, embedding: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, before), nn.GroupNorm(16, after)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(embedding, after)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class PixelAttention(nn.Module):
    """Self-attention over the pixels of an image."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(16, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).flatten(2).unflatten(1, (3, self.heads, -1))
        q, k, v = parts.transpose(-1, -2).unbind(1)
        attended = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(attended.transpose(-1, -2).reshape(x.shape))


class UNet(nn.Module):
    """A small U-Net of the kind that removes noise from images of (batch, 3, height, width)."""

    def __init__(self, width: int = 64, factors: tuple[int, ...] = (1, 2, 4)) -> None:
        super().__init__()
        embedding = 4 * width
        self.width = width
        self.embed = nn.Sequential(
            nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding)
        )
        self.first = nn.Conv2d(3, width, 3, padding=1)
        widths = [width * factor for factor in factors]
        pairs = list(zip([width, *widths[:-1]], widths, strict=True))
        self.down = nn.ModuleList(ResidualBlock(a, b, embedding) for a, b in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(b, b, 3, 2, 1) for b in widths)
        self.middle = ResidualBlock(widths[-1], widths[-1], embedding)
        self.attention = PixelAttention(widths[-1])
        self.up = nn.ModuleList(ResidualBlock(2 * b, a, embedding) for a, b in reversed(pairs))
        self.last = nn.Sequential(
            nn.GroupNorm(16, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1)
        )

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """The noise in `x`; `step` (batch,) is the time of each image."""
        rates = torch.exp(torch.arange(self.width // 2, device=x.device) * (-8 / self.width))
        angles = step[:, None] * rates
        time = self.embed(torch.cat([angles.sin(), angles.cos()], -1))
        x = self.first(x)
        kept = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, time)
            kept.append(x)
            x = shrink(x)
        x = self.attention(self.middle(x, time))
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1), time)
        return self.last(x)
