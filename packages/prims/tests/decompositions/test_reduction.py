"""Reductions: sums, moments, norms, extremes, truth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_op import Make, check

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
REAL = (*FLOATS, *INTEGERS, torch.bool)
SHAPES_DIMS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((), ()),
    ((7,), (0,)),
    ((3, 5), (1,)),
    ((3, 5), (-2,)),
    ((3, 5), ()),
    ((2, 3, 4), (0, 2)),
    ((2, 3, 4, 5), (-1, -2)),
    ((3, 65), (0,)),
)
EMPTY = ((0, 3), (0,)), ((3, 0), (1,)), ((0, 3), (1,))


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_sum_and_mean(name: str) -> None:
    dims_op = aten.sum.dim_IntList if name == "sum" else aten.mean.dim
    all_op = getattr(aten, name).default
    for dtype in REAL if name == "sum" else FLOATS:
        for special in (False, True):
            make = Make(1, dtype, special=special)
            for shape, dims in (*SHAPES_DIMS, *EMPTY):
                for keepdim in (False, True):
                    check(dims_op, make(*shape), list(dims), keepdim, near=1.0)
                check(all_op, make(*shape), near=1.0)
    check(dims_op, Make(2, torch.bfloat16)(4, 300), [1], False, dtype=torch.float32)
    check(dims_op, Make(2, torch.int32)(4, 300), [1], True, dtype=torch.float32)
    check(dims_op, Make(2, torch.float32)(4, 300), None, True)


def test_prod() -> None:
    for dtype in REAL:
        make = Make(3, dtype)
        check(aten.prod.default, make(2, 3))
        check(aten.prod.dim_int, make(2, 3), 1)
        check(aten.prod.dim_int, make(2, 3), -2, True)
        check(aten.prod.dim_int, make(0, 3), 0)


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_moments(name: str) -> None:
    op = getattr(aten, name).correction
    for dtype in FLOATS:
        # Not "expanded": the variance of equal elements is all rounding error.
        make = Make(4, dtype, layouts=("contiguous", "permuted", "sliced"))
        for shape, dims in (*SHAPES_DIMS[1:], *EMPTY):
            for correction in (None, 0, 1, 2):
                for keepdim in (False, True):
                    check(
                        op,
                        make(*shape),
                        list(dims),
                        correction=correction,
                        keepdim=keepdim,
                        near=1.0,
                    )
        check(op, make(5, 6), None, correction=1)
        check(op, make(5, 6) * 0.01 + 10, [1], correction=1)
        infinite = make(3, 6).contiguous()
        infinite[0, 0], infinite[1, 2] = float("inf"), float("-inf")
        check(op, infinite, [1], correction=1)
    if "var" in name:  # ATen takes the root of a sum in float64
        many = torch.rand(4, 700) * 1e30
        many[0] = 0.0
        check(op, many, [1], correction=1)


@pytest.mark.parametrize("middle", [1e3, 1e5, 1e7])
def test_deviations_from_large_means(middle: float) -> None:
    """What the mean loses to rounding is in each deviation."""
    x = torch.randn(64, 37, generator=torch.Generator().manual_seed(1)) + middle
    for dim in (0, 1):
        check(aten.var.correction, x, [dim], correction=1)


@pytest.mark.parametrize("order", [2, 1, 0, 3, 0.5, float("inf"), float("-inf")])
def test_norms(order: float) -> None:
    for dtype in FLOATS:
        make = Make(5, dtype)
        for shape, dims in SHAPES_DIMS:
            check(aten.linalg_vector_norm.default, make(*shape), order, list(dims), True)
        check(aten.linalg_vector_norm.default, make(4, 7), order)
        check(aten.norm.Scalar, make(4, 7), order)
        check(aten.norm.ScalarOpt_dim, make(4, 7), order, [1], True)
    check(
        aten.linalg_vector_norm.default, Make(1, torch.bfloat16)(4, 7), order, dtype=torch.float32
    )


@pytest.mark.parametrize("order", [2, 3, 0.5, 0])
def test_norms_of_one_number(order: float) -> None:
    """It is that number's magnitude, also where its square over- or underflows."""
    x = torch.tensor([1e-30, -3e38, 1e-42, 0.0, float("inf"), float("nan"), -2e25])
    for dims in ([1], [1, 2]):
        check(aten.linalg_vector_norm.default, x.reshape(7, 1, 1), order, dims)
    for each in x:
        check(aten.linalg_vector_norm.default, each, order)
        check(aten.norm.Scalar, each.reshape(1), order)


