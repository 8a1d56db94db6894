"""The tutorial of max-autotune with C++ GEMM templates on a CPU: the table that is printed, the
kernel with bias and ReLU in it, packed weights, and the variables.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import flambeau


class Layer(nn.Module):
    """A linear layer, and a ReLU behind it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


@pytest.fixture(autouse=True)
def _as_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")


def run(capsys: pytest.CaptureFixture[str], *, amp: bool, options: object = None) -> str:
    model, x = Layer(16, 32), torch.randn(64, 16)
    with torch.no_grad(), torch.autocast("cpu", enabled=amp):
        compiled = flambeau.compile(
            model, mode=None if options else "max-autotune", options=options
        )
        found, expected = compiled(x), model(x)
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found, expected)
    return capsys.readouterr().err


@pytest.mark.parametrize("amp", [True, False])
def test_the_table(amp: bool, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run(capsys, amp=amp).splitlines()
    start = printed.index("AUTOTUNE linear_unary(64x16, 32x16, 32)")
    rows = [re.fullmatch(r"  (.+) ([\d.]+) ms ([\d.]+)%", line) for line in printed[start + 1 :]]
    shares = [float(row[3]) for row in rows if row is not None]
    assert shares[0] == 100.0 and shares == sorted(shares, reverse=True)
    names = " ".join(row[1] for row in rows if row is not None)
    assert "cpp_packed_gemm" in names and "aten." in names


def test_the_switch_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run(
        capsys, amp=False, options={"max_autotune": True, "trace.log_autotuning_results": True}
    )
    assert "AUTOTUNE linear_unary(64x16, 32x16, 32)" in printed


@pytest.mark.parametrize("amp", [True, False])
def test_the_code_has_bias_and_relu_in_the_product(
    amp: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS", "CPP")
    monkeypatch.setenv("TORCH_LOGS", "+output_code")
    printed = run(capsys, amp=amp)
    code = printed[printed.index("[output_code]") :]
    assert "aten.addmm" not in code and "aten.mm" not in code
    assert re.search(r"cpu_\w*addmm\w*maximum", code)  # product, bias and ReLU in one kernel
