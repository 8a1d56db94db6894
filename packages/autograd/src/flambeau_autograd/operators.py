"""The kind of work of an operator, for passes that move, merge, drop or repeat it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.operator_facts import communicates, is_check
from flambeau_prims.per_operator import per_operator
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.rules.registry import aliasing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flambeau_prims.graph import Node, Value

aten = torch.ops.aten


class Work(enum.Enum):
    """The cost class of an operator."""

    VIEW = "view"  # moves nothing
    POINTWISE = "pointwise"  # fuses into whatever reads it
    FACTORY = "factory"  # makes a tensor from none
    REDUCTION = "reduction"  # a pass over its operand
    ONCE = "once"  # draws, checks data or communicates: neither dropped, merged nor repeated
    HEAVY = "heavy"  # a separate kernel: products, convolution, attention, sorting, scatters


_PRIM_WORK = {
    Kind.POINTWISE: Work.POINTWISE, Kind.REDUCTION: Work.REDUCTION, Kind.VIEW: Work.VIEW,
    Kind.INDEX: Work.POINTWISE, Kind.FACTORY: Work.FACTORY, Kind.LAYOUT: Work.POINTWISE,
    Kind.SCATTER: Work.HEAVY, Kind.SCAN: Work.REDUCTION, Kind.SORT: Work.HEAVY,
}  # fmt: skip

_FUSIBLE = {
    "clone", "_to_copy", "cat", "stack", "constant_pad_nd", "gelu", "silu", "where",
    "slice_backward", "select_backward", "native_dropout_backward", "masked_fill", "flip", "roll",
    "repeat", "copy", "slice_scatter", "select_scatter", "lerp", "gelu_backward",
    "threshold_backward", "tanh_backward", "sigmoid_backward", "silu_backward",
    "hardswish_backward", "addcmul", "addcdiv", "triu", "tril",
}  # fmt: skip
"""ATen operators that work element by element though not tagged so."""

_REDUCTIONS = {
    "sum", "mean", "amax", "amin", "prod", "var", "var_mean", "std", "any", "all", "argmax",
    "argmin", "logsumexp", "linalg_vector_norm",
}  # fmt: skip


@per_operator
def work(op: Any) -> Work:
    """The cost class of an operator; HEAVY if nothing is known of it."""
    if isinstance(op, Prim):
        return _PRIM_WORK[op.kind]
    if torch.Tag.nondeterministic_seeded in op.tags or is_check(op) or communicates(op):
        return Work.ONCE
    if aliasing(op).view:
        return Work.VIEW
    name = op._schema.name.split("::")[1]
    if torch.Tag.pointwise in op.tags or name in _FUSIBLE:
        return Work.POINTWISE
    if name in _REDUCTIONS:
        return Work.REDUCTION
    if not any("Tensor" in str(argument.type) for argument in op._schema.arguments):
        return Work.FACTORY
    return Work.HEAVY


def happens_once(node: Node) -> bool:
    """Whether the call must happen once, in its place, though nothing may read its results.

    It draws from a random generator (dropout with p given as 0 or 1 included), or raises where the
    data is not as it should be, or other processes wait for it.
    """
    return _happens_once(node.op)


@per_operator
def moves_nothing(op: Any) -> bool:
    """Whether an operator moves nothing: its result is a view of its first operand."""
    return work(op) is Work.VIEW


@per_operator
def _happens_once(op: Any) -> bool:
    return work(op) is Work.ONCE


def computed_from(
    wanted: Iterable[Value], stops: Callable[[Value], bool]
) -> tuple[list[Value], list[Node]]:
    """The Values that stop the way back from `wanted` ones, and the calls on that way."""
    found: dict[Value, None] = {}
    nodes: dict[Node, None] = {}
    pending = list(wanted)
    visited: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in visited:
            continue
        visited.add(value)
        if stops(value):
            found[value] = None
            continue
        assert value.producer is not None
        nodes[value.producer] = None
        pending.extend(value.producer.operands())
    return list(found), list(nodes)


def memory_of(value: Value) -> Value:
    """The Value whose memory `value` is a view of; itself if it is none.

    A primitive `reshape` counts as a view although it copies where strides do not allow one.
    """
    while value.producer is not None and moves_nothing(value.producer.op):
        value = value.producer.operands()[0]
    return value
