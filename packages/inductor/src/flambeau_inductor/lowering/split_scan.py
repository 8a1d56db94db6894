"""Scan few long rows in chunks, so that all of a GPU or all threads have work.

y: f32[8, 65536] = cumsum(x)   ->   p: f32[64, 8] = sums of chunks of 1024
                                    q: f32[64, 8] = cumsum(p) along the chunks
                                    y = q of the chunk before + cumsum within the chunk

The last chunk may be short: beyond the end is the scan's identity, and nothing is stored. Reads the
operand twice and writes once, in three launches that need no order among their programs. On a CPU
floats are accumulated in float64 all the way, as within a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import sympy
import torch

from flambeau_inductor.lowering.scan import SCANS, follow
from flambeau_inductor.split_reduction import enough_programs, even_parts, identity
from flambeau_prims.graph import Value
from flambeau_prims.primitives import Kind
from flambeau_prims.sizes import ceil_div, hint_of
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.indexing.sizes import SizeTable
    from flambeau_inductor.ir import Axis, Number
    from flambeau_inductor.lowering.body_builder import BodyBuilder
    from flambeau_inductor.lowering.elements import Elements, Index
    from flambeau_inductor.nodes import LoopNest
    from flambeau_inductor.options import InductorOptions
    from flambeau_prims.graph import Node
    from flambeau_prims.spec import Size

SHORTEST_CHUNK = 1024
LONG_ROW = 8192
"""On a GPU one program scans rows up to this length."""

SHORTEST_COLUMN_CHUNK = 128
COLUMNS_PER_PROGRAM = 64
MOST_CHUNKS = 1024

KEPT_CHUNK, MOST_KEPT_CHUNKS = 4096, 8192
"""The longest chunks that a program keeps in registers; longer ones only if there would be more
chunks than that.
"""

REDUCTIONS = {"cumsum": "sum", "cumprod": "prod", "cummax": "amax", "cummin": "amin"}
"""Scan -> the reduction whose identity it begins with."""

CPU_CHUNKS = 16
CPU_LONG_ROW = 1 << 19
"""On a CPU, threads share rows from this length on, if there are fewer rows than chunks, and more
threads than one when the graph is compiled: a single one would only read the operand twice.
"""


class Nests(Protocol):
    """What appends loop nests: the lowering of a graph."""

    sizes: SizeTable

    def make(self, value: Value, role: str = "computed") -> str: ...
    def axes(
        self, shape: Sequence[Size], stride: Sequence[Size], prefix: str
    ) -> tuple[tuple[Axis, ...], Index]: ...
    def elements(self, axes: tuple[Axis, ...], device: torch.device) -> Elements: ...
    def finish(
        self, elements: Elements, buffer: str, spec: Spec, index: Index, name: str,
        outer: tuple[Axis, ...], inner: tuple[Axis, ...], where: str, mask: str | None = None,
    ) -> LoopNest: ...  # fmt: skip


def choose_chunk(node: Node, options: InductorOptions) -> int:
    """The length of the chunks in which to scan; 0: rows are scanned whole."""
    if node.op.kind is not Kind.SCAN:
        return 0
    spec, dim = node.args[0].spec, node.args[1]
    length = hint_of(spec.shape[dim])
    rows = 1
    for d, size in enumerate(spec.shape):
        rows *= 1 if d == dim else hint_of(size)
    if options.reduction_parts is not None:
        return -(-length // options.reduction_parts) if length > options.reduction_parts else 0
    if spec.device.type != "cuda":
        threads = options.threads or torch.get_num_threads()
        if length < CPU_LONG_ROW or rows >= CPU_CHUNKS or threads == 1:
            return 0
        return _even_chunk(spec.shape[dim], -(-length // CPU_CHUNKS))
    step = hint_of(spec.stride[dim])
    column = any(d != dim and 0 < hint_of(s) < step for d, s in enumerate(spec.stride))
    programs = -(-rows // COLUMNS_PER_PROGRAM) if column else rows
    shortest = SHORTEST_COLUMN_CHUNK if column else SHORTEST_CHUNK
    enough = enough_programs(spec.device.index) // 2
    if length <= (shortest if column else LONG_ROW) or programs >= enough:
        return 0
    chunk = shortest
    most = MOST_CHUNKS
    while chunk * most < length * programs:
        chunk *= 2
        if chunk == KEPT_CHUNK and not column:
            most = MOST_KEPT_CHUNKS
    return _even_chunk(spec.shape[dim], chunk) if chunk < length else 0


def _even_chunk(size: Size, chunk: int) -> int:
    """A chunk of about this length that divides the dim, if there is one: then neighbours fuse."""
    if not isinstance(size, int):
        return chunk
    parts = -(-size // chunk)
    even = even_parts(size, parts)
    return size // even if 2 * even > parts else chunk


@dataclass(frozen=True)
class _Chunks:
    """Loop axes over all chunks. `place`: the index of an element; `point`: of its chunk."""

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    place: Index
    point: Index


def lower_chunks(nests: Nests, node: Node, chunk: int) -> None:
    """Append the three nests of a scan in chunks of this length."""
    (out,) = node.outputs
    assert out is not None
    spec, dim, name = out.spec, node.args[1], node.op.name
    parts = ceil_div(spec.shape[dim], chunk)
    rows = (*spec.shape[:dim], *spec.shape[dim + 1 :])
    partial = Spec.of((parts, *rows), dtype=_total_dtype(node), device=spec.device)
    totals, starts = Value(f"{out.name}_totals", partial), Value(f"{out.name}_starts", partial)
    even = isinstance(spec.shape[dim], int) and spec.shape[dim] % chunk == 0
    strides = (spec.stride[dim] * chunk, *spec.stride[:dim], *spec.stride[dim + 1 :])
    outer, point = nests.axes((parts, *rows), strides, "i")
    inner, (step,) = nests.axes((chunk,), (spec.stride[dim],), "r")
    along = sympy.expand(point[0] * chunk + step)
    chunks = _Chunks(outer, inner, (*point[1 : dim + 1], along, *point[dim + 1 :]), point)

    elements = nests.elements(outer + inner, spec.device)
    value, _ = _element(elements, node, chunks, even)
    value = _total(elements.builder, name, value)
    elements.labels[name] = None
    nests.finish(elements, nests.make(totals), partial, point, value, outer, inner, node.where)
    _scan_totals(nests, node, totals, starts)
    _scan_chunks(nests, node, starts, chunks, even)


def _element(elements: Elements, node: Node, chunks: _Chunks, even: bool) -> tuple[str, str | None]:
    """The operand's element, and the condition under which there is one."""
    x, dim = node.args[:2]
    builder, dtype = elements.builder, _total_dtype(node)
    if even:
        return builder.cast(elements.element(x, chunks.place), dtype), None
    inside = elements.condition("lt", chunks.place[dim], x.spec.shape[dim])
    with elements.where(inside):
        value = builder.cast(elements.element(x, chunks.place), dtype)
    nothing = builder.constant(_identity(node.op.name, dtype), dtype)
    return builder.pointwise("where", inside, value, nothing), inside


