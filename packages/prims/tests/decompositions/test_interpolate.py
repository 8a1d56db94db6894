"""Resampling by weighted neighbours, and its gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from one_op import Make, check, decomposed, flat, is_decomposed

aten = torch.ops.aten

OPERATORS = {
    "upsample_linear1d": 1,
    "upsample_bilinear2d": 2,
    "upsample_trilinear3d": 3,
    "upsample_bicubic2d": 2,
    "_upsample_bilinear2d_aa": 2,
    "_upsample_bicubic2d_aa": 2,
}


def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    result = [x.contiguous()]
    if x.ndim == 4:
        result.append(x.contiguous(memory_format=torch.channels_last))
    return result


def call(make: Make, spatial: int) -> tuple[list[int], list[int], bool, list[float | None]]:
    """Random sizes, places, corners and scales; some dims keep their size."""
    shape = [make.integer(1, 3), make.integer(1, 4), *(make.integer(2, 10) for _ in range(spatial))]
    wanted = [make.integer(2, 15) for _ in range(spatial)]
    if make.integer(0, 3) == 0:
        wanted[0] = shape[2]
    scales: list[float | None] = [None] * spatial
    corners = make.integer(0, 2) == 0
    if not corners and make.integer(0, 2):
        given = [make.integer(40, 300) / 97 for _ in wanted]
        wanted = [max(1, int(size * f)) for size, f in zip(shape[2:], given, strict=True)]
        scales = list(given)
        if make.integer(0, 3) == 0:
            wanted[-1], scales[-1] = shape[-1], 1.03
    return shape, wanted, corners, scales


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_agrees_with_eager(name: str, dtype: torch.dtype) -> None:
    """Any factors, with corners and scales; images in rows and channels last."""
    forward, backward = getattr(aten, name).default, getattr(aten, f"{name}_backward").default
    if dtype is torch.float16 and name.endswith("_aa"):
        pytest.skip("eager has no such kernel")
    make = Make(11, dtype)
    for _ in range(8):
        shape, wanted, corners, scales = call(make, OPERATORS[name])
        for x in layouts(make(*shape)):
            check(forward, x, wanted, corners, *scales, near=2.0)
            result = forward(x, wanted, corners, *scales)
            grad = torch.empty_like(result).copy_(make(*result.shape))
            args = (grad, wanted, shape, corners, *scales)
            graph, _ = decomposed(backward, args, {}, flat(backward(*args)))
            if is_decomposed(graph):
                check(backward, *args, near=4.0)


def test_gradients_of_few_places_are_gathered() -> None:
    backward = aten.upsample_bilinear2d_backward.default
    for wanted, kept in (([12, 16], True), ([3, 5], True), ([6, 300], False)):
        grad = torch.randn(1, 2, *wanted)
        args: tuple[Any, ...] = (grad, wanted, [1, 2, 6, 8], False)
        graph, _ = decomposed(backward, args, {}, flat(backward(*args)))
        assert is_decomposed(graph) is kept


def test_bytes_stay_with_aten() -> None:
    x = torch.randint(0, 255, (1, 2, 5, 6), dtype=torch.uint8)
    args = (x, [10, 12], False)
    graph, _ = decomposed(
        aten.upsample_bilinear2d.default, args, {}, [aten.upsample_bilinear2d.default(*args)]
    )
    assert not is_decomposed(graph)


def test_nan_and_infinity_reach_their_neighbours() -> None:
    x = torch.randn(1, 1, 6, 6)
    for place, value in itertools.product(((0, 0), (3, 2)), (float("nan"), float("inf"))):
        x[0, 0, place[0], place[1]] = value
        check(aten.upsample_bilinear2d.default, x, [11, 13], False)
