"""Bags of one length are kernels of ours, forward and backward; results are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import flambeau

LENGTHS = ((4, 3), (5, 1), (3, 70))


def run(function: Any, weight: torch.Tensor, indices: torch.Tensor, scales: Any) -> list[Any]:
    """The bags and all gradients."""
    weight = weight.clone().requires_grad_()
    scales = None if scales is None else scales.clone().requires_grad_()
    result = function(weight, indices, scales)
    tangent = torch.randn(result.shape, generator=torch.Generator().manual_seed(3))
    inputs = [weight] if scales is None else [weight, scales]
    return [result.detach(), *torch.autograd.grad(result, inputs, tangent.to(result.dtype))]


def check(
    function: Any, weight: torch.Tensor, indices: torch.Tensor, scales: Any,
    sizes: tuple[bool, ...] = (False, True),
) -> None:  # fmt: skip
    """Compiled beside eager, with static and dynamic sizes. No call of ATen is left, but for
    gradients of an unknown number of rows, which threads share out.
    """
    for dynamic in sizes:
        compiled = flambeau.compile(function, dynamic=dynamic)
        mine = run(compiled, weight, indices, scales)
        for got, want in zip(mine, run(function, weight, indices, scales), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)
            assert got.stride() == want.stride()
        (graph,) = flambeau.explain(compiled).graphs
        left = [one.operator for one in graph.externs if "embedding_bag" in one.operator]
        assert set(left) <= ({"aten._embedding_bag_backward.default"} if dynamic else set())


@pytest.mark.parametrize("shape", LENGTHS)
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_sums_and_means(mode: str, padding: int | None, shape: tuple[int, int]) -> None:
    def bags(weight: torch.Tensor, indices: torch.Tensor, scales: Any) -> torch.Tensor:
        return F.embedding_bag(indices, weight, mode=mode, padding_idx=padding).relu()

    torch.manual_seed(0)
    indices = torch.randint(0, 10, shape, dtype=torch.int32 if padding else torch.int64)
    indices[0] = 2  # a bag of padding
    check(bags, torch.randn(10, 9), indices, None)


@pytest.mark.parametrize("padding", [None, 2])
def test_weights_of_samples(padding: int | None) -> None:
    def bags(weight: torch.Tensor, indices: torch.Tensor, scales: Any) -> torch.Tensor:
        return F.embedding_bag(
            indices, weight, mode="sum", padding_idx=padding, per_sample_weights=scales
        )

    torch.manual_seed(1)
    for shape in LENGTHS:
        scales = torch.randn(shape, dtype=torch.float64)
        weight = torch.randn(10, 6, dtype=torch.float64)
        check(bags, weight, torch.randint(0, 10, shape), scales)


def test_maxima() -> None:
    """NaN counts only as the first of a bag; of equals the first has the gradient."""

    def bags(weight: torch.Tensor, indices: torch.Tensor, scales: Any) -> torch.Tensor:
        return F.embedding_bag(indices, weight, mode="max")

    torch.manual_seed(2)
    weight = torch.randint(-2, 3, (10, 12)).float()
    weight[3], weight[4] = float("nan"), float("-inf")
    for shape in LENGTHS:
        check(bags, weight, torch.randint(0, 10, shape), None)
    check(bags, weight, torch.tensor([[3, 4], [4, 3], [4, 4], [1, 3]]), None)


def test_offsets_of_one_step() -> None:
    """With the last offset, too."""

    def bags(weight: torch.Tensor, indices: torch.Tensor, scales: Any) -> torch.Tensor:
        offsets = torch.arange(0, 13, 3)
        return F.embedding_bag(indices, weight, offsets, mode="mean", include_last_offset=True)

    torch.manual_seed(3)
    check(bags, torch.randn(10, 9), torch.randint(0, 10, (12,)), None, (False,))


def test_invalid_indices() -> None:
    """Raise eager's error."""

    def bags(weight: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(indices, weight, mode="sum")

    weight = torch.randn(10, 4)
    for invalid in (10, -1):
        indices = torch.tensor([[1, 2], [invalid, 3]])
        with pytest.raises(RuntimeError) as eager:
            bags(weight, indices)
        with pytest.raises(RuntimeError) as mine:
            flambeau.compile(bags)(weight, indices)
        assert str(mine.value) == str(eager.value)


def test_other_offsets() -> None:
    """Lengths that are data stay ATen's."""

    def bags(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(indices, weight, offsets, mode="sum") * 2

    weight, indices = torch.randn(10, 4), torch.randint(0, 10, (7,))
    compiled = flambeau.compile(bags)
    for offsets in (torch.tensor([0, 2, 5]), torch.tensor([0, 0, 7])):
        torch.testing.assert_close(
            compiled(weight, indices, offsets), bags(weight, indices, offsets)
        )
