"""Products of groups and of scaled float8 matrices: library calls in one graph, beside eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import flambeau
from flambeau.report import report_of
from tests.same import same

BF16, FLOAT8 = torch.bfloat16, torch.float8_e4m3fn
OFFSETS = torch.tensor([8, 8, 20, 32], dtype=torch.int32)

if not hasattr(F, "grouped_mm"):
    pytest.skip("this torch has no F.grouped_mm", allow_module_level=True)


def check(function, *inputs) -> None:
    compiled = flambeau.compile(function, fullgraph=True)
    for _ in range(2):
        ours = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        theirs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        try:
            expected = function(*theirs)
        except (RuntimeError, NotImplementedError) as error:
            pytest.skip(f"eager cannot: {error}")
        actual = compiled(*ours)
        same(actual, expected)
        if expected.requires_grad:
            expected.float().sum().backward()
            actual.float().sum().backward()
            same([x.grad for x in ours], [x.grad for x in theirs])
    (graph,) = report_of(compiled).graphs
    assert graph.fallback is None


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("left", "right", "cut"),
    [
        ((32, 16), (4, 16, 32), True),
        ((16, 32), (32, 16), True),
        ((4, 8, 16), (16, 32), True),
        ((4, 8, 16), (4, 16, 24), False),
    ],
)
def test_products_of_groups(left, right, cut, grad) -> None:
    x, y = (torch.randn(shape).to(BF16).requires_grad_(grad) for shape in (left, right))
    if cut:
        check(lambda x, y, offsets: F.grouped_mm(x, y, offs=offsets) * 2, x, y, OFFSETS)
    else:
        check(lambda x, y: F.grouped_mm(x, y) * 2, x, y)


def matrices():
    left = torch.randn(16, 32).to(FLOAT8)
    return left, torch.randn(64, 32).to(FLOAT8)


def scales(rows):
    return (torch.rand(16, 1), torch.rand(1, 64)) if rows else (torch.rand(()), torch.rand(()))


@pytest.mark.parametrize("rows", [False, True])
def test_scaled_products(rows) -> None:
    def function(x, y, a, b):
        return torch._scaled_mm(x, y.t(), a, b, out_dtype=BF16) + 1

    check(function, *matrices(), *scales(rows))


@pytest.mark.parametrize("rows", [False, True])
def test_scaled_products_by_recipe(rows) -> None:
    recipe = F.ScalingType.RowWise if rows else F.ScalingType.TensorWise

    def function(x, y, a, b):
        return F.scaled_mm(x, y.t(), a, recipe, b, recipe, output_dtype=BF16) + 1

    check(function, *matrices(), *scales(rows))


def test_a_mixture_of_experts() -> None:
    def function(x, gate, up, down):
        chance, expert = (x @ gate).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        offsets = F.one_hot(expert, 4).sum(0).cumsum(0).to(torch.int32)
        hidden = F.grouped_mm(x[order].to(BF16), up, offs=offsets).relu()
        y = F.grouped_mm(hidden, down, offs=offsets).float() * chance[order, None]
        return torch.zeros_like(x).index_copy(0, order, y)

    shapes = (
        ((32, 16), torch.float32),
        ((16, 4), torch.float32),
        ((4, 16, 32), BF16),
        ((4, 32, 16), BF16),
    )
    check(function, *(torch.randn(shape).to(dtype).requires_grad_() for shape, dtype in shapes))


@pytest.mark.parametrize(
    ("left", "right", "ends"),
    [
        ((8, 50), (4, 52, 64), (2, 4, 6, 8)),
        ((8, 52), (4, 52, 64), (2, 4, 8)),
        ((8, 52), (4, 52, 64), (2, 4, 6, 7, 8)),
        ((4, 8, 52), (52, 64), (16, 32, 64)),
        ((3, 8, 52), (4, 52, 64), None),
        ((4, 8, 52), (4, 50, 64), None),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_groups_that_do_not_fit_are_refused(left, right, ends, dynamic):
    x, w = torch.randn(left), torch.randn(right)
    offsets = None if ends is None else torch.tensor(ends, dtype=torch.int32)

    def program(x, w, offsets):
        return torch._grouped_mm(x, w, offs=offsets).relu()

    with pytest.raises(RuntimeError) as theirs:
        program(x, w, offsets)
    with pytest.raises(RuntimeError) as ours:
        flambeau.compile(program, dynamic=dynamic)(x, w, offsets)
    assert str(ours.value) == str(theirs.value)
