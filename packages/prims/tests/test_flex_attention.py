"""The operators of attention whose scores a function changes: shapes, values, gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from flambeau_prims.fake import FakeTensor
from flambeau_prims.flex_attention import (
    EAGER,
    dense_stride,
    flex_attend,
    flex_attend_parts,
    flex_scatter_add,
    flex_scores,
    values_of_scores,
)
from flambeau_prims.graph import Graph
from flambeau_prims.spec import spec_of
from flambeau_prims.tracer import Tracer

NO_BLOCKS = ([], [], 128, 128, "")


def attend(query: Any, key: Any, value: Any, slope: Any) -> Any:
    """Causal attention with a bias by distance."""
    i, j = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])
    scores = flex_scores(query, key, 0.5, *NO_BLOCKS)
    changed = torch.tanh(scores) + slope * (j - i)
    return flex_attend(changed, (i >= j).expand(scores.shape), query, value, *NO_BLOCKS)


def directly(query: Any, key: Any, value: Any, slope: Any) -> Any:
    i, j = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    changed = torch.tanh(query @ key.mT * 0.5) + slope * (j - i)
    changed = torch.where(i >= j, changed, -math.inf)
    return changed.softmax(-1) @ value, changed.logsumexp(-1) / math.log(2)


def inputs(kv_heads: int = 4) -> list[torch.Tensor]:
    shapes = [(2, 4, 9, 5), (2, kv_heads, 9, 5), (2, kv_heads, 9, 3), ()]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_values_and_gradients(kv_heads: int) -> None:
    args = inputs(kv_heads)
    got, want = attend(*args)[:2], directly(*args)
    weights = [torch.randn_like(one) for one in want]
    torch.testing.assert_close(got, want)
    ours, theirs = (torch.autograd.grad(results, args, weights) for results in (got, want))
    torch.testing.assert_close(ours, theirs)


def test_a_row_that_sees_nothing() -> None:
    query, key, value, _ = inputs()
    visible = (torch.arange(9)[:, None] > 3).expand(2, 4, 9, 9)
    scores = flex_scores(query, key, 0.5, *NO_BLOCKS)
    out, lse, most = flex_attend(scores, visible, query, value, *NO_BLOCKS)
    assert (out[:, :, :4] == 0).all() and not (out[:, :, 4:] == 0).any()
    assert (lse[:, :, :4] == -math.inf).all() and (most[:, :, :4] == -math.inf).all()
    gradients = torch.autograd.grad(out.sum(), (query, key, value))
    assert all(one.isfinite().all() for one in gradients)
    assert (gradients[0][:, :, :4] == 0).all()


def test_rules_agree_with_the_operators() -> None:
    args = [x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in inputs(2)[:3]]
    args.append(torch.tensor(0.25, dtype=torch.float64))
    tracer = Tracer()
    with tracer:
        fakes = [tracer.fake(spec_of(x), requires_grad=n < 3) for n, x in enumerate(args)]
        results = attend(*fakes)
        results = [*results, *torch.autograd.grad(results[0].sum(), fakes[:3])]
    real = attend(*[x.requires_grad_(n < 3) for n, x in enumerate(args)])
    real = [*real, *torch.autograd.grad(real[0].sum(), args[:3])]
    for fake, one in zip(results, real, strict=True):
        assert isinstance(fake, FakeTensor)
        assert (fake.shape, fake.dtype, fake.stride()) == (one.shape, one.dtype, one.stride())
    compilers = {flex_attend_parts, flex_scatter_add}
    assert {node.op for node in tracer.nodes} >= set(EAGER) - compilers


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((1, 4, 1, 16), (64, 16, 16, 1)),
        ((2, 1, 5, 8), (40, 40, 8, 1)),
        ((1, 4, 3, 16), (192, 16, 64, 1)),
        ((2, 1, 1, 16), (16, 16, 16, 1)),
    ],
)
def test_dense_strides_are_kept(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    assert dense_stride(shape, stride) == stride


def test_parts_of_keys_make_up_the_whole() -> None:
    query, key, value, _ = (one.detach() for one in inputs())
    scores = flex_scores(query, key, 0.5, *NO_BLOCKS)
    visible = (torch.arange(9) > 2).expand(scores.shape)
    out, lse, most = flex_attend(scores, visible, query, value, *NO_BLOCKS)
    outs, lses, mosts = flex_attend_parts(scores, visible, query, value, *NO_BLOCKS, 4)
    assert outs.shape == (4, *out.shape) and lses.shape == (4, *lse.shape)
    shares = torch.exp2(lses - lse)
    torch.testing.assert_close((outs * shares.unsqueeze(-1)).sum(0), out)
    torch.testing.assert_close(mosts.amax(0), most)


def test_scores_are_added_where_places_say() -> None:
    scores, into = torch.randn(1, 2, 3, 4), torch.randn(5, 2).mT
    places = torch.arange(4).expand(1, 2, 3, 4) + torch.arange(2).view(1, 2, 1, 1) * 5
    expected = into.clone(memory_format=torch.contiguous_format)
    expected[:, :4] += scores.sum((0, 2))
    got = flex_scatter_add(scores, places, into)
    torch.testing.assert_close(got, expected)
    assert got.is_contiguous()


def test_values_of_scores_are_those_between_the_operators() -> None:
    from flambeau_prims.decompose import decompose

    tracer = Tracer()
    with tracer:
        fakes = [tracer.fake(spec_of(x.detach())) for x in inputs()]
        out = attend(*fakes)[0]
    graph = decompose(Graph(list(tracer.inputs), tracer.nodes, [out.value]))
    found = values_of_scores(graph)
    by_op = {str(node.op): node.outputs[0] for node in graph.nodes}
    assert by_op["prims.tanh"] in found and by_op["prims.ge"] in found
    assert by_op["flambeau.flex_scores.default"] in found
    assert by_op["prims.iota"] not in found
    assert by_op["flambeau.flex_attend.default"] not in found
    assert values_of_scores(Graph(list(graph.inputs), graph.nodes[:1])) in (set(), found)