def _scan_totals(nests: Nests, node: Node, totals: Value, starts: Value) -> None:
    """Scan the chunks' results."""
    spec = totals.spec
    outer, kept = nests.axes(spec.shape[1:], spec.stride[1:], "i")
    inner, place = nests.axes(spec.shape[:1], spec.stride[:1], "r")
    elements = nests.elements(outer + inner, spec.device)
    value = follow(elements, node, elements.element(totals, (*place, *kept)))
    buffer = nests.make(starts)
    nests.finish(elements, buffer, spec, (*place, *kept), value, outer, inner, node.where)


def _scan_chunks(nests: Nests, node: Node, starts: Value, chunks: _Chunks, even: bool) -> None:
    """Scan each chunk, and combine it with the scan of those before."""
    (out,) = node.outputs
    assert out is not None
    spec, name, reverse = out.spec, node.op.name, node.args[2]
    elements = nests.elements(chunks.outer + chunks.inner, spec.device)
    builder = elements.builder
    value, inside = _element(elements, node, chunks, even)
    value = follow(elements, node, value)
    part, *kept = chunks.point
    if reverse:
        before = sympy.expand(part + 1)
        follows = elements.condition("lt", before, starts.spec.shape[0])
    else:
        before = sympy.expand(part - 1)
        follows = elements.condition("gt", part, 0)
    with elements.where(follows):
        start = elements.element(starts, (before, *kept))
    combined = _combine(builder, name, start, value)
    value = builder.pointwise("where", follows, combined, value)
    nests.finish(
        elements, nests.make(out), spec, chunks.place, value, chunks.outer, chunks.inner,
        node.where, inside,
    )  # fmt: skip


def _total_dtype(node: Node) -> torch.dtype:
    """The dtype in which chunks are accumulated."""
    spec = node.args[0].spec
    exact = node.op.name in ("cummax", "cummin") or not spec.dtype.is_floating_point
    return spec.dtype if exact or spec.device.type != "cpu" else torch.float64


def _identity(name: str, dtype: torch.dtype) -> Number:
    """The value that a scan may begin with."""
    if name == "logcumsumexp":
        return float("-inf")
    return identity(REDUCTIONS[name], dtype)


def _total(builder: BodyBuilder, name: str, value: str) -> str:
    """What a scan of the whole row ends with."""
    dtype = builder.dtypes[value]
    if name != "logcumsumexp":
        return builder.reduce(SCANS[name], value, dtype)
    top = builder.reduce("max", value, dtype)
    # Where all are -inf, or one is inf, the difference would be NaN.
    zero = builder.constant(0.0, dtype)
    top = builder.pointwise("where", builder.pointwise("isinf", top), zero, top)
    powers = builder.pointwise("exp", builder.pointwise("sub", value, top))
    logarithm = builder.pointwise("log", builder.reduce("sum", powers, dtype))
    return builder.pointwise("add", logarithm, top)


def _combine(builder: BodyBuilder, name: str, before: str, value: str) -> str:
    """A scan's result, from what it has accumulated before the chunk and within it."""
    if name in ("cumsum", "cumprod"):
        return builder.pointwise("add" if name == "cumsum" else "mul", before, value)
    if name == "logcumsumexp":
        return _log_add_exp(builder, before, value)
    if not builder.dtypes[value].is_floating_point:
        return builder.pointwise("maximum" if name == "cummax" else "minimum", before, value)
    later = builder.pointwise("ge" if name == "cummax" else "le", value, before)
    later = builder.pointwise("bitwise_or", later, builder.pointwise("isnan", value))
    return builder.pointwise("where", later, value, before)


def _log_add_exp(builder: BodyBuilder, a: str, b: str) -> str:
    """ln(e**a + e**b); equal infinities give themselves."""
    high, low = builder.pointwise("maximum", a, b), builder.pointwise("minimum", a, b)
    lower = builder.pointwise("exp", builder.pointwise("sub", low, high))
    result = builder.pointwise("add", builder.pointwise("log1p", lower), high)
    same = builder.pointwise(
        "bitwise_and", builder.pointwise("eq", a, b), builder.pointwise("isinf", a)
    )
    return builder.pointwise("where", same, a, result)
