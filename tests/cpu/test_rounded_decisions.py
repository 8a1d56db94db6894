"""What a half-precision value decides is decided by the value as eager rounds it: steps,
comparisons, positions of extremes, conversions to integers.
"""

from __future__ import annotations

import pytest
import torch

import flambeau
from tests.differential import differences

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
    "equals a number": lambda x: (x.round() * 0 + 0.1) == 0.1,
    "below a number": lambda x: (x.round() * 0 + 0.3) < 0.3,
    "at least a 0-dim tensor": lambda x: (x.round() * 0 + 0.7) >= torch.tensor(0.7),
    "great integers": lambda x: (x.round() * 0 + 2049) == torch.tensor(2049),
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


SOFTMAXES = {
    "softmax": lambda x: x.softmax(-1),
    "of columns": lambda x: x.softmax(0),
    "float32": lambda x: torch.softmax(x, -1, dtype=torch.float32),
    "log_softmax": lambda x: x.log_softmax(-1),
    "written out": lambda x: (x - x.amax(-1, keepdim=True)).exp() / x.shape[-1],
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SOFTMAXES)
def test_great_masks_absorb_scores(name, dtype):
    def function(x, mask):
        x = x * 0.5
        return SOFTMAXES[name](x + (mask.mT if name == "of columns" else mask))

    compiled = flambeau.compile(function, fullgraph=True)
    for least in (torch.finfo(dtype).min, -1e4):
        for length in (7, 33, 1000):
            x = (4 * torch.randn(length, length)).to(dtype).requires_grad_()
            mask = torch.zeros(length, length, dtype=dtype)
            mask[1] = least  # a row that sees no key
            mask[2, ::2] = least
            got, want = compiled(x, mask), function(x, mask)
            tangent = torch.randn_like(want)
            gradients = [torch.autograd.grad(y, x, tangent)[0] for y in (got, want)]
            for mine, its in ((got, want), gradients):
                few_roundings = (
                    4 * torch.finfo(dtype).eps * max(1.0, its.detach().abs().max().item())
                )
                torch.testing.assert_close(mine, its, rtol=0.02, atol=few_roundings)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_stored_is_read_rounded(dtype):
    """A sum of what is kept is the sum of what was kept: nothing differs by a rounding."""

    def function(x, y):
        kept = x * y
        return kept, kept.sum(-1, dtype=torch.float32), kept - kept.float()

    compiled = flambeau.compile(function, fullgraph=True)
    x, y = (torch.randn(33, 1001).to(dtype) for _ in range(2))
    kept, total, rest = compiled(x, y)
    assert not rest.any()
    torch.testing.assert_close(total.double(), kept.double().sum(-1), rtol=1e-5, atol=1e-4)


def test_values_rounded_in_two_ways_are_told_apart():
    """Each decision reads the value that it is given, though one kernel holds all three."""

    def decisions(x):
        y = x * 3 + 0.1
        half, bfloat = y.half().float(), y.bfloat16().float()
        weights = (y - bfloat.amax(-1, keepdim=True)).exp()
        compared = weights, y == half, y == bfloat, half > bfloat
        return *compared, half.floor(), bfloat.floor(), y.floor(), half.amax(-1), bfloat.amax(-1)

    assert not differences(decisions, lambda: (torch.randn(37, 91) * 9,), backward=False)
