"""Functionalization: mutating programs against eager, on tapes recorded from real tensors."""

from __future__ import annotations

import pytest
import torch
from tapes import evaluate, record

from flambeau_autograd.aliases import AliasMap
from flambeau_autograd.cse import merge_common_subexpressions
from flambeau_autograd.dce import drop_dead_calls
from flambeau_autograd.fold_identities import fold_identities
from flambeau_autograd.functionalize import functionalize
from flambeau_prims.rules.registry import is_mutating


def slice_assignment(x):
    y = x.clone()
    y[1:3, ::2] = 7
    y[0] += 1
    return y


def write_through_view_chain(x):
    y = x * 2
    z = y.t()[1:].unsqueeze(0)
    z.mul_(3)
    return y, z.sum()


def sibling_views_see_a_write(x):
    y = (x + 0).contiguous()
    a, b = y[:2], y.view(-1)
    a.add_(5)
    return b * 2, a


def copies_after_a_write(x):
    """`slice_scatter` keeps gaps, `clone` of one row the strides of dims of size 1."""
    x.mul_(2)
    one = x[:, 1:2]
    one.add_(1)
    scattered = torch.slice_scatter(x, torch.zeros_like(x[:1]), 0, 0, 1)
    return scattered, torch.select_scatter(x, x[0] + 1, 0, 1), x.clone(), x[:1].clone(), one.flip(0)


def input_is_written(x):
    x.mul_(2)
    x[1].fill_(-1)
    return x.sum()


def input_view_is_written(x):
    x.t().select(0, 2).zero_()
    return x + 1


def copy_casts_and_expands(x):
    y = torch.zeros(x.shape, dtype=torch.float64)
    y.copy_(x[0].half())
    return y


def copy_keeps_the_layout(x):
    y = torch.empty_strided((4, 6), (1, 4))
    y.copy_(x)
    return y, y * 2


def promoted_result_is_cast_back(x):
    y = x.bfloat16()
    y += x
    return y


def split_and_unbind(x):
    y = x.clone()
    a, b = y.split(3, dim=1)
    b.sub_(a)
    first, *_ = y.unbind(0)
    first.neg_()
    return y


def index_put_and_scatter(x):
    y = x.clone()
    y[torch.tensor([0, 2]), torch.tensor([1, 1])] = 9.0
    y.scatter_(1, torch.tensor([[0], [1], [2], [3]]), 4.0)
    y.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 6))
    y.masked_fill_(y > 4, 0.5)
    return y


def diagonal_is_written(x):
    y = x.clone()
    y.diagonal(1).fill_(3)
    return y


def as_strided_is_written(x):
    y = x.clone()
    y[1:].as_strided((3,), (7,), 2).add_(10)
    return y


def gapped_view_is_returned(x):
    y = torch.zeros(4, 12)
    z = y[:, ::2]
    z.add_(x)
    return z, z.reshape(-1)


def out_variant(x):
    y = torch.empty(4, 6)
    torch.add(x, 1, out=y)
    return y


def chained_inplace(x):
    return x.clone().add_(1).mul_(2).sigmoid_().clamp_(0.5, 0.9)


def expand_read_after_write(x):
    y = x[:1].clone()
    e = y.expand(3, 6)
    y.add_(1)
    return e.sum(0)


def batch_norm_statistics(x):
    mean, var = torch.zeros(6), torch.ones(6)
    y = torch.nn.functional.batch_norm(x, mean, var, training=True)
    return y, mean, var


def foreach_inplace(x):
    a, b = x.clone(), x.clone() + 1
    torch._foreach_add_([a, b], 2.0)
    torch._foreach_mul_([a, b], [b.clone(), a.clone()])
    return a, b


def dead_write_is_dropped(x):
    y = torch.empty_like(x)
    y.copy_(x)
    y.zero_()
    return y + x


PROGRAMS = [
    slice_assignment,
    write_through_view_chain,
    sibling_views_see_a_write,
    input_is_written,
    input_view_is_written,
    copy_casts_and_expands,
    copy_keeps_the_layout,
    promoted_result_is_cast_back,
    split_and_unbind,
    index_put_and_scatter,
    diagonal_is_written,
    as_strided_is_written,
    gapped_view_is_returned,
    copies_after_a_write,
    out_variant,
    chained_inplace,
    expand_read_after_write,
    batch_norm_statistics,
    foreach_inplace,
    dead_write_is_dropped,
]

LAYOUTS = {
    "contiguous": lambda: torch.randn(4, 6),
    "transposed": lambda: torch.randn(6, 4).t(),
    "gapped": lambda: torch.randn(8, 12)[1::2, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_equals_eager(program, layout):
    torch.manual_seed(0)
    x = LAYOUTS[layout]()
    tape, constants = record(program, _same_layout(x))
    aliases = AliasMap(tape.inputs)
    aliases.extend(tape.nodes)
    graph = functionalize(tape, aliases)
    assert not any(is_mutating(node.op) for node in graph.nodes)
    _compare(program, graph, constants, x)
    for step in (merge_common_subexpressions, fold_identities, drop_dead_calls):
        step(graph)
        _compare(program, graph, constants, x)


def _compare(program, graph, constants, x):
    mine, theirs = _same_layout(x), _same_layout(x)
    expected = program(theirs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for out, want in zip(evaluate(graph, [mine, *constants]), expected, strict=True):
        torch.testing.assert_close(out, want, rtol=0, atol=0)
        assert out.stride() == want.stride()
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def _same_layout(x):
    """A copy of x with its strides and offset."""
    storage = torch.empty(x.untyped_storage().nbytes() // 4)
    copy = storage.as_strided(x.shape, x.stride(), x.storage_offset())
    return copy.copy_(x)


@pytest.mark.parametrize(
    "layout", [lambda: torch.randn(5, 7), lambda: torch.randn(7, 5).t()], ids=["rows", "columns"]
)
def test_random_calls_keep_their_order(layout):
    def program(x):
        a = torch.empty_like(x).bernoulli_(0.5)
        b = torch.empty_like(x).uniform_()
        c = torch.empty_like(x).normal_()
        torch.empty_like(x).exponential_()
        d = torch.empty_like(x).bernoulli_(torch.full_like(x[0], 0.4))
        return a + b * x + c + d * 3 + torch.rand_like(x)

    x = layout()
    tape, constants = record(program, x)
    aliases = AliasMap(tape.inputs)
    aliases.extend(tape.nodes)
    graph = drop_dead_calls(merge_common_subexpressions(functionalize(tape, aliases)))
    torch.manual_seed(3)
    expected = program(x), torch.rand(1)
    torch.manual_seed(3)
    (mine,) = evaluate(graph, [x, *constants])
    assert torch.equal(mine, expected[0])
    assert torch.equal(torch.rand(1), expected[1]), "a dead draw was dropped"
