"""Models that are small, and whose results, buffers and random numbers are of many kinds."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    """Products whose results are large enough to stay in a recording's memory."""

    width: ClassVar[int] = 640

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(self.width, self.width) for _ in range(3))
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.dropout(F.gelu(self.a(x)), self.dropout, self.training)
        return self.c(torch.tanh(self.b(h)) + x)

    def input(self, batch: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(batch, self.width, generator=generator)


class Small(Mlp):
    """The same with results of a few bytes."""

    width = 24


class Attention(nn.Module):
    """Attention with dropout, whose seed is a result of the forward."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.norm, self.dropout = nn.LayerNorm(64), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        joined = self.qkv(self.norm(x)).view(batch, length, 3, 4, 16)
        query, key, value = joined.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, 64))

    def input(self, batch: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(max(batch // 8, 1), 32, 64, generator=generator)


class Convolutions(nn.Module):
    """Convolutions and the running statistics of a batch norm.

    The first has no bias, whose gradient would be rounding alone; and squares keep the gradients of
    a channel from being nearly equal, where the norm's backward would leave little but rounding.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.Conv2d(16, 8, 3)
        self.norm, self.dropout = nn.BatchNorm2d(16), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.dropout(F.relu(self.norm(self.a(x))), self.dropout, self.training)
        return self.b(h).square().mean((2, 3))

    def input(self, batch: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(max(batch // 8, 2), 3, 12, 12, generator=generator)


class Embedded(nn.Module):
    """A table, a scan, and a buffer that each call changes and reads."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(100, 48), nn.Linear(48, 48)
        self.register_buffer("calls", torch.zeros(()))
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        index = (x.abs() * 30).long().clamp(0, 99)
        h = F.dropout(self.table(index), self.dropout, self.training)
        return F.softmax(self.out(h).cumsum(0), -1) * x.mean() + self.calls * 1e-3

    def input(self, batch: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(batch, generator=generator)


class Several(nn.Module):
    """Several results, of which some are views and share memory."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.a, self.dropout = nn.Linear(520, 520), dropout

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.a(x)
        y = F.dropout(h.sigmoid(), self.dropout, self.training)
        return y @ y.t() / len(y) + h.mean(), h[1:], y.t()

    def input(self, batch: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(520, 520, generator=generator)


MODELS = {each.__name__: each for each in (Mlp, Small, Attention, Convolutions, Embedded, Several)}
