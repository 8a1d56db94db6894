"""Results of tensors with dims of size 1 have eager's strides in those dims, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "square": lambda x: x.square(),
    "power": lambda x: x**3,
    "first_power": lambda x: x**1,
    "power_of_number": lambda x: 2**x,
    "float_power": lambda x: x.float_power(2),
    "add": lambda x: x + 1,
    "sin": lambda x: x.sin(),
    "hardtanh": lambda x: F.hardtanh(x),
    "relu6": lambda x: F.relu6(x),
    "clamp": lambda x: x.clamp(0, 1),
    "nan_to_num": lambda x: x.nan_to_num(),
    "isinf": lambda x: x.isinf(),
    "isinf_of_integers": lambda x: x.int().isinf(),
    "isnan": lambda x: x.isnan(),
    "isfinite": lambda x: x.isfinite(),
    "signbit": lambda x: x.signbit(),
    "deg2rad": lambda x: x.deg2rad(),
    "rad2deg": lambda x: x.rad2deg(),
    "cross_entropy": lambda x: F.binary_cross_entropy(x, x, reduction="none"),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("shape", [(1, 5), (1, 4, 1), (3, 1, 4, 1)])
def test_strides(name: str, shape: tuple[int, ...]) -> None:
    program = PROGRAMS[name]
    inputs = [torch.rand(shape), torch.rand(shape)[..., ::2], torch.rand(shape).transpose(0, -1)]
    inputs += [x.expand(2, *x.shape)[1:] for x in inputs]
    for x in inputs:
        got, expected = flambeau.compile(program)(x), program(x)
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got, expected)
