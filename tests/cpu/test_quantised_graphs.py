"""Graphs that quantise as exported ones do: in kernels of our own, and equal to eager's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators
from torch.nn import functional as F

import flambeau
from flambeau_prims.decompositions.registry import decomposition_for

quantised = torch.ops.quantized_decomposed
SIZES = ((17, 33), (1, 1), (5, 0), (2, 3, 7))
U8 = (0, 255, torch.uint8)
I8 = (-128, 127, torch.int8)


def static(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a = quantised.quantize_per_tensor(x, 0.0213, 127, *U8)
    b = quantised.quantize_per_tensor(x, 0.0213, -3, *I8)
    return (
        a, quantised.dequantize_per_tensor(a, 0.0213, 127, *U8),
        b, quantised.dequantize_per_tensor(b, 0.0213, -3, *I8),
    )  # fmt: skip


def dynamic(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scale, zero = quantised.choose_qparams.tensor(x, 0, 255, 0.000244140625, torch.uint8)
    signed, middle = quantised.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
    a = quantised.quantize_per_tensor.tensor(x, scale, zero, *U8)
    back = quantised.dequantize_per_tensor.tensor(a, scale, zero, *U8)
    return scale, zero, signed, middle, a, back


def channels(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scale = x.abs().amax(1).flatten(1).amax(1) if x.ndim > 2 else x.abs().amax(1)
    scale = scale / 127 + 0.01
    zero = (scale * 300).to(torch.int64)
    a = quantised.quantize_per_channel(x, scale, zero, 0, *I8)
    b = quantised.dequantize_per_channel(a, scale, zero, 0, *I8)
    return a, b, quantised.dequantize_per_channel(a, scale, None, 0, *I8)


@pytest.mark.parametrize("function", [static, dynamic, channels])
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("mode", [None, "dynamic"])
def test_equal_to_eager(function: Any, shape: tuple[int, ...], mode: str | None) -> None:
    if not torch.Size(shape).numel() and function is not static:
        pytest.skip("eager raises")
    compiled = flambeau.compile(function, fullgraph=True, dynamic=mode == "dynamic" or None)
    for layout in (torch.Tensor.contiguous, lambda x: x.mT):
        x = layout(torch.randn(shape) * 3)
        for ours, theirs in zip(compiled(x), function(x), strict=True):
            assert ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_scales_of_special_values(value: float) -> None:
    x = torch.randn(9, 11)
    x[3, 4] = value
    ours, theirs = flambeau.compile(dynamic)(x), dynamic(x)
    for number in range(4):  # what NaN is quantised to is no number
        torch.testing.assert_close(ours[number], theirs[number], equal_nan=True, rtol=0, atol=0)


def test_half_precision_is_quantised_as_float32() -> None:
    x = torch.randn(33, 5).bfloat16() * 3
    for ours, theirs in zip(flambeau.compile(static)(x), static(x), strict=True):
        assert torch.equal(ours, theirs)


def test_no_operator_is_left_to_the_library() -> None:
    names = (
        "quantize_per_tensor.default", "quantize_per_tensor.tensor", "choose_qparams.tensor",
        "dequantize_per_tensor.default", "dequantize_per_tensor.tensor",
        "quantize_per_channel.default", "dequantize_per_channel.default",
    )  # fmt: skip
    for name in names:
        packet, overload = name.split(".")
        assert decomposition_for(getattr(getattr(quantised, packet), overload)) is not None
    compiled = flambeau.compile(dynamic, fullgraph=True)
    compiled(torch.randn(4, 4))
    assert "quantized_decomposed" not in str(flambeau.explain(compiled))


def test_errors_are_eager_s() -> None:
    x = torch.randn(3, 3)

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return quantised.quantize_per_tensor(x, 0.1, 0, -1, 255, torch.uint8)

    with pytest.raises(AssertionError) as theirs:
        wrong(x)
    with pytest.raises(AssertionError) as ours:
        flambeau.compile(wrong)(x)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("options", [{}, {"freezing": True}])
def test_a_quantised_linear_layer(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    weight = torch.randint(-128, 128, (48, 64), dtype=torch.int8)
    scale, zero, bias = torch.rand(48) / 100, torch.zeros(48, dtype=torch.int64), torch.randn(48)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in (("w", weight), ("s", scale), ("z", zero), ("b", bias)):
                self.register_buffer(name, value)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = dynamic(x)[5]
            return F.relu(
                F.linear(
                    x, quantised.dequantize_per_channel(self.w, self.s, self.z, 0, *I8), self.b
                )
            )

    layer = Layer()
    with torch.no_grad():
        compiled = flambeau.compile(layer, fullgraph=True, options=options)
        for rows in (5, 1):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-4)
