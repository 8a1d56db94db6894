"""Casts that lose nothing are read through; results are eager's bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import flambeau
from flambeau_autograd import aot
from flambeau_prims.evaluate import run_graph

DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8,
    torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


def sample(dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        ends = [0.0, -0.0, 1.0, -1.5, 0.1, 100.0, 1e-7]
        return torch.tensor([*ends, float("inf"), -float("inf"), float("nan")]).to(dtype)
    if dtype is torch.bool:
        return torch.tensor([True, False])
    bounds = torch.iinfo(dtype)
    return torch.tensor([0, 1, 7, bounds.min, bounds.max, bounds.max - 1], dtype=dtype)


@pytest.mark.parametrize("first", DTYPES)
def test_bits(first: torch.dtype) -> None:
    pairs = [
        (between, last)
        for between, last in itertools.product(DTYPES, DTYPES)
        # What a float that does not fit becomes is undefined in C++.
        if last.is_floating_point or last is torch.bool or not between.is_floating_point
    ]
    pairs = [
        (between, last)
        for between, last in pairs
        if not (
            first.is_floating_point and not between.is_floating_point and between is not torch.bool
        )
    ]

    def program(x: Any) -> Any:
        return [x.to(between).to(last) for between, last in pairs]

    def backend(gm: Any, examples: list[Any]) -> Any:
        # As the graph says, without what kernels do not round in between.
        return aot(gm, examples, lambda graph, kind: lambda *args: run_graph(graph, args))

    x = sample(first)
    for mine, its in zip(flambeau.compile(program, backend=backend)(x), program(x), strict=True):
        assert mine.dtype is its.dtype
        torch.testing.assert_close(mine, its, rtol=0, atol=0, equal_nan=True)


def casts(program: Any, x: torch.Tensor) -> int:
    """The casts in the graph of a program."""
    texts: list[str] = []

    def compiler(graph: Any, kind: str) -> Any:
        texts.append(str(graph))
        return lambda *args: run_graph(graph, args)

    flambeau.compile(program, backend=lambda gm, examples: aot(gm, examples, compiler))(x)
    return sum(text.count("prims.cast") for text in texts)


def test_which_go() -> None:
    half, single = torch.randn(4, 4).half(), torch.randn(4, 4)
    numbers = torch.arange(16, dtype=torch.int16).view(4, 4)
    assert casts(lambda x: x.float().half() @ x, half) == 0
    assert casts(lambda x: x.double().float().half().t() @ x, half) == 0
    assert casts(lambda x: x.half().float() @ x, single) == 2
    assert casts(lambda x: x.bfloat16().float().half() @ x, half) == 2
    assert casts(lambda x: x.float().to(torch.int16) + 1, numbers) == 0
    assert casts(lambda x: x.half().to(torch.int16) + 1, numbers) == 2
    assert casts(lambda x: x.int().to(torch.int8) + 1, numbers) == 1


def test_results_are_tensors_of_their_own() -> None:
    x = torch.randn(3, 4).half().t()
    out = flambeau.compile(lambda x: x.float().half())(x)
    assert out.data_ptr() != x.data_ptr()
    assert out.stride() == x.float().half().stride()
    assert torch.equal(out, x)


def test_gradients() -> None:
    def program(x: Any, w: Any) -> Any:
        return ((x.float().half() @ w).float().half() * 2).sum()

    given = [torch.randn(4, 4).half().requires_grad_() for _ in range(2)]
    mine = torch.autograd.grad(flambeau.compile(program)(*given), given)
    its = torch.autograd.grad(program(*given), given)
    for one, other in zip(mine, its, strict=True):
        torch.testing.assert_close(one, other)
