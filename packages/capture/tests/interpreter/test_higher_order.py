"""Functions given to torch: which node a graph gets, what is lifted and guarded, what breaks the
graph.
"""

from __future__ import annotations

import copy
from typing import ClassVar

import pytest
import torch
from capture_harness import breaks, check, compiled
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

import flambeau_capture
from flambeau_capture import CaptureOptions
from flambeau_capture.graphs.custom_function import CustomFunction
from flambeau_capture.graphs.higher_order import HigherOrder

X = torch.randn(4, 3)
W = torch.randn(3, 3)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        ctx.weight = weight
        return x * x * weight

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * gradient * x * ctx.weight, None


def graphs(fn, *args, **options):
    """The captured graphs of one call, and its result."""
    found = []

    def backend(module, example_inputs):
        found.append(module)
        return module.forward

    run = flambeau_capture.compile(fn, backend=backend, options=CaptureOptions(fullgraph=True))
    return found, run(*args)


def nodes(module):
    return [node for node in module.graph.nodes if isinstance(node.target, HigherOrder)]


def test_a_custom_function_is_one_node():
    x = X.clone().requires_grad_()
    (module,), y = graphs(lambda x: Square.apply(x, 3.0) + 1, x)
    (node,) = nodes(module)
    call = node.target
    assert type(call) is CustomFunction
    assert call.name == "Square"
    assert [k.source for k in call.kept] == ["argument"]
    assert call.kept[0].checked
    assert "forward" in repr(call) and "backward" in repr(call)
    assert "Square" in module.code
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 6 * x)
    assert type(node.target).__name__ in repr(node.target)


def test_nothing_is_captured_of_a_backward_that_is_not_needed():
    (module,), _ = graphs(lambda x: Square.apply(x, 3.0), X)
    assert nodes(module)[0].target.backwards == {}


def test_a_graph_with_such_nodes_is_copied_and_run():
    x = X.clone().requires_grad_()
    (module,), y = graphs(lambda x: Square.apply(x, 3.0).sin(), x)
    torch.testing.assert_close(copy.deepcopy(module)(x)[0], y)


