"""Convolutions with normalizations between them, for every device."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable


class Normalised(nn.Module):
    """Three convolutions; each is normalised over the batch, or over groups of channels."""

    def __init__(
        self, channels: int, groups: int, rectify: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        self.rectify = rectify
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1) for _ in range(3)
        )
        self.norms = nn.ModuleList(
            nn.GroupNorm(groups, channels) if groups else nn.BatchNorm2d(channels) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean of each image's channels, and all places."""
        for number, (convolution, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True)
        ):
            y = norm(convolution(x))
            z = F.silu(y) if number == 1 else self.rectify(y)
            x = z if number == 0 else x + z
        return x.mean((2, 3)), F.interpolate(x, scale_factor=2.0, mode="nearest")


def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """Its gradient has no jump at 0, where rounding would decide that of a ReLU."""
    return F.relu(x).square()


PROGRAMS = {
    "groups of 4 channels": (64, 16, (3, 48, 64)),
    "groups of 8 channels, odd places": (24, 3, (2, 133, 35)),
    "groups of 16 channels": (64, 4, (2, 32, 32)),
    "batch": (64, 0, (6, 57, 56)),
    "few places": (48, 0, (3, 5, 3)),
}
"""Channels, groups (0: batch norm), and batch, height and width, by name."""


def assert_gradients_as_near_as_eager(
    name: str, device: str, autocast: bool, compiled: Callable[[nn.Module], Any], calls: int = 1
) -> None:
    """Compare results and gradients of a program with eager's and with those in float64."""
    channels, groups, (batch, *places) = PROGRAMS[name]
    torch.manual_seed(0)
    model = Normalised(channels, groups, squared_relu).to(device)
    x = torch.randn(batch, channels, *places, device=device)
    exact = _run(copy.deepcopy(model).double(), None, x.double(), autocast=False)
    eager = _run(copy.deepcopy(model), None, x, autocast)
    ours = compiled(model)
    for _ in range(calls):
        found = _run(model, ours, x, autocast)
        for a, b, reference in zip(found, eager, exact, strict=True):
            assert a.stride() == b.stride()
            error, theirs = ((each.double() - reference).norm() for each in (a, b))
            # Libraries sum in other orders for channels-last images, and a bias in front of a batch
            # norm has no gradient.
            assert error <= 2 * theirs + 1e-3 * reference.norm() + 1e-4


def assert_gradients_through_relus(
    name: str, device: str, compiled: Callable[[nn.Module], Any]
) -> None:
    """Compare with eager in float64, where rounding flips the sign of no element."""
    channels, groups, (batch, *places) = PROGRAMS[name]
    torch.manual_seed(0)
    model = Normalised(channels, groups, F.relu).to(device, torch.float64)
    x = torch.randn(batch, channels, *places, device=device, dtype=torch.float64)
    eager = _run(copy.deepcopy(model), None, x, autocast=False)
    found = _run(model, compiled(model), x, autocast=False)
    for a, b in zip(found, eager, strict=True):
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        assert (a - b).norm() <= 1e-10 * b.norm() + 1e-10


def _run(model: nn.Module, function: Any, x: torch.Tensor, autocast: bool) -> list[torch.Tensor]:
    model.zero_grad(set_to_none=True)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        means, places = (function or model)(x)
    weights = torch.linspace(-1, 1, places.numel(), device=x.device, dtype=x.dtype)
    loss = (
        means.to(x.dtype).square().sum() + (places.to(x.dtype) * weights.view(places.shape)).mean()
    )
    loss.backward()
    return [means.detach(), places.detach(), *(p.grad for p in model.parameters())]
