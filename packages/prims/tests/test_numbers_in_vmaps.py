"""Python numbers that meet tensors without dims inside of `torch.vmap`: made in the graph."""

from __future__ import annotations

import pytest
import torch

from flambeau_prims.function_table import FunctionTable
from flambeau_prims.spec import spec_of
from flambeau_prims.tracer import Tracer

FUNCTIONS = {
    "sub": lambda s: s - 5,
    "rsub": lambda s: 5 - s,
    "mul": lambda s: s * 2,
    "float": lambda s: s * 0.5 + 1,
    "div": lambda s: 20 * torch.tanh(s / 20),
    "pow": lambda s: s**2,
    "where": lambda s: torch.where(s > 0, s, s - 5),
}


def by_element(function):
    return torch.vmap(torch.vmap(function))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_are_no_constants(name, dtype, device):
    x = torch.randn(3, 4).mul(9).to(dtype)
    tracer = Tracer(device=device)
    spec = spec_of(x).replace(device=torch.device("cuda", 0) if device == "cuda" else x.device)
    with FunctionTable(tracer.device), tracer:
        result = by_element(FUNCTIONS[name])(tracer.fake(spec))
    assert not tracer.constants
    expected = by_element(FUNCTIONS[name])(x)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.spec.device == spec.device
