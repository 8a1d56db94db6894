"""decompose: functional ATen -> primitives, and ATen calls for what has no decomposition.

    graph(x: bf16[4, 8]) {                        graph(x: bf16[4, 8]) {
      y: bf16[4, 8] = aten.silu.default(x)          t0: f32[4, 8] = prims.cast(x, torch.float32)
      return (y,)                                   t1: f32[4, 8] = prims.neg(t0)
    }                                               ...
                                                    y: bf16[4, 8] = prims.cast(t4, torch.bfloat16)
                                                    return (y,)
                                                  }

Every result keeps the dtype, shape and strides that its ATen node had, so extern calls and outputs
see what eager would give them. A copy that changes nothing disappears, unless its memory leaves the
graph or is read as such: then it must not be the memory of something else. It relies on a
functional graph with exact Specs; CSE and DCE come after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.bitwise import is_bitwise_equal
from flambeau_prims.builder import Builder, compute_dtype
from flambeau_prims.decompositions.registry import decomposition_for
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.operator_facts import READS_MEMORY
from flambeau_prims.per_operator import per_operator
from flambeau_prims.primitives import DTYPES, PRIMS, STORED_DTYPES, Kind, Prim
from flambeau_prims.rules.registry import is_view

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Sequence

    from torch._ops import OpOverload

    from flambeau_prims.spec import Spec

_CLONE = PRIMS["clone"]

_MOVES = frozenset((
    torch.ops.aten.clone.default, torch.ops.aten._to_copy.default, torch.ops.aten.copy.default,
))  # fmt: skip
"""Operators that only move and cast: those on float8 are primitives, too."""


def decompose(graph: Graph, *, keep: Collection[OpOverload] = (), strict: bool = False) -> Graph:
    """A graph of the same inputs, outputs and writes, made of primitives and of ATen calls.

    Operators in `keep` stay ATen calls, as do those without a decomposition and those on tensors
    that are not of `DTYPES` (or, for what moves and casts, of `STORED_DTYPES`). `strict`: so do
    pointwise operators whose primitives may differ from eager by a bit (`bitwise.py`).
    """
    taken = [value.name for value in graph.inputs if isinstance(value, Value)]
    taken += [out.name for node in graph.nodes for out in node.outputs if out is not None]
    builder = Builder([], taken, graph.aligned, strict=strict)
    replaced: dict[Value, Value] = {
        value: value for value in graph.inputs if isinstance(value, Value)
    }
    owned = _needs_memory(graph)
    for node in graph.nodes:
        kept = node.op in keep or (strict and not is_bitwise_equal(node))
        _decompose_node(builder, node, replaced, owned, kept)

    def new(value: Any) -> Any:
        return replaced[value] if isinstance(value, Value) else value

    return Graph(
        inputs=list(graph.inputs),
        nodes=builder.nodes,
        outputs=[new(out) for out in graph.outputs],
        writes=[(target, new(value)) for target, value in graph.writes],
        env=graph.env,
        name=graph.name,
        write_counts=graph.write_counts,
        aligned=builder.aligned,
    )


def _needs_memory(graph: Graph) -> set[Value]:
    """The Values that an output, a written value or a reader of memory needs or views."""
    result = set(graph.live_at_exit())
    for node in reversed(graph.nodes):
        if _reads_memory(node.op):
            result.add(node.operands()[0])
        if _views_argument(node.op) and any(out in result for out in node.outputs):
            result.update(node.operands())
    return result


@per_operator
def _reads_memory(op: Any) -> bool:
    return op in READS_MEMORY


@per_operator
def _views_argument(op: Any) -> bool:
    return op.kind is Kind.VIEW if isinstance(op, Prim) else is_view(op)


@per_operator
def _known_dtypes(op: Any) -> frozenset[torch.dtype]:
    """The dtypes in which an operator is decomposed."""
    return STORED_DTYPES if op in _MOVES or _views_argument(op) else DTYPES


def _decompose_node(
    b: Builder,
    node: Node,
    replaced: dict[Value, Value],
    owned: set[Value],
    kept: bool,
) -> None:
    args = map_values(node.args, replaced.__getitem__)
    kwargs = map_values(node.kwargs, replaced.__getitem__) if node.kwargs else {}
    b.results = tuple([None if out is None else out.spec for out in node.outputs])
    b.line = node.where
    start = len(b.nodes)
    function = None if isinstance(node.op, Prim) or kept else decomposition_for(node.op)
    result = NotImplemented
    known = _known_dtypes(node.op)
    if function is not None and all(value.spec.dtype in known for value in _values(node)):
        args, kwargs = _positional(node.op, args, kwargs)
        result = function(b, *args, **kwargs)
    if result is NotImplemented:
        del b.nodes[start:]
        outputs = tuple(
            [None if out is None else Value(out.name, out.spec) for out in node.outputs]
        )
        call = Node(node.op, args, kwargs, outputs, node.where)
        b.nodes.append(call)
        for old, value in zip(node.outputs, outputs, strict=True):
            if old is not None and value is not None:
                value.producer = call
                replaced[old] = value
        return
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(results) != len(node.outputs):
        raise ValueError(
            f"the decomposition of {node.op} gives {len(results)} results, the node has "
            f"{len(node.outputs)}"
        )
    view = _views_argument(node.op)
    fresh = {out for prim in b.nodes[start:] for out in prim.outputs}
    for old, value in zip(node.outputs, results, strict=True):
        if old is None:
            continue
        if value is None:
            raise ValueError(f"the decomposition of {node.op} gives no value for {old}")
        matched = _match_layout(b, value, old, fresh, start, alone=not view and old in owned)
        fresh.difference_update((matched, _memory_within(matched, fresh)))
        replaced[old] = matched


def _values(node: Node) -> list[Value]:
    return [*node.operands(), *(out for out in node.outputs if out is not None)]


def _positional(
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with the positional ones of the schema in place (defaults fill gaps)."""
    if not kwargs:
        return tuple(args), kwargs
    filled, rest = list(args), dict(kwargs)
    for i, argument in enumerate(op._schema.arguments):
        if argument.kwarg_only or not any(
            a.name in rest for a in op._schema.arguments[i:] if not a.kwarg_only
        ):
            break
        if i >= len(filled):
            filled.append(
                rest.pop(argument.name) if argument.name in rest else argument.default_value
            )
    return tuple(filled), rest


