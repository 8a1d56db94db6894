"""`mode="max-autotune"` on a CPU: matrix products are chosen by measurement, beside eager."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flambeau


class M(nn.Module):
    """The model of PyTorch's tutorial."""

    def __init__(self, in_features: int, out_features: int, bias: bool, **kwargs: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias, **kwargs)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return self.relu(x)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path / "cache"))


def tables(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The heads of the tables that were printed."""
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("AUTOTUNE")]


@pytest.mark.parametrize("frozen", ["0", "1"])
def test_the_tutorial(
    frozen: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", frozen)
    x = torch.randn(64, 16)
    model = M(16, 32, True)
    for enabled in (True, False):
        with torch.no_grad(), torch.autocast("cpu", enabled=enabled):
            compiled = flambeau.compile(model, mode="max-autotune")
            y, expected = compiled(x), model(x)
            assert y.dtype is expected.dtype
            torch.testing.assert_close(y, expected)
            assert tables(capsys) == ["AUTOTUNE linear_unary(64x16, 32x16, 32)"]
            # What was measured is stored.
            again = flambeau.compile(copy.deepcopy(model), mode="max-autotune")
            torch.testing.assert_close(again(x), expected)
            assert tables(capsys) == []


def test_only_our_kernels_by_the_tutorials_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS", "CPP")
    x, model = torch.randn(64, 16), M(16, 32, True)
    compiled = flambeau.compile(model, mode="max-autotune")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    printed = capsys.readouterr().err
    assert "cpp_packed_gemm_0" in printed
    assert "aten" not in printed


def test_a_network_with_freezing_whose_weights_change() -> None:
    model = nn.Sequential(nn.Linear(48, 80), nn.GELU(), nn.Linear(80, 40), nn.Tanh()).eval()
    options = {"max_autotune": True, "freezing": True}
    compiled = flambeau.compile(model, fullgraph=True, options=options)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(30, 48)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            model[0].weight.normal_()
            model[2].weight = nn.Parameter(torch.randn(40, 80))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_sizes_that_change() -> None:
    model = M(40, 72, False)
    compiled = flambeau.compile(model, dynamic=True, mode="max-autotune-no-cudagraphs")
    with torch.no_grad():
        for rows in (33, 2, 190):
            x = torch.randn(rows, 40)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_training() -> None:
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 8))
    twin = copy.deepcopy(model)
    compiled = flambeau.compile(model, mode="max-autotune")
    for _ in range(2):
        x = torch.randn(36, 24)
        for call, owner in ((compiled, model), (twin, twin)):
            owner.zero_grad()
            F.mse_loss(call(x), torch.zeros(36, 8)).backward()
        for mine, its in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, its.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_attention_of_many_heads(dtype: torch.dtype) -> None:
    """Products of batches, views of heads, softmax between."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(2, 20, 4, 16).transpose(1, 2) for t in (q, k, v))
        weights = torch.softmax(q @ k.transpose(-1, -2) / 4, dim=-1)
        return (weights @ v).transpose(1, 2).reshape(2, 20, 64)

    given = [torch.randn(2, 20, 64).to(dtype) for _ in range(3)]
    compiled = flambeau.compile(attend, mode="max-autotune", fullgraph=True)
    exact = attend(*(t.double() for t in given))
    ours, theirs = compiled(*given), attend(*given)
    assert ours.stride() == theirs.stride()
    assert (ours - exact).norm() <= 1.5 * (theirs - exact).norm() + 1e-6 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dynamic", [False, None])
def test_experts(
    dynamic: bool | None, dtype: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of tokens in groups, each with its expert's weights, and SiLU behind."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", (torch.randn(4, 96, 64) / 10).to(dtype))

        def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return F.silu(torch._grouped_mm(x, self.w, ends))

    experts = Experts()
    w = experts.w
    compiled = flambeau.compile(experts, mode="max-autotune", fullgraph=True, dynamic=dynamic)
    for ends in ([8, 8, 30, 48], [0, 0, 0, 9], [5, 10, 15, 64]):
        x, bounds = torch.randn(ends[-1], 96).to(dtype), torch.tensor(ends, dtype=torch.int32)
        rows = zip([0, *ends], ends, w, strict=False)
        exact = F.silu(torch.cat([x[a:b].double() @ each.double() for a, b, each in rows]))
        ours, theirs = compiled(x, bounds), experts(x, bounds)
        assert ours.dtype is dtype and ours.stride() == theirs.stride()
        assert (ours - exact).norm() <= 1.3 * (theirs - exact).norm() + 1e-6 * exact.norm()
    assert any("grouped_mm" in head for head in tables(capsys))
