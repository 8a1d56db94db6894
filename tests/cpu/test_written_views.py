"""Views that a graph returns, written to from what requires grad: eager's results and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable


def of_an_input(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:1], x


def of_an_input_beside_a_result(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.t(), x * w


def of_a_result(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x + 1
    return y[:, 1:], y, w * 2


def of_a_detached_input(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (w * 1).detach()[1:], w * 2


def of_parts(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (*x.split(1), w * 2)


def of_parts_of_what_requires_grad(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return w.unbind(1)


def under_no_grad(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        view = x[:1]
    return view, w * 2


def behind_a_break(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    view = x.expand(x.shape)
    torch._dynamo.graph_break()
    view[..., 0] = w[..., 0]
    return view, x


PROGRAMS = (
    of_an_input, of_an_input_beside_a_result, of_a_result, of_a_detached_input, of_parts,
    of_parts_of_what_requires_grad, under_no_grad, behind_a_break,
)  # fmt: skip


def written(program: Callable[..., Any], dtype: torch.dtype, needed: bool) -> list[Any]:
    """What is seen after a write to the first result: the error, or values and gradients."""
    torch.manual_seed(0)
    x = (torch.randn(3, 4) * 5).to(dtype)
    w = torch.randn(3, 4, requires_grad=needed)
    source = torch.randn(1, requires_grad=True)
    results = program(x, w)
    try:
        results[0].copy_(source)
        if dtype.is_floating_point:
            sum(y.sum() for y in (*results, x) if y.requires_grad).backward()
    except RuntimeError as error:
        return [str(error).partition(":")[0].partition(" is ")[0]]
    seen = [(y.requires_grad, y.is_leaf, y._version, y.detach()) for y in (*results, x)]
    return [seen, source.grad, w.grad]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("needed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(
    program: Callable[..., Any], dtype: torch.dtype, needed: bool, backend: str
) -> None:
    want = written(program, dtype, needed)
    for _ in range(2):
        found = written(flambeau.compile(program, backend=backend), dtype, needed)
        if isinstance(want[0], str) or isinstance(found[0], str):
            assert found == want
        else:
            torch.testing.assert_close(found, want)
