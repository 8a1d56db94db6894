"""Functions that are given to torch: custom Functions, function transforms, checkpointed regions,
control flow, custom operators.

Each program is compiled whole and compared with eager: results, their requires_grad, and gradients,
at several shapes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import flambeau
from flambeau.report import report_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHAPES = ((4, 3), (1, 3), (5, 3))


def leaves(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def gradients(results: list[torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> list[Any]:
    """Gradients of a weighted sum, so that no two elements of a result are alike."""
    total = sum(
        (result * torch.linspace(1, 2, result.numel()).view(result.shape)).sum()
        for result in results
        if result.requires_grad
    )
    if not isinstance(total, torch.Tensor):
        return []
    return list(torch.autograd.grad(total, inputs, allow_unused=True))


def check(
    function: Callable[..., Any],
    *makers: Callable[[], tuple[torch.Tensor, ...]],
    dynamic: bool | None = None,
    reference: Callable[..., Any] | None = None,
    under_no_grad: bool = True,
    backend: str = "inductor",
) -> Any:
    """Compile whole, and compare with eager on each maker's inputs."""
    reference = reference or function
    compiled = flambeau.compile(function, fullgraph=True, dynamic=dynamic, backend=backend)
    for make in makers:
        inputs = make()
        wanted = tuple(x for x in inputs if x.requires_grad)
        state = torch.get_rng_state()
        want = leaves(reference(*inputs))
        want_grads = gradients(want, wanted)
        torch.set_rng_state(state)
        found = leaves(compiled(*inputs))
        assert [t.requires_grad for t in found] == [t.requires_grad for t in want]
        torch.testing.assert_close(found, want)
        found_grads = gradients(found, wanted)
        for ours, theirs in zip(found_grads, want_grads, strict=True):
            assert (ours is None) == (theirs is None)
            if theirs is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        if under_no_grad:
            with torch.no_grad():
                torch.testing.assert_close(leaves(compiled(*inputs)), leaves(reference(*inputs)))
    return compiled


def not_fallen_back(compiled: Any) -> None:
    for graph in report_of(compiled).graphs:
        assert graph.fallback is None, graph.fallback


def rows(*shapes: tuple[int, ...]) -> list[Callable[[], tuple[torch.Tensor, ...]]]:
    """Makers of (x, w) for x of each shape, w square; x is non-contiguous in the last."""

    def maker(shape: tuple[int, ...], transposed: bool) -> Callable[[], tuple[torch.Tensor, ...]]:
        def make() -> tuple[torch.Tensor, ...]:
            x = torch.randn(*reversed(shape)).t() if transposed else torch.randn(*shape)
            return x.detach().requires_grad_(), torch.randn(3, 3, requires_grad=True)

        return make

    return [maker(shape, shape is shapes[-1]) for shape in shapes]


# ---------------------------------------------------------------- torch.autograd.Function


class Scale(torch.autograd.Function):
    """Saves an argument and an intermediate; keeps a number on ctx; has an argument that is no
    tensor.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        exponential = x.exp()
        ctx.save_for_backward(x, exponential)
        ctx.factor = factor
        return exponential * x * factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, exponential = ctx.saved_tensors
        return gradient * ctx.factor * (exponential + exponential * x), None


class NeedsOnly(torch.autograd.Function):
    """Computes the gradients that are needed only."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        by_x = gradient @ w.t() if ctx.needs_input_grad[0] else None
        by_w = x.t() @ gradient if ctx.needs_input_grad[1] else None
        return by_x, by_w


class Parts(torch.autograd.Function):
    """Several results, one of them without gradient; undefined gradients stay None."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        index = x.argmax(-1)
        ctx.mark_non_differentiable(index)
        return x.sin(), x * 2, index, "text"

    @staticmethod
    def backward(ctx: Any, by_sine: Any, by_double: Any, by_index: Any, by_text: Any) -> Any:
        assert by_index is None
        assert by_text is None
        (x,) = ctx.saved_tensors
        if by_sine is None:
            return by_double * 2
        if by_double is None:
            return by_sine * x.cos()
        return by_sine * x.cos() + by_double * 2


class Tripled(torch.autograd.Function):
    """Writes to its argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


