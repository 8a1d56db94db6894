"""Lazy modules: their first call may be a compiled one, which initialises them as eager does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter

import flambeau
from flambeau.report import report_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Residual(nn.Module):
    """Uses one lazy module twice, and another behind a branch on a size."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.LazyLinear(3), nn.LazyLinear(2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x).relu()
        y = self.inner(y) if y.shape[-1] == x.shape[-1] else y
        return self.outer(torch.cat([x, y], -1)) if self.inner.in_features == 3 else y


class Noisy(nn.Module):
    """Draws before its parameters do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(F.dropout(x, 0.5))


class Centred(LazyModuleMixin, nn.Module):
    """The program's own, which looks at its first input."""

    cls_to_become = nn.Identity

    def __init__(self) -> None:
        super().__init__()
        self.mean = UninitializedParameter()

    def initialize_parameters(self, x: torch.Tensor) -> None:
        with torch.no_grad():
            self.mean.materialize(x.shape[-1:])
            self.mean.copy_(x.mean(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.mean


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.LazyLinear(4), (2, 3)),
    "images": (
        lambda: nn.Sequential(
            nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.LazyConvTranspose2d(2, 2),
            nn.LazyInstanceNorm2d(affine=True), nn.Flatten(), nn.LazyLinear(2),
        ),
        (2, 3, 8, 8),
    ),
    "residual": (Residual, (5, 3)),
    "noisy": (Noisy, (5, 3)),
    "own": (lambda: nn.Sequential(Centred(), nn.LazyLinear(2)), (5, 3)),
    "partly": (lambda: nn.Sequential(nn.Linear(3, 6), nn.LazyBatchNorm1d(), nn.ReLU()), (5, 3)),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", MODULES)
def test_the_first_call_initialises(name: str, dynamic: bool | None) -> None:
    make, shape = MODULES[name]
    torch.manual_seed(0)
    eager = make()
    torch.manual_seed(0)
    module = make()
    whole = name not in ("noisy", "own")
    compiled = flambeau.compile(module, fullgraph=whole, dynamic=dynamic)
    for _ in range(3):
        x = torch.randn(shape)
        state = torch.get_rng_state()
        want = eager(x)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        found = compiled(x)
        assert torch.equal(torch.get_rng_state(), after)
        torch.testing.assert_close(found, want)
        want.square().sum().backward()
        found.square().sum().backward()
    for (key, ours), (other, theirs) in zip(
        module.named_parameters(), eager.named_parameters(), strict=True
    ):
        assert key == other and type(ours) is type(theirs)
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(module.state_dict(), eager.state_dict())
    assert [type(part) for part in module.modules()] == [type(part) for part in eager.modules()]
    assert not any(part._forward_pre_hooks for part in module.modules())
    kinds = [event.kind for _, event in report_of(compiled).arrivals]
    assert whole is ("break" not in kinds)


def test_a_lazy_module_of_the_frame_runs_eagerly() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.LazyLinear(2)(x)

    x = torch.randn(3, 4)
    torch.manual_seed(0)
    want = function(x)
    torch.manual_seed(0)
    torch.testing.assert_close(flambeau.compile(function)(x), want)


def test_a_wrong_input_raises_as_eagerly() -> None:
    messages = []
    for compiled in (False, True):
        module = nn.LazyConv2d(4, 3)
        call = flambeau.compile(module) if compiled else module
        with pytest.raises(RuntimeError) as error:
            call(torch.randn(2, 3, 8, 8, 8))
        messages.append(str(error.value))
    assert messages[0] == messages[1]
