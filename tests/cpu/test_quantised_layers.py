"""Layers that torch.ao has quantised: linear layers on packed weights, whose call runs as it is."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import flambeau
from flambeau.report import report_of

pytestmark = pytest.mark.skipif(
    torch.backends.quantized.engine == "none", reason="this build of torch quantises no layers"
)


def quantised(dtype: torch.dtype) -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is deprecated
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=dtype)  # type: ignore[no-any-return,attr-defined]


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_dynamic_quantisation(dtype: torch.dtype) -> None:
    model = quantised(dtype)
    compiled = flambeau.compile(model, fullgraph=True)
    for shape in ((3, 16), (5, 16), (7, 16), (9, 16), (2, 3, 16)):
        x = torch.randn(shape)
        got, want = compiled(x), model(x)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
    assert not flambeau.explain(compiled).breaks
    graphs = report_of(compiled).graphs
    assert len(graphs) == 3  # static, dynamic, another rank
    assert all(graph.fallback is None for graph in graphs)


def test_another_weight_is_another_entry() -> None:
    def program(x: torch.Tensor, model: nn.Module) -> torch.Tensor:
        return model(x.sin()) * 2  # type: ignore[no-any-return]

    compiled = flambeau.compile(program, fullgraph=True)
    models = [quantised(torch.qint8) for _ in range(2)]
    for model in (*models, *models):
        x = torch.randn(3, 16)
        torch.testing.assert_close(compiled(x, model), program(x, model))
    assert len(report_of(compiled).graphs) == 2


def test_gradients_are_as_eagers() -> None:
    model = quantised(torch.qint8)
    x = torch.randn(3, 16, requires_grad=True)
    compiled = flambeau.compile(lambda x: model(x.sin()) + x.sum(), fullgraph=True)
    got, want = compiled(x), model(x.sin()) + x.sum()
    assert got.requires_grad == want.requires_grad
    torch.testing.assert_close(
        torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), x)
    )
