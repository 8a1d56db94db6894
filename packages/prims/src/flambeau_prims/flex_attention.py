"""Attention whose scores a function changes, in operators on all of its scores.

    scores  = flex_scores(q, k, scale, ...)                        q k^T * scale
    changed = any pointwise operators on scores and positions
    out, lse, most = flex_attend(changed, visible, q, v, ...)      softmax where visible, times v

Backward, with `slopes` differentiated through the same pointwise operators:

    slopes  = flex_slopes(changed, visible, lse, delta, dout, v)   p * (dout v^T - delta)
    dv      = flex_value_gradient(changed, visible, lse, dout, v, ...)
    dq, dk  = flex_query_gradient(slopes, k, q, ...), flex_key_gradient(slopes, q, k, ...)

The gradient of a tensor that the function reads at `places`, flat, is a scatter; a compiler puts
it in place of a sum or an `index_put` of scores:

    dbias = flex_scatter_add(slopes, places, zeros)

Scores are (B, Hq, L, S) in float32 (float64 for float64), -inf where not `visible`; `lse` and
`most` are to the base 2. A compiler that computes the operators together never stores a tensor of
that shape; called on real tensors, each computes its result in plain eager PyTorch.

`rows` and `columns` hold the tensors of a BlockMask by blocks of queries and of keys: counts and
indices of the partial blocks, then of the full ones, if there are such; empty for no BlockMask.
Blocks that they do not list may be taken for invisible. `options` are the program's
`kernel_options`, for a compiler that makes kernels: "BLOCK_M=64;num_warps=8".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import hint_of
from flambeau_prims.spec import Spec
from flambeau_prims.strides import dense_stride, outermost_first

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from flambeau_prims.graph import Graph, Node, Value

_BLOCKS = "Tensor[] rows, Tensor[] columns, int query_block, int key_block, str options"

_LIBRARY = torch.library.Library("flambeau", "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMAS = f"""
flex_scores(Tensor query, Tensor key, float scale, {_BLOCKS}) -> Tensor
flex_attend(Tensor scores, Tensor visible, Tensor query, Tensor value, {_BLOCKS}) \
-> (Tensor, Tensor, Tensor)
flex_attend_parts(Tensor scores, Tensor visible, Tensor query, Tensor value, {_BLOCKS}, \
int parts) -> (Tensor, Tensor, Tensor)
flex_slopes(Tensor scores, Tensor visible, Tensor lse, Tensor delta, Tensor dout, Tensor value) \
-> Tensor
flex_value_gradient(Tensor scores, Tensor visible, Tensor lse, Tensor dout, Tensor value, \
{_BLOCKS}) -> Tensor
flex_query_gradient(Tensor slopes, Tensor key, Tensor query, float scale, {_BLOCKS}) -> Tensor
flex_key_gradient(Tensor slopes, Tensor query, Tensor key, float scale, {_BLOCKS}) -> Tensor
flex_scatter_add(Tensor scores, Tensor places, Tensor into) -> Tensor
"""
for _schema in _SCHEMAS.split("\n")[1:-1]:
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]

flex_scores = torch.ops.flambeau.flex_scores.default
flex_attend = torch.ops.flambeau.flex_attend.default
flex_attend_parts = torch.ops.flambeau.flex_attend_parts.default
"""`flex_attend` over parts of the keys: its results in the scores' dtype, with a leading dim."""
flex_slopes = torch.ops.flambeau.flex_slopes.default
flex_value_gradient = torch.ops.flambeau.flex_value_gradient.default
flex_query_gradient = torch.ops.flambeau.flex_query_gradient.default
flex_key_gradient = torch.ops.flambeau.flex_key_gradient.default
flex_scatter_add = torch.ops.flambeau.flex_scatter_add.default
"""`into`, contiguous, with each score added at its place in memory."""

SCORES_OF = frozenset({flex_scores, flex_slopes})
"""The operators whose results are tensors of scores."""
READERS = {
    flex_attend: (0, 1), flex_attend_parts: (0, 1), flex_slopes: (0, 1),
    flex_value_gradient: (0, 1), flex_query_gradient: (0,), flex_key_gradient: (0,),
    flex_scatter_add: (0, 1),
}  # fmt: skip
"""The operators that read tensors of scores, with the positions of those arguments."""


def blocks_of(call: Node) -> Sequence[Any]:
    """The arguments of a call that say which blocks are computed: `rows`, `columns`, the sizes of
    a block, `options`.
    """
    start = next(at for at, arg in enumerate(call.args) if isinstance(arg, (list, tuple)))
    return call.args[start : start + 5]