def test_logsumexp() -> None:
    for dtype in FLOATS:
        make = Make(6, dtype)
        for shape, dims in (*SHAPES_DIMS, *EMPTY[2:]):
            if dims:
                check(aten.logsumexp.default, make(*shape), list(dims), True)
    inf = float("inf")
    rows = torch.tensor(
        [[-inf, -inf], [inf, 1.0], [inf, -inf], [float("nan"), 1.0], [100.0, 200.0]]
    )
    check(aten.logsumexp.default, rows, [1])


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_extremes(name: str) -> None:
    for dtype in REAL:
        for special in (False, True):
            make = Make(7, dtype, special=special)
            for shape, dims in SHAPES_DIMS:
                for keepdim in (False, True):
                    check(
                        getattr(aten, name).default,
                        make(*shape),
                        list(dims),
                        keepdim,
                        exact=not special,
                    )


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_with_indices(name: str) -> None:
    for dtype in REAL:
        for special in (False, True):
            make = Make(8, dtype, special=special)
            for shape, dims in SHAPES_DIMS:
                check(getattr(aten, name).default, make(*shape))
                if len(dims) == 1:
                    # Of equal elements eager names the first along a contiguous dim only.
                    check(getattr(aten, name).dim, make(*shape).contiguous(), dims[0], True)
            check(getattr(aten, name).dim, make(), 0)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places(name: str) -> None:
    op = getattr(aten, name).default
    for dtype in (*FLOATS, *INTEGERS):
        for special in (False, True):
            make = Make(9, dtype, special=special)
            for shape, dims in SHAPES_DIMS:
                if len(dims) == 1:
                    check(op, make(*shape), dims[0], True)
            check(op, make(3, 5))
            check(op, make(3, 5), None, True)
            check(op, make())


def test_aminmax() -> None:
    make = Make(0, torch.float32)
    check(aten.aminmax.default, make(3, 5))
    check(aten.aminmax.default, make(3, 5), dim=1, keepdim=True)


@pytest.mark.parametrize("name", ["any", "all"])
def test_truth(name: str) -> None:
    packet: Any = getattr(aten, name)
    for dtype in REAL:
        make = Make(10, dtype)
        for shape, dims in (*SHAPES_DIMS, *EMPTY):
            x = make(*shape) * make(*shape) if dtype is not torch.bool else make(*shape)
            check(packet.default, x)
            if len(dims) == 1:
                check(packet.dim, x, dims[0], True)
            if dims:
                check(packet.dims, x, list(dims))


def test_counting() -> None:
    make = Make(11, torch.int64)
    check(aten.count_nonzero.default, make(3, 5))
    check(aten.count_nonzero.dim_IntList, make(3, 5), [1])
    check(aten.trace.default, Make(1, torch.float32)(4, 6))


def test_sums_in_other_dtypes() -> None:
    numbers = torch.tensor([[0.25, float("nan")], [0.0, 0.0], [2.75, -3.5]])
    wrapping = torch.full((4, 64), 4, dtype=torch.int8)
    for x in (numbers, numbers.half(), wrapping, wrapping > 5, torch.zeros(0, 3)):
        for op in (aten.sum, aten.nansum):
            check(op.dim_IntList if op is aten.sum else op.default, x, [0], dtype=torch.bool)
        check(aten.sum.default, x, dtype=torch.bool)
        check(aten.prod.default, x, dtype=torch.bool)
        check(aten.prod.dim_int, x, 1, True, dtype=torch.bool)
    check(aten.nansum.default, numbers, [0], dtype=torch.int32)
    check(aten.nansum.default, numbers.bfloat16(), dtype=torch.uint8)


def test_rare_forms() -> None:
    make = Make(12, torch.float32, layouts=("contiguous", "permuted"))
    for name in ("var", "std", "var_mean", "std_mean"):
        check(getattr(aten, name).default, make(4, 5), near=1.0)
        check(getattr(aten, name).dim, make(4, 5), [1], False, True, near=1.0)
    special = Make(13, torch.bfloat16, special=True)
    check(aten.nansum.default, torch.tensor([[1.0, float("nan")], [2.0, 3.0]]), [1])
    check(aten.nansum.default, special(5).nan_to_num(1.0, 2.0, 3.0))
    check(aten.norm.ScalarOpt_dtype, Make(1, torch.bfloat16)(7), 2, dtype=torch.float32)
    check(
        aten.norm.ScalarOpt_dim_dtype,
        Make(1, torch.bfloat16)(7, 3),
        2,
        [1],
        True,
        dtype=torch.float32,
    )
    check(aten.dist.default, make(4, 5), make(5), 3)
    for keepdim in (False, True):
        x = make(4, 5)
        places = x.max(1, keepdim=keepdim).indices
        check(
            aten.value_selecting_reduction_backward.default,
            make(*places.shape),
            1,
            places,
            [4, 5],
            keepdim,
            exact=True,
        )
