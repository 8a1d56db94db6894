"""Operators at their edges beside eager: nothing to compare, powers that are not finite, numbers of
another dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((2, 1, 7, 3), (3, 0, 3)), ((5, 5), (3, 0, 5)), ((0, 3), (2, 4, 3)), ((4, 0), (2, 6, 0)),
        ((2, 4, 3), (5, 3)),
    ],
)  # fmt: skip
def test_distances_of_nothing(first: tuple[int, ...], second: tuple[int, ...], p: float) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, y, p)

    compiled = flambeau.compile(program)
    inputs = [torch.randn(shape, requires_grad=True) for shape in (first, second)]
    results = []
    for run in (program, compiled):
        out = run(*inputs)
        results.append([out, *torch.autograd.grad(out.sum(), inputs)])
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("exponents", [torch.int32, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_powers_that_are_not_finite(dtype: torch.dtype, exponents: torch.dtype) -> None:
    x = torch.tensor([1e-3, -(2.0**-10), 3.0, 0.0, float("inf"), float("nan")], dtype=dtype)
    exponent = torch.tensor([-160, -130, 0, 40, 140, 148]).to(exponents)
    given = (x[:, None], exponent)
    torch.testing.assert_close(
        flambeau.compile(torch.ldexp)(*given),
        torch.ldexp(*given),
        rtol=1e-6,
        atol=0,
        equal_nan=True,
    )


@pytest.mark.parametrize("number", [2.5, 2, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int64, torch.float32])
def test_membership_of_a_number(number: float, dtype: torch.dtype) -> None:
    members = torch.arange(-3, 4).to(dtype)
    programs: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: torch.isin(number, x),
        lambda x: torch.isin(x, number, invert=True),
    ]
    for program in programs:
        try:
            expected = program(members)
        except (RuntimeError, ValueError) as error:
            with pytest.raises(type(error)):
                flambeau.compile(program)(members)
        else:
            assert torch.equal(flambeau.compile(program)(members), expected)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("spatial", "padding"), [((17,), 1), ((5, 6), 0), ((4, 5, 5), 1)])
def test_convolutions_without_channels(
    spatial: tuple[int, ...], padding: int, *, bias: bool
) -> None:
    convolve = getattr(torch.nn.functional, f"conv{len(spatial)}d")

    def program(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return convolve(x, *weights, padding=padding) * 0.5

    shapes = [(3, 0, *spatial), (6, 0, *[3] * len(spatial)), *[(6,)] * bias]
    results = []
    for run in (program, flambeau.compile(program)):
        inputs = [torch.ones(shape, requires_grad=True) for shape in shapes]
        out = run(*inputs)
        results.append([out, *torch.autograd.grad(out.sum(), inputs)])
    for eager, ours in zip(*results, strict=True):
        assert ours.shape == eager.shape
        assert ours.stride() == eager.stride()
        assert torch.equal(ours, eager)


@pytest.mark.parametrize(
    ("shape", "padding"), [((0, 4, 3), 1), ((2, 4, 3), 1), ((4, 0, 3), 1), ((4, 4, 1), 1)]
)
def test_convolutions_that_eager_refuses(shape: tuple[int, ...], padding: int) -> None:
    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv1d(x, weight, padding=padding) + 1

    given = torch.ones(2, shape[1], 0 if shape[-1] == 1 else 7), torch.ones(shape)
    try:
        expected = program(*given)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as raised:
            flambeau.compile(program)(*given)
        assert str(raised.value) == str(error)
    else:
        assert flambeau.compile(program)(*given).shape == expected.shape