def precise(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the scores of queries of a dtype."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def values_of_scores(graph: Graph) -> set[Value]:
    """The Values with an element for each score, or each pair of positions, that lie between the
    operators: computed from scores by primitives, or for a reader of scores from positions.
    """
    result: set[Value] = set()
    if not any(node.op in EAGER for node in graph.nodes):
        return result
    for node in graph.nodes:
        if node.op in SCORES_OF or (
            isinstance(node.op, Prim) and any(value in result for value in node.operands())
        ):
            result.update(out for out in node.outputs if out is not None)
    visited: set[Value] = set()
    for node in graph.nodes:
        for position in READERS.get(node.op, ()):
            scores = node.args[position]
            pairs = hint_of(scores.spec.shape[-1]) * hint_of(scores.spec.shape[-2])
            pending = [scores]
            while pending:
                value = pending.pop()
                producer = value.producer
                if (
                    value not in visited
                    and producer is not None
                    and isinstance(producer.op, Prim)
                    and producer.op.kind in _BY_ELEMENT
                    and hint_of(value.spec.numel) >= pairs
                ):
                    visited.add(value)
                    pending += producer.operands()
    result |= visited
    return result


_BY_ELEMENT = frozenset((Kind.POINTWISE, Kind.VIEW, Kind.INDEX, Kind.FACTORY, Kind.LAYOUT))


# 1. On real tensors


def _scores(query: Tensor, key: Tensor, scale: float, *_: Any) -> Tensor:
    wide = precise(query.dtype)
    return query.to(wide) @ _for_each_head(key, query).to(wide).mT * scale


def _hidden(scores: Tensor, visible: Tensor) -> Tensor:
    return torch.where(visible, scores, -math.inf)


def _attend(scores: Tensor, visible: Tensor, query: Tensor, value: Tensor, *_: Any) -> Any:
    scores = _hidden(scores, visible)
    most = scores.amax(-1)
    unseen = most == -math.inf
    lse = torch.where(unseen, -math.inf, scores.logsumexp(-1))
    weights = torch.where(unseen.unsqueeze(-1), 0.0, scores.softmax(-1)).to(query.dtype)
    out = weights @ _for_each_head(value, query).to(query.dtype)
    return _laid_out_as(out, query), lse / math.log(2), most / math.log(2)


def _attend_parts(scores: Tensor, visible: Tensor, query: Tensor, value: Tensor, *rest: Any) -> Any:
    parts, keys = rest[-1], scores.shape[-1]
    number = torch.arange(keys, device=scores.device) * parts // max(1, keys)
    each = [
        _attend(scores, visible & (number == part), query.to(scores.dtype), value)
        for part in range(parts)
    ]
    return tuple(torch.stack(results).contiguous() for results in zip(*each, strict=True))


def _weights(scores: Tensor, visible: Tensor, lse: Tensor) -> Tensor:
    natural = torch.where(lse == -math.inf, 0.0, lse * math.log(2))
    return torch.exp(_hidden(scores, visible) - natural.unsqueeze(-1))


def _slopes(
    scores: Tensor, visible: Tensor, lse: Tensor, delta: Tensor, dout: Tensor, value: Tensor
) -> Tensor:
    change = dout.to(scores.dtype) @ _for_each_head(value, dout).to(scores.dtype).mT
    return _weights(scores, visible, lse) * (change - delta.unsqueeze(-1))


def _value_gradient(
    scores: Tensor, visible: Tensor, lse: Tensor, dout: Tensor, value: Tensor, *_: Any
) -> Tensor:
    gradient = _weights(scores, visible, lse).to(dout.dtype).mT @ dout
    return _laid_out_as(_of_each_group(gradient, value), value)


def _query_gradient(slopes: Tensor, key: Tensor, query: Tensor, scale: float, *_: Any) -> Tensor:
    gradient = (slopes * scale).to(query.dtype) @ _for_each_head(key, query)
    return _laid_out_as(gradient, query)


def _key_gradient(slopes: Tensor, query: Tensor, key: Tensor, scale: float, *_: Any) -> Tensor:
    gradient = (slopes * scale).to(query.dtype).mT @ query
    return _laid_out_as(_of_each_group(gradient, key), key)


def _scatter_add(scores: Tensor, places: Tensor, into: Tensor) -> Tensor:
    flat = into.reshape(-1)
    return flat.index_put((places.reshape(-1),), scores.reshape(-1), True).view(into.shape)


def _for_each_head(x: Tensor, query: Tensor) -> Tensor:
    x = x.repeat_interleave(query.shape[1] // x.shape[1], 1)
    return x.expand(query.shape[0], *x.shape[1:])


def _of_each_group(gradient: Tensor, like: Tensor) -> Tensor:
    """Summed over the heads, and over the batches, that share one of `like`."""
    groups = gradient.unflatten(1, (like.shape[1], -1)).sum(2)
    return groups.sum_to_size(like.shape).to(like.dtype)


def _laid_out_as(x: Tensor, like: Tensor) -> Tensor:
    order = outermost_first(like.stride())
    dense = x.permute(order).clone(memory_format=torch.contiguous_format)
    return dense.permute([order.index(dim) for dim in range(x.ndim)])


EAGER: dict[Any, Callable[..., Any]] = {
    flex_scores: _scores, flex_attend: _attend, flex_attend_parts: _attend_parts,
    flex_slopes: _slopes,
    flex_value_gradient: _value_gradient, flex_query_gradient: _query_gradient,
    flex_key_gradient: _key_gradient, flex_scatter_add: _scatter_add,
}  # fmt: skip
"""What each operator computes, in functional torch."""
for _op, _function in EAGER.items():
    _LIBRARY.impl(_op._schema.name.partition("::")[2], _function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


# 2. Shapes


@rule(flex_scores)
def _scores_rule(query: Spec, key: Spec) -> Spec:
    batch, heads, length, _ = query.shape
    return query.fresh((batch, heads, length, key.shape[2]), dtype=precise(query.dtype))


@rule(flex_attend)
def _attend_rule(scores: Spec, query: Spec, value: Spec) -> tuple[Spec, Spec, Spec]:
    shape = (*query.shape[:3], value.shape[3])
    row = scores.fresh(query.shape[:3])
    return query.fresh(shape, dense_stride(shape, query.stride)), row, row


@rule(flex_attend_parts)
def _attend_parts_rule(
    scores: Spec, query: Spec, value: Spec, parts: int
) -> tuple[Spec, Spec, Spec]:
    shape = (parts, *query.shape[:3])
    row = scores.fresh(shape)
    return scores.fresh((*shape, value.shape[3])), row, row


@rule(flex_slopes)
def _slopes_rule(scores: Spec) -> Spec:
    return scores.fresh(scores.shape)


def _like(x: Spec) -> Spec:
    return x.fresh(x.shape, dense_stride(x.shape, x.stride))


@rule(flex_value_gradient)
def _value_gradient_rule(value: Spec) -> Spec:
    return _like(value)


@rule(flex_query_gradient)
def _query_gradient_rule(query: Spec) -> Spec:
    return _like(query)


@rule(flex_key_gradient)
def _key_gradient_rule(key: Spec) -> Spec:
    return _like(key)


@rule(flex_scatter_add)
def _scatter_add_rule(into: Spec) -> Spec:
    return into.fresh()


# 3. Gradients


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, scale: float, *blocks: Any) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.scale, ctx.blocks = scale, blocks
        with torch._C._AutoDispatchBelowAutograd():
            return flex_scores(query, key, scale, *blocks)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> Any:
        query, key = ctx.saved_tensors
        left = right = None
        if ctx.needs_input_grad[0]:
            left = flex_query_gradient(slopes, key, query, ctx.scale, *ctx.blocks)
        if ctx.needs_input_grad[1]:
            right = flex_key_gradient(slopes, query, key, ctx.scale, *ctx.blocks)
        return left, right, *[None] * (1 + len(ctx.blocks))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, visible: Tensor, query: Tensor, value: Tensor, *blocks: Any
    ) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            out, lse, most = flex_attend(scores, visible, query, value, *blocks)
        ctx.save_for_backward(scores, visible, value, out, lse)
        ctx.blocks = blocks
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(most)
        return out, lse, most

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None, _: Any) -> Any:
        scores, visible, value, out, lse = ctx.saved_tensors
        slopes = gradient = None
        dout = torch.zeros_like(out) if dout is None else dout
        if ctx.needs_input_grad[0]:
            delta = (out.to(scores.dtype) * dout.to(scores.dtype)).sum(-1)
            if dlse is not None:
                delta = delta - dlse / math.log(2)
            slopes = flex_slopes(scores, visible, lse, delta, dout, value)
        if ctx.needs_input_grad[3]:
            gradient = flex_value_gradient(scores, visible, lse, dout, value, *ctx.blocks)
        return slopes, None, None, gradient, *[None] * len(ctx.blocks)


_LIBRARY.impl("flex_scores", lambda *args: _Scores.apply(*args), "Autograd")  # type: ignore[no-untyped-call]
_LIBRARY.impl("flex_attend", lambda *args: _Attend.apply(*args), "Autograd")  # type: ignore[no-untyped-call]
