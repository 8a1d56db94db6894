"""Norms and sums of equal numbers on a GPU, where kernels keep a row, loop over it or split it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional as F

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[int], tuple[int, ...]]]] = {
    "layer": (lambda x: F.layer_norm(x, x.shape[-1:]), lambda n: (64, n)),
    "group": (lambda x: F.group_norm(x, 2), lambda n: (8, 4, n)),
    "instance": (F.instance_norm, lambda n: (8, 3, n)),
    "batch": (lambda x: F.batch_norm(x, None, None, training=True), lambda n: (n, 48)),
    "batch, images": (lambda x: F.batch_norm(x, None, None, training=True), lambda n: (8, 5, n)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [3, 768, 5003, 70001])
@pytest.mark.parametrize("name", NORMS)
def test_equal_numbers_and_large_offsets(name: str, size: int, dtype: torch.dtype) -> None:
    norm, shape = NORMS[name]
    compiled = flambeau.compile(norm, dynamic=False)
    for number in (100.3, -3.7, 1e4):
        x = torch.full(shape(size), number, device="cuda", dtype=dtype)
        assert compiled(x).abs().max() <= max(1e-6, 3 * norm(x).abs().max().item()), number
    for offset in (0.0, 30.0, 1e3):
        x = (torch.randn(shape(size), device="cuda") + offset).to(dtype)
        exact = norm(x.double())
        error = (compiled(x).double() - exact).abs().max()
        bound = 3 * (norm(x).double() - exact).abs().max()
        assert error <= bound + 2e-6 + (4e-3 if dtype is torch.bfloat16 else 0), offset


@pytest.mark.parametrize("shape", [(8191, 257), (8191, 40000), (1023, 5), (100003, 3)])
def test_sums_of_equal_rows(shape: tuple[int, int]) -> None:
    x = torch.full(shape, 0.1, device="cuda")
    exact = x.double().sum(0)
    got = flambeau.compile(lambda x: x.sum(0))(x)
    assert ((got.double() - exact) / exact).abs().max() <= 2e-6
