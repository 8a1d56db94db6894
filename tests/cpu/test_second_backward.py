"""Backward a second time: through another result, possible where eager has kept no tensors that
both need; through a backward: second derivatives and those of higher order.
"""

from __future__ import annotations

import copy
import math
import re
import weakref
from operator import attrgetter

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils.checkpoint import checkpoint

import flambeau
from flambeau_autograd.double_backward import message
from flambeau_autograd.gradient_graph import Gradients


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


class Doubled(torch.autograd.Function):
    """Keeps nothing."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def by_functions_that_keep_nothing(x, w):
    h = Doubled.apply(w) + x
    return h.sum(), h * 3


def by_functions_and_others(x, w):
    h = Doubled.apply(w)
    return h * x, (h * w).sum()


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


FUNCTIONS = [
    apart,
    with_common_part,
    nothing_kept,
    of_three,
    by_functions_that_keep_nothing,
    by_functions_and_others,
]


@pytest.mark.parametrize("function", FUNCTIONS)
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


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("interior", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives(name, interior, dynamic):
    function = FUNCTIONS[name]
    compiled = flambeau.compile(function, dynamic=dynamic)
    for at, other in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        want, got = (second(f, at, interior, other) for f in (function, compiled))
        assert type(got) is type(want)
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got, want)
        else:
            assert got == want


def derivatives(function, args, order):
    """Gradients of every order up to `order`, each of the sum of the squares of the last."""
    leaves = [x.clone().requires_grad_() for x in args]
    torch.manual_seed(1)
    total, found = function(*leaves).sum(), []
    for _ in range(order):
        gradients = torch.autograd.grad(total, leaves, create_graph=True)
        found += gradients
        total = sum(gradient.square().sum() for gradient in gradients)
    return [gradient.detach() for gradient in found]


class Straight(torch.autograd.Function):
    """Rounds, with another gradient than that of rounding."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.cos()


def with_constants(x, w):
    with torch.no_grad():
        scale = x.exp()
    return (x * scale * w.detach()).sin() * w


def with_a_buffer(x, w):
    mean, scale = torch.zeros(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype)
    y = torch.nn.functional.batch_norm(x @ w, mean, scale, training=True)
    return y.sin() + mean


HIGHER = {
    "tanh": lambda x, w: (x @ w).tanh(),
    "straight_through": lambda x, w: Straight.apply(x * 3) @ w.exp(),
    "constants": lambda x, w: with_constants(x, w.sum(1)),
    "dropout": lambda x, w: torch.nn.functional.dropout((x @ w).exp(), 0.4),
    "attention": lambda x, w: (x @ w @ w.T @ x.T).softmax(-1) @ x,
    "batch_norm": with_a_buffer,
    "views": lambda x, w: torch.cat([(x @ w)[1:].t().reshape(-1) ** 3, x.diagonal().sin()]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", HIGHER)
def test_derivatives_of_higher_order(name, dynamic):
    compiled = flambeau.compile(HIGHER[name], dynamic=dynamic, fullgraph=True)
    for rows in (6, 7):
        args = [torch.randn(rows, 5, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)]
        try:
            want = derivatives(HIGHER[name], args, 3)
        except RuntimeError as error:  # torch 2.14 refuses the third of batch norm
            with pytest.raises(RuntimeError, match=re.escape(str(error))):
                derivatives(compiled, args, 3)
        else:
            torch.testing.assert_close(derivatives(compiled, args, 3), want)


@pytest.mark.parametrize("name", ["tanh", "straight_through", "constants", "views"])
def test_derivatives_of_gradients_by_the_eager_engine(name, monkeypatch):
    """The gradients are compiled, and what is differentiated of them is not."""
    compile_gradients = Gradients._made

    def made(self, *args):
        return None if "steps" in self._gm.meta else compile_gradients(self, *args)

    monkeypatch.setattr(Gradients, "_made", made)
    args = [torch.randn(6, 5, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)]
    compiled = flambeau.compile(HIGHER[name], fullgraph=True)
    for order in (3, 4):
        want, got = (derivatives(function, args, order) for function in (HIGHER[name], compiled))
        torch.testing.assert_close(got, want)


def test_autocast_of_the_forward_holds_in_its_derivatives():
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    results = []
    for function in (lambda x, w: (x @ w).tanh(), flambeau.compile(lambda x, w: (x @ w).tanh())):
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        with torch.autocast("cpu", torch.bfloat16):
            y = function(*leaves)
        gradients = torch.autograd.grad(y.float().sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad(gradients[0].square().sum(), leaves))
    torch.testing.assert_close(*results, rtol=0.1, atol=0.3)


def test_tangents_and_results_of_which_some_are_left_out():
    def function(x, w):
        return (x * w).sin(), x.exp() * w, w**3

    compiled = flambeau.compile(function)
    for used in [(0,), (1, 2), (2,), (0, 1, 2)]:
        found = []
        for call in (compiled, function):
            torch.manual_seed(0)
            x, w = torch.randn(5).requires_grad_(), torch.randn(5).requires_grad_()
            outs = call(x, w)
            tangents = [torch.randn(5).requires_grad_() for _ in used]
            gradients = torch.autograd.grad(
                [outs[at] for at in used], (x, w), tangents, create_graph=True, allow_unused=True
            )
            total = sum(g.square().sum() for g in gradients if g is not None)
            found.append(torch.autograd.grad(total, (x, w, *tangents), allow_unused=True))
        for got, want in zip(*found, strict=True):
            assert (got is None) == (want is None)
            if want is not None:
                torch.testing.assert_close(got, want)


def test_states_of_modules_are_written_once():
    norm = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.3)
    )
    norm.double()
    own = copy.deepcopy(norm)
    for module, function in ((norm, norm), (own, flambeau.compile(own))):
        torch.manual_seed(3)
        x = torch.linspace(-1, 1, 24, dtype=torch.float64).sin().view(6, 4).requires_grad_()
        (gradient,) = torch.autograd.grad(function(x).pow(3).sum(), x, create_graph=True)
        gradient.norm(dim=1).sum().backward()
        module.drawn = torch.rand(3)
    torch.testing.assert_close(own.state_dict(), norm.state_dict())
    torch.testing.assert_close(
        [p.grad for p in own.parameters()], [p.grad for p in norm.parameters()]
    )
    assert torch.equal(own.drawn, norm.drawn)


