"""A Llama-type model of 0.9 billion parameters, and the ways to train it on several devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Sizes:
    """Those of a model and of its batches; `tokens` is the length of each of `rows` sequences."""

    width: int = 2048
    inner: int = 5632
    layers: int = 16
    heads: int = 16
    groups: int = 8
    words: int = 32000
    rows: int = 2
    tokens: int = 2048


SMALL = Sizes(width=32, inner=64, layers=2, heads=4, groups=2, words=48, rows=2, tokens=16)
"""For a CPU: enough to see that everything runs."""


class Attention(nn.Module):
    """Causal attention with grouped keys; the number of heads is that of this rank."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head = sizes.width // sizes.heads
        keys = self.head * sizes.groups
        self.q = nn.Linear(sizes.width, sizes.width, bias=False)
        self.k = nn.Linear(sizes.width, keys, bias=False)
        self.v = nn.Linear(sizes.width, keys, bias=False)
        self.o = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Shapes: (rows, tokens, width), twice (tokens, head / 2) -> (rows, tokens, width)."""
        rows, steps, _ = x.shape
        q, k, v = (
            part(x).view(rows, steps, -1, self.head).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q, k = rotated(q, *turns), rotated(k, *turns)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        projected: torch.Tensor = self.o(y.transpose(1, 2).reshape(rows, steps, -1))
        return projected


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding (Su et al. 2021): the two parts of a head are rotated as pairs."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Gated(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.up = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape kept: (rows, tokens, width)."""
        result: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


class Layer(nn.Module):
    """A decoder layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.before_attention, self.before_gated = nn.RMSNorm(sizes.width), nn.RMSNorm(sizes.width)
        self.attention, self.gated = Attention(sizes), Gated(sizes)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Shape kept: (rows, tokens, width)."""
        x = x + self.attention(self.before_attention(x), turns)
        result: torch.Tensor = x + self.gated(self.before_gated(x))
        return result


class Llama(nn.Module):
    """Words in, the loss of predicting `wanted` out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)
        half = sizes.width // sizes.heads // 2
        speeds = 10000.0 ** (-torch.arange(half) / half)
        angles = torch.arange(sizes.tokens)[:, None] * speeds
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, words: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Shapes: twice (rows, tokens) -> ()."""
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x, (self.cos, self.sin))
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())


def ddp(model: Llama, mesh: Any) -> Any:
    """DistributedDataParallel: each rank has the whole model, gradients are summed in buckets."""
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)


def fsdp(model: Llama, mesh: Any) -> Any:
    """FSDP2: each rank keeps a part of each layer, gathered where it is used."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(model: Llama, mesh: Any) -> Any:
    """Tensor parallelism: each rank computes some heads and some columns of the wide layers."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    columns = ("attention.q", "attention.k", "attention.v", "gated.gate", "gated.up")
    for layer in model.layers:
        plan: dict[str, Any] = {name: ColwiseParallel() for name in columns}
        plan |= {"attention.o": RowwiseParallel(), "gated.down": RowwiseParallel()}
        parallelize_module(layer, mesh, plan)
    return model


DISTRIBUTED_CASES: dict[str, Callable[[Llama, Any], Any]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "tensor_parallel": tensor_parallel,
}
"""How a model becomes one of several ranks."""
