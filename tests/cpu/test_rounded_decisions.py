"""What a half-precision value decides is decided by the value as eager rounds it: steps,
comparisons, positions of extremes, conversions to integers.
"""

from __future__ import annotations

import pytest
import torch

import flambeau

DECISIONS = {
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "fmod": lambda x: torch.fmod(x, 0.3),
    "remainder": lambda x: torch.remainder(x, 0.3),
    "remainder of numbers": lambda x: torch.remainder(1e6, x),
    "beyond": lambda x: torch.fmod(x, 1e30),
    "floor_divide": lambda x: x // 0.3,
    "int": lambda x: (x * 1).int(),
    "bool": lambda x: x.bool(),
    "isinf": torch.isinf,
    "greater": lambda x: torch.where(x > 1, x, -x),
    "equal": lambda x: x == x.to(torch.float32),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(0),
    "cummax": lambda x: x.cummax(-1)[1],
    "sort": lambda x: torch.sort(x, stable=True)[1],
    "topk": lambda x: torch.topk(x, 3)[0],
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_read_rounded_values(name, dtype):
    def function(x, y):
        return DECISIONS[name](x * y)

    compiled = flambeau.compile(function, fullgraph=True)
    for shape in ((33, 1001), (64, 1000), (0, 3) if "arg" not in name else (1, 1)):
        scale = 2e4 if name == "isinf" else 8.0
        x, y = (scale ** (i == 0) * torch.randn(shape) for i in range(2))
        x, y = x.to(dtype), y.to(dtype)
        torch.testing.assert_close(compiled(x, y), function(x, y), rtol=0, atol=0, equal_nan=True)
