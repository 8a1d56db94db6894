"""Products of dequantised matrices, computed in integers: no farther from exact than eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators
from torch import nn
from torch.nn import functional as F

import flambeau

quantised = torch.ops.quantized_decomposed
U8 = (0, 255, torch.uint8)
I8 = (-128, 127, torch.int8)
BOUNDS = {torch.uint8: U8, torch.int8: I8}


def integers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    low, high, _ = BOUNDS[dtype]
    return torch.randint(low, high + 1, shape, dtype=dtype)


def compiled(program: Any, **options: Any) -> Any:
    dynamic = options.pop("dynamic", None)
    return flambeau.compile(
        program, fullgraph=True, dynamic=dynamic, options={"integer_products": True} | options
    )


def multiplies(run: Any) -> set[str]:
    """The products that the graphs of a compiled program leave to a library, and `int8` if a graph
    multiplies integers.
    """
    graphs = flambeau.explain(run).graphs
    assert graphs and all(graph.fallback is None for graph in graphs)
    names = {each.operator.split(".")[1] for graph in graphs for each in graph.externs}
    texts = [each.operator for g in graphs for p in g.programs for each in p.operations]
    return (names - {"_int_mm"}) | ({"int8"} if any("_int_mm" in text for text in texts) else set())


def closest(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    assert ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
    scale = exact.abs().max().item() if exact.numel() else 1.0
    error, allowed = ((each - exact).abs().max().item() if exact.numel() else 0.0
                      for each in (ours, theirs))  # fmt: skip
    assert error <= 2 * allowed + 1e-6 * scale


def layer(
    q: torch.Tensor, scale: Any, zero: int, w: torch.Tensor, s: torch.Tensor, z: Any, b: Any
) -> torch.Tensor:
    x = quantised.dequantize_per_tensor(q, scale, zero, *BOUNDS[q.dtype])
    d = quantised.dequantize_per_channel(w, s, z, 0, *I8)
    return F.linear(x, d, b).relu()


def exact_layer(
    q: torch.Tensor, scale: float, zero: int, w: torch.Tensor, s: torch.Tensor, z: Any, b: Any
) -> torch.Tensor:
    d = (w.double() - (0 if z is None else z.double()[:, None])) * s.double()[:, None]
    y = ((q.double() - zero) * scale) @ d.T
    return (y if b is None else y + b.double()).relu()


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("zeros", ["none", "zero", "any", "far"])
@pytest.mark.parametrize("shape", [(1, 65), (2, 3, 130), (40, 1025)], ids=str)
def test_static(dtype: torch.dtype, zeros: str, shape: tuple[int, ...]) -> None:
    depth, width = shape[-1], 37
    far = 300 if zeros == "far" else 100
    z = None if zeros == "none" else torch.randint(-far, far, (width,))
    if z is not None and zeros == "zero":
        z.zero_()
    zero = 131 if dtype is torch.uint8 else -3

    def program(q: Any, w: Any, s: Any, z: Any, b: Any) -> Any:
        return layer(q, 0.0213, zero, w, s, z, b)

    run = compiled(program)
    for bias in (None, torch.randn(width)):
        q, w, s = integers(dtype, *shape), integers(torch.int8, width, depth), torch.rand(width)
        with torch.no_grad():
            ours, theirs = run(q, w, s, z, bias), program(q, w, s, z, bias)
        closest(ours, theirs, exact_layer(q, 0.0213, zero, w, s, z, bias))
    assert multiplies(run) == {"int8"}


@pytest.mark.parametrize(("rows", "depth", "width"), [(1, 7, 1), (1, 129, 7), (5, 1, 7), (9, 1, 1)])
def test_matrices_of_one_row_or_column(rows: int, depth: int, width: int) -> None:
    """A row whose strides are those of a column; `_int_mm` itself reads beyond it."""

    def program(q: Any, w: Any, s: Any) -> Any:
        return layer(q, 0.0213, 0, w, s, None, None)

    scales = torch.rand(width)
    for turned in (False, True):
        q = integers(torch.int8, *((depth, rows) if turned else (rows, depth)))
        w = integers(torch.int8, *((depth, width) if turned else (width, depth)))
        q, w = (q.t(), w.t()) if turned else (q, w)
        with torch.no_grad():
            ours, theirs = compiled(program)(q, w, scales), program(q, w, scales)
        closest(ours, theirs, exact_layer(q, 0.0213, 0, w, scales, None, None))


def test_weights_with_one_scale_on_either_side() -> None:
    def program(q: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = quantised.dequantize_per_tensor(q, 0.5, 7, *U8)
        d = quantised.dequantize_per_tensor(w, 0.25, -2, *I8)
        return x @ d, d.t() @ x.t()

    run = compiled(program)
    q, w = integers(torch.uint8, 19, 70), integers(torch.int8, 70, 23)
    exact = ((q.double() - 7) * 0.5) @ ((w.double() + 2) * 0.25)
    ours, theirs = run(q, w), program(q, w)
    closest(ours[0], theirs[0], exact)
    closest(ours[1], theirs[1], exact.T)
    assert multiplies(run) == {"int8"}


class Dynamic(nn.Module):
    """A layer whose input is quantised as its numbers ask for."""

    def __init__(self, width: int, depth: int, low: int, high: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("w", integers(torch.int8, width, depth))
        self.register_buffer("s", torch.rand(width) / 50)
        self.register_buffer("z", torch.randint(-9, 9, (width,)))
        self.bias = nn.Parameter(torch.randn(width))
        self.bounds = (low, high, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, high, dtype = self.bounds
        scale, zero = quantised.choose_qparams.tensor(x, low, high, 1e-5, dtype)
        q = quantised.quantize_per_tensor.tensor(x, scale, zero, *self.bounds)
        x = quantised.dequantize_per_tensor.tensor(q, scale, zero, *self.bounds)
        d = quantised.dequantize_per_channel(self.w, self.s, self.z, 0, *I8)
        return F.gelu(F.linear(x, d, self.bias))


@pytest.mark.parametrize("bounds", [U8, I8], ids=str)
@pytest.mark.parametrize("options", [{}, {"freezing": True}, {"dynamic": True}], ids=str)
def test_dynamic(bounds: Any, options: dict[str, Any]) -> None:
    model = Dynamic(48, 70, *bounds)
    run = compiled(model, **options)
    with torch.no_grad():
        for rows in (5, 1, 64):
            x = torch.randn(2, rows, 70) * 3
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-3)
        assert multiplies(run) == {"int8"}
        model.s.mul_(2)
        model.z.add_(1)
        model.w.add_(1)
        x = torch.randn(2, 5, 70)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_special_values_are_everywhere_behind_a_scale_of_all(value: float) -> None:
    model = Dynamic(48, 70, *U8)
    x = torch.randn(9, 70)
    x[3, 4] = value
    with torch.no_grad():
        ours, theirs = compiled(model)(x), model(x)
    assert torch.equal(ours.isnan(), theirs.isnan())


def test_scales_of_rows() -> None:
    """As torchao quantises tokens: symmetrically, each by its greatest number."""

    def program(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        q = (x / scale).round().clamp(-127, 127).to(torch.int8)
        return F.linear(q.float() * scale, w.float() * s[:, None])

    w, s = integers(torch.int8, 40, 66), torch.rand(40)
    run = compiled(program)
    for shape in ((3, 7, 66), (2, 66)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x, w, s), program(x, w, s), rtol=1e-4, atol=1e-2)
    assert multiplies(run) == {"int8"}


def test_layers_requantise_in_between() -> None:
    w, v = integers(torch.int8, 96, 64), integers(torch.int8, 32, 96)
    s, t = torch.rand(96) / 100, torch.rand(32) / 100

    def program(x: torch.Tensor) -> torch.Tensor:
        q = quantised.quantize_per_tensor(x, 0.02, 128, *U8)
        y = layer(q, 0.02, 128, w, s, None, None)
        q = quantised.quantize_per_tensor(y, 0.05, 0, *U8)
        return layer(q, 0.05, 0, v, t, None, None)

    run = compiled(program)
    for rows in (3, 50):
        x = torch.randn(rows, 64)
        # A last bit decides between two steps of the second quantisation.
        torch.testing.assert_close(run(x), program(x), rtol=1e-4, atol=0.05 * 128 * 0.01)
    assert multiplies(run) == {"int8"}


def test_an_empty_batch() -> None:
    w, s = integers(torch.int8, 37, 33), torch.rand(37)

    def program(q: torch.Tensor) -> torch.Tensor:
        return layer(q, 0.1, 128, w, s, None, None)

    run = compiled(program, dynamic=True)
    for rows in (6, 0, 3):
        q = integers(torch.uint8, rows, 33)
        closest(run(q), program(q), exact_layer(q, 0.1, 128, w, s, None, None))


def scaled_along_the_sum(q: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    x = quantised.dequantize_per_tensor(q, 0.5, 128, *U8)
    return x @ (w.float() * s[None, :]).t()


def any_zero_point(q: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    x = (q.float() - s[0] * 1e6) * 0.5
    return x @ (w.float() * s[0]).t()


def long_sums(q: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return layer(q.repeat(1, 600), 0.5, 128, w.repeat(1, 600), s[:40], None, None)


def floats(q: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return (q.float() * 0.5) @ (s * 0.5).expand(40, 66).t()


@pytest.mark.parametrize("program", [scaled_along_the_sum, any_zero_point, long_sums, floats])
def test_left_as_floats(program: Any) -> None:
    q, w, s = integers(torch.uint8, 9, 66), integers(torch.int8, 40, 66), torch.rand(66)
    run = compiled(program)
    ours, theirs = run(q, w, s), program(q, w, s)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * theirs.abs().max().item())
    assert "int8" not in multiplies(run)


@pytest.mark.parametrize("options", [{"integer_products": False}, {"numerics": "strict"}], ids=str)
def test_switches(options: dict[str, Any]) -> None:
    w, s = integers(torch.int8, 37, 33), torch.rand(37)

    def program(q: torch.Tensor) -> torch.Tensor:
        return layer(q, 0.1, 128, w, s, None, None)

    run = compiled(program, **options)
    run(integers(torch.uint8, 4, 33))
    assert "int8" not in multiplies(run)


def test_gradients_stay_with_floats() -> None:
    w, s = integers(torch.int8, 37, 33), torch.rand(37)

    def program(q: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return layer(q, 0.1, 128, w, s, None, b)

    run = compiled(program)
    q, b = integers(torch.uint8, 4, 33), torch.randn(37, requires_grad=True)
    run(q, b).sum().backward()
    ours, b.grad = b.grad, None
    program(q, b).sum().backward()
    torch.testing.assert_close(ours, b.grad)
