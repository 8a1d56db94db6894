"""Masks of attention that the program makes of constants alone, and what they say.

    mask = (torch.arange(n)[:, None] >= 0).expand(n, n)      every position attends to all keys
    mask = torch.arange(n)[None] <= torch.arange(n)[:, None]  ... to itself and those before it

Model libraries leave such masks out where they run eagerly, and make them where they are compiled.
Kernels without a mask are faster, and some kernels take none.

A mask's contents are computed from the calls on the tape, on the CPU: factories without random
draws, pointwise operators, views and indexing, none of them written to.
"""

from __future__ import annotations

import enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from flambeau_prims.graph import Value, map_values
from flambeau_prims.operator_facts import facts
from flambeau_prims.sizes import hint_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.fake import FakeTensor
    from flambeau_prims.graph import Node

aten = torch.ops.aten

LARGEST = 1 << 24
"""The most elements that a call may compute here."""

_CPU = torch.device("cpu")
_OTHERS = {
    aten.index.Tensor, aten.cumsum.default, aten.tril.default, aten.triu.default, aten.cat.default,
    aten.stack.default, aten.clone.default, aten._to_copy.default,
}  # fmt: skip
"""Operators besides factories, views and pointwise ones."""

_LIKE = {aten.ones_like.default, aten.zeros_like.default, aten.full_like.default,
         aten.new_ones.default, aten.new_zeros.default, aten.new_full.default}  # fmt: skip
_UNDEFINED = {aten.empty.memory_format, aten.empty_strided.default}


class Mask(enum.Enum):
    """What a mask says."""

    FULL = "full"  # all positions attend to all keys
    CAUSAL = "causal"  # each to the keys up to itself, of as many keys as positions


class Tape(Protocol):
    """What is read of the Tracer that writes nodes; `known_masks` are the answers given so far."""

    nodes: list[Node]
    observed_is_compiling: bool
    known_masks: dict[Value, Mask | None]


def current_tape() -> Tape | None:
    """The innermost dispatch mode, if it is a Tracer that writes nodes."""
    mode: Any = _get_current_dispatch_mode()
    return mode if getattr(mode, "record", False) else None


def known_mask(mask: FakeTensor, tape: Tape) -> Mask | None:
    """The Mask that a boolean or additive mask is; None if it is another, or not known."""
    value, known = mask.value, tape.known_masks
    if value is None or mask.storage_record.version:
        return None
    if value not in known:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
            contents = _contents(value, tape.nodes)
            known[value] = None if contents is None else _read(contents)
    return known[value]


def _read(mask: torch.Tensor) -> Mask | None:
    for dim, stride in enumerate(mask.stride()[:-2]):
        if stride == 0 and mask.shape[dim] > 1:
            mask = mask.narrow(dim, 0, 1)
    if mask.dtype is not torch.bool:
        attends = mask == 0
        if not bool((attends | (mask == -torch.inf)).all()):
            return None
        mask = attends
    if bool(mask.all()):
        return Mask.FULL
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return None
    causal = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return Mask.CAUSAL if bool((mask == causal).all()) else None


def _contents(value: Value, nodes: Sequence[Node]) -> torch.Tensor | None:
    """What the calls on the tape compute; None if that depends on more than constants."""
    calls = _calls(value)
    if calls is None:
        return None
    made = {out for node in calls for out in node.outputs}
    if any(_memory(operand) in made for operand in _written(nodes)):
        return None
    results: dict[Value, torch.Tensor] = {}
    for node in calls:
        args, kwargs = map_values((node.args, node.kwargs), partial(_operand, results))
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _CPU}
        (out,) = node.outputs
        assert out is not None
        results[out] = node.op(*args, **kwargs)
    return results[value]


def _operand(results: dict[Value, torch.Tensor], value: Value) -> torch.Tensor:
    """A real operand; for `ones_like` and the like one of its size and dtype."""
    known = results.get(value)
    if known is None:
        sizes = [hint_of(size) for size in value.spec.shape]
        known = torch.zeros((), dtype=value.spec.dtype).expand(sizes)
    return known


def _calls(value: Value) -> list[Node] | None:
    """The calls that compute a Value, operands first; None if they are not all computed here."""
    calls: dict[Node, None] = {}
    pending: list[tuple[Value, bool]] = [(value, False)]
    while pending:
        wanted, ready = pending.pop()
        node = wanted.producer
        if node is None or not (_is_like(node) or _is_computed(node)):
            return None
        if ready:
            calls[node] = None
        elif node not in calls:
            pending.append((wanted, True))
            if not _is_like(node):
                pending += [(operand, False) for operand in node.operands()]
    return list(calls)


def _is_like(node: Node) -> bool:
    """Whether a call only takes the size, dtype or device of its operand."""
    operands_static = all(_is_static(operand) for operand in node.operands())
    return node.op in _LIKE and operands_static and all(map(_is_small, node.outputs))


def _is_computed(node: Node) -> bool:
    op = node.op
    if not isinstance(op, torch._ops.OpOverload) or len(node.outputs) != 1:
        return False
    known = facts(op)
    if known.mutated or known.random or known.special == "contents" or op in _UNDEFINED:
        return False
    takes_tensors = any("Tensor" in str(each.type) for each in op._schema.arguments)
    pointwise = torch.Tag.pointwise in op.tags or op in _OTHERS
    (out,) = node.outputs
    if known.view:
        return out is not None and _is_static(out)
    return (pointwise or not takes_tensors) and _is_small(out)


def _is_static(value: Value) -> bool:
    return all(isinstance(size, int) for size in (*value.spec.shape, *value.spec.stride))


def _is_small(out: Value | None) -> bool:
    return out is not None and _is_static(out) and hint_of(out.spec.numel) <= LARGEST


def _written(nodes: Sequence[Node]) -> list[Value]:
    """The operands of calls that write to any."""
    return [
        operand
        for node in nodes
        if isinstance(node.op, torch._ops.OpOverload) and facts(node.op).mutated
        for operand in node.operands()
    ]


def _memory(value: Value) -> Value:
    """The Value that a view is of."""
    while (node := value.producer) is not None and isinstance(node.op, torch._ops.OpOverload):
        if not facts(node.op).view:
            break
        value = node.operands()[0]
    return value
