"""Arguments that a compiled function writes in place under autograd: their own gradients, seen by
`retain_grad`, hooks and `torch.autograd.grad`, are eager's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable

    Program = Callable[[torch.Tensor, torch.Tensor], Any]


def add(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return (x * 2).sin()


def through_a_view(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x[0].mul_(3)
    return x.sin() * x[1]


def twice(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    y = x + 1
    x.mul_(2)
    w = x + y
    x.exp_()
    return (w + x).sin()


def both(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x.add_(z)
    y = x + 1
    z.mul_(x.detach() + 1)
    return y + (x + z).sin()


def copied(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x.copy_(z + 1)
    z.mul_(2).add_(x)
    return x + z


def unrecorded(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    y = x.mul_(2) + z
    with torch.no_grad():
        x.add_(1)
    return y.sin()


def unread(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    y = (x + z).sin() + 1
    x.add_(y)
    return y * 2


def retained_inside(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x.mul_(3)
    x.retain_grad()
    return x.sin() + z


def sizes(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x.mul_(x.shape[0])
    return x.sum(0) * x.shape[0] + x.expand(x.shape[0], *x.shape).mean() + z


PROGRAMS = [add, through_a_view, twice, both, copied, unrecorded, unread, retained_inside, sizes]


def gradients(program: Program, rows: int, draw: int, *, given_view: bool) -> list[Any]:
    torch.manual_seed(draw)
    leaf, log = torch.randn(rows + 1, 3, requires_grad=True), []
    base = leaf * 2
    x, z = (base[1:], leaf[1:] * 3) if given_view else (leaf[:-1] * 2, leaf[1:] * 3)
    base.retain_grad()
    for tensor in (x, z):
        tensor.retain_grad()
        if not given_view:  # the hooks of a view whose base is written see parts of its gradient
            tensor.register_hook(lambda grad: log.append(grad.clone()))
    result = program(x, z)
    if not given_view:
        for tensor in (x, z):
            tensor.register_hook(lambda grad: log.append(grad * 3))
    total = result.sum() + base.sum()
    found = torch.autograd.grad(total, [x, z, leaf], retain_graph=True, allow_unused=True)
    total.backward()
    return [result, *found, x.grad, z.grad, base.grad, leaf.grad, log, x._version, z._version]


@pytest.mark.parametrize("given_view", [False, True])
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_of_written_arguments(program: Program, backend: str, given_view: bool) -> None:
    compiled = flambeau.compile(program, backend=backend, fullgraph=True, options={"check": True})
    for draw, rows in enumerate((4, 4, 5, 7)):
        wanted = gradients(program, rows, draw, given_view=given_view)
        same(gradients(compiled, rows, draw, given_view=given_view), wanted, strides=False)


def compiled_backwards(program: Program) -> int:
    """How many compiled graphs the history of the result leads through."""
    leaf = torch.randn(4, 3, requires_grad=True)
    pending, seen = [flambeau.compile(program)(leaf * 2, leaf * 3).grad_fn], set()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [child for child, _ in node.next_functions]
    return sum(node.name() == "CompiledFunctionBackward" for node in seen)


def test_only_what_reads_a_written_argument_is_cut() -> None:
    assert compiled_backwards(unread) == 1
    assert compiled_backwards(twice) == 2


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_windows_of_several_arguments_scaled_then_added_to(count: int) -> None:
    """The kernel of a norm runs over its row several times, and scales a window in one of them."""

    def program(h: torch.Tensor, w: torch.Tensor, *caches: torch.Tensor) -> torch.Tensor:
        for cache in caches:
            h = h * w
            cache[:, -5:].mul_(0.5).add_(h)
            h = torch.nn.functional.layer_norm(h + cache.mean(1, keepdim=True), (9,))
        return h

    def make() -> tuple[torch.Tensor, ...]:
        return torch.randn(3, 5, 9), torch.randn(9), *(torch.randn(3, 7, 9) for _ in range(count))

    arguments = make()
    expected = [x.clone() for x in arguments]
    with torch.no_grad():
        result = program(*expected)
        torch.testing.assert_close(flambeau.compile(program)(*arguments), result)
    torch.testing.assert_close(arguments, tuple(expected))