def test_an_in_place_write_after_saving_is_found_as_in_eager():
    def program(x):
        y = x * 1
        z = Square.apply(y, 1.0)
        y.add_(1)
        return z

    x = X.clone().requires_grad_()
    for fn in (program, compiled(program)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            fn(x).sum().backward()


class Chatty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        print("backward")
        return gradient * 2


class Leaky(torch.autograd.Function):
    kept: ClassVar[list] = []

    @staticmethod
    def forward(ctx, x):
        y = x * 2
        Leaky.kept.append(y)
        return y + 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Listed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return [x * 2]

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Escaping(torch.autograd.Function):
    kept: ClassVar[list] = []

    @staticmethod
    def forward(ctx, x):
        Escaping.kept.append(ctx)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@pytest.mark.parametrize("function", [Chatty, Leaky, Escaping])
def test_custom_functions_that_break(function):
    x = X.clone().requires_grad_()

    def program(x):
        return (function.apply(x * 1) + 1).detach()

    found = breaks(program, x)
    assert found.id in ("autograd-function", "higher-order-operator", "unsupported-result")


def test_a_custom_function_that_returns_a_list_runs_eagerly():
    x = X.clone().requires_grad_()
    found = breaks(lambda x: Listed.apply(x * 1), x)
    assert found.id == "autograd-function"


class Double(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

    @staticmethod
    def vmap(info, in_dims, x):
        return x * 2, in_dims[0]


def test_function_transforms_are_one_node_each():
    (module,), _ = graphs(lambda x, w: vmap(grad(lambda row: (row @ w).sin().sum()))(x), X, W)
    (outer,) = nodes(module)
    (inner,) = nodes(outer.target.graph)
    assert (outer.target.name, inner.target.name) == ("vmap", "grad")
    assert [arg.name for arg in outer.args] == ["x", "w"]


def test_transforms_are_captured_whole():
    model = torch.nn.Linear(3, 2)
    check(lambda x: vmap(torch.sin)(x), X)
    check(lambda x: hessian(lambda row: row.sin().sum())(x[0]), X)
    check(lambda x, w: jacrev(lambda x: x @ w)(x), X, W)
    check(lambda x, w: jvp(lambda x: x @ w, (x,), (x,)), X, W)
    check(lambda x, w: vjp(lambda x: (x @ w).sin(), x)[1](x), X, W)
    check(
        lambda x: grad(lambda p: functional_call(model, p, (x,)).sum())(
            dict(model.named_parameters())
        ),
        X,
    )
    check(lambda x: [f(x) for f in (vmap(torch.sum), vmap(torch.prod))], X)


def test_rules_of_functions_are_captured():
    check(lambda x: vmap(Double.apply)(x), X)
    check(lambda x: vmap(vmap(Double.apply))(x), X)


def test_transforms_that_break():
    kept: ClassVar[list] = []

    def keeps(row):
        kept.append(row.sin())
        return row.sum()

    def pulls_after_a_write(x):
        y = x * 1
        _, pull = vjp(torch.sin, y)
        y.add_(1)
        return pull(x)

    assert breaks(lambda x: vmap(keeps)(x), X).id == "higher-order-operator"
    assert breaks(pulls_after_a_write, X).id == "higher-order-operator"


def test_a_transform_made_outside_is_guarded():
    table = {"f": vmap(lambda row: row * 2)}
    run = compiled(lambda x: table["f"](x))
    torch.testing.assert_close(run(X), X * 2)
    table["f"] = vmap(lambda row: row * 5)
    torch.testing.assert_close(run(X), X * 5)


def test_a_gradient_inside_is_one_node():
    x = X.clone().requires_grad_()
    (module,), (found,) = graphs(lambda x: torch.autograd.grad(x.sin().sum(), x), x)
    torch.testing.assert_close(found, x.detach().cos())
    assert torch.autograd.grad in [node.target for node in module.graph.nodes]


def test_a_gradient_through_a_history_outside_breaks():
    x = X.clone().requires_grad_()

    def program(x, y):
        return torch.autograd.grad((x * y).sum(), x)[0]

    run = compiled(program, fullgraph=False)
    torch.testing.assert_close(run(x, x * 2), 4 * x.detach())
    with pytest.raises(flambeau_capture.CaptureError, match="history"):
        compiled(program)(x, x * 2)


def test_checkpointed_calls_are_marked():
    x = X.clone().requires_grad_()

    def block(x):
        return checkpoint(torch.sin, x, use_reentrant=False).cos()

    def program(x):
        y = checkpoint(block, x, use_reentrant=False)
        return checkpoint(torch.tanh, y, use_reentrant=False).exp()

    (module,), _ = graphs(program, x)
    regions = {node.name: node.meta.get("region", 0) for node in module.graph.nodes}
    assert regions["sin"] == regions["cos"] != 0
    assert regions["tanh"] not in (0, regions["sin"])
    assert regions["exp"] == 0
    check(lambda x: checkpoint(block, x, use_reentrant=False).detach(), x)


def test_control_flow_is_one_node():
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: x + W, lambda x: x - 1, (x,))

    found, y = graphs(program, torch.ones(3, 3))
    torch.testing.assert_close(y, 1 + W)
    (node,) = nodes(found[0])
    assert node.target.name == "cond"
    run = compiled(program)
    for sign in (1.0, -1.0):
        x = torch.full((3, 3), sign)
        torch.testing.assert_close(run(x), x + W if sign > 0 else x - 1)


def test_loops_run_as_often_as_their_condition_says():
    def program(x):
        start = torch.zeros((), dtype=torch.int64)
        return torch.while_loop(lambda i, x: x.sum() < 10, lambda i, x: (i + 1, x * 2), (start, x))

    run = compiled(program)
    for value, steps in ((1.0, 2), (11.0, 0), (0.1, 6)):
        count, x = run(torch.full((3,), value))
        assert count.item() == steps
        torch.testing.assert_close(x, torch.full((3,), value * 2**steps))


@pytest.mark.parametrize(
    "branch", [lambda x: x.add_(1), lambda x: (x, x), lambda x: x.double(), lambda x: 3]
)
def test_branches_that_break(branch):
    def program(x):
        return torch.cond(x.sum() > 0, branch, lambda x: x - 1, (x,))

    with pytest.raises(flambeau_capture.CaptureError, match="higher-order-operator"):
        compiled(program)(X.clone())


def test_vmap_over_an_empty_batch():
    check(lambda x: torch.vmap(lambda row: row.sin() * 2)(x[:0]), torch.randn(3, 4))


class Halves(torch.autograd.Function):
    """Its backward reads data, but only where one of the two gradients is undefined."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        if second is None:
            return first * 2 if first.sum() > 0 else first * 4
        return second * 3 if first is None else first * 2 + second * 3


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_a_backward_that_cannot_be_captured_for_undefined_gradients_runs_eagerly(used):
    def program(x):
        parts = Halves.apply(x)
        return sum(parts[at].sin().sum() for at in used)

    gradients = []
    for run in (program, compiled(program, fullgraph=False)):
        x = X.clone().requires_grad_()
        run(x).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
    with pytest.raises(flambeau_capture.CaptureError, match="data-dependent"):
        compiled(program)(X.clone().requires_grad_())