def test_what_was_changed_before_a_second_derivative_is_an_error():
    for function in (lambda x, w: (x * w).sin(), flambeau.compile(lambda x, w: (x * w).sin())):
        x, w = torch.ones(3), torch.ones(3, requires_grad=True)
        out = function(x, w)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(out.sum(), w, create_graph=True)


def modified_in_between(function):
    """Gradients of a call when an input was overwritten that eager has not kept."""
    x, w, v = torch.linspace(-1, 1, 4), torch.ones(4).requires_grad_(), torch.full((4,), 2.0)
    v.requires_grad_()
    y = function(x, w, v)
    x.add_(1)
    return torch.autograd.grad(y.sum(), (w, v), create_graph=True)


def rectified(x, w, v):
    return (x + w * w).relu() * v


def test_what_eager_has_not_kept_may_be_changed_before_a_first_derivative():
    want, got = modified_in_between(rectified), modified_in_between(flambeau.compile(rectified))
    torch.testing.assert_close([g.detach() for g in got], [g.detach() for g in want])
    with pytest.raises(RuntimeError, match=r"'rectified'.*has been written to since"):
        got[1].sum().backward()


def overwritten(x, w):
    y = w**2 * x.exp()
    x.add_(1)
    return y


def test_a_second_derivative_by_what_the_program_overwrites():
    """A small input is copied before; a large one is an error, as no copy of it is kept."""
    for size, function in [(3, overwritten), (3, flambeau.compile(overwritten))]:
        x, w = torch.ones(size), torch.ones(size, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(x, w).sum(), w, create_graph=True)
        gradient.sum().backward()
        torch.testing.assert_close(w.grad, torch.full((size,), 2 * math.e))
        assert torch.equal(x, torch.full((size,), 2.0))
    x, w = torch.ones(1 << 17), torch.ones(1 << 17, requires_grad=True)
    compiled = flambeau.compile(overwritten)
    (gradient,) = torch.autograd.grad(compiled(x, w).sum(), w, create_graph=True)
    torch.testing.assert_close(gradient.detach(), torch.full((1 << 17,), 2 * math.e))
    with pytest.raises(RuntimeError, match=r"'overwritten'.*twice.*writes to inputs \(x\)"):
        gradient.sum().backward()


def writes_and_returns(x, w):
    x.mul_(2)
    return x[1:], x, w.exp(), w.sin() * w


def factors(x, w):
    return torch.linalg.cholesky(x), w.sin(), w.exp()


def branches(x, w):
    return (w.sin(), w * 3) if x.sum() > 0 else (w.cos(), w * 2)


@pytest.mark.parametrize("at", [0, 1, None])
@pytest.mark.parametrize("function", [writes_and_returns, factors, branches])
def test_inputs_that_gradients_do_not_depend_on(function, at):
    """They are written to and returned, or checked: neither happens again for the derivatives."""
    found = []
    for call in (function, flambeau.compile(function)):
        x, w = torch.eye(3) * 4, torch.linspace(-1, 2, 3).requires_grad_()
        results = [y for y in call(x, w) if y.requires_grad]
        total = sum(y.sum() for y in results) if at is None else results[at].sum()
        (gradient,) = torch.autograd.grad(total, w, create_graph=True)
        second = gradient.square().sum()
        found.append((gradient.detach(), torch.autograd.grad(second, w) if at != 1 else (), x))
        if function is branches and at == 1:
            assert not gradient.requires_grad
    torch.testing.assert_close(*found)


