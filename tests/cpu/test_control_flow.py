"""torch.cond, torch.while_loop, scan, map and associative_scan, captured whole, beside eager.

Inside function transforms, the reference is the same program in Python, since eager's operators
refuse some of these.
Such a case is written once, for a namespace of the operators.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_rows
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils import _pytree as pytree

import flambeau
from flambeau.report import report_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TORCH = SimpleNamespace(cond=torch.cond, while_loop=while_loop, scan=scan, map=map_rows)


def _cond(predicate: Any, yes: Any, no: Any, operands: Any) -> Any:
    return yes(*operands) if bool(predicate) else no(*operands)


def _while_loop(test: Any, body: Any, carried: Any) -> Any:
    while bool(test(*carried)):
        carried = body(*carried)
    return carried


def _scan(combine: Any, carry: Any, xs: torch.Tensor) -> Any:
    rows = []
    for x in xs.unbind(0):
        carry, row = combine(carry, x)
        rows.append(row)
    return carry, torch.stack(rows)


def _map(function: Any, xs: torch.Tensor) -> torch.Tensor:
    return torch.stack([function(x) for x in xs.unbind(0)])


PYTHON = SimpleNamespace(cond=_cond, while_loop=_while_loop, scan=_scan, map=_map)


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    """Gradients through long recurrences amplify the rounding of float32 on some machines."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def of(*shapes: tuple[int, ...], needs_grad: bool = True) -> Callable[[], Any]:
    return lambda: tuple(torch.randn(shape, requires_grad=needs_grad) for shape in shapes)


def _run(function: Callable[..., Any], inputs: Any) -> tuple[Any, list[Any]]:
    result = function(*inputs)
    leaves = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    total = sum(
        (x * torch.linspace(1, 2, x.numel(), dtype=x.dtype).view(x.shape)).sum()
        for x in leaves
        if x.requires_grad
    )
    wanted = [x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    if not isinstance(total, torch.Tensor):
        return result, []
    wanted = [x for x in wanted if x.requires_grad]
    return result, list(torch.autograd.grad(total, wanted, allow_unused=True))


def _same(got: Any, want: Any) -> None:
    got_leaves, got_structure = pytree.tree_flatten(got)
    want_leaves, want_structure = pytree.tree_flatten(want)
    assert got_structure == want_structure
    for ours, theirs in zip(got_leaves, want_leaves, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs
            continue
        assert ours.requires_grad == theirs.requires_grad
        torch.testing.assert_close(ours, theirs, check_stride=True)


def check(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    makers: Any,
    *,
    dynamic: bool | None,
    graphs: int | None = None,
) -> None:
    """Compile whole, and compare results, what requires grad, strides and gradients."""
    compiled = flambeau.compile(function, fullgraph=True, dynamic=dynamic)
    for make in makers:
        inputs = make()
        want, want_gradients = _run(reference, inputs)
        got, gradients = _run(compiled, inputs)
        _same(got, want)
        _same(gradients, want_gradients)
    found = report_of(compiled).graphs
    assert all(graph.fallback is None for graph in found)
    assert not flambeau.explain(compiled).breaks
    if graphs is not None:
        assert len(found) == graphs


# ---------------------------------------------------------------- beside eager's operators


def _recurrent(state: torch.Tensor, xs: torch.Tensor, w: torch.Tensor) -> Any:
    def combine(c: torch.Tensor, x: torch.Tensor) -> Any:
        y = torch.tanh(c @ w + x)
        return y, y * 2

    return scan(combine, state * 2, xs, dim=1)


def _reversed_tree(init: Any, xs: Any) -> Any:
    def combine(c: Any, x: Any) -> Any:
        h, k = c["h"] * 0.5 + x["a"], c["k"] + x["b"].sum()
        return {"h": h, "k": k}, (h.clone(), [k * 2])

    return scan(combine, init, xs, reverse=True)


def _trees(length: int) -> Callable[[], Any]:
    def make() -> Any:
        h, k, a, b = of((3,), (2,), (length, 3), (length, 2))()
        return {"h": h, "k": k}, {"a": a, "b": b}

    return make


CELL = nn.GRUCell(3, 4, dtype=torch.float64)


def _module(xs: torch.Tensor, state: torch.Tensor) -> Any:
    def combine(c: torch.Tensor, x: torch.Tensor) -> Any:
        after = CELL(x, c)
        return after, after.clone()

    return scan(combine, state, xs)


def _mapped_tree(xs: Any, w: torch.Tensor) -> Any:
    return map_rows(lambda x: {"o": x["a"] * w, "p": [x["b"].sum()]}, xs)


def _tree_and_weight(length: int) -> Callable[[], Any]:
    def make() -> Any:
        a, b, w = of((length, 3), (length, 2), (3,))()
        return {"a": a, "b": b}, w

    return make


def _unread(x: torch.Tensor, w: torch.Tensor) -> Any:
    """A branch reads neither operand, the other one: gradients are zeros, results require grad."""
    return torch.cond(x.sum() > 0, lambda x, w: x * 2, lambda x, w: torch.ones(3), (x, w))


def _within(x: torch.Tensor, w: torch.Tensor) -> Any:
    return map_rows(
        lambda row: scan(lambda c, y: (c * w + y, c.clone()), torch.zeros(()), row)[0], x
    )


def _affine(a: torch.Tensor, b: torch.Tensor, dim: int = 0) -> Any:
    def combine(x: Any, y: Any) -> Any:
        return x[0] * y[0], x[1] * y[0] + y[1]

    return associative_scan(combine, (a, b), dim, combine_mode="generic")


def _counted_in_python(x: torch.Tensor) -> Any:
    return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x + 1), (0, x))


