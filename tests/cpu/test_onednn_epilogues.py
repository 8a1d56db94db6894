"""Products with oneDNN's post-operations: found in what ATen's operators decompose to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import flambeau

FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str | None]] = {
    "gelu": (F.gelu, "gelu"),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu"),
    "silu": (F.silu, "swish"),
    "tanh": (torch.tanh, "tanh"),
    "relu": (torch.relu, None),
    "scaled": (lambda x: F.gelu(x) * 2, None),
    "other": (lambda x: 0.5 * x * (1 + torch.erf(x * 0.7)), None),
}


@pytest.fixture(autouse=True)
def only_the_fused_way(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Chooses oneDNN's fused call wherever it is a candidate."""
    from flambeau_runtime.tuning.tuner import MeasuringTuner

    names: list[str] = []

    def choose(self: Any, contests: Any) -> list[int]:
        result = []
        for contest in contests:
            own = [each.name for each in contest.candidates]
            fused = [name for name in own if name.startswith("mkldnn") and " + " not in name]
            fused = [name for name in fused if " " in name]
            names.extend(fused)
            result.append(own.index(fused[0]) if fused else 0)
        return result

    monkeypatch.setattr(MeasuringTuner, "choose", choose)
    return names


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(24, 64), (3, 5, 64)], ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_post_operations(
    name: str, shape: tuple[int, ...], frozen: bool, only_the_fused_way: list[str]
) -> None:
    function, post = FUNCTIONS[name]
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 96).eval()
    x = torch.randn(shape)
    x.view(-1, 64)[0, 0] = torch.nan
    options = {"max_autotune": True, "freezing": frozen}
    with torch.no_grad(), redirect_stderr(StringIO()):
        expected = function(model(x))
        result = flambeau.compile(lambda x: function(model(x)), options=options)(x)
    assert result.shape == expected.shape and result.stride() == expected.stride()
    torch.testing.assert_close(result, expected, equal_nan=True, rtol=1e-5, atol=1e-5)
    words = [each.split()[-1] for each in only_the_fused_way]
    if torch.backends.mkldnn.is_available():
        assert words == ([] if post is None else [post])


def test_a_product_that_others_read_is_not_fused(only_the_fused_way: list[str]) -> None:
    model, x = torch.nn.Linear(64, 96).eval(), torch.randn(24, 64)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = model(x)
        return y, F.gelu(y)

    with torch.no_grad(), redirect_stderr(StringIO()):
        results = flambeau.compile(both, options={"max_autotune": True})(x)
        torch.testing.assert_close(results, both(x))
    assert not only_the_fused_way
