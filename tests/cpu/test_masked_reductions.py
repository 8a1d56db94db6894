"""`torch.masked`: whole graphs of kernels, with eager's values and gradients. Its functions define
a class of `torch.autograd.Function` in each call.
"""

from __future__ import annotations

import pytest
import torch

import flambeau
from tests.differential import differences
from tests.worlds import kinds

masked = torch.masked
PROGRAMS = {
    "sums": lambda x, m: (masked.sum(x, 1, mask=m), masked.prod(x, (0, 1), mask=m)),
    "means": lambda x, m: (masked.mean(x, 1, mask=m), masked.std(x, 0, mask=m)),
    "norms": lambda x, m: (masked.norm(x, 2.0, 1, mask=m), masked.normalize(x, 2.0, 1, mask=m)),
    "softmax": lambda x, m: (masked.softmax(x, 1, mask=m), masked.log_softmax(x, -1, mask=m)),
    "logarithms": lambda x, m: masked.logsumexp(x, 1, mask=m),
    "pairs": lambda x, m: masked.logaddexp(x, x + 1, input_mask=m, other_mask=~m),
    "extremes": lambda x, m: (masked.amax(x, 1, mask=m), masked.argmin(x, 0, mask=m)),
    "scans": lambda x, m: (masked.cumsum(x, 1, mask=m), masked.cumprod(x, 0, mask=m)),
}


def mask() -> torch.Tensor:
    held = torch.rand(5, 7) > 0.4
    held[:, 0] = held[0] = True  # of an empty mask, gradients of norms are NaN
    return held


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("gradients", [False, True])
def test_as_eager(name: str, gradients: bool) -> None:
    found = differences(
        PROGRAMS[name], lambda: (torch.randn(5, 7, requires_grad=gradients), mask())
    )
    assert not found, found


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_of_kernels(name: str, dynamic: bool) -> None:
    compiled = flambeau.compile(PROGRAMS[name], fullgraph=True, dynamic=dynamic)
    for _ in range(3):
        compiled(torch.randn(5, 7), mask())
    assert kinds(compiled) == ["capture"]
    (graph,) = flambeau.explain(compiled).graphs
    assert graph.externs == () and graph.fallback is None


def test_classes_made_by_a_program_have_numbers_of_their_own() -> None:
    def program(x: torch.Tensor) -> tuple[type, torch.Tensor]:
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        return Double, Double.apply(x)

    compiled = flambeau.compile(program)
    classes = [call(torch.randn(3))[0] for call in (compiled, program, compiled, compiled)]
    numbers = [kind._backward_cls._autograd_function_id for kind in classes]
    assert len(set(numbers)) == len(set(map(id, classes))) == 4