def _match_layout(
    b: Builder, value: Value, old: Value, fresh: set[Value], start: int, *, alone: bool
) -> Value:
    """`value` with exactly the Spec of the ATen result `old`, offset aside.

    `fresh` holds the Values made for this node that no other result has claimed; `alone` asks for
    separate memory.
    """
    want = old.spec
    if value.spec.dtype is not want.dtype and value.spec.dtype is compute_dtype(want.dtype):
        value = b.cast(value, want.dtype)
        fresh.add(value)
    if (
        value.spec.dtype is not want.dtype
        or value.spec.device != want.device
        or not _same(value.spec.shape, want.shape)
    ):
        raise ValueError(f"a decomposition gives {value.spec} for {old}: {want}")
    ours = value in fresh
    memory = _memory_within(value, fresh)
    is_memory = ours and memory is value
    if (alone and memory not in fresh) or not _same_layout(value.spec, want, exact=not ours):
        if not is_memory or _viewed(b, value, start):
            result = Node(_CLONE, (value,), {}, (Value(old.name, want),), b.line)
            b.nodes.append(result)
            (value,) = result.outputs  # type: ignore[assignment]
            value.producer = result
            return value
    if ours:
        value.name = old.name
        if value.spec.stride != want.stride or value.spec.shape != want.shape:
            value.spec = value.spec.replace(shape=want.shape, stride=want.stride)
    return value


def _memory_within(value: Value, fresh: Container[Value]) -> Value:
    """The Value that `value` views, among those made for the same node."""
    while value in fresh and value.producer is not None and _is_view_prim(value.producer.op):
        value = value.producer.args[0]
    return value


@per_operator
def _is_view_prim(op: Any) -> bool:
    return isinstance(op, Prim) and op.kind is Kind.VIEW


def _viewed(b: Builder, value: Value, start: int) -> bool:
    """Whether a view made for this node relies on the strides of `value`, which must then stay."""
    return any(_is_view_prim(result.op) and result.args[0] is value for result in b.nodes[start:])


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return a is b or a == b or (len(a) == len(b) and all(map(sizes.eq, a, b)))


def _same_layout(have: Spec, want: Spec, *, exact: bool) -> bool:
    """Whether strides agree; unless `exact`, those of dims of one element may differ."""
    if have.stride == want.stride:
        return True
    if any(type(size) is int and size == 0 for size in want.shape):
        return not exact
    return all(
        a is b or sizes.known_eq(a, b) or (not exact and type(size) is int and size == 1)
        for a, b, size in zip(have.stride, want.stride, want.shape, strict=True)
    )
