"""options={"numerics": "strict"}: pointwise operators and chains of them have eager's bits.

`python -m tests.cpu.test_strict_numerics` tries every form of every operator, which takes minutes.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import flambeau
from tests.pointwise_calls import DTYPES, FORMS, Call, calls, same_bits, values

STRICT = {"numerics": "strict", "recompile_limit": 1000}
BATCH = 60


def unequal(dtype: torch.dtype, forms: tuple[str, ...], **options: Any) -> list[str]:
    """The calls whose compiled results differ from eager's."""
    found = []
    for form in forms:
        every = list(calls(dtype, form))
        assert every
        for start in range(0, len(every), BATCH):
            found += _unequal(every[start : start + BATCH], options)
    return found


def _unequal(batch: list[Call], options: dict[str, Any]) -> list[str]:
    inputs: dict[int, torch.Tensor] = {}
    places: list[list[int]] = []
    for call in batch:
        inputs |= {id(x): x for x in call.operands}
        order = list(inputs)
        places.append([order.index(id(x)) for x in call.operands])

    def f(*given: torch.Tensor) -> list[Any]:
        return [call(*[given[at] for at in mine]) for call, mine in zip(batch, places, strict=True)]

    given = list(inputs.values())
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a fallback to eager is equal, too
        got = flambeau.compile(f, fullgraph=True, dynamic=False, options=STRICT | options)(*given)
    return [
        str(call)
        for call, mine, eager in zip(batch, got, f(*given), strict=True)
        if not all(map(same_bits, _tensors(mine), _tensors(eager)))
    ]


def _tensors(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operators(dtype: torch.dtype) -> None:
    assert unequal(dtype, FORMS[:1]) == []


@pytest.mark.parametrize(("capability", "isa"), [("avx2", "avx2"), ("default", "baseline")])
def test_code_paths(capability: str, isa: str) -> None:
    """ATen's other code paths, beside kernels for such processors."""
    program = (
        "import torch; from tests.cpu.test_strict_numerics import unequal\n"
        f"print(*unequal(torch.float32, ('same',), isa={isa!r}), sep='\\n', end='')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2], env=os.environ | {"ATEN_CPU_CAPABILITY": capability},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""


_STEPS: list[Any] = [
    lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x - y, lambda x, y: x / (y.abs() + 0.5),
    lambda x, y: torch.relu(x), lambda x, y: torch.sigmoid(x), lambda x, y: torch.tanh(y) * x,
    lambda x, y: torch.where(x > y, x, -y), lambda x, y: x.clamp(-2, 2) + 0.1,
    lambda x, y: torch.nn.functional.gelu(x), lambda x, y: torch.nn.functional.silu(x * 0.3),
    lambda x, y: torch.addcmul(x, y, x, value=0.3), lambda x, y: torch.lerp(x, y, 0.3),
    lambda x, y: x.add(y, alpha=0.7), lambda x, y: torch.exp(-x.abs()), lambda x, y: x * x * x,
    lambda x, y: x.bfloat16().to(x.dtype) - y, lambda x, y: torch.maximum(x, y),
    lambda x, y: (x * 2.5).float().to(x.dtype), lambda x, y: torch.rsqrt(x.abs() + 1e-3),
    lambda x, y: torch.nn.functional.hardswish(x) + 1, lambda x, y: torch.sin(x) * torch.cos(y),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_chains(dtype: torch.dtype, seed: int) -> None:
    """Random chains, whose kernels could round less and contract more than eager does."""
    choose = random.Random(seed)
    steps = [choose.choice(_STEPS) for _ in range(14)]

    def f(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        made = [x, y]
        for step in steps:
            made.append(step(made[-1], made[-2]))
        return made[2:]

    length = choose.choice([1, 17, 1001, 33000])
    x, y = (torch.randn(length, dtype=torch.float64).to(dtype) for _ in range(2))
    got = flambeau.compile(f, options=STRICT, fullgraph=True)(x, y)
    assert all(map(same_bits, got, f(x, y)))
    x, y = (values(dtype, 4109, each) for each in (0, 1))
    got = flambeau.compile(f, options=STRICT, fullgraph=True)(x, y)
    assert all(map(same_bits, got, f(x, y)))


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.nn.functional.silu(x * y) + torch.relu(x - y) * 0.3
        return torch.nn.functional.gelu(z) * torch.tanh(y) / (1 + x * x)

    x, y, g = (torch.randn(1013, dtype=torch.float64).to(dtype) for _ in range(3))
    results = []
    for function in (f, flambeau.compile(f, options=STRICT, fullgraph=True)):
        leaves = [each.clone().requires_grad_() for each in (x, y)]
        out = function(*leaves)
        out.backward(g)
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    assert all(map(same_bits, *results))


def test_half_precision_is_rounded_in_one_kernel() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu((x * y + y) * x - y)

    x, y = (torch.randn(4099).bfloat16() for _ in range(2))
    report = flambeau.explain(f, options=STRICT, fullgraph=True)(x, y)
    assert same_bits(report.result, f(x, y))
    assert len(report.graphs[0].kernels) == 1
    assert not torch.equal(flambeau.compile(f)(x, y), f(x, y))


def test_other_values_are_refused() -> None:
    with pytest.raises(ValueError, match="numerics"):
        flambeau.compile(torch.sin, options={"numerics": "exact"})


if __name__ == "__main__":
    for each in DTYPES:
        print(each, unequal(each, FORMS) or "equal")
