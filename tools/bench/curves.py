"""Training curves of small models, compiled beside eager with the same seeds.

python -m tools.bench curves [--case gpt2 ...] [--steps 300] [--repeats 3]

Eager runs with several seeds (initial weights, batches, dropout): their spread at a step is eager's
run-to-run noise. The compiled run has the first seed. Losses are averaged over windows of
`WINDOW` steps; a curve is within the noise if its largest distance to eager's of the same seed is
smaller than the spread of eager's curves, in each window.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

import flambeau
from examples.models import ResNet18

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WINDOW = 10


class Attention(nn.Module):
    """Multi-head self-attention of one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Batch x tokens x width to the same."""
        parts = self.joint(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A pre-norm transformer layer with dropout."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Batch x tokens x width to the same."""
        x = x + F.dropout(self.attention(self.norms[0](x)), 0.1, self.training)
        hidden = F.gelu(self.up(self.norms[1](x)), approximate="tanh")
        return x + F.dropout(self.down(hidden), 0.1, self.training)


class LanguageModel(nn.Module):
    """A GPT2-type model: learned positions, causal attention, tied output weights."""

    def __init__(self, vocabulary: int = 64, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(32, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, 4, True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Batch x length tokens to batch x length x vocabulary scores."""
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.layers(x)))  # type: ignore[no-any-return]


class VisionModel(nn.Module):
    """A ViT-type model: patches by a convolution, a class token."""

    def __init__(self, width: int = 32, layers: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(17, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, 4, False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Batch x 3 x 16 x 16 images to batch x classes scores."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])  # type: ignore[no-any-return]


@dataclass(frozen=True)
class CurveCase:
    """A model, its batches (inputs and labels that can be learned) and its optimizer; the steps in
    which eager's loss in float32 moves by less than 1e-4 when the first weights change by 1e-7.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    steady_steps: int = 20


def _images(size: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, 10, (count,))
    waves = torch.linspace(0, 6.3, size)[None, :] * labels[:, None]
    return torch.randn(count, 3, size, size) * 0.5 + waves.sin()[:, None, None, :], labels


def _text(count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    start, step = torch.randint(0, 64, (count, 1)), torch.randint(1, 4, (count, 1))
    tokens = (start + step * torch.arange(length + 1)) % 64
    return tokens[:, :-1], tokens[:, 1:]


CURVE_CASES: dict[str, CurveCase] = {
    "resnet18": CurveCase(
        lambda: ResNet18(16, 10),
        lambda: _images(32, 8),
        lambda p: torch.optim.SGD(p, 0.02, momentum=0.9),
        steady_steps=4,
    ),
    "gpt2": CurveCase(LanguageModel, lambda: _text(8, 24), lambda p: torch.optim.AdamW(p, 3e-3)),
    "vit": CurveCase(VisionModel, lambda: _images(16, 16), lambda p: torch.optim.AdamW(p, 1e-3)),
}


def losses(
    case: CurveCase, seed: int, steps: int, *, compiles: bool, dtype: torch.dtype = torch.float32
) -> list[float]:
    """The loss of each step; the model's loss and the optimizer's step are compiled."""
    torch.manual_seed(seed)
    model = case.model().train().to(dtype)
    optimizer = case.optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def loss_of(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x).flatten(0, -2), labels.flatten())

    step: Callable[[], Any] = optimizer.step
    if compiles:
        loss_of, step = flambeau.compile(loss_of), flambeau.compile(optimizer.step)
    curve = []
    for number in range(steps):
        torch.manual_seed(seed * 100_003 + number)  # batches and dropout
        x, labels = case.batch()
        loss = loss_of(x.to(dtype) if x.is_floating_point() else x, labels)
        optimizer.zero_grad()
        loss.backward()
        step()
        schedule.step()
        curve.append(loss.item())
    return curve


@dataclass(frozen=True)
class Comparison:
    """For each window: eager's mean loss, the spread of eager's seeds, the compiled run's distance
    to eager with the same seed.
    """

    means: list[float]
    noise: list[float]
    distances: list[float]

    @property
    def ratio(self) -> float:
        """The largest share of the noise that the distance is."""
        pairs = zip(self.distances, self.noise, strict=True)
        return max(distance / noise for distance, noise in pairs)


def compare_curves(
    name: str, steps: int, seeds: Sequence[int], dtype: torch.dtype = torch.float32
) -> Comparison:
    """Train eagerly with each seed, and compiled with the first."""
    case = CURVE_CASES[name]
    eager = [_windows(losses(case, seed, steps, compiles=False, dtype=dtype)) for seed in seeds]
    compiled = _windows(losses(case, seeds[0], steps, compiles=True, dtype=dtype))
    return Comparison(
        [statistics.mean(values) for values in zip(*eager, strict=True)],
        [
            statistics.stdev(values) if len(seeds) > 1 else 0.0
            for values in zip(*eager, strict=True)
        ],
        [abs(mine - other) for mine, other in zip(compiled, eager[0], strict=True)],
    )


def _windows(curve: Sequence[float]) -> list[float]:
    return [statistics.mean(curve[at : at + WINDOW]) for at in range(0, len(curve), WINDOW)]