class Power(torch.autograd.Function):
    """The form with setup_context, a default argument, and a rule for vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, exponent: int = 2) -> torch.Tensor:
        return x**exponent

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.exponent = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * ctx.exponent * x ** (ctx.exponent - 1), None


class Ruled(torch.autograd.Function):
    """With rules of its own for vmap and jvp, which only these ask for."""

    @staticmethod
    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return gradient @ w.t() * 3, x.t() @ gradient * 2

    @staticmethod
    def jvp(ctx: Any, x_tangent: torch.Tensor, w_tangent: torch.Tensor) -> torch.Tensor:
        x, w = ctx.saved_tensors
        return (x_tangent @ w + x @ w_tangent) * 7

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
        return Ruled.apply(x.movedim(in_dims[0], 0), w) * 5, 0


class Rounded(torch.autograd.Function):
    """A straight-through estimator, differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clone()


class Same(torch.autograd.Function):
    """Returns its argument as it is, and reverses the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


OFFSET = torch.randn(3)


class WithOffset(torch.autograd.Function):
    """Reads a tensor from outside in both directions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * OFFSET

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * OFFSET


def parts_and_index(x: torch.Tensor, w: torch.Tensor) -> Any:
    sine, double, index, text = Parts.apply(x)
    return sine * double + w.sum(), index, len(text)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "saves": lambda x, w: Scale.apply(x.sin(), 2.0) @ w,
    "twice": lambda x, w: Scale.apply(Scale.apply(x, 0.3), 0.5) + w.sum(),
    "needs_input_grad": lambda x, w: NeedsOnly.apply(x, w).relu(),
    "needs_one_grad": lambda x, w: NeedsOnly.apply(x.detach(), w).relu() + x.sum(),
    "several_results": parts_and_index,
    "first_result_only": lambda x, w: Parts.apply(x)[0] @ w,
    "second_result_only": lambda x, w: Parts.apply(x)[1] @ w,
    "dirty": lambda x, w: Tripled.apply(x * 2).sin() @ w,
    "setup_context": lambda x, w: Power.apply(x) @ Power.apply(w, 3),
    "once_differentiable": lambda x, w: Rounded.apply(x) * (x @ w),
    "identity": lambda x, w: Same.apply(x) @ w,
    "closed_over_tensor": lambda x, w: WithOffset.apply(x).cos() @ w,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_autograd_function(name: str) -> None:
    not_fallen_back(check(FUNCTIONS[name], *rows(*SHAPES)))


def test_a_number_on_ctx_is_guarded() -> None:
    compiled = flambeau.compile(lambda x, k: Scale.apply(x, k), fullgraph=True, dynamic=False)
    for factor in (2.0, 3.0, 2.0):
        x = torch.randn(4, requires_grad=True)
        found, want = compiled(x, factor), Scale.apply(x, factor)
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (found, want)))


def test_a_changed_backward_recompiles() -> None:
    class Changing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    compiled = flambeau.compile(lambda x: Changing.apply(x), fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], torch.full((3,), 2.0))
    Changing.backward = staticmethod(lambda ctx, gradient: gradient * 7)  # type: ignore[method-assign]
    assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], torch.full((3,), 7.0))


def test_a_module_with_a_custom_function_trains() -> None:
    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 5)
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return nn.functional.linear(
                x, Rounded.apply(self.linear.weight * 4) / 4, self.linear.bias
            )

    model = Quantized()
    other = copy.deepcopy(model)
    compiled = flambeau.compile(other, fullgraph=True)
    for _ in range(3):
        x = torch.randn(7, 3)
        for each, run in ((model, model), (other, compiled)):
            each.zero_grad()
            run(x).pow(2).sum().backward()
            with torch.no_grad():
                for parameter in each.parameters():
                    parameter -= 0.1 * parameter.grad
    torch.testing.assert_close(list(model.parameters()), list(other.parameters()))
    assert other.calls == 3


def test_an_effect_of_the_backward_stays_where_it_was() -> None:
    seen: list[int] = []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append(1)
            return gradient * 2

    compiled = flambeau.compile(lambda x: Noted.apply(x) + 1)
    x = torch.ones(3, requires_grad=True)
    y = compiled(x)
    assert seen == []
    y.sum().backward()
    assert seen == [1]
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    with pytest.raises(Exception, match="autograd-function"):
        flambeau.compile(lambda x: Noted.apply(x), fullgraph=True)(x)


