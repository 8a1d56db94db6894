"""Functions with their own `vmap` or `jvp`, in function transforms: compiled whole, beside eager.

Their rules compute something else than the forward's derivatives and batches, so a rule that is not
called shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils import _pytree as pytree

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable


class Product(torch.autograd.Function):
    """A batch by its own rule, which calls the Function again."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return gradient * y * 3, gradient * x * 2

    @staticmethod
    def jvp(ctx: Any, x_tangent: torch.Tensor, y_tangent: torch.Tensor) -> torch.Tensor:
        x, y = ctx.saved_tensors
        return (x_tangent * y + x * y_tangent.sin()) * 7

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def first(t: torch.Tensor, dim: int | None) -> torch.Tensor:
            return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)

        return Product.apply(first(x, in_dims[0]), first(y, in_dims[1])) * 5, 0


class Pair(torch.autograd.Function):
    """Two results and an int; tangents may be undefined; the batch goes last."""

    @staticmethod
    def forward(x: torch.Tensor, count: int, at: torch.Tensor) -> Any:
        return x * count, x[at], count

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.count, at = inputs
        ctx.save_for_forward(x, at)
        ctx.save_for_backward(x, at)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any, _count: Any) -> Any:
        x, at = ctx.saved_tensors
        found = torch.zeros_like(x) if first is None else first * ctx.count
        if second is not None:
            found = found.index_add(0, at, second * 2)
        return found, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, _count: Any, _at: Any) -> Any:
        x, at = ctx.saved_tensors
        return tangent * ctx.count * x, (tangent * 2)[at], None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor, count: int, at: torch.Tensor) -> Any:
        assert in_dims[1:] == (None, None)
        x = x.movedim(in_dims[0], -1)
        return (x * count * 3, x[at].contiguous(), count), (x.ndim - 1, -1, None)


class Cubed(torch.autograd.Function):
    """Its rule is generated; the jvp is its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> Any:
        return x**3, x.cos()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, output[1])
        ctx.save_for_forward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> Any:
        x, cosine = ctx.saved_tensors
        return 3 * x**2 * first + cosine * second

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> Any:
        x, cosine = ctx.saved_tensors
        return 2 * x * tangent, cosine * tangent


class Unmarked(torch.autograd.Function):
    """Saves nothing for its jvp, and keeps a number."""

    @staticmethod
    def forward(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return x * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.scale, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, _scale: None) -> torch.Tensor:
        return tangent * ctx.scale * (1 + len(ctx.saved_tensors))


class Outer(torch.autograd.Function):
    """The backward calls a Function with its own rule."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (y,) = ctx.saved_tensors
        return Product.apply(gradient, y)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor) -> Any:
        return Outer.apply(x), in_dims[0]


AT = torch.tensor([2, 0])

PROGRAMS: dict[str, Callable[..., Any]] = {
    "vmap": lambda x, y: vmap(Product.apply)(x, y),
    "vmap_of_columns": lambda x, y: vmap(Product.apply, (1, 1), 1)(x, y),
    "vmap_of_one": lambda x, y: vmap(Product.apply, (0, None))(x, y[0]),
    "vmap_in_chunks": lambda x, y: vmap(Product.apply, chunk_size=3)(x, y),
    "vmap_twice": lambda x, y: vmap(vmap(Product.apply))(x, y),
    "vmap_of_outer_product": lambda x, y: vmap(vmap(Product.apply, (None, 0)), (0, None))(x, y),
    "vmap_after_operators": lambda x, y: vmap(lambda a, b: Product.apply(a.sin(), b.t()).sum())(
        x.unsqueeze(2), y.unsqueeze(1)
    ),
    "vmap_skipped": lambda x, y: vmap(lambda a: Product.apply(y, y) + a)(x),
    "vmap_of_grad": lambda x, y: vmap(grad(lambda a, b: Product.apply(a, b).sum(), (0, 1)))(x, y),
    "grad_of_vmap": lambda x, y: grad(lambda a: vmap(Product.apply)(a, y).sum())(x),
    "vmap_of_hessian": lambda x, y: vmap(hessian(lambda a, b: Product.apply(a, b).sum()))(x, y),
    "jvp": lambda x, y: jvp(Product.apply, (x, y), (y, x)),
    "jvp_of_vmap": lambda x, y: jvp(vmap(Product.apply), (x, y), (y, x)),
    "vmap_of_jvp": lambda x, y: vmap(lambda a, b: jvp(Product.apply, (a, b), (b, a)))(x, y),
    "jacfwd": lambda x, y: jacfwd(lambda a: Product.apply(a, y[0]))(x[0]),
    "jacrev": lambda x, y: jacrev(lambda a: Product.apply(a, y[0]))(x[0]),
    "jacfwd_of_jacrev": lambda x, y: jacfwd(jacrev(lambda a: Product.apply(a, a).sum()))(x[0]),
    "jacfwd_of_jacfwd": lambda x, y: jacfwd(jacfwd(lambda a: Product.apply(a, y[0])))(x[0]),
    "vjp": lambda x, y: vjp(lambda a: Product.apply(a, y), x)[1](y),
    "pair": lambda x, y: vmap(lambda a: Pair.apply(a, 3, AT)[:2])(x),
    "pair_jvp": lambda x, y: jvp(lambda a: Pair.apply(a, 3, AT)[:2], (x,), (y,)),
    "pair_of_columns": lambda x, y: vmap(lambda a: Pair.apply(a, 3, AT)[:2], 1, 1)(x),
    "pair_grad": lambda x, y: vmap(grad(lambda a: Pair.apply(a, 3, AT)[1].sum()))(x),
    "generated": lambda x, y: vmap(Cubed.apply)(x),
    "generated_jvp": lambda x, y: jvp(Cubed.apply, (x,), (y,)),
    "generated_jacfwd": lambda x, y: vmap(jacfwd(lambda a: Cubed.apply(a)[0]))(x),
    "generated_hessian": lambda x, y: hessian(lambda a: Cubed.apply(a)[1].sum())(x[0]),
    "generated_jvp_of_vmap": lambda x, y: jvp(vmap(Cubed.apply), (x,), (y,)),
    "unmarked": lambda x, y: jvp(Unmarked.apply, (x,), (y,)),
    "unmarked_with_scale": lambda x, y: jvp(lambda a: Unmarked.apply(a, 0.3), (x,), (y,)),
    "rule_in_a_backward": lambda x, y: vmap(grad(lambda a: Outer.apply(a).sum()))(x),
    "rule_in_a_backward_outside": lambda x, y: vmap(Outer.apply)(x) + y,
}


