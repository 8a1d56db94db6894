"""Tensors made by their type."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flambeau_capture
from flambeau_capture import CaptureOptions

TYPES = (
    torch.Tensor,
    torch.FloatTensor,
    torch.DoubleTensor,
    torch.LongTensor,
    torch.IntTensor,
    torch.ByteTensor,
    torch.BoolTensor,
)


def compiled(function: Any, *, fullgraph: bool = True) -> Any:
    return flambeau_capture.compile(
        function, backend=lambda gm, _: gm.forward, options=CaptureOptions(fullgraph=fullgraph)
    )


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: str(kind.__name__))
def test_of_data_and_of_sizes(kind: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        made = kind([[1, 0], [3, 4]])
        return (
            made,
            kind((1, 2)),
            kind(),
            kind([]),
            made.dtype,
            kind(2, 3).shape,
            kind(x.shape[0], 0),
        )

    got, want = compiled(program)(torch.ones(3)), program(torch.ones(3))
    for one, other in zip(got, want, strict=True):
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype and torch.equal(one, other)
        else:
            assert one == other


def test_the_default_dtype_is_that_of_tensors() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + torch.Tensor([0.5, 2])

    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(program)(torch.ones(2)).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("data", [[1.5], ["a"], [[1, 2], [3]]], ids=str)
def test_errors_are_eagers(data: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        return x, torch.LongTensor(data)

    try:
        want: Any = program(torch.ones(2))[1].tolist()
    except (TypeError, ValueError) as error:
        want = type(error), str(error)
    try:
        got: Any = compiled(program, fullgraph=False)(torch.ones(2))[1].tolist()
    except (TypeError, ValueError) as error:
        got = type(error), str(error)
    assert got == want


def test_others_break_the_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(x) * 2

    x = torch.ones(3)
    assert torch.equal(compiled(program, fullgraph=False)(x), x * 2)