def penalised(module, call):
    x = torch.linspace(-1, 1, 12).sin().view(3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    gradient.square().sum().backward()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    return [p.grad for p in module.parameters() if p.grad is not None], x.grad, state


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["batch_norm", "spectral_norm"])
def test_gradients_that_depend_on_buffers(kind, training):
    """Statistics that are read; vectors that a power iteration writes to."""
    torch.manual_seed(0)
    first, last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    middle = torch.nn.BatchNorm1d(4)
    if kind == "spectral_norm":
        last, middle = torch.nn.utils.parametrizations.spectral_norm(last), torch.nn.Softplus()
    module = torch.nn.Sequential(first, torch.nn.Tanh(), middle, last, torch.nn.Tanh())
    module.train(training)
    own = copy.deepcopy(module)
    compiled = flambeau.compile(own)
    for _ in range(2):
        torch.testing.assert_close(penalised(own, compiled), penalised(module, module))


def test_hooks_pack_what_second_derivatives_read():
    """A checkpoint holds nothing of its inside, and a packed tensor is unpacked for them."""
    w = torch.linspace(1, 2, 9).view(3, 3).requires_grad_()
    compiled = flambeau.compile(lambda x, w: (x @ w).relu() * x)
    held = []

    def block(x):
        inner = compiled(x, w)
        held.append(weakref.ref(inner))
        return compiled(inner, w)

    found = []
    for call in (lambda x: checkpoint(block, x, use_reentrant=False), block):
        x = torch.linspace(-1, 2, 9).view(3, 3).requires_grad_()
        y = call(x)
        if not found:
            assert held[0]() is None
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), (x, w)))
    torch.testing.assert_close(*found)


def test_inputs_are_let_go_after_a_backward():
    compiled = flambeau.compile(lambda x, w: (x + w).relu() * w)
    x, w = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    interior = x * 2
    held, y = weakref.ref(interior), compiled(interior, w)
    del interior
    y.sum().backward()
    assert held() is None


def cubes(x):
    return (x**3).sum()


def test_torchs_functions_of_second_derivatives():
    x, v = torch.ones(3), torch.ones(3)
    compiled = flambeau.compile(cubes)
    for function in (torch.autograd.functional.hessian, torch.autograd.functional.jacobian):
        torch.testing.assert_close(function(compiled, x), function(cubes, x))
    for function in (torch.autograd.functional.hvp, torch.autograd.functional.vhp):
        torch.testing.assert_close(function(compiled, x, v), function(cubes, x, v))
    assert torch.autograd.gradgradcheck(compiled, (x.double().requires_grad_(),))


def test_second_derivatives_inside_one_graph_are_right():
    x = torch.linspace(-1, 2, 4)
    for hessian in (torch.autograd.functional.hessian, lambda f, x: torch.func.hessian(f)(x)):
        torch.testing.assert_close(
            flambeau.compile(lambda x, h=hessian: h(cubes, x))(x), torch.diag(6 * x)
        )
    torch.testing.assert_close(torch.func.hessian(flambeau.compile(cubes))(x), torch.diag(6 * x))


def test_a_gradient_penalty():
    critic = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    z = torch.randn(6, 4)
    found = []
    for call in (critic, flambeau.compile(critic)):
        critic.zero_grad()
        given = z.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(call(given).sum(), given, create_graph=True)
        ((gradient.norm(dim=1) - 1) ** 2).mean().backward()
        found.append([None if p.grad is None else p.grad.clone() for p in critic.parameters()])
    torch.testing.assert_close(
        [g for g in found[0] if g is not None], [g for g in found[1] if g is not None]
    )
    assert [g is None for g in found[0]] == [g is None for g in found[1]]


@pytest.mark.parametrize(
    "name",
    ["trace", "as_strided_scatter", "nn.functional.layer_norm", "cumprod", "nn.functional.gelu"],
)
def test_operators(name):
    """Also those whose gradients cannot be compiled: the eager engine computes them."""
    (op,) = (op for op in op_db if op.name == name and not op.variant_test_name)
    for sample in list(op.sample_inputs("cpu", torch.float64, requires_grad=True))[:3]:
        found = []
        for function in (op.op, flambeau.compile(lambda *args, **kwargs: op.op(*args, **kwargs))):
            x = sample.input.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(
                function(x, *sample.args, **sample.kwargs).sin().sum(), x, create_graph=True
            )
            found.append((gradient.detach(), *torch.autograd.grad(gradient.square().sum(), x)))
        (graph,) = flambeau.explain(function).graphs
        assert bool(graph.eager_derivatives) == (name == "trace")
        torch.testing.assert_close(*found)


def test_the_error_advises_a_function_that_exists() -> None:
    advised = re.findall(r"flambeau(?:\.\w+)+", message("f", "", "no reason"))
    assert advised
    for name in advised:
        assert callable(attrgetter(name.partition(".")[2])(flambeau))
