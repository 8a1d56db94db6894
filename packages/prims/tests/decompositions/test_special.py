"""Special functions: near and far from their zeros and poles, and at infinities and NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from one_op import Make, check, decomposed, is_decomposed

from flambeau_prims.evaluate import run_graph

aten = torch.ops.aten

WIDTH = {
    "erfinv": 1.0, "special_ndtri": 1.0, "special_erfcx": 9.0, "special_log_ndtr": 20.0,
    "digamma": 30.0, "i0": 40.0, "special_i0e": 60.0, "special_i1": 40.0, "special_i1e": 60.0,
    "special_modified_bessel_i0": 40.0, "special_modified_bessel_i1": 40.0,
    "special_modified_bessel_k0": 40.0, "special_modified_bessel_k1": 40.0,
    "special_scaled_modified_bessel_k0": 60.0, "special_scaled_modified_bessel_k1": 60.0,
    "special_bessel_j0": 60.0, "special_bessel_j1": 60.0, "special_bessel_y0": 60.0,
    "special_bessel_y1": 60.0, "special_spherical_bessel_j0": 60.0,
}  # fmt: skip
"""Functions, and how far from 0 they are tried."""
ONLY_WIDE = ("special_erfcx", "special_log_ndtr", "special_ndtri")
"""Eager's take no half precision."""
ONLY_SINGLE = ("bessel_j", "bessel_y")
"""Eager's are right to 1e-7 in float64, too."""


@pytest.mark.parametrize("name", sorted(WIDTH))
def test_functions_of_one_number(name: str) -> None:
    op = getattr(aten, name).default
    width = WIDTH[name]
    narrow = () if name in ONLY_WIDE or "bessel" in name else (torch.bfloat16, torch.float16)
    wide = () if any(part in name for part in ONLY_SINGLE) else (torch.float64,)
    for dtype in (torch.float32, *wide, *narrow):
        make = Make(1, dtype)
        poles = name == "digamma" and dtype is torch.float64  # errors grow where eager is exact
        low = 0.1 if poles else -width
        for shape in ((), (40, 50), (0, 3)):
            check(op, make(*shape, low=low, high=width), factor=8.0, near=1.0)
        check(op, make(900, low=max(low, -2.0), high=2.0), factor=8.0, near=1.0)
    check(op, Make(2, torch.int64)(30), factor=8.0, near=1e3)  # eager is its own reference
    check(op, Make(3, torch.bool)(5), factor=8.0, near=1.0)


@pytest.mark.parametrize("name", sorted(WIDTH))
def test_infinities_zeros_and_poles(name: str) -> None:
    op = getattr(aten, name).default
    inf = float("inf")
    x = torch.tensor([float("nan"), inf, -inf, 0.0, -0.0, 1.0, -1.0, -2.0, 2.0, 5.0, 8.0, 10.0])
    (graph, tensors) = decomposed(op, (x,), {}, [op(x)])
    assert is_decomposed(graph)
    (ours,) = run_graph(graph, tensors)
    torch.testing.assert_close(ours, op(x), rtol=3e-6, atol=3e-6, equal_nan=True)


def test_results_are_those_of_a_table() -> None:
    """Abramowitz and Stegun, tables 9.1, 9.8, 6.1 and 26.1."""

    def value(op: Any, at: float) -> float:
        x = torch.tensor(at, dtype=torch.float64)
        graph, tensors = decomposed(op, (x,), {}, [op(x)])
        return float(run_graph(graph, tensors)[0])

    assert abs(value(aten.special_bessel_j0.default, 4.0) - -0.397149809863847) < 1e-14
    assert abs(value(aten.special_bessel_j1.default, 5.5) - -0.341438215429043) < 1e-14
    assert abs(value(aten.i0.default, 1.0) - 1.26606587775201) < 1e-13
    assert abs(value(aten.digamma.default, 1.0) - -0.577215664901533) < 1e-14
    assert abs(value(aten.special_ndtri.default, 0.975) - 1.95996398454005) < 1e-13


@pytest.mark.parametrize("name", ["modified_bessel_k0", "scaled_modified_bessel_k0"])
def test_subnormal_numbers(name: str) -> None:
    """There K0(x) is -log(x / 2) less Euler's constant; eager's scaled one is infinite."""
    x = torch.tensor([1e-45, 3e-42, 1e-39])
    op = getattr(aten, f"special_{name}").default
    graph, tensors = decomposed(op, (x,), {}, [op(x)])
    (ours,) = run_graph(graph, tensors)
    expected = math.log(2.0) - x.double().log() - 0.5772156649015329
    torch.testing.assert_close(ours.double(), expected, rtol=3e-7, atol=0.0)


def test_polygamma_and_mvlgamma() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        make = Make(4, dtype)
        for n in (0, 1):
            check(aten.polygamma.default, n, make(30, 7, low=0.1, high=20.0), factor=8.0, near=1.0)
        if dtype is torch.float32:
            check(aten.polygamma.default, 1, make(300, low=-5.5, high=5.0), factor=8.0, near=1.0)
        for p in (1, 2, 5):
            x = make(40, low=2.5, high=9.0)
            check(aten.mvlgamma.default, x, p, factor=8.0, near=10.0)
    x = torch.rand(4) + 1
    graph, _ = decomposed(aten.polygamma.default, (11, x), {}, [torch.polygamma(11, x)])
    assert not is_decomposed(graph)


@pytest.mark.parametrize("n", [2, 3, 4, 7, 10])
def test_derivatives_of_digamma(n: int) -> None:
    op = aten.polygamma.default
    for dtype in (torch.float32, torch.float64):
        make = Make(n, dtype)
        for low, high in ((0.3, 3.0), (3.0, 90.0), (-7.3, -0.1)):
            x = make(40, 30, low=low, high=high)
            x = torch.where((x - x.round()).abs() < 0.1, x.round() + 0.2, x)
            (graph, tensors) = decomposed(op, (n, x), {}, [op(n, x)])
            assert is_decomposed(graph)
            (ours,) = run_graph(graph, tensors)
            tolerance = 3e-4 if dtype is torch.float32 else 1e-10
            torch.testing.assert_close(ours, op(n, x), rtol=tolerance, atol=0.0)
    poles = torch.tensor([0.0, -0.0, -1.0, -5.0, 1.0, float("nan")])
    (graph, tensors) = decomposed(op, (n, poles), {}, [op(n, poles)])
    (ours,) = run_graph(graph, tensors)
    torch.testing.assert_close(ours, op(n, poles), rtol=1e-5, atol=0.0, equal_nan=True)
