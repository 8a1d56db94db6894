"""The eager or the compiled side of a trial: what it calls and holds, and the inputs it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

import torch
from torch import nn

import flambeau

Results: TypeAlias = list[Any]
Action: TypeAlias = Callable[["Side", Random], Results]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "cudagraphs": {"backend": "cudagraphs"},
    "dynamic": {"mode": "reduce-overhead", "dynamic": True},
}


@dataclass
class Side:
    """A model, what the user holds of it, and two functions that call it, compiled or not."""

    model: nn.Module
    run: Callable[[torch.Tensor], Any]
    other: Callable[[nn.Module, torch.Tensor], torch.Tensor]
    autocast: bool
    optimizer: torch.optim.Optimizer
    held: list[torch.Tensor] = field(default_factory=list)
    """Outputs."""
    held_gradients: list[torch.Tensor] = field(default_factory=list)
    pending: list[torch.Tensor] = field(default_factory=list)
    """Losses before their backward."""
    buffers: dict[torch.Size, torch.Tensor] = field(default_factory=dict)
    """Inputs whose memory stays."""
    pinned: list[torch.Tensor] = field(default_factory=list)
    """Memory of the host that copies may still read."""

    @classmethod
    def of(cls, model: nn.Module, mode: str | None, *, autocast: bool) -> Side:
        """The side that calls the model in a mode of `MODES`; None: eager."""
        run: Any = model
        other: Any = call_scaled
        if mode is not None:
            arguments = {"recompile_limit": 64} | MODES[mode]
            run, other = (flambeau.compile(each, **arguments) for each in (run, other))
        return cls(model, run, other, autocast, torch.optim.SGD(model.parameters(), 1e-3, 0.5))

    def call(self, x: torch.Tensor) -> Any:
        """The model's result."""
        with torch.autocast(DEVICE, torch.bfloat16, enabled=self.autocast):
            return self.run(x)


def call_scaled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A second function over the same module."""
    return first(model(x * 0.5)) * 2


def first(result: Any) -> torch.Tensor:
    """The result, or its first part."""
    tensor: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return tensor


def tensors(result: Any) -> list[torch.Tensor]:
    """The parts of a result."""
    return list(result) if isinstance(result, tuple) else [result]


def copies(result: Any) -> list[torch.Tensor]:
    """The parts of a result in memory of their own."""
    return [part.detach().clone() for part in tensors(result)]


def loss_of(result: Any) -> torch.Tensor:
    """A number that depends on each part of a result."""
    return torch.stack([part.float().square().mean() for part in tensors(result)]).sum()


KINDS = ("fresh", "fresh", "same", "same", "unaligned", "strided", "zero stride", "pinned", "held")


def input_of(
    side: Side, random: Random, kind: str | None = None, batch: int | None = None
) -> torch.Tensor:
    """An input of a kind of `KINDS`, drawn on the CPU: the device's generator stands still."""
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    kind = kind or random.choice(KINDS)
    batch = batch or random.choice([16, 16, 16, 16, 16, 40, 8, 1])
    host: torch.Tensor = side.model.input(batch, generator)  # type: ignore[operator]
    if kind == "same" or (kind == "pinned" and DEVICE == "cpu"):
        return _buffer(side, host.shape).copy_(host)
    if kind == "pinned":
        return _copied_on_a_stream(side, host)
    x = host.to(DEVICE)
    if kind == "unaligned":
        memory = torch.empty(x.numel() + 3, device=DEVICE)
        return memory[3:].view(x.shape).copy_(x)
    if kind == "strided" and x.dim() > 1:
        wide = torch.empty(*x.shape[:-1], 2 * x.shape[-1], device=DEVICE)
        return wide[..., ::2].copy_(x)
    if kind == "zero stride" and x.dim() > 1:
        return x[..., :1].expand(x.shape)
    if kind == "held":
        return next((each for each in side.held if _may_replace(each, x)), x)
    return x


def _buffer(side: Side, shape: torch.Size) -> torch.Tensor:
    return side.buffers.setdefault(shape, torch.empty(shape, device=DEVICE))


def _copied_on_a_stream(side: Side, host: torch.Tensor) -> torch.Tensor:
    """As a loader with a separate stream does."""
    buffer, host = _buffer(side, host.shape), host.pin_memory()
    stream, here = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        buffer.copy_(host, non_blocking=True)
    here.wait_stream(stream)
    side.pinned = [host]
    return buffer


def _may_replace(held: torch.Tensor, x: torch.Tensor) -> bool:
    alike = held.shape == x.shape and held.dtype == x.dtype
    return alike and not held.is_inference() and not held.requires_grad
