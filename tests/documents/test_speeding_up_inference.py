"""The page on faster inference: the first call compiles, another shape compiles again, `dynamic`
ends that; modes, backends, `fullgraph`, `disable`.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import flambeau
from flambeau.report import report_of


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def test_the_first_call_compiles() -> None:
    compiled = flambeau.compile(model())
    assert not report_of(compiled).graphs
    for _ in range(3):
        compiled(torch.randn(2, 8))
    assert len(report_of(compiled).graphs) == 1


@pytest.mark.parametrize(
    ("dynamic", "graphs"), [(False, 4), (None, 2), (True, 1)], ids=["static", "auto", "dynamic"]
)
def test_shapes_that_change(dynamic: bool | None, graphs: int) -> None:
    net = model()
    compiled = flambeau.compile(net, dynamic=dynamic)
    with torch.no_grad():
        for rows in (2, 3, 5, 7):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), net(x))
    assert len(report_of(compiled).graphs) == graphs


def test_a_recompile_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    flambeau.compiler.set_logs(recompiles=True)
    try:
        compiled = flambeau.compile(torch.sin, name="waves")
        compiled(torch.randn(2))
        compiled(torch.randn(3))
    finally:
        flambeau.compiler.set_logs()
    assert "[recompiles] waves" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_the_modes(mode: str) -> None:
    net, x = model(), torch.randn(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(flambeau.compile(net, mode=mode)(x), net(x))


def test_backends() -> None:
    assert "inductor" in flambeau.list_backends()
    with pytest.raises(ValueError, match=r"nvprims_nvfuser.*retired.*inductor"):
        flambeau.compile(model(), backend="nvprims_nvfuser")


def test_fullgraph_refuses_breaks() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        flambeau.compiler.graph_break("for the page")
        return y.cos()

    with pytest.raises(flambeau.CaptureError, match="for the page"):
        flambeau.compile(broken, fullgraph=True)(torch.ones(2))


def test_disable() -> None:
    net = model()
    assert flambeau.compile(net, disable=True) is net