def _signs(shape: tuple[int, ...]) -> list[Callable[[], Any]]:
    return [
        lambda sign=sign: (
            (sign * torch.rand(*shape)).requires_grad_(),
            torch.rand(*shape, requires_grad=True),
        )
        for sign in (1, -1)
    ]


OPERATORS: dict[str, tuple[Callable[..., Any], list[Callable[[], Any]]]] = {
    "scan": (_recurrent, [of((2, 3), (2, n, 3), (3, 3)) for n in (5, 1, 6, 7)]),
    "scan without gradients": (
        _recurrent, [of((2, 3), (2, n, 3), (3, 3), needs_grad=False) for n in (5, 6)],
    ),
    "scan of a tree, reversed": (_reversed_tree, [_trees(4), _trees(5)]),
    "scan of a module": (_module, [of((6, 2, 3), (2, 4)), of((5, 2, 3), (2, 4))]),
    "map": (
        lambda xs, w: map_rows(lambda x, w: (x @ w).sin(), xs, w),
        [of((n, 3), (3, 2)) for n in (5, 1, 7)],
    ),
    "map of a tree": (_mapped_tree, [_tree_and_weight(5), _tree_and_weight(6)]),
    "scan in map": (_within, [of((4, 5), ()), of((3, 5), ())]),
    "associative scan": (_affine, [of((n, 3), (n, 3)) for n in (5, 8, 1)]),
    "associative scan along a middle dim": (
        lambda a, b: _affine(a, b, 2),
        [of((2, 5, n, 3), (2, 5, n, 3)) for n in (16, 24, 12)],
    ),
    "cond that reads one operand": (_unread, _signs((3,))),
    "loop that counts in Python": (_counted_in_python, [of((2, 3), needs_grad=False)]),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str, dynamic: bool | None) -> None:
    function, makers = OPERATORS[name]
    check(function, function, makers, dynamic=dynamic)


def test_a_scan_of_any_length_is_compiled_once() -> None:
    makers = [of((2, 3), (2, n, 3), (3, 3)) for n in (5, 9, 30)]
    check(_recurrent, _recurrent, makers, dynamic=True, graphs=1)


def test_a_carry_of_another_shape_is_refused() -> None:
    def grows(c: torch.Tensor, xs: torch.Tensor) -> Any:
        return scan(lambda c, x: (torch.cat([c, c]), x * 1), c, xs)

    with pytest.raises(flambeau.CaptureError, match="returns other shapes or dtypes"):
        flambeau.compile(grows, fullgraph=True)(*of((3,), (2, 3))())


# ---------------------------------------------------------------- in function transforms


def _sine_or_cosine(ops: Any, x: torch.Tensor) -> torch.Tensor:
    return ops.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))  # type: ignore[no-any-return]


def _three_times(ops: Any, x: torch.Tensor) -> torch.Tensor:
    start = torch.tensor(0)
    step = lambda i, x: (i + 1, x.sin() * 2)  # noqa: E731
    return ops.while_loop(lambda i, x: i < 3, step, (start, x))[1]  # type: ignore[no-any-return]


def _running(ops: Any, x: torch.Tensor, w: torch.Tensor | float = 1.0) -> Any:
    return ops.scan(lambda c, y: ((c * w + y).tanh(), c * y), torch.zeros(x.shape[1]), x)


