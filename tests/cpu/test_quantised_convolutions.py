"""Convolutions of dequantised images, computed in integers: no farther from exact than eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators
from torch.nn import functional as F

import flambeau

quantised = torch.ops.quantized_decomposed
U8 = (0, 255, torch.uint8)
I8 = (-128, 127, torch.int8)
BOUNDS = {torch.uint8: U8, torch.int8: I8}


def integers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    low, high, _ = BOUNDS[dtype]
    return torch.randint(low, high + 1, shape, dtype=dtype)


def externs(run: Any) -> list[str]:
    (graph,) = flambeau.explain(run).graphs
    assert graph.fallback is None
    return [each.operator for each in graph.externs if "_int_mm" not in each.operator]


SETTINGS: dict[str, dict[str, Any]] = {
    "3x3": {"padding": 1}, "valid": {}, "1x1": {}, "strided": {"stride": 2, "padding": (2, 1)},
    "dilated": {"dilation": (2, 1), "padding": (1, 0), "stride": (1, 2)},
}  # fmt: skip


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("freezing", [False, True])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=str)
def test_images(name: str, dtype: torch.dtype, freezing: bool, layout: Any) -> None:
    size = 1 if name == "1x1" else 3
    settings, zero = SETTINGS[name], 131 if dtype is torch.uint8 else -3

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", integers(torch.int8, 24, 17, size, size))
            self.register_buffer("s", torch.rand(24))
            self.register_buffer("z", torch.randint(-9, 9, (24,)))
            self.register_buffer("b", torch.randn(24))

        def forward(self, q: torch.Tensor) -> torch.Tensor:
            x = quantised.dequantize_per_tensor(q, 0.0213, zero, *BOUNDS[dtype])
            d = quantised.dequantize_per_channel(self.w, self.s, self.z, 0, *I8)
            return torch.cat([F.conv2d(x, d, bias, **settings) for bias in (self.b, None, -self.b)])

    layer = Layer()
    options = {"integer_products": True, "freezing": freezing}
    run = flambeau.compile(layer, fullgraph=True, options=options)
    q = integers(dtype, 2, 17, 9, 11).contiguous(memory_format=layout)
    with torch.no_grad():
        ours, theirs = run(q), layer(q)
    held = dict(layer.named_buffers())
    scale, points = (held[name].double()[:, None, None, None] for name in "sz")
    w, x = (held["w"].double() - points) * scale, (q.double() - zero) * 0.0213
    biases = held["b"].double(), None, -held["b"].double()
    exact = torch.cat([F.conv2d(x, w, bias, **settings) for bias in biases])
    assert ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
    error, allowed = ((each - exact).abs().max().item() for each in (ours, theirs))
    assert error <= 2 * allowed + 1e-6 * exact.abs().max().item()
    assert not any("conv" in operator for operator in externs(run))


class Network(torch.nn.Module):
    """Convolutions with a quantisation between each two."""

    def __init__(self, channels: int, groups: int = 1) -> None:
        super().__init__()
        self.groups = groups
        for number in range(3):
            shape = (channels, channels // groups, 3, 3)
            self.register_buffer(f"w{number}", integers(torch.int8, *shape))
            self.register_buffer(f"s{number}", torch.rand(channels) / channels / 400)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(3):
            w, s = getattr(self, f"w{number}"), getattr(self, f"s{number}")
            q = quantised.quantize_per_tensor(x, 0.02, 128, *U8)
            x = quantised.dequantize_per_tensor(q, 0.02, 128, *U8)
            d = quantised.dequantize_per_channel(w, s, None, 0, *I8)
            x = F.relu(F.conv2d(x, d, None, 1, 1, 1, self.groups))
        return x


@pytest.mark.parametrize(
    ("channels", "groups", "pixels", "left"),
    [(16, 1, (7, 6), 0), (192, 1, (9, 9), 0), (32, 2, (7, 6), 3), (8, 1, (7, 6), 3)],
)
def test_networks(channels: int, groups: int, pixels: tuple[int, int], left: int) -> None:
    """Groups, and images of few channels, are left to the library; images by weights that are much
    larger are not.
    """
    model = Network(channels, groups)
    run = flambeau.compile(model, fullgraph=True, options={"integer_products": True})
    x = torch.randn(2, channels, *pixels).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        # A last bit decides between two steps of the next quantisation.
        torch.testing.assert_close(run(x), model(x), rtol=1e-3, atol=0.02)
    calls = sum("conv" in each.operator for g in flambeau.explain(run).graphs for p in g.programs
                for each in p.operations)  # fmt: skip
    assert calls == left
