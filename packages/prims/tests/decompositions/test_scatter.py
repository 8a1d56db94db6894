"""Writing at computed places: index_put, scatter, index_add, gradients of gathers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_op import Make, check, decomposed, flat, is_decomposed

aten = torch.ops.aten

DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_put(dtype: torch.dtype) -> None:
    make = Make(0, dtype)
    put = aten.index_put.default
    for x in (make(7, 5, 4), make(4, 5, 7).permute(2, 1, 0)):
        check(put, x, [make.index(7, 11, negative=True)], make(11, 5, 4), True, exact=True)
        check(put, x, [None, make.index(5, 3)], make(7, 3, 4), True, exact=True)
        indices = [make.index(7, 3, 1), None, make.index(4, 2)]
        check(put, x, indices, make(3, 2, 5), True, exact=True)
        check(put, x, [make.index(7, 6)], make(1), True, exact=True)
        check(put, x, [make.index(7, 0)], make(0, 5, 4), True, exact=True)
        check(put, x, [torch.randperm(7)[:4]], make(5, 1), False, exact=True)
        check(put, x, [x > 0], make(), False, exact=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_along_a_dim(dtype: torch.dtype) -> None:
    make = Make(1, dtype)
    for x, dim in ((make(7, 5), 0), (make(5, 7).t(), -1)):
        index = make.index(x.shape[dim], 4, 5)
        source = make(6, 9)
        check(aten.scatter_add.default, x, dim, index, source, exact=True)
        check(aten.scatter_reduce.two, x, dim, index, source, "sum", exact=True)
        check(aten.scatter.src, x, dim, index, source, exact=True)
        check(aten.scatter.value, x, dim, index, 2, exact=True)
    check(aten.index_copy.default, make(7, 5), 1, torch.tensor([3, 0]), make(7, 2), exact=True)
    if dtype.is_floating_point:
        for alpha in (1, 2.5):
            args = (make(7, 5), 1, make.index(5, 11), make(7, 11))
            check(aten.index_add.default, *args, alpha=alpha, near=9.0)


REDUCTIONS = ("sum", "mean", "prod", "amax", "amin")


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("include_self", [True, False])
def test_reductions_into_places(reduce: str, include_self: bool) -> None:
    for dtype in (*DTYPES, torch.uint8, torch.int8):
        if reduce in ("sum", "mean") and dtype not in DTYPES:
            continue
        make = Make(6, dtype, special=reduce in ("amax", "amin"))
        options = {"include_self": include_self}
        for x, dim in ((make(7, 5), 0), (make(5, 7).t(), -1)):
            index = make.index(x.shape[dim], 4, 5)
            args = (x, dim, index, make(6, 9), reduce)
            check(aten.scatter_reduce.two, *args, **options, near=9.0)
        scalars = (make(), 0, torch.tensor(0), make(), reduce)
        check(aten.scatter_reduce.two, *scalars, **options, near=9.0)
        check(aten.scatter_reduce.two, make(3), 0, make.index(3, 0), make(2), reduce, **options)
        if reduce != "sum":
            args = (make(7, 5, 3), -2, make.index(5, 11), make(7, 11, 3), reduce)
            check(aten.index_reduce.default, *args, **options, near=9.0)
    half = Make(7, torch.bfloat16, special=True)
    if reduce in ("amax", "amin"):
        args = (half(7, 5), 0, half.index(7, 4, 5), half(6, 9), reduce)
        check(aten.scatter_reduce.two, *args, include_self=include_self, exact=True)


def test_gradients_of_gathers() -> None:
    make = Make(2, torch.float32)
    for padding in (-1, 3):
        args = (make(3, 4, 6), make.index(10, 3, 4), 10, padding, False)
        check(aten.embedding_dense_backward.default, *args, exact=True)
    args = (make(3, 4, 6), [3, 9, 6], 1, make.index(9, 4))
    check(aten.index_select_backward.default, *args, exact=True)


def test_gradients_of_large_tables() -> None:
    """A small part of a table is added with one thread; what is much of it stays with ATen."""
    make = Make(5, torch.float32)
    backward = aten.embedding_dense_backward.default
    rows, width = 600, 64
    for padding in (-1, 3):
        index = make.index(4 * rows, rows)
        # Threads add the gradients of one row in any order.
        check(backward, make(rows, width), index, 4 * rows, padding, False)
    args = (make(rows, width), make.index(rows, rows), rows, -1, False)
    graph, _ = decomposed(backward, args, {}, flat(backward(*args)))
    assert not is_decomposed(graph)


def test_what_stays_with_aten() -> None:
    make = Make(3, torch.float16)
    calls: tuple[tuple[Any, ...], ...] = (
        (aten.index_put.default, make(7, 5), [make.index(7, 3)], make(3, 5), True),
        (aten.scatter_reduce.two, make(7, 5), 0, make.index(7, 3, 5), make(3, 5), "prod"),
        (aten.embedding_dense_backward.default, make(3, 6), make.index(10, 3), 10, -1, True),
        (aten.index_put.default, make(7), [make(7) > 0], make(1), True),
    )
    for op, *args in calls:
        graph, _ = decomposed(op, tuple(args), {}, flat(op(*args)))
        assert not is_decomposed(graph)


def test_unpooling() -> None:
    make = Make(4, torch.float32)
    for x in (make(2, 3, 8, 10), make(2, 3, 8, 10).contiguous(memory_format=torch.channels_last)):
        values, indices = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
        check(aten.max_unpool2d.default, values, indices, [8, 10], exact=True)
    x = make(2, 3, 4, 6, 8)
    values, indices = torch.nn.functional.max_pool3d(x, 2, return_indices=True)
    sizes = ([4, 6, 8], [2, 2, 2], [0, 0, 0])
    check(aten.max_unpool3d.default, values, indices, *sizes, exact=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_slices_filled_with_a_number(dtype: torch.dtype) -> None:
    make = Make(21, dtype)
    for _ in range(3):
        index = make.index(4, 3, negative=True)
        check(aten.index_fill.int_Scalar, make(5, 4, 3), 1, index, 2)
        check(aten.index_fill.int_Tensor, make(5, 4), -1, index, make())
    check(aten.index_fill.int_Scalar, make(), 0, torch.tensor([0]), 2)
    check(aten.index_fill.int_Scalar, make(0, 4), 1, index, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_flat_places(dtype: torch.dtype) -> None:
    make = Make(22, dtype)
    for _ in range(3):
        check(aten.put.default, make(3, 4), torch.tensor([[3, 11], [-2, 0]]), make(2, 2))
        check(aten.put.default, make(3, 4), make.index(12, 5, negative=True), make(5), True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_tensors_without_dims(dtype: torch.dtype) -> None:
    make = Make(23, dtype)
    for index in (torch.tensor(0), torch.tensor([0])):
        for shape in ((), (1,)):
            check(aten.index_copy.default, make(), 0, index, make(*shape))
            check(aten.scatter.src, make(), 0, index, make(*shape))
            check(aten.scatter_add.default, make(), -1, index, make(*shape))
        check(aten.scatter.value, make(), 0, index, 1)
        check(aten.scatter_reduce.two, make(), 0, index, make(), "sum")
    if dtype.is_floating_point:
        check(aten.index_add.default, make(), 0, torch.tensor([0]), make(), alpha=2)
    check(aten.scatter_add.default, make(3), 0, torch.tensor(2), make())
