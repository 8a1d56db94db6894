"""Let the rows of matrices in half precision begin at aligned addresses, where products on a GPU
are much faster for it.

    y: bf16[8192, 50257] = aten.mm.default(x, w)
    g: bf16[8192, 50257] = prims.cast(...)
    d: bf16[8192, 768] = aten.mm.default(g, v)

      ->

    y: bf16[8192, 50257] stride [50304, 1] = aten.mm.default(x, w)
    g: bf16[8192, 50257] stride [50304, 1] = prims.cast(...)
    d: bf16[8192, 768] = aten.mm.default(g, v)

A matrix that this graph computes is written in such rows at no cost. One that comes from outside,
or must leave in eager's strides, is copied if the product is modelled to gain more than the copy
takes. Sizes stay as they are: the library handles odd sizes well once rows are aligned
(`tools/bench/gemm_alignment.py` measures it).

Works on graphs of primitives, forward and backward in one, before the partition: what is saved
keeps its rows. Relies on primitives and matrix products writing any strides, and on the Specs of
views following their operands'. Symbolic sizes stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from flambeau_prims import primitives as prims
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.rules.view import view_stride
from flambeau_prims.spec import Spec, contiguous_stride

aten = torch.ops.aten

SLOWDOWN = 2.5
"""How much longer a product takes if the rows of one of its matrices are not aligned."""
FLOPS_PER_BYTE = 160
"""Operations of a product that take as long as a byte of memory traffic."""
LAUNCH_BYTES = 16 << 20
"""Bytes of memory traffic that take as long as one more kernel; a smaller gain is not worth it."""

ALIGNMENT = 16
"""Bytes to multiples of which an aligned row begins."""
LINE = 128
"""Bytes to multiples of which long rows are padded: a line of the cache."""

_OPERANDS = {
    aten.mm.default: (0, 1), aten.addmm.default: (1, 2), aten.bmm.default: (0, 1),
    aten.baddbmm.default: (1, 2),
}  # fmt: skip
"""Which arguments of a matrix product are its matrices."""

_WRITERS = {Kind.POINTWISE, Kind.INDEX, Kind.LAYOUT}
"""Primitives whose results kernels write at any strides."""
_READERS = {*_WRITERS, Kind.REDUCTION}


def pad_rows(graph: Graph) -> Graph:
    """Pad the rows of what matrix products in `graph` read and write, in place."""
    products = [product for node in graph.nodes if (product := _product(node)) and product.gain > 0]
    if products:
        _Padding(graph, products).run()
    return graph


@dataclass(eq=False, slots=True)
class _Product:
    """A matrix product with unaligned rows: the bytes of traffic that it gains without them."""

    node: Node
    unaligned: list[Value]
    gain: float


def _product(node: Node) -> _Product | None:
    """The product that a node computes, if it has unaligned rows."""
    places = _OPERANDS.get(node.op)
    if places is None or node.kwargs.keys() - {"beta", "alpha"}:
        return None
    (out,) = node.outputs
    assert out is not None
    left, right = (node.args[place] for place in places)
    matrices = [left, right, out]
    spec = out.spec
    if not _gains_by_alignment(spec) or any(value.spec.env is not None for value in matrices):
        return None
    unaligned = [value for value in matrices if not _is_aligned(value.spec)]
    if not unaligned:
        return None
    operations = 2 * prod(spec.shape) * left.spec.shape[-1]
    traffic = sum(_bytes(value.spec) for value in matrices)
    computing = operations / FLOPS_PER_BYTE
    gain = SLOWDOWN * computing - max(computing, traffic) - LAUNCH_BYTES
    return _Product(node, unaligned, gain)


def _gains_by_alignment(spec: Spec) -> bool:
    """Whether the library has kernels for aligned rows of this dtype that are much faster."""
    return spec.device.type == "cuda" and spec.dtype in (torch.float16, torch.bfloat16)


def _bytes(spec: Spec) -> int:
    return int(prod(spec.shape)) * spec.dtype.itemsize


def _is_aligned(spec: Spec) -> bool:
    """Whether rows, or columns, that are whole in memory begin at aligned addresses; so do others
    in effect, since the library copies those.
    """
    rows, columns = spec.stride[-2:]
    pitch = rows if columns == 1 else columns if rows == 1 else 0
    item = spec.dtype.itemsize
    return pitch * item % ALIGNMENT == 0 and spec.offset * item % ALIGNMENT == 0


def _padded(spec: Spec) -> Spec | None:
    """The same tensor in padded rows; None if it is not row-major."""
    if spec.ndim < 2 or spec.stride != contiguous_stride(spec.shape):
        return None
    size = int(spec.shape[-1]) * spec.dtype.itemsize
    step = LINE if size >= 8 * LINE else ALIGNMENT
    pitch = -(-size // step) * step // spec.dtype.itemsize
    return spec.replace(stride=contiguous_stride((*spec.shape[:-1], pitch)))


@dataclass(slots=True)
class _Change:
    """New Specs for a Value and its views, and which of them leave the graph."""

    specs: dict[Value, Spec]
    leaving: list[Value] = field(default_factory=list)


class _Padding:
    """The padding of one graph."""

    def __init__(self, graph: Graph, products: list[_Product]) -> None:
        self.graph = graph
        self.products = products
        self.users = graph.users()
        self.exits = graph.live_at_exit()
        self.changes: dict[Value, _Change | None] = {}
        """By the root of a matrix: how it is written in padded rows; None if it cannot be."""
        self.copied: dict[Value, Value] = {}
        """Matrices from outside, and their copies."""

    def run(self) -> None:
        gains: dict[Value, float] = {}
        for product in self.products:
            for value in product.unaligned:
                gains[value] = gains.get(value, 0) + product.gain
        chosen = [
            product
            for product in self.products
            if sum(
                cost * product.gain / gains[value]
                for value in product.unaligned
                if (cost := self.cost(value)) is not None
            )
            < product.gain
            and all(self.cost(value) is not None for value in product.unaligned)
        ]
        for product in chosen:
            for value in product.unaligned:
                self.pad(value, product.node)

    def cost(self, value: Value) -> float | None:
        """The bytes of traffic that padding a matrix takes; None if it cannot be padded."""
        change = self.change(value)
        if change is not None:
            return sum(LAUNCH_BYTES + 2 * _bytes(leaving.spec) for leaving in change.leaving)
        if _copy_of(value.spec) is None:
            return None
        return LAUNCH_BYTES + 2 * _bytes(value.spec)

    def change(self, value: Value) -> _Change | None:
        """How the matrix that `value` is a view of is written in padded rows, if that helps it."""
        root = _root(value)
        if root not in self.changes:
            self.changes[root] = self._change(root) if _is_written_anywhere(root) else None
        change = self.changes[root]
        return change if change is not None and _is_aligned(change.specs[value]) else None

    def _change(self, root: Value) -> _Change | None:
        padded = _padded(root.spec)
        if padded is None:
            return None
        change = _Change({root: padded})
        pending = [root]
        while pending:
            value = pending.pop()
            if value in self.exits:
                change.leaving.append(value)
            for user in self.users[value]:
                op = user.op
                if isinstance(op, Prim) and op.kind is Kind.VIEW:
                    spec = _view_of(user, change.specs)
                    if spec is None:
                        return None
                    (out,) = user.outputs
                    assert out is not None
                    change.specs[out] = spec
                    pending.append(out)
                elif not (
                    op in _OPERANDS
                    or (isinstance(op, Prim) and op.kind in _READERS and op is not prims.to_device)
                ):
                    return None
        # Tensors that share memory outside would do so no more.
        return change if len(change.leaving) <= 1 else None

    def pad(self, value: Value, reader: Node) -> None:
        """Write a matrix in padded rows, or copy it for a reader."""
        change = self.change(value)
        if change is None:
            self.copy(value, reader)
            return
        if value.spec is change.specs[value]:
            return
        for leaving in change.leaving:
            self.restore(leaving)
        for member, spec in change.specs.items():
            member.spec = spec

    def restore(self, value: Value) -> None:
        """Let a copy in eager's strides leave the graph."""
        graph = self.graph
        assert value.producer is not None
        copy = self.clone(value, value.spec, "rows", graph.nodes.index(value.producer) + 1)
        graph.outputs = [copy if out is value else out for out in graph.outputs]
        graph.writes = [
            (target, copy if source is value else source) for target, source in graph.writes
        ]

    def copy(self, value: Value, reader: Node) -> None:
        """Let a product read a copy in padded rows."""
        copy = self.copied.get(value)
        if copy is None:
            spec = _copy_of(value.spec)
            assert spec is not None
            first = self.graph.nodes.index(reader)
            copy = self.copied[value] = self.clone(value, spec, "padded", first)
        reader.args = map_values(reader.args, lambda arg: copy if arg is value else arg)

    def clone(self, value: Value, spec: Spec, suffix: str, position: int) -> Value:
        nodes = self.graph.nodes
        node = Node(prims.clone, (value,), {}, (), nodes[max(position - 1, 0)].where)
        copy = Value(f"{value.name}_{suffix}", spec, node)
        node.outputs = (copy,)
        nodes.insert(position, node)
        return copy