def leaves(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def trained(function: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    x, y = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
    found = [leaf for leaf in leaves(function(x, y)) if leaf.requires_grad]
    total = sum(
        (leaf * torch.linspace(1, 2, leaf.numel()).view(leaf.shape)).sum() for leaf in found
    )
    return torch.autograd.grad(total, (x, y), allow_unused=True) if found else None


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_rules_are_called(name: str, dynamic: bool | None) -> None:
    function = PROGRAMS[name]
    compiled = flambeau.compile(function, fullgraph=True, dynamic=dynamic)
    for rows in (4, 5):
        x, y = torch.randn(rows, 3), torch.randn(rows, 3)
        want, found = function(x, y), compiled(x, y)
        assert pytree.tree_structure(want) == pytree.tree_structure(found)
        torch.testing.assert_close(leaves(found), leaves(want))
        theirs, ours = trained(function, x, y), trained(compiled, x, y)
        if theirs is None:
            assert ours is None
            continue
        for our, their in zip(ours, theirs, strict=True):
            assert (our is None) == (their is None)
            if their is not None:
                torch.testing.assert_close(our, their)


class Counting(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor) -> Any:
        Counting.calls += 1
        return x.cos(), in_dims[0]


def test_a_rule_with_side_effects_breaks() -> None:
    x = torch.randn(4, 3)

    def function(x: torch.Tensor) -> torch.Tensor:
        return vmap(Counting.apply)(x) * 2

    with pytest.raises(flambeau.CaptureError, match="changes objects that exist outside it"):
        flambeau.compile(function, fullgraph=True)(x)
    Counting.calls = 0
    torch.testing.assert_close(flambeau.compile(function)(x), x.cos() * 2)
    assert Counting.calls == 1


class NoPair(Product):
    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * y


class Both(Product):
    generate_vmap_rule = True


@pytest.mark.parametrize("cls", [NoPair, Both])
def test_wrong_rules_raise_as_eagerly(cls: type[torch.autograd.Function]) -> None:
    x = torch.randn(4, 3)

    def function(x: torch.Tensor) -> torch.Tensor:
        return vmap(cls.apply)(x, x)

    with pytest.raises(RuntimeError) as want:
        function(x)
    with pytest.raises(RuntimeError) as found:
        flambeau.compile(function)(x)
    assert str(found.value) == str(want.value)


def test_a_changed_rule_recompiles() -> None:
    class Changing(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x.sin()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: torch.Tensor) -> Any:
            return x * 2, in_dims[0]

    compiled = flambeau.compile(lambda x: vmap(Changing.apply)(x), fullgraph=True)
    x = torch.randn(4, 3)
    torch.testing.assert_close(compiled(x), x * 2)
    Changing.vmap = staticmethod(lambda info, in_dims, x: (x * 7, in_dims[0]))  # type: ignore[method-assign]
    torch.testing.assert_close(compiled(x), x * 7)
