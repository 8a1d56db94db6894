"""First calls of stacks of equal decoder layers: CPU seconds of 8 and of 80 layers, in fresh
processes with empty caches: `python -m tools.bench.regions LAYERS forward|training` is one of them.

The clock starts after `import torch` and the model's construction, and counts the compilers that
are started, too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

from tools.checks.command import ROOT

FEW, MANY = 8, 80
WIDTH, HEADS, INNER, LENGTH = 64, 4, 172, 32


class DecoderLayer(nn.Module):
    """Causal attention with rotary positions, and a gated unit, each behind an RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        q, k, v = (
            linear(y).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for linear in self.qkv
        )
        q, k = (each * cos + rotated(each) * sin for each in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotated(x: torch.Tensor) -> torch.Tensor:
    """The halves of the last dim exchanged, one negated."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Decoder(nn.Module):
    """`count` layers and a norm."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(count))
        self.norm = nn.RMSNorm(WIDTH)
        angles = torch.outer(torch.arange(float(LENGTH)), torch.rand(WIDTH // HEADS))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.norm(x)


def first_call(count: int, trains: bool) -> float:
    """CPU seconds of the first call in this process and its children."""
    model, x = Decoder(count), torch.randn(2, LENGTH, WIDTH)
    started = os.times()
    import flambeau

    with torch.set_grad_enabled(trains):
        result = flambeau.compile(model)(x)
        if trains:
            result.square().mean().backward()
    ended = os.times()
    return sum(ended[:4]) - sum(started[:4])


def region_table(repeats: int) -> tuple[list[str], list[list[str]]]:
    """The headings and rows of the table."""
    rows = []
    for case in ("forward", "training"):
        seconds = []
        for count in (FEW, MANY):
            seconds.append(statistics.median(in_process(count, case) for _ in range(repeats)))
        few, many = seconds
        rows.append([case, f"{few:.2f}", f"{many:.2f}", f"{many / few:.2f}"])
    return ["case", f"{FEW} layers CPU s", f"{MANY} layers CPU s", "ratio"], rows


def in_process(count: int, case: str) -> float:
    """`first_call` in a fresh process with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tools.bench.regions", str(count), case],
            cwd=ROOT,
            env=os.environ | {"FLAMBEAU_CACHE_DIR": os.path.join(folder, "cache")},
            check=True,
            capture_output=True,
            text=True,
        )
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(first_call(int(sys.argv[1]), sys.argv[2] == "training"))