def _root(value: Value) -> Value:
    """The Value that a matrix is a view of."""
    while (node := value.producer) is not None:
        if not isinstance(node.op, Prim) or node.op.kind is not Kind.VIEW or _copies(node):
            return value
        value = node.args[0]
    return value


def _copies(node: Node) -> bool:
    """Whether a reshape takes other strides than its operand has."""
    x: Value = node.args[0]
    return (
        node.op is prims.reshape and view_stride(x.spec.shape, x.spec.stride, node.args[1]) is None
    )


def _is_written_anywhere(value: Value) -> bool:
    """Whether the node that computes a Value writes it at any strides."""
    node = value.producer
    if node is None or len(node.outputs) != 1:
        return False
    if node.op in _OPERANDS:
        return not node.kwargs.keys() - {"beta", "alpha"}
    return isinstance(node.op, Prim) and node.op.kind in _WRITERS and node.op is not prims.to_device


def _view_of(node: Node, specs: dict[Value, Spec]) -> Spec | None:
    """The Spec of a view of a changed operand; None if it would have to be a copy."""
    if node.op is prims.as_strided:
        return None
    args: list[Any] = list(map_values(node.args, lambda value: specs.get(value, value.spec)))
    if node.op is prims.reshape and view_stride(args[0].shape, args[0].stride, args[1]) is None:
        return None
    spec: Spec = node.op.infer(*args)
    return spec


def _copy_of(spec: Spec) -> Spec | None:
    """A copy in padded rows, or columns if those are whole in memory."""
    if spec.ndim < 2 or spec.dtype.itemsize == 0:
        return None
    if spec.stride[-1] == 1:
        return _padded(spec.replace(stride=None, offset=0))
    swapped = (*range(spec.ndim - 2), spec.ndim - 1, spec.ndim - 2)
    rows = _padded(Spec.of([spec.shape[d] for d in swapped], dtype=spec.dtype, device=spec.device))
    assert rows is not None
    return rows.replace(shape=spec.shape, stride=[rows.stride[d] for d in swapped], offset=0)