def test_an_error_of_the_forward_is_eagers() -> None:
    class Picky(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            if x.ndim != 1:
                raise ValueError("vectors only")
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    def careful(x: torch.Tensor) -> torch.Tensor:
        try:
            return Picky.apply(x)
        except ValueError:
            return x * 2

    with pytest.raises(ValueError, match="vectors only"):
        flambeau.compile(lambda x: Picky.apply(x))(torch.ones(2, 2, requires_grad=True))
    x = torch.randn(2, 2, requires_grad=True)
    torch.testing.assert_close(flambeau.compile(careful, fullgraph=True)(x), x * 2)


# ---------------------------------------------------------------- function transforms


LINEAR = nn.Linear(3, 3)
MADE_OUTSIDE = grad(lambda x, w: (x @ w).sin().sum(), argnums=(0, 1))


def per_sample(x: torch.Tensor, w: torch.Tensor) -> Any:
    def loss(parameters: Any, row: torch.Tensor) -> torch.Tensor:
        return functional_call(LINEAR, parameters, (row,)).pow(2).sum() + w.sum()

    return vmap(grad(loss), in_dims=(None, 0))(dict(LINEAR.named_parameters()), x)


def reverse(x: torch.Tensor, w: torch.Tensor) -> Any:
    y, pull = vjp(lambda x, w: (x @ w).sin(), x, w)
    return y, pull(torch.ones_like(y)), pull(y.detach())


def inner_gradient(x: torch.Tensor) -> torch.Tensor:
    return grad(lambda y: (y**3).sum() * x.sum())(x).sum()


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda x, w: grad(lambda x: (x @ w).sin().sum())(x) * 2,
    "grad_made_outside": lambda x, w: MADE_OUTSIDE(x, w),
    "grad_of_containers": lambda x, w: grad(lambda d: (x @ d["w"][0]).cos().sum())({"w": [w]}),
    "grad_with_aux": lambda x, w: grad(lambda x: ((x @ w).sum(), {"aux": x.exp()}), has_aux=True)(
        x
    ),
    "grad_and_value": lambda x, w: grad_and_value(lambda x, w: (x @ w).sin().sum(), argnums=1)(
        x, w
    ),
    "grad_of_grad": lambda x, w: grad(inner_gradient)(x) + w.sum(),
    "vmap": lambda x, w: vmap(lambda row: (row @ w).sin())(x),
    "vmap_columns": lambda x, w: vmap(lambda c: {"s": c.sin(), "t": (c.sum(),)}, in_dims=1)(x),
    "vmap_out_dims": lambda x, w: vmap(lambda row: row @ w, out_dims=1)(x),
    "vmap_two": lambda x, w: vmap(lambda row, d: row * d["w"], in_dims=(1, {"w": 0}))(
        x, {"w": w.sum(1)}
    ),
    "vmap_keyword": lambda x, w: vmap(lambda row, *, k: row @ k)(x, k=w),
    "vmap_in_chunks": lambda x, w: vmap(lambda row: (row @ w).tanh(), chunk_size=2)(x),
    "vmap_of_vmap": lambda x, w: vmap(lambda row: vmap(lambda column: (row * column).sum())(w))(x),
    "vmap_of_grad": lambda x, w: vmap(grad(lambda row: (row @ w).sin().sum()))(x),
    "grad_of_vmap": lambda x, w: grad(
        lambda x: vmap(lambda r: torch.softmax(r @ w, 0)[0])(x).sum()
    )(x),
    "per_sample_gradients": per_sample,
    "vjp": reverse,
    "jvp": lambda x, w: jvp(lambda x: (x @ w).sin(), (x,), (torch.ones_like(x),)),
    "jacrev": lambda x, w: jacrev(lambda x, w: (x @ w).sin(), argnums=(0, 1))(x, w),
    "jacfwd": lambda x, w: jacfwd(lambda x: (x @ w).sin())(x),
    "jacrev_with_aux": lambda x, w: jacrev(lambda x: (x.sin(), x * 2), has_aux=True)(x[0] @ w),
    "hessian": lambda x, w: hessian(lambda row: (row @ w).sin().sum())(x[0]),
    "grad_of_function": lambda x, w: grad(lambda x: Power.apply(x, 3).sum())(x) @ w,
    "grad_of_function_with_rules": lambda x, w: grad(
        lambda x, w: Ruled.apply(x, w).sin().sum(), argnums=(0, 1)
    )(x, w),
    "vjp_of_function_with_rules": lambda x, w: vjp(lambda x: Ruled.apply(x, w), x)[1](x @ w),
    "vmap_of_function": lambda x, w: vmap(lambda row: Power.apply(row).sum() * w)(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name: str) -> None:
    shapes = SHAPES[1:] if "chunks" in name else SHAPES[:1]
    not_fallen_back(check(TRANSFORMS[name], *rows(*shapes), dynamic=False))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform_of_symbolic_sizes(name: str) -> None:
    makers = rows((4, 3), (6, 3))
    not_fallen_back(check(TRANSFORMS[name], *makers, dynamic=True, backend="aot_eager"))


def _several(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"wave": x.exp(), "sum": x.sum(0), "product": (x @ w.T).T}


JACOBIANS: dict[str, Callable[..., Any]] = {
    "of a sum": lambda x, w: jacrev(lambda x: x.sum(0))(x),
    "of several": lambda x, w: jacrev(_several, argnums=(0, 1))(x, w),
    "of several in chunks": lambda x, w: jacrev(_several, argnums=(0, 1), chunk_size=5)(x, w),
    "of several, one by one": lambda x, w: jacrev(_several, chunk_size=1)(x, w),
    "of several dtypes": lambda x, w: jacrev(lambda x: (x.sum(), x.double()))(x),
    "forward": lambda x, w: jacfwd(_several, argnums=(0, 1))(x, w),
    "forward of a sum": lambda x, w: jacfwd(lambda x: x.sum(0))(x),
    "of an expanded input": lambda x, w: jacrev(lambda x: (x.sin(), x.expand(2, 3, 4)))(x),
}


@pytest.mark.parametrize("name", JACOBIANS)
def test_jacobians_lie_in_memory_as_eagers(name: str) -> None:
    """Results of one call are views of what each input got, in its strides; an infinite derivative
    of one result times no tangent is not a number in those of the others.
    """
    program = JACOBIANS[name]
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    for first in (0.5, float("inf")):
        x[0, 0] = first
        want = leaves(program(x, w))
        found = leaves(flambeau.compile(program, fullgraph=True)(x, w))
        for ours, theirs in zip(found, want, strict=True):
            torch.testing.assert_close(ours, theirs, equal_nan=True)
            assert ours.stride() == theirs.stride()
            assert ours.storage_offset() == theirs.storage_offset()
        shared = [
            t.untyped_storage().data_ptr() == want[0].untyped_storage().data_ptr() for t in want
        ]
        assert shared == [
            t.untyped_storage().data_ptr() == found[0].untyped_storage().data_ptr() for t in found
        ]


def test_what_a_transformed_function_closes_over_is_guarded() -> None:
    scale = [2.0]
    tensors = {"w": torch.randn(3)}

    def program(x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda row: (row * tensors["w"]).sum() * scale[0])(x)

    compiled = flambeau.compile(program, fullgraph=True)
    x = torch.randn(5, 3)
    torch.testing.assert_close(compiled(x), program(x))
    scale[0] = 3.0
    torch.testing.assert_close(compiled(x), program(x))
    tensors["w"] = torch.randn(3)
    torch.testing.assert_close(compiled(x), program(x))


def test_randomness_of_vmap() -> None:
    def drawn(x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda row: row * torch.rand_like(row), randomness="different")(x)

    x = torch.randn(4, 3)
    compiled = flambeau.compile(drawn, fullgraph=True, backend="eager")
    torch.manual_seed(3)
    want = drawn(x)
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(x), want)
    with pytest.raises(RuntimeError, match="randomness"):
        flambeau.compile(lambda x: vmap(torch.rand_like)(x))(x)


