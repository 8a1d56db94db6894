"""Gradients turned on inside a call that begins without them: within one graph, and where a graph
breaks in a no_grad block.
"""

from __future__ import annotations

import pytest
import torch

import flambeau

BACKENDS = ("eager", "aot_eager", "cudagraphs", "inductor")


def enabling(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, bool]:
    without = x @ w
    with torch.enable_grad():
        with_gradients = (x @ w).sin()
    return without, with_gradients, torch.is_grad_enabled()


@pytest.mark.parametrize("backend", BACKENDS)
def test_enable_grad_under_no_grad(backend: str) -> None:
    x, w = torch.randn(2, 3), torch.randn(3, 3, requires_grad=True)
    (want,) = torch.autograd.grad((x @ w).sin().sum(), w)
    compiled = flambeau.compile(enabling, backend=backend, fullgraph=True)
    for _ in range(2):
        with torch.no_grad():
            without, with_gradients, enabled = compiled(x, w)
            assert not torch.is_grad_enabled() and not enabled
        assert not without.requires_grad and with_gradients.requires_grad
        (got,) = torch.autograd.grad(with_gradients.sum(), w)
        torch.testing.assert_close(got, want)


class Experts(torch.nn.Module):
    """A mixture of experts as models write it: which expert sees which row is found without
    gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (torch.nn.Parameter(torch.randn(32, 6)) for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        for index in mask.sum(-1).nonzero():
            expert = index[0]
            with torch.no_grad():
                (rows,) = torch.where(mask[expert])
            gate, up, down = (
                weight.view(-1, 8, 6)[expert] for weight in (self.gate, self.up, self.down)
            )
            hidden = x[rows]
            hidden = torch.relu(hidden.matmul(gate.T)) * hidden.matmul(up.T)
            result.index_add_(0, rows, hidden.matmul(down))
        return result


@pytest.mark.parametrize("backend", BACKENDS)
def test_breaks_in_no_grad_blocks(backend: str) -> None:
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(5, 6)
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[[0, 0, 1, 3], [0, 2, 1, 4]] = True
    compiled = flambeau.compile(model, backend=backend)
    for _ in range(2):
        gradients = []
        for call in (compiled, model):
            model.zero_grad()
            call(x, mask).square().sum().backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        for got, want in zip(*gradients, strict=True):
            assert got is not None and want is not None
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
