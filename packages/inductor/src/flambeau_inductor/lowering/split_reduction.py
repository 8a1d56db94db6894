"""Lower a reduction that is cut into partial results (`flambeau_inductor.split_reduction`).

s: f32[16, 16] = sum(x: f32[16, 16, 4, 64, 64] of channels-last images, (2, 3, 4))
  ->  p: f32[32, 4, 16, 16] = sums of 2 rows of pixels, channel by channel
      s: f32[16, 16] = sum(p, (0, 1))

The partial results of one result lie together if they are many: a program then reads them as a row.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, TypeAlias

import sympy

from flambeau_inductor.lowering.realize import result_of
from flambeau_inductor.lowering.reduction import combine_parts, lower_reduction
from flambeau_inductor.split_reduction import (
    PARTIAL_RESULTS,
    PERSISTENT_COLUMN,
    Split,
    chunk_length,
    reduced_dims,
)
from flambeau_prims.graph import Value
from flambeau_prims.sizes import hint_of
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from flambeau_inductor.lowering.split_scan import Nests
    from flambeau_prims.graph import Node
    from flambeau_prims.spec import Size

Partials: TypeAlias = "dict[tuple[Value, str, tuple[int, ...], Split], Value]"
"""Partial results by what was reduced, how, along which dims and how it was cut."""


def lower_split_reduction(nests: Nests, node: Node, split: Split, known: Partials) -> None:
    """Append the nests of the partial results and of the result."""
    out, operator = result_of(node), node.op.name
    spec, shape = out.spec, node.args[0].spec.shape
    names = PARTIAL_RESULTS.get(operator, (operator,))
    partial = [_partial_result(nests, node, name, split, known) for name in names]
    lead = partial[0].spec.ndim - spec.ndim
    outer, kept = nests.axes(spec.shape, spec.stride, "i")
    inner, rest = nests.axes(partial[0].spec.shape[:lead], partial[0].spec.stride[:lead], "r")
    elements = nests.elements(outer + inner, spec.device)
    read = [elements.element(value, (*rest, *kept)) for value in partial]
    each = hint_of(chunk_length(shape[split.cut], split.parts)) * prod(
        hint_of(shape[d]) for d in reduced_dims(node) if d != split.cut and d not in split.whole
    )
    length = elements.builder.constant(each, spec.dtype)
    name = combine_parts(elements.builder, operator, read, spec.dtype, length)
    elements.labels[operator] = None
    nests.finish(elements, nests.make(out), spec, kept, name, outer, inner, node.where)


def _partial_result(nests: Nests, node: Node, name: str, split: Split, known: Partials) -> Value:
    """The primitive `name` of each chunk of a reduction's operand."""
    out, x = result_of(node), node.args[0]
    dims = reduced_dims(node)
    key = (x, name, dims, split)
    if key in known:
        return known[key]
    shape, cut = x.spec.shape, split.cut
    length = chunk_length(shape[cut], split.parts)
    spec, order = _partial_spec(out.spec, x.spec, split)
    partial = known[key] = Value(f"{out.name}_{name}", spec)
    outer, point = nests.axes(spec.shape, order, "i")
    inside_dims = [d for d in dims if d not in split.whole]
    inner, reduced = nests.axes(
        [length if d == cut else shape[d] for d in inside_dims],
        [x.spec.stride[d] for d in inside_dims],
        "r",
    )
    elements = nests.elements(outer + inner, spec.device)
    lead = spec.ndim - out.spec.ndim
    number, whole, kept = point[0], point[1:lead], point[lead:]
    position = dict(zip(split.whole, whole, strict=True))
    position |= dict(zip(inside_dims, reduced, strict=True))
    moved = sympy.expand(number * nests.sizes.convert(length) + position[cut])
    position[cut] = moved
    even = isinstance(length, int) and length * split.parts == shape[cut]
    inside = None if even else elements.condition("lt", moved, shape[cut])
    result = lower_reduction(
        elements, node, name, kept, tuple(position[d] for d in dims), inside, has_inner=bool(inner)
    )
    nests.finish(elements, nests.make(partial), spec, point, result, outer, inner, node.where)
    return partial


def _partial_spec(out: Spec, x: Spec, split: Split) -> tuple[Spec, tuple[Size, ...]]:
    """The Spec of partial results, of shape (chunks, outer, run, kept), and the strides of the
    order in which to compute them: the operand's.
    """
    outer, run = ([x.shape[d] for d in dims] for dims in (split.outer, split.run))
    shape = (split.parts, *outer, *run, *out.shape)
    across = _strides([*outer, split.parts])
    along = _strides(run)
    each, many = prod(run), prod(outer) * split.parts  # type: ignore[arg-type]
    kept = out.numel

    def strides(chunk: Size, result: Size) -> tuple[Size, ...]:
        places = [step * chunk for step in across]
        return (places[-1], *places[:-1], *along, *(step * result for step in out.stride))

    order = strides(kept * each, each)
    together = many * each > PERSISTENT_COLUMN
    stride = strides(each, each * many) if together else order
    return Spec.of(shape, stride=stride, dtype=out.dtype, device=out.device), order


def _strides(shape: list[Size]) -> list[Size]:
    """Row-major strides."""
    result: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        result.insert(0, step)
        step = step * size
    return result
