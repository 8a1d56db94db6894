"""Gradients that are undefined or connected by custom Functions; hooks and second derivatives of
wrappers: who is visited, who gets a gradient, as eager's engine decides.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import flambeau
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 4


def leaf() -> torch.Tensor:
    return torch.randn(SIZE, dtype=torch.float64, requires_grad=True)


def both(run: Callable[[Callable[..., Any]], Any]) -> None:
    """What `run` shows of compiled programs is what it shows of eager ones."""
    found = []
    for call in (
        lambda program: flambeau.compile(program, fullgraph=True),
        lambda program: program,
    ):
        torch.manual_seed(0)
        found.append(run(call))
    same(*found, tolerance=1e-9, strides=False)


class Through(torch.autograd.Function):
    """Gives its second input no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.round(x / scale) * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def straight_through(x: torch.Tensor, scale: torch.Tensor) -> Any:
    return Through.apply(x, scale) + 1, (scale * x).sin()


def straight_through_of_a_computed_scale(x: torch.Tensor, scale: torch.Tensor) -> Any:
    return Through.apply(x, scale.exp()) + 1, scale * 2


def zeros_from_a_function_below(x: torch.Tensor, scale: torch.Tensor) -> Any:
    return Through.apply(x, Scaled.apply(scale)), scale * 3


PROGRAMS = [straight_through, straight_through_of_a_computed_scale, zeros_from_a_function_below]


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("interior", [False, True])
@pytest.mark.parametrize("used", [[0], [1], [0, 1]], ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_functions_that_give_no_gradient(
    program: Callable[..., Any], used: list[int], interior: bool, hooked: bool
) -> None:
    def run(call: Callable[..., Any]) -> Any:
        leaves, log = [leaf(), leaf()], []
        for number, x in enumerate(leaves if hooked else []):
            x.register_hook(
                lambda g, number=number: log.append((number, None if g is None else +g))
            )
        results = call(program)(*[x * 1 if interior else x for x in leaves])
        torch.stack([results[at].sum() for at in used]).sum().backward()
        return sorted(log, key=lambda entry: entry[0]), [x.grad for x in leaves]

    both(run)


@pytest.mark.parametrize("interior", [False, True])
def test_functions_that_read_what_no_result_is_connected_to(interior: bool) -> None:
    def run(call: Callable[..., Any]) -> Any:
        x, given = leaf(), leaf()
        w = given * 2 if interior else given

        class Weighted(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x * w.detach()

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
                return gradient * w

        y = call(lambda x: Weighted.apply(x).sin())(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (g**2).sum().backward()
        return g.detach(), x.grad, given.grad

    both(run)


def test_histories_without_a_result_are_not_kept() -> None:
    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.noted = Note()
            notes.append(weakref.ref(ctx.noted))
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    class Note:
        pass

    notes: list[Any] = []
    step = flambeau.compile(lambda h, w: h.detach() * w, fullgraph=True)
    h, w = leaf(), leaf()
    for _ in range(4):
        h = Noted.apply(step(h, w))
    gc.collect()
    assert [note() is not None for note in notes] == [False, False, False, True]


@pytest.mark.parametrize("used", [[0], [1], [0, 1]], ids=str)
@pytest.mark.parametrize("interior", [False, True])
def test_hooks_of_wrappers_without_a_gradient(interior: bool, used: list[int]) -> None:
    def wrapper() -> torch.Tensor:
        part = torch.randn(SIZE, dtype=torch.float64)
        return TwoTensor(part, part * 2).requires_grad_()

    def program(x: Any, w: Any, unused: Any) -> Any:
        return x.sin() * unused.detach(), (w * x).sum()

    def run(call: Callable[..., Any]) -> Any:
        leaves, log = [wrapper(), wrapper(), wrapper()], []
        for number, x in enumerate(leaves):
            x.register_hook(lambda g, number=number: log.append((number, type(g).__name__)))
        results = call(program)(*[x * 1 if interior else x for x in leaves])
        for at in used:
            results[at].sum().backward(retain_graph=True)
        return sorted(log), [x.grad if x.grad is None else (x.grad.a, x.grad.b) for x in leaves]

    both(run)


@pytest.mark.parametrize("interior", [False, True])
def test_a_function_alone_that_gives_no_gradient(interior: bool) -> None:
    def run(call: Callable[..., Any]) -> Any:
        x, scale, log = leaf(), leaf(), []
        scale.register_hook(log.append)
        given = scale * 1 if interior else scale
        call(lambda x, scale: Through.apply(x, scale) * 2)(x, given).sum().backward()
        return log, x.grad, scale.grad

    both(run)


def two_tensor() -> torch.Tensor:
    part = torch.randn(SIZE, dtype=torch.float64)
    return TwoTensor(part, part * 2).requires_grad_()


def of_two_results(x: Any, w: Any) -> Any:
    return (x * w).sin(), w * 2


def of_three_results(x: Any, w: Any) -> Any:
    return (x * w).sin(), w * 2, x.exp()


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("interior", [False, True])
@pytest.mark.parametrize("program", [of_two_results, of_three_results], ids=str)
def test_second_derivatives_of_wrappers(
    program: Callable[..., Any], interior: bool, at: int
) -> None:
    def run(call: Callable[..., Any]) -> Any:
        leaves = [two_tensor(), two_tensor()]
        results = call(program)(*[x * 1 if interior else x for x in leaves])
        loss = (results[at] * results[at]).sum()
        grads = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        sum(grad.sin().sum() for grad in grads if grad is not None).backward()
        return [x.grad if x.grad is None else (x.grad.a, x.grad.b) for x in leaves]

    both(run)


class Unwrapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> torch.Tensor:
        return x.a + x.b

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return TwoTensor(gradient, gradient)


def test_second_derivatives_of_plain_results_of_wrappers_raise() -> None:
    x, w = two_tensor(), two_tensor()
    compiled = flambeau.compile(lambda x, w: Unwrapped.apply((x * w).sin()), fullgraph=True)
    (grad,) = torch.autograd.grad(compiled(x, w).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="was differentiated twice"):
        grad.sin().sum().backward()