def _multiplied_by_drawn(x: torch.Tensor) -> torch.Tensor:
    return x * torch.empty_like(x).bernoulli_(0.5)


def _dropped_in_place(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x.clone(), 0.5, True, inplace=True)


def _rectified_in_place(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.rrelu(-x, training=True, inplace=True)


@pytest.mark.parametrize("body", [_multiplied_by_drawn, _dropped_in_place, _rectified_in_place])
def test_a_vjp_pulls_back_by_what_its_value_drew_in_place(body: Callable[..., Any]) -> None:
    def program(x: torch.Tensor) -> Any:
        value, pull_back = vjp(body, x)
        return value, pull_back(torch.ones_like(value))[0]

    compiled = flambeau.compile(program, backend="aot_eager")
    shown = []
    for call in (program, compiled):
        torch.manual_seed(3)
        shown.append((*call(torch.ones(4, 9)), torch.get_rng_state()))
    torch.testing.assert_close(*shown, rtol=0, atol=0)


def test_a_vjp_of_writes_to_temporaries_is_captured() -> None:
    def written(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y.relu_()

    def program(x: torch.Tensor) -> Any:
        value, pull_back = vjp(lambda x: torch.cond(x.sum() > 0, written, lambda x: x * 2, (x,)), x)
        return value, pull_back(x)[0]

    compiled = flambeau.compile(program, fullgraph=True, backend="aot_eager")
    for sign in (1, -1):
        x = sign * torch.rand(4, 3)
        want = (x.sin().relu(), x * x.cos() * (x > 0)) if sign > 0 else (x * 2, x * 2)
        torch.testing.assert_close(compiled(x), want)


def test_errors_of_transforms_are_eagers() -> None:
    x = torch.randn(4, 3)
    for bad in (lambda x: grad(torch.sin)(x), lambda x: vmap(lambda row: row)(x.sum())):
        with pytest.raises((RuntimeError, ValueError)) as want:
            bad(x)
        with pytest.raises(type(want.value)) as found:
            flambeau.compile(bad)(x)
        assert str(found.value) == str(want.value)


def test_a_transformed_function_may_not_be_written_through() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        kept = []

        def body(row: torch.Tensor) -> torch.Tensor:
            kept.append(row.sin())
            return row.sum()

        return vmap(body)(x)

    x = torch.randn(4, 3)
    torch.testing.assert_close(flambeau.compile(program)(x), program(x))


# ---------------------------------------------------------------- torch.autograd.grad


def penalty(x: torch.Tensor, w: torch.Tensor) -> Any:
    score = (x @ w).tanh().sum()
    (by_x,) = torch.autograd.grad(score, x, create_graph=True)
    return score, ((by_x.norm(dim=1) - 1) ** 2).mean()


def by_an_intermediate(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * 2
    z = (y @ w).sin()
    return torch.autograd.grad(z, [y, w], torch.ones_like(z), create_graph=True)


def fresh_leaf(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad((leaf.sin() * 3).sum(), leaf)
    return gradient @ w


@pytest.mark.parametrize("function", [penalty, by_an_intermediate, fresh_leaf])
def test_gradient_inside(function: Callable[..., Any]) -> None:
    not_fallen_back(check(function, *rows(*SHAPES), dynamic=False, under_no_grad=False))


def test_a_compiled_gradient_is_differentiated_again() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * x.sin()).sum()

    x = torch.randn(3, requires_grad=True)
    found = []
    for function in (program, flambeau.compile(program)):
        (gradient,) = torch.autograd.grad(function(x), x, create_graph=True)
        found += torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(*found)


def test_a_history_outside_the_frame_is_not_forgotten() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad((x * y).sum(), x)[0]

    x = torch.randn(3, requires_grad=True)
    want = program(x, x.sin())
    torch.testing.assert_close(flambeau.compile(program)(x, x.sin()), want)


# ---------------------------------------------------------------- checkpointed regions


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(8), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + self.dropout(self.down(torch.sin(self.up(self.norm(x))))) * scale


class Stack(nn.Module):
    """Blocks, each a region if `regions`; `nested` puts all in one more."""

    def __init__(self, *, regions: bool = True, nested: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(3))
        self.regions, self.nested = regions, nested

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.regions:
                x = checkpoint(block, x, scale=0.5, use_reentrant=False)
            else:
                x = block(x, scale=0.5)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.nested:
            return checkpoint(self._run, x, use_reentrant=False).sum()
        return self._run(x).sum()


@dataclass
class Saved:
    """Bytes that a training step of a compiled model keeps between forward and backward, besides
    its arguments.
    """

    total: int = 0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.total += tensor.numel() * tensor.element_size()
        return tensor


def kept_bytes(model: nn.Module, x: torch.Tensor) -> int:
    compiled = flambeau.compile(model, fullgraph=True)
    compiled(x)
    saved = Saved()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        compiled(x)
    arguments = sum(p.numel() * p.element_size() for p in model.parameters()) + x.numel() * 4
    return saved.total - arguments


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_checkpoint(dropout: float, nested: bool) -> None:
    model = Stack(nested=nested, dropout=dropout)
    other = copy.deepcopy(model)
    compiled = flambeau.compile(other, fullgraph=True)
    for size in (5, 2):
        x = torch.randn(size, 8, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        state = torch.get_rng_state()
        want = model(x)
        want.backward()
        torch.set_rng_state(state)
        found = compiled(y)
        found.backward()
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(y.grad, x.grad)
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(another.grad, one.grad, rtol=1e-4, atol=1e-5)
    not_fallen_back(compiled)


def test_a_checkpointed_region_is_computed_again() -> None:
    x = torch.randn(64, 8)
    plain, regions, nested = (
        kept_bytes(Stack(regions=regions, nested=nested), x)
        for regions, nested in ((False, False), (True, False), (True, True))
    )
    hidden = 64 * 32 * 4
    assert plain > 3 * hidden
    assert regions < hidden
    assert nested <= regions


ADDMM = torch.ops.aten.addmm.default


def keeps_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op is ADDMM else CheckpointPolicy.PREFER_RECOMPUTE


class Selective(nn.Module):
    """Blocks, each a region with a `context_fn`."""

    def __init__(self, context_fn: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(0.0) for _ in range(3))
        self.context_fn = context_fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, context_fn=self.context_fn)
        return x.sum()


CONTEXTS: dict[str, Any] = {
    "list": functools.partial(create_selective_checkpoint_contexts, [ADDMM]),
    "policy": functools.partial(create_selective_checkpoint_contexts, keeps_products),
    "function": lambda: create_selective_checkpoint_contexts([ADDMM]),
    "nothing": lambda: (contextlib.nullcontext(), contextlib.nullcontext()),
}


@pytest.mark.parametrize(("name", "backend"), [
    ("list", "eager"), ("list", "inductor"), *((name, "aot_eager") for name in CONTEXTS),
])  # fmt: skip
def test_selective_checkpoint(name: str, backend: str) -> None:
    model = Selective(CONTEXTS[name])
    other = copy.deepcopy(model)
    compiled = flambeau.compile(other, fullgraph=True, backend=backend)
    for size in (5, 2):
        x = torch.randn(size, 8)
        torch.testing.assert_close(compiled(x), model(x))
        for each in (compiled, model):
            each(x).backward()
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(another.grad, one.grad, rtol=1e-4, atol=1e-5)
    not_fallen_back(compiled)


def test_a_region_keeps_what_its_policy_says() -> None:
    x = torch.randn(64, 8)
    kept = {name: kept_bytes(Selective(context_fn), x) for name, context_fn in CONTEXTS.items()}
    hidden = 64 * 32 * 4
    assert kept["list"] == kept["policy"] == kept["function"]
    assert kept["list"] >= kept["nothing"] + 3 * hidden


def counts(seen: list[Any]) -> Any:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen.append(op)
        return CheckpointPolicy.MUST_SAVE

    return functools.partial(create_selective_checkpoint_contexts, policy)


def test_a_policy_with_an_effect_is_left_to_eager() -> None:
    logs: list[list[Any]] = [[], []]
    model, other = (Selective(counts(seen)) for seen in logs)
    other.load_state_dict(model.state_dict())
    compiled = flambeau.compile(other, backend="aot_eager")
    x = torch.randn(3, 8)
    torch.testing.assert_close(compiled(x), model(x))
    assert logs[0] and logs[0] == logs[1]
    assert "higher-order-operator" in {found.id for found in flambeau.explain(compiled).breaks}


def test_checkpointed_under_no_grad_and_sequential() -> None:
    layers = nn.Sequential(*(Block(0.0) for _ in range(4)))

    def run(x: torch.Tensor) -> torch.Tensor:
        return checkpoint_sequential(layers, 2, x, use_reentrant=False)

    x = torch.randn(3, 8, requires_grad=True)
    compiled = flambeau.compile(run, fullgraph=True)
    torch.testing.assert_close(compiled(x), run(x))
    torch.testing.assert_close(*(torch.autograd.grad(f(x).sum(), x)[0] for f in (compiled, run)))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), run(x))


def test_reentrant_checkpoint() -> None:
    block = Block(0.0)
    compiled = flambeau.compile(lambda x: checkpoint(block, x, use_reentrant=True).sum())
    x = torch.randn(3, 8, requires_grad=True)
    found, want = (torch.autograd.grad(y, x)[0] for y in (compiled(x), block(x).sum()))
    torch.testing.assert_close(found, want)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        assert not compiled(x.detach()).requires_grad


def test_what_a_checkpointed_function_changes_is_changed_again_in_the_backward() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.calls = nn.BatchNorm1d(8), 0

        def count(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x.sin()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = checkpoint(self.norm, x, use_reentrant=False)
            return checkpoint(self.count, y, use_reentrant=False).sum()

    model = Normed()
    other = copy.deepcopy(model)
    x = torch.randn(6, 8)
    for each, run in ((model, model), (other, flambeau.compile(other))):
        y = run(x)
        assert each.calls == 1
        y.backward()
        assert each.calls == 2
        assert each.norm.num_batches_tracked == 2
    torch.testing.assert_close(other.norm.running_mean, model.norm.running_mean)


def test_gradient_checkpointing_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=40,
    )
    model = transformers.LlamaForCausalLM(config).train()
    model.gradient_checkpointing_enable()
    other = copy.deepcopy(model)
    ids = torch.randint(0, 40, (2, 6))
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    compiled = flambeau.compile(other, fullgraph=True)
    compiled(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(another.grad, one.grad, rtol=1e-4, atol=1e-5)
    not_fallen_back(compiled)


# ---------------------------------------------------------------- control flow


WEIGHT = torch.randn(3, 3, requires_grad=True)


def chosen(x: torch.Tensor) -> torch.Tensor:
    y = torch.cond(x.sum() > 0, lambda x: (x @ WEIGHT).sin(), lambda x: x.cos() * 2, (x,))
    return y.exp()


def repeated(x: torch.Tensor) -> torch.Tensor:
    start = torch.zeros((), dtype=torch.int64)
    _, y = torch.while_loop(
        lambda step, y: (step < 5) & (y.sum() < 100),
        lambda step, y: (step + 1, y * 1.5 + WEIGHT.sum()),
        (start, x),
    )
    return y.sin()


def repeated_by_python(x: torch.Tensor) -> torch.Tensor:
    """A loop that ends at once gives its operands gradients of zeros too; torch's gives others."""
    step, x = 0, x + 0 * WEIGHT.sum()
    while step < 5 and x.sum() < 100:
        step, x = step + 1, x * 1.5 + WEIGHT.sum()
    return x.sin()


@pytest.mark.parametrize(
    ("function", "reference"), [(chosen, chosen), (repeated, repeated_by_python)]
)
def test_control_flow(function: Callable[..., Any], reference: Callable[..., Any]) -> None:
    makers = [
        lambda sign=sign: (sign * torch.rand(4, 3, requires_grad=True), WEIGHT)
        for sign in (1, -1, 99)
    ]
    not_fallen_back(check(lambda x, w: function(x), *makers, reference=lambda x, w: reference(x)))


def choices_and_loops(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = (x.sin() + 1) @ w
    z = torch.cond(
        y.sum() > 3, lambda y: (y.cos() * 2).tanh() @ w, lambda y: (y.relu() + 1).sin().exp(), (y,)
    )
    u = (z.sin() * x + 1).tanh()

    def step(count: torch.Tensor, v: torch.Tensor) -> Any:
        halved = torch.cond(
            v.sum() > 0, lambda v: (v * 2).sin() * 1.1, lambda v: v.exp() - 0.5, (v,)
        )
        return count + 1, halved

    start = torch.zeros((), dtype=torch.int64)
    count, v = torch.while_loop(lambda count, v: (count < 3) & (v.sum() < 1e3), step, (start, u))
    return (v.cos() + u).relu() * 2, count


def choices_and_loops_by_python(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = (x.sin() + 1) @ w
    z = (y.cos() * 2).tanh() @ w if y.sum() > 3 else (y.relu() + 1).sin().exp()
    u = v = (z.sin() * x + 1).tanh()
    count = 0
    while count < 3 and v.sum() < 1e3:
        count, v = count + 1, (v * 2).sin() * 1.1 if v.sum() > 0 else v.exp() - 0.5
    return (v.cos() + u).relu() * 2, torch.tensor(count)


@pytest.mark.parametrize("dynamic", [False, None])
def test_control_flow_between_computations(dynamic: bool | None) -> None:
    makers = rows((4, 3), (5, 3), (2, 3)) + rows((4, 3))
    reference = choices_and_loops_by_python
    compiled = check(choices_and_loops, *makers, reference=reference, dynamic=dynamic)
    not_fallen_back(compiled)
    assert all(graph.programs for graph in report_of(compiled).graphs)


def test_a_known_condition_takes_its_branch() -> None:
    compiled = check(
        lambda x, w: torch.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,)),
        *rows((4, 3), (1, 3)),
        reference=lambda x, w: x.sin() if x.shape[0] > 2 else x.cos(),
    )
    not_fallen_back(compiled)


def test_branches_that_differ_are_refused() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x[:1], lambda x: x, (x,))

    with pytest.raises(Exception, match="differ in structure, shape or dtype"):
        flambeau.compile(program, fullgraph=True)(torch.ones(3))


# ---------------------------------------------------------------- custom operators


@torch.library.custom_op("flambeau_tests::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * factor)


@scale.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


scale.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("flambeau_tests::increase", mutates_args={"x"})
def increase(x: torch.Tensor, amount: int) -> None:
    x.numpy()[...] += amount


@torch.library.custom_op("flambeau_tests::pair", mutates_args=())
def pair(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x @ w, x.sum(0)


@pair.register_fake
def _(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape[0], w.shape[1]), x.new_empty(x.shape[1])


def increased(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x.detach() * 2
    increase(y, 3)
    return y.sin() @ w


OPERATORS: dict[str, Callable[..., Any]] = {
    "with_autograd": lambda x, w: scale(x.sin(), 2.5).cos() @ w,
    "by_name": lambda x, w: torch.ops.flambeau_tests.scale(x, 0.5) @ w,
    "overload": lambda x, w: torch.ops.flambeau_tests.scale.default(x, 0.5) @ w,
    "mutates": increased,
    "two_results": lambda x, w: pair(x.detach(), w.detach())[0].sin() + x.sum(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_custom_operator(name: str, dynamic: bool) -> None:
    not_fallen_back(check(OPERATORS[name], *rows((4, 3), (6, 3)), dynamic=dynamic))


# -------------------------------------------------------------- Triton kernels of the program's own

LAUNCHES = """
import torch, triton, triton.language as tl
import flambeau
from flambeau_capture import state_of

@triton.jit
def add_kernel(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(
        out + at, tl.load(x + at, mask=at < count) + tl.load(y + at, mask=at < count),
        mask=at < count,
    )

def program(x, y):
    a = x * 2
    out = torch.empty_like(a)
    grid = lambda meta: (triton.cdiv(out.numel(), meta["BLOCK"]),)
    add_kernel[grid](a, y, out, out.numel(), BLOCK=16)
    return out.sin()

compiled = flambeau.compile(program)
for _ in range(2):
    x, y = torch.randn(40), torch.randn(40)
    torch.testing.assert_close(compiled(x, y), (x * 2 + y).sin())
print([event.kind for event in state_of(compiled).events])
"""


def test_launches_of_triton_kernels_are_captured(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    script = tmp_path / "launches.py"
    script.write_text(LAUNCHES)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['capture']"


# ---------------------------------------------------------------- torch's operators on functions


def _states(decay: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """h[i] = decay[i] * h[i - 1] + inputs[i], step by step."""
    h, states = torch.zeros_like(inputs[0]), []
    for a, x in zip(decay, inputs, strict=True):
        h = a * h + x
        states.append(h)
    return torch.stack(states)


def _scanned(decay: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """The same by the operator of which GPUs have a pointwise form."""

    def combine(a: Any, x: Any, b: Any, y: Any) -> Any:
        return [a * b, b * x + y]

    return torch.ops.higher_order.associative_scan(combine, [decay, inputs], ())[1]


@pytest.mark.parametrize("length", [2, 7])
def test_an_associative_scan(length: int) -> None:
    inputs = [torch.randn(length, 3, requires_grad=True) for _ in range(2)]
    compiled = flambeau.compile(lambda a, x: _scanned(a.sigmoid(), x * 2).sin(), fullgraph=True)
    got, want = compiled(*inputs), _states(inputs[0].sigmoid(), inputs[1] * 2).sin()
    torch.testing.assert_close(got, want)
    tangent = torch.randn_like(want)
    torch.testing.assert_close(
        torch.autograd.grad(got, inputs, tangent), torch.autograd.grad(want, inputs, tangent)
    )


def test_an_operator_on_functions_that_is_not_captured_breaks_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        wide = torch.ops.higher_order.out_dtype(torch.ops.aten.mul.Tensor, torch.int32, x + 1, x)
        return wide * 2

    x = torch.randint(9, (3,), dtype=torch.int8)
    compiled = flambeau.compile(function)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x))
    (found,) = flambeau.explain(compiled).breaks
    assert "torch.ops.higher_order.out_dtype" in str(found)
