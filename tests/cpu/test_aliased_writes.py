"""Inputs that share memory, of which one is written to in some way: the others see it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flambeau


def by_a_slice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:] = 7
    return y + 1


def by_a_slice_of_another(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[..., 1:] = x[..., :1] + 2
    return y * 2


def by_an_index(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[torch.tensor([0, 2])] = y[:2] - 3
    return y + x


def by_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.view(-1)[::2].add_(5)
    return y + 1


def by_out(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch.neg(x[:2], out=x[2:])
    return y + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "cudagraphs", "inductor"])
@pytest.mark.parametrize(
    "write", [by_a_slice, by_a_slice_of_another, by_an_index, by_a_view, by_out]
)
def test_as_eager(write: Any, backend: str) -> None:
    run = flambeau.compile(write, backend=backend)
    for overlap in (None, (0, 4), (2, 6), (1, 5)):
        for function in (run, write):
            memory = torch.arange(8.0)
            x = memory[:4]
            y = torch.arange(4.0) if overlap is None else memory[slice(*overlap)]
            found = (function(x, y), memory, y)
            if function is run:
                got = found
        for mine, yours in zip(got, found, strict=True):
            torch.testing.assert_close(mine, yours)


def test_parts_of_copies_lie_where_eager_lays_them() -> None:
    def parts(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = y + 1
        first, second = y.clone(), y.clone()
        return (
            first[..., 1:3], second[0], second.flatten()[3:9].view(2, 3)[1], y[0].clone(), z,
            z.clone()[-1, 2:], z[-1].clone(),
        )  # fmt: skip

    compiled = flambeau.compile(parts)
    for shape in ((1, 9), (3, 8), (1, 12)):
        y = torch.randn(shape)
        for mine, its in zip(compiled(y), parts(y), strict=True):
            assert torch.equal(mine, its)
            assert mine.storage_offset() == its.storage_offset()
            assert mine.stride() == its.stride()
