"""Functions that torch.jit has scripted or traced, called in compiled functions, beside eager."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.func import grad, vmap

import flambeau
from flambeau.report import report_of
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FACTOR = torch.full((3,), 3.0)


def _affine(x: torch.Tensor, w: torch.Tensor, n: int = 2, s: float = 1.5):  # type: ignore[no-untyped-def]
    for _ in range(n):
        x = torch.relu(x * w) + s
    return x, [x * 2]


def _sizes(x: torch.Tensor):  # type: ignore[no-untyped-def]
    return x.reshape(x.size(0) * x.size(1)) * x.numel(), x.shape[0]


def _write(x: torch.Tensor, y: torch.Tensor):  # type: ignore[no-untyped-def]
    y.add_(x * 2)
    return y.sum(), x[1:]


def _limited(x: torch.Tensor):  # type: ignore[no-untyped-def]
    if x.size(0) > 4:
        raise ValueError("too long")
    return x.sin() + 1


def _branching(x: torch.Tensor):  # type: ignore[no-untyped-def]
    if bool(x.sum() > 0):
        x = x + 1
    return x * 2


def _drawing(x: torch.Tensor):  # type: ignore[no-untyped-def]
    return x.sin() + torch.rand_like(x)


def _total(x: torch.Tensor):  # type: ignore[no-untyped-def]
    return (x.sin() * 2).sum()


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    AFFINE, SIZES, WRITE, LIMITED, BRANCHING, DRAWING, TOTAL = map(
        torch.jit.script, (_affine, _sizes, _write, _limited, _branching, _drawing, _total)
    )
    TRACED = torch.jit.trace(lambda x: (x * FACTOR).cos(), torch.ones(3))


def of(*shapes: tuple[int, ...], needs_grad: bool = True) -> Callable[[], Any]:
    return lambda: tuple(torch.randn(shape, requires_grad=needs_grad) for shape in shapes)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[Callable[[], Any]]]] = {
    "scripted": (lambda x, w: AFFINE(x.sin(), w), [of((n, 3), (3,)) for n in (2, 4, 5)]),
    "keywords": (
        lambda x, w: AFFINE(x, s=2.0, n=x.shape[0], w=w)[0].exp(), [of((2,), (2,)), of((3,), (3,))],
    ),
    "traced": (lambda x: TRACED(x) * 2, [of((n, 3)) for n in (2, 4, 5)]),
    "sizes": (lambda x: SIZES(x + 1), [of((3, 2)), of((4, 2)), of((5, 2)), of((5, 3))]),
    "writes": (lambda x, y: (WRITE(x, y), y.sum()), [of((3,), (3,), needs_grad=False)] * 2),
    "raises": (lambda x: LIMITED(x), [of((3,)), of((5,)), of((4,))]),
    "wrong argument": (lambda x: AFFINE(x, x, "two"), [of((3,))]),
    "vmap": (lambda x: vmap(TOTAL)(x), [of((3, 2))]),
    "grad": (lambda x: grad(TOTAL)(x), [of((3, 2))]),
}  # fmt: skip


def outcome(program: Callable[..., Any], inputs: Any) -> Any:
    inputs = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in inputs)
    try:
        results = program(*inputs)
    except Exception as error:
        return [type(error)]
    leaves = [x for x in torch.utils._pytree.tree_leaves(results) if isinstance(x, torch.Tensor)]
    needed = [x.sum() for x in leaves if x.requires_grad]
    if needed:
        sum(needed[1:], needed[0]).backward()
    return [results, inputs, [x.grad for x in inputs]]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_one_graph(name: str, dynamic: bool | None) -> None:
    program, makers = PROGRAMS[name]
    compiled = flambeau.compile(program, fullgraph=True, dynamic=dynamic)
    for make in makers:
        inputs = make()
        same(outcome(compiled, inputs), outcome(program, inputs), tolerance=1e-5)
    assert all(graph.fallback is None for graph in report_of(compiled).graphs)


def test_a_branch_on_data_breaks_the_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return BRANCHING(x.sin()).cos()  # type: ignore[no-any-return]

    compiled = flambeau.compile(program)
    for sign in (1, -1, 1):
        x = sign * torch.rand(3)
        same(compiled(x), program(x), tolerance=1e-5)
    (found,) = flambeau.explain(compiled).breaks
    assert "_branching" in str(found)


def test_another_function_is_another_entry() -> None:
    compiled = flambeau.compile(lambda x, function: function(x) + 1, fullgraph=True)
    x = torch.randn(2, 3)
    for function in (TRACED, TOTAL, LIMITED, TRACED):
        same(compiled(x, function), function(x) + 1, tolerance=1e-5)
    assert len(report_of(compiled).graphs) == 3


def test_a_function_that_draws_runs_apart() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return DRAWING(x.cos()).exp() * 2  # type: ignore[no-any-return]

    compiled = flambeau.compile(program, fullgraph=True)
    for _ in range(3):  # it has been compiled by then
        program(torch.randn(3))
    x = torch.randn(3)
    state = torch.get_rng_state()
    want = program(x)
    torch.set_rng_state(state)
    same(compiled(x), want, tolerance=1e-5)


def test_tensors_in_a_traced_function_are_read_in_each_call() -> None:
    compiled = flambeau.compile(lambda x: TRACED(x) + 1, fullgraph=True)
    x = torch.randn(3)
    same(compiled(x), TRACED(x) + 1, tolerance=1e-5)
    FACTOR.add_(1)
    same(compiled(x), TRACED(x) + 1, tolerance=1e-5)
