"""Linear layers by int8 and int4 weights on a CPU: dequantised by the product that reads them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flambeau

ROWS = [1, 5, 40]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Int8(nn.Module):
    """A scale for each output."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("q", torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8))
        self.register_buffer("scale", (torch.rand(outputs) / 2000).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, self.q.to(x.dtype) * self.scale[:, None]))


class Int8Behind(Int8):
    """The scale comes behind the product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, self.q.to(x.dtype)) * self.scale)


class Int4(nn.Module):
    """Two numbers a byte, a scale and a zero point for each group of 32 inputs."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        groups = inputs // 32
        self.register_buffer("q", torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8))
        self.register_buffer("scale", (torch.rand(outputs, groups, 1) / 200).to(dtype))
        self.register_buffer("zero", torch.randint(0, 16, (outputs, groups, 1)).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        digits = torch.stack((self.q & 15, self.q >> 4), -1)
        number = digits.reshape(len(self.q), -1, 32).to(x.dtype)
        return F.gelu(F.linear(x, ((number - self.zero) * self.scale).reshape(len(self.q), -1)))


def kernels_of(compiled: Any) -> list[str]:
    """The externs of the compiled graphs."""
    return [each.operator for graph in flambeau.explain(compiled).graphs for each in graph.externs]


def compare(ours: Any, model: nn.Module, x: torch.Tensor) -> None:
    """As close to float64 as eager."""
    with torch.no_grad():
        result, eager = ours(x), model(x)
        exact = model.to(torch.float64)(x.double())
        model.to(x.dtype)
    assert result.dtype is eager.dtype and result.stride() == eager.stride()
    theirs = float((eager.double() - exact).norm())
    assert float((result.double() - exact).norm()) <= 1.3 * theirs + 1e-6 * float(exact.norm())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", [Int8, Int8Behind, Int4])
def test_layers(kind: Any, rows: int, dtype: torch.dtype) -> None:
    model = kind(672, 515, dtype)
    compiled = flambeau.compile(model, fullgraph=True)
    compare(compiled, model, torch.randn(rows, 672).to(dtype))
    x = torch.randn(672, rows).to(dtype).t()
    compare(compiled, model, x)


@pytest.mark.parametrize("mode", ["max-autotune", None])
def test_sizes_that_change(mode: str | None) -> None:
    model = Int4(256, 1030, torch.float32)
    compiled = flambeau.compile(model, fullgraph=True, dynamic=True, mode=mode)
    for rows in (3, 17, 1, 150):
        compare(compiled, model, torch.randn(rows, 256))
    with torch.no_grad():
        assert compiled(torch.randn(0, 256)).shape == (0, 1030)


def test_frozen_weights_stay_small_where_they_fill_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flambeau_autograd import keep_quantised

    model = nn.Sequential(Int8(768, 512, torch.float32), Int8(512, 768, torch.float32))
    for limit, dequantised in ((1 << 30, True), (1 << 20, False)):
        monkeypatch.setattr(keep_quantised, "CACHE_BYTES", limit)
        compiled = flambeau.compile(
            model, fullgraph=True, options={"freezing": True, "graph_cache": False}
        )
        compare(compiled, model, torch.randn(2, 768))
        assert bool(kernels_of(compiled)) == dequantised
        model[0].q.zero_()
        compare(compiled, model, torch.randn(2, 768))
        model[0].q.random_(-127, 128)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("mode", ["max-autotune", None])
def test_the_operator_with_int8_weights(mode: str | None, dtype: torch.dtype) -> None:
    """In bfloat16 eager's kernel reads beyond its operands, and may end the process."""

    def run(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int8pack_mm(x, q, scale)

    q, scale = torch.randint(-127, 128, (576, 512), dtype=torch.int8), torch.rand(576).to(dtype)
    compiled = flambeau.compile(run, fullgraph=True, mode=mode)
    for rows in (1, 7, 33):
        x = torch.randn(rows, 512).to(dtype)
        ours, theirs = compiled(x, q, scale), run(x, q, scale)
        exact = x.double() @ q.double().t() * scale.double()
        assert ours.dtype is dtype
        assert (ours - exact).norm() <= 1.3 * (theirs - exact).norm() + 1e-6 * exact.norm()
    assert compiled(torch.empty(0, 512, dtype=dtype), q, scale).shape == (0, 576)


def test_operators_refuse_what_eager_refuses() -> None:
    x, q, scale = torch.randn(4, 64), torch.zeros(32, 64, dtype=torch.int8), torch.rand(32)
    int8 = torch.ops.aten._weight_int8pack_mm
    for args, words in (
        ((x, q.int(), scale), "int8"),
        ((x, q, scale[:5]), "scales"),
        ((x, q.t().contiguous().t(), scale), "contiguous"),
        ((x.t().contiguous().t(), q, scale), "contiguous"),
        ((x.double(), q, scale.double()), "float tensor"),
    ):
        for call in (int8, flambeau.compile(lambda *a: int8(*a))):
            with pytest.raises(RuntimeError, match=words):
                call(*args)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_operator_with_int4_weights(dtype: torch.dtype) -> None:
    """ATen's kernel: its weight is in an order of the CPU's own."""

    def run(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return F.relu(torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, 32, scales))

    q = torch.randint(0, 16, (96, 128), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
    scales = torch.rand(4, 96, 2).to(dtype)
    compiled = flambeau.compile(run, fullgraph=True, dynamic=True)
    for rows in (1, 9, 30):
        x = torch.randn(rows, 128).to(dtype)
        torch.testing.assert_close(compiled(x, packed, scales), run(x, packed, scales))
