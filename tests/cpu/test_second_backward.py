"""Backward a second time: through another result, possible where eager has kept no tensors that
both need; through a backward, an error.

A second derivative that eager computes raises, and is never None or zero; where eager has none,
neither has a compiled function.
"""

from __future__ import annotations

import pytest
import torch

import flambeau


def apart(x, w):
    return torch.where(x > 0, x, w), (w * x).sin().sum()


def with_common_part(x, w):
    h = (x * w).sin()
    return h.sum(), (h * 2).cos().sum()


def nothing_kept(x, w):
    h = x + w
    return h * 2, h + 3


def of_three(x, w):
    h = (w * x).exp()
    return h.sum(), w * 3, (h * x).sum()


def gradients(function, order, size):
    """The gradient after each backward, or that there was none."""
    x = torch.linspace(-1, 2, size)
    w = torch.full((size,), 0.5, requires_grad=True)
    results, seen = function(x, w), []
    for at in order:
        try:
            results[at].sum().backward()
            seen.append(w.grad.clone())
        except RuntimeError as error:
            seen.append(str(error)[:40])
    return seen


@pytest.mark.parametrize("function", [apart, with_common_part, nothing_kept, of_three])
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0), (0, 1, 1), (1, 0, 1), (-1, 0, 1)])
def test_same_as_eager(function, order):
    compiled = flambeau.compile(function)
    for size in (5, 7, 1):
        got, want = gradients(compiled, order, size), gradients(function, order, size)
        assert [type(item) for item in got] == [type(item) for item in want]
        torch.testing.assert_close(
            [item for item in got if isinstance(item, torch.Tensor)],
            [item for item in want if isinstance(item, torch.Tensor)],
        )
        assert [i for i in got if isinstance(i, str)] == [i for i in want if isinstance(i, str)]


def test_what_was_changed_in_between_is_an_error():
    for function in (apart, flambeau.compile(apart)):
        x, w = torch.ones(3), torch.ones(3, requires_grad=True)
        first, second = function(x, w)
        first.sum().backward()
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.backward()


FUNCTIONS = {
    "sin": lambda x, w: x.sin() * w,
    "cube": lambda x, w: x**3 + w,
    "exp": lambda x, w: x.exp() * w,
    "of_itself": lambda x, w: x * x * w,
    "product": lambda x, w: x * w,
    "line": lambda x, w: x * 2 + w,
    "relu": lambda x, w: (x * w).relu(),
    "normalised": lambda x, w: torch.nn.functional.layer_norm(x * w, x.shape),
    "apart": lambda x, w: (x.sin(), w * 3),
}


def second(function, at, interior, other):
    """A derivative by argument `other` of the gradient to argument `at`: its elements, None, or
    that there is no gradient of it.
    """
    x = torch.linspace(-1, 2, 5).requires_grad_()
    w = torch.linspace(1, 3, 5).requires_grad_()
    given = (x * 1.5, w + 1) if interior else (x, w)
    results = function(*given)
    results = results if isinstance(results, tuple) else (results,)
    gradients = torch.autograd.grad(
        sum(y.sum() for y in results), (x, w), create_graph=True, allow_unused=True
    )
    if gradients[at] is None or not gradients[at].requires_grad:
        return "no gradient"
    return torch.autograd.grad(gradients[at].sum(), (x, w)[other], allow_unused=True)[0]


@pytest.mark.parametrize("interior", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_second_derivative_is_an_error_or_as_in_eager(name, interior):
    function = FUNCTIONS[name]
    for at, other in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        want = second(function, at, interior, other)
        compiled = flambeau.compile(function)
        if isinstance(want, torch.Tensor):
            with pytest.raises(
                RuntimeError, match=r"test_second_backward.*differentiated twice.*flambeau\.disable"
            ):
                second(compiled, at, interior, other)
        else:
            assert second(compiled, at, interior, other) == want


def cubes(x):
    return (x**3).sum()


def test_torchs_functions_of_second_derivatives_raise():
    x, v = torch.ones(3), torch.ones(3)
    compiled = flambeau.compile(cubes)
    calls = [
        lambda: torch.autograd.functional.hessian(compiled, x),
        lambda: torch.autograd.functional.hvp(compiled, x, v),
        lambda: torch.autograd.functional.vhp(compiled, x, v),
        lambda: torch.autograd.gradgradcheck(compiled, (x.double().requires_grad_(),)),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"the compiled function 'cubes'.*twice"):
            call()


def test_second_derivatives_inside_one_graph_are_right():
    x = torch.linspace(-1, 2, 4)
    for hessian in (torch.autograd.functional.hessian, lambda f, x: torch.func.hessian(f)(x)):
        torch.testing.assert_close(
            flambeau.compile(lambda x, h=hessian: h(cubes, x))(x), torch.diag(6 * x)
        )
    torch.testing.assert_close(torch.func.hessian(flambeau.compile(cubes))(x), torch.diag(6 * x))


def test_a_gradient_penalty_raises_in_its_backward():
    critic = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    compiled = flambeau.compile(critic)
    z = torch.randn(6, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled(z).sum(), z, create_graph=True)
    penalty = ((gradient.norm(dim=1) - 1) ** 2).mean()
    with pytest.raises(RuntimeError, match="differentiated twice"):
        penalty.backward()
