"""Scans, sorts of short rows and binary searches, compiled: values, gradients and layouts as eager,
and no call of ATen.
"""

from __future__ import annotations

import pytest
import torch

import flambeau
from tests.differential import differences

SPECIAL = [0.0, -0.0, float("nan"), 1.0, float("inf"), 1.0, -float("inf"), float("nan"), 3.0]


def row_of_specials() -> torch.Tensor:
    x = torch.randn(6, 9)
    x[2] = torch.tensor(SPECIAL)
    x[3] = torch.tensor(SPECIAL[::-1])
    return x


def grad(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


def in_place(x):
    y = x.clone()
    y.cumsum_(1)
    out = torch.empty_like(x)
    torch.cumprod(y, -2, out=out)
    return y, out


PROGRAMS = {
    "rows": (lambda x: torch.cumsum(x.exp(), 1) * 2, lambda: (grad(6, 33),)),
    "columns": (lambda x: torch.cumsum(x, -2) + 1, lambda: (grad(40, 70),)),
    "products": (lambda x: torch.cumprod(x, 1), lambda: (grad(6, 9),)),
    "logarithms": (lambda x: torch.logcumsumexp(x, 0).sin(), lambda: (grad(6, 9),)),
    "extremes": (
        lambda x: (*torch.cummax(x, 1), *torch.cummin(x.round(), 0)),
        lambda: (grad(6, 40),),
    ),
    "trapezoids": (lambda x: torch.cumulative_trapezoid(x, dim=1), lambda: (grad(6, 9),)),
    "differences": (lambda x: torch.diff(torch.cumsum(x, 1), dim=1), lambda: (grad(6, 9),)),
    "transposed": (lambda x: x.t().cumsum(0), lambda: (grad(6, 9),)),
    "softmax": (lambda x: x.cumsum(1).softmax(1), lambda: (grad(6, 90),)),
    "normalized": (lambda x: torch.layer_norm(x.cumsum(1), (90,)), lambda: (grad(6, 90),)),
    "columns_normalized": (lambda x: torch.var_mean(x.cumsum(0), 0), lambda: (grad(90, 64),)),
    "sorted": (
        lambda x: (
            *torch.sort(x.sin(), dim=1, stable=True),
            torch.argsort(x, dim=0, stable=True),
            x.msort(),
        ),
        lambda: (grad(6, 40),),
    ),
    "ranked": (lambda x: (x.sort(1).values * torch.arange(40)).sum(1), lambda: (grad(6, 40),)),
    "scalar": (lambda x: (x.cumsum(0), x.cumprod(-1), *x.cummax(0)), lambda: (grad(),)),
    "one": (lambda x: (x.cumsum(1), *x.cummin(1)), lambda: (grad(4, 1),)),
    "long": (lambda x: x.cumsum(0).cos(), lambda: (grad(700_001),)),
}
WITHOUT_GRADIENT = {
    "specials": (
        lambda x: (*torch.cummax(x, 1), *torch.cummin(x, 1), x.logcumsumexp(1), x.cumsum(1)),
        lambda: (row_of_specials(),),
    ),
    "integers": (
        lambda x: (x.cumsum(0), x.cumprod(1), *x.cummax(1), *x.cummin(0), (x > 0).cumsum(1)),
        lambda: (torch.randint(-9, 9, (5, 7)),),
    ),
    "narrow": (
        lambda x: (x.cumsum(0), x.cumprod(1, dtype=torch.int32), *x.cummax(1)),
        lambda: (torch.randint(-9, 9, (5, 7), dtype=torch.int8),),
    ),
    "bool": (
        lambda x: (x.cumsum(0), *x.cummax(1), *x.cummin(0)), lambda: (torch.rand(5, 7) > 0.5,)
    ),
    "halves": (
        lambda x: (x.cumsum(0), x.cumprod(1), x.logcumsumexp(1), *x.cummax(0)),
        lambda: (torch.randn(5, 70).bfloat16(),),
    ),
    "empty": (lambda x: (x.cumsum(0), x.cumprod(1), *x.cummax(1)), lambda: (torch.randn(0, 4),)),
    "sorted_specials": (
        lambda x: (
            *torch.sort(x, dim=1, stable=True),
            *torch.sort(x.bfloat16(), dim=1, stable=True, descending=True),
        ),
        lambda: (row_of_specials(),),
    ),
    "searched": (
        lambda x: (
            torch.bucketize(x, torch.linspace(-1, 1, 9)),
            torch.searchsorted(x.sort(1).values, x[:, :4], right=True) + 1,
        ),
        lambda: (torch.randn(6, 9),),
    ),
    "in_place": (in_place, lambda: (torch.randn(6, 9),)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*PROGRAMS, *WITHOUT_GRADIENT])
def test_as_eager(name: str) -> None:
    function, make = (PROGRAMS | WITHOUT_GRADIENT)[name]
    found = differences(function, make, fullgraph=True, options={"check": True})
    assert not found, "\n".join(found)


def places_among_themselves(x):
    y = torch.sigmoid(x)
    return torch.bucketize(y, y.flatten().sort().values, right=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_computed_values_equal_their_copies_among_boundaries(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 17 * 33)[torch.randperm(17 * 33)].reshape(17, 33).to(dtype)
    compiled = flambeau.compile(places_among_themselves, fullgraph=True)
    assert torch.equal(compiled(x), places_among_themselves(x))


@pytest.mark.parametrize("name", ["rows", "columns", "trapezoids", "logarithms", "ranked"])
def test_forward_and_backward_call_no_aten(name: str) -> None:
    function, make = PROGRAMS[name]
    compiled = flambeau.compile(function, fullgraph=True)
    compiled(*make()).sum().backward()
    text = str(flambeau.explain(compiled))
    assert "aten." not in text, text


def test_a_scan_is_one_kernel_with_its_neighbours() -> None:
    compiled = flambeau.compile(lambda x: torch.cumsum(x.exp(), 1) * 2, fullgraph=True)
    compiled(torch.randn(6, 33))
    (kernels,) = [k for k in str(flambeau.explain(compiled)).splitlines() if "kernels:" in k]
    assert kernels.count("cpu_") == 1, kernels


def test_symbolic_sizes() -> None:
    def function(x):
        return x.cumsum(1) * 2, x.cumsum(0), torch.cummax(x, 1).indices

    compiled = flambeau.compile(function, fullgraph=True, dynamic=True)
    for shape in ((3, 5), (7, 2), (4, 300)):
        x = torch.randn(shape)
        for ours, eager in zip(compiled(x), function(x), strict=True):
            torch.testing.assert_close(ours, eager)