def _functional(ops: Any) -> Callable[..., Any]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ops.scan(lambda c, y: (self.inner(c) + y, c * 1), x[0] * 0, x)[0]  # type: ignore[no-any-return]

    model = Model()

    def loss(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, {"inner.weight": w, "inner.bias": b}, (x,)).sum()

    return grad(loss)


def _nested(ops: Any) -> Callable[..., Any]:
    def outer(c: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> Any:
        inner = ops.scan(lambda d, z: ((d * w + z).tanh(), d * 1), c, y)[1]
        return (c + inner.sum(0)).tanh(), c * 1

    return lambda x, w: ops.scan(lambda c, y: outer(c, w, y), torch.zeros(2), x)


TRANSFORMED: dict[str, tuple[Any, list[tuple[tuple[int, ...], ...]]]] = {
    "grad of cond": (
        lambda ops: lambda x: grad(lambda x: _sine_or_cosine(ops, x).sum())(x),
        [((3,),), ((4,),), ((4,),)],
    ),
    "jvp of cond": (
        lambda ops: lambda x, v: jvp(lambda x: _sine_or_cosine(ops, x), (x,), (v,)),
        [((3,), (3,)), ((4,), (4,))],
    ),
    "grad of loop": (
        lambda ops: lambda x: grad(lambda x: _three_times(ops, x).sum())(x), [((3,),), ((4,),)],
    ),
    "vjp of loop": (
        lambda ops: lambda x, v: vjp(lambda x: _three_times(ops, x), x)[1](v), [((3,), (3,))],
    ),
    "vmap of loop": (lambda ops: vmap(lambda x: _three_times(ops, x)), [((3, 4),), ((5, 4),)]),
    "grad of scan": (
        lambda ops: lambda x, w: grad(lambda w: _running(ops, x, w)[0].sum())(w),
        [((3, 4), (4,)), ((5, 4), (4,))],
    ),
    "jacrev of scan": (lambda ops: jacrev(lambda x: _running(ops, x)[1]), [((3, 2),)]),
    "jacfwd of scan": (lambda ops: jacfwd(lambda x: _running(ops, x)[1]), [((3, 2),)]),
    "vmap of scan": (lambda ops: vmap(lambda x: _running(ops, x)), [((3, 2, 4),), ((5, 2, 4),)]),
    "vmap of map": (
        lambda ops: vmap(lambda x: ops.map(lambda y: y.sin().sum(), x)), [((3, 2, 4),)],
    ),
    "hessian of map": (
        lambda ops: hessian(lambda x: ops.map(lambda y: (y**3).sum(), x).sum()), [((2, 2),)],
    ),
    "functional_call of scan": (_functional, [((3, 3), (3,), (4, 3))]),
    "cond of grad": (
        lambda ops: lambda x: ops.cond(
            x.sum() > 0, lambda x: grad(lambda x: x.sin().sum())(x), lambda x: x * 1, (x,)
        ),
        [((3,),), ((3,),), ((4,),)],
    ),
    "scan of vmap": (
        lambda ops: lambda x: ops.scan(lambda c, y: (c + vmap(torch.sin)(y), c * 1), x[0] * 0, x),
        [((3, 4),)],
    ),
    "map of cond": (
        lambda ops: lambda x: ops.map(lambda y: _sine_or_cosine(ops, y), x), [((6, 2),), ((7, 2),)],
    ),
    "scan of scan": (_nested, [((3, 4, 2), (2,)), ((5, 4, 2), (2,))]),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_in_transforms(name: str, dynamic: bool | None) -> None:
    build, shapes = TRANSFORMED[name]
    makers = [of(*each, needs_grad=False) for each in shapes]
    function = build(TORCH)
    check(lambda *args: function(*args), build(PYTHON), makers, dynamic=dynamic)


def test_each_row_of_a_vmap_chooses_and_ends_for_itself() -> None:
    def program(n: torch.Tensor, x: torch.Tensor) -> Any:
        def row(n: torch.Tensor, x: torch.Tensor) -> Any:
            chosen = torch.cond(n > 2, lambda x: x.sin(), lambda x: x * 3, (x,))
            return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (n, chosen))

        return vmap(row)(n, x)

    compiled = flambeau.compile(program, fullgraph=True)
    n, x = torch.tensor([0, 1, 5]), torch.randn(3, 2)
    counts, values = compiled(n, x)
    assert counts.tolist() == [3, 3, 5]
    torch.testing.assert_close(values, torch.stack([x[0] * 24, x[1] * 12, x[2].sin()]))
