"""Pad the matrices of products in half precision on a GPU, whose library is several times slower
for sizes that are no multiples of 8.

    y: bf16[8192, 50257] = aten.mm.default(x, t)       t = prims.permute(w, (1, 0))

      ->

    p: bf16[50304, 768] = prims.pad(w, (0, 0), (47, 0), 0)
    q = prims.permute(p, (1, 0))
    z: bf16[8192, 50304] = aten.mm.default(x, q)
    y: bf16[8192, 50257] stride [50304, 1] = prims.slice(z, 1, 0, 50257, 1)

A size counts where elements lie side by side along it: the columns of the result, and whichever
dims the operands have so. What is padded with zeros adds nothing along the dim that is summed. A
matrix that kernels of this graph compute is written with its padding; one from outside is copied,
if the product is modelled to gain more than the copy costs. Readers of `y` see its rows further
apart; where it leaves the graph, a copy in eager's strides does.

Works on graphs of primitives, forward and backward in one, before the partition: what is saved
keeps its padding. Relies on primitives writing any strides, and on the Specs of views following
their operands'. Symbolic sizes stay as they are; those beside them are padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_prims import primitives as prims
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.rules.view import view_stride
from flambeau_prims.sizes import hint_of
from flambeau_prims.spec import Spec, contiguous_stride

if TYPE_CHECKING:
    from flambeau_prims.spec import Size

aten = torch.ops.aten
Shape: TypeAlias = tuple[Any, ...]

MULTIPLE = 8
"""Elements to multiples of which sizes are padded."""
LONG = 512
"""Sizes from here on are padded to multiples of a line of the cache, 64 elements."""
SLOWDOWN = {1: 5.0, 2: 2.8, 4: 2.8}
"""By the largest power of two in a size: how much longer a product takes for it, on an H200
(`tools/bench/gemm_alignment.py`).
"""
FLOPS_PER_BYTE = 160
"""Operations of a product that take as long as a byte of memory traffic."""
LAUNCH_BYTES = 16 << 20
"""Bytes of memory traffic that take as long as one more kernel."""

_OPERANDS = {
    aten.mm.default: (0, 1), aten.addmm.default: (1, 2), aten.bmm.default: (0, 1),
}  # fmt: skip
"""Which arguments of a matrix product are its matrices."""

_COMPUTED = {Kind.POINTWISE, Kind.INDEX, Kind.LAYOUT}
"""Primitives that the kernel which pads computes too."""
_READERS = {*_COMPUTED, Kind.REDUCTION}


def pad_products(graph: Graph) -> Graph:
    """Pad the matrices of products in `graph`, in place, where that is modelled to gain."""
    products = {
        product.node: product for node in graph.nodes if (product := _product(node)) is not None
    }
    if products:
        _Padding(graph, products).run()
    return graph


@dataclass(eq=False, slots=True)
class _Product:
    """A product, the sizes (rows, columns, depth) that it is to have, and the bytes of traffic that
    it gains by them.
    """

    node: Node
    left: Value
    right: Value
    sizes: tuple[Size, Size, Size]
    gain: float

    @property
    def padded(self) -> list[tuple[Value, Shape]]:
        """The operands that must be padded, to which shapes."""
        rows, columns, depth = self.sizes
        batch = self.left.spec.shape[:-2]
        wanted = [(self.left, (*batch, rows, depth)), (self.right, (*batch, depth, columns))]
        return [
            (base, tuple(shape[d] for d in order))
            for value, shape in wanted
            if value.spec.shape != shape
            for base, order in [_base(value)]
        ]


def _product(node: Node) -> _Product | None:
    """The product that a node computes, if it gains by padding."""
    places = _OPERANDS.get(node.op)
    if places is None or node.kwargs:
        return None
    (out,) = node.outputs
    assert out is not None
    left, right = (node.args[place] for place in places)
    if not _gains(out.spec):
        return None
    if node.op is aten.addmm.default and node.args[0].spec.shape != out.spec.shape[1:]:
        return None
    rows, depth = left.spec.shape[-2:]
    columns = right.spec.shape[-1]
    inner = {"columns": columns}
    if left.spec.stride[-1] == 1 or right.spec.stride[-2] == 1:
        inner["depth"] = depth
    if left.spec.stride[-2] == 1 and left.spec.stride[-1] != 1:
        inner["rows"] = rows
    known = {name: size for name, size in inner.items() if isinstance(size, int) and size}
    powers = [size & -size for size in known.values() if size % MULTIPLE]
    if not powers:
        return None
    wanted = {"rows": rows, "columns": columns, "depth": depth}
    wanted.update({name: _rounded(size) for name, size in known.items()})
    traffic = sum(_bytes(value.spec) for value in (left, right, out))
    before = SLOWDOWN[min(powers)] * _operations(out.spec, depth) / FLOPS_PER_BYTE
    padded = out.spec.replace(shape=(*out.spec.shape[:-2], wanted["rows"], wanted["columns"]))
    after = max(_operations(padded, wanted["depth"]) / FLOPS_PER_BYTE, traffic)
    gain = max(before, traffic) - after
    return _Product(node, left, right, (wanted["rows"], wanted["columns"], wanted["depth"]), gain)


def _operations(out: Spec, depth: Size) -> int:
    return 2 * prod(map(hint_of, out.shape)) * hint_of(depth)


def _gains(spec: Spec) -> bool:
    """Whether the library has much faster kernels for padded matrices of this kind."""
    return spec.device.type == "cuda" and spec.dtype in (torch.float16, torch.bfloat16)


def _rounded(size: int) -> int:
    if size % MULTIPLE == 0:
        return size
    step = 64 if size >= LONG else MULTIPLE
    return -(-size // step) * step


def _bytes(spec: Spec) -> int:
    return prod(map(hint_of, spec.shape)) * spec.dtype.itemsize


def _base(value: Value) -> tuple[Value, Shape]:
    """A matrix, or the one that it is the transpose of; and in which order its dims are those."""
    ndim = value.spec.ndim
    order, swapped = tuple(range(ndim)), (*range(ndim - 2), ndim - 1, ndim - 2)
    while (node := value.producer) is not None and node.op is prims.permute:
        if node.args[1] != swapped:
            break
        value = node.args[0]
        order = tuple(swapped[d] for d in order)
    return value, order


class _Padding:
    """The padding of one graph."""

    def __init__(self, graph: Graph, products: dict[Node, _Product]) -> None:
        self.graph = graph
        self.users = graph.users()
        self.exits = set(graph.live_at_exit())
        self.products = products
        self.nodes: list[Node] = []
        self.builder = Builder(self.nodes, (value.name for value in self.users))
        self.padded: dict[tuple[Value, Shape], Value] = {}
        self.leaving: dict[Value, Spec] = {}
        """Results, or views of them, that leave the graph, and their strides in eager."""

    def run(self) -> None:
        graph = self.graph
        shares: dict[Any, int] = {}
        for each in self.products.values():
            for key in each.padded:
                shares[key] = shares.get(key, 0) + 1
        product: _Product | None
        for node in graph.nodes:
            product = self.products.get(node)
            if product is not None and self.cost(product, shares) < product.gain:
                self.builder.line = node.where
                self.pad(product)
            else:
                self.nodes.append(node)
            for value in node.outputs:
                if value in self.leaving:
                    self.restore(value, self.leaving[value])
        graph.nodes = self.nodes

    def cost(self, product: _Product, shares: dict[Any, int]) -> float:
        """The bytes of traffic that padding takes."""
        total = 0.0
        for key in product.padded:
            if key not in self.padded:
                copy = _bytes(key[0].spec) + (0 if _is_computed(key[0]) else _bytes(key[0].spec))
                total += (LAUNCH_BYTES + copy) / shares[key]
        (out,) = product.node.outputs
        assert out is not None
        if product.sizes[:2] != (product.left.spec.shape[-2], product.right.spec.shape[-1]):
            whole = (*out.spec.shape[:-2], *product.sizes[:2])
            part = out.spec.replace(stride=contiguous_stride(whole))
            moves = part.stride != out.spec.stride
            if moves and ((change := self.change(out, part)) is None or change[1]):
                total += LAUNCH_BYTES + 2 * _bytes(out.spec)
        return total

    # The rewriting

    def pad(self, product: _Product) -> None:
        """Append the padded product, and its result under the old Value."""
        node, b = product.node, self.builder
        (out,) = node.outputs
        assert out is not None
        rows, columns, depth = product.sizes
        batch = out.spec.shape[:-2]
        left = self.operand(product.left, (*batch, rows, depth))
        right = self.operand(product.right, (*batch, depth, columns))
        if (rows, columns) == out.spec.shape[-2:]:
            places = _OPERANDS[node.op]
            args = list(node.args)
            args[places[0]], args[places[1]] = left, right
            node.args = tuple(args)
            self.nodes.append(node)
            return
        whole = Value(b.fresh_name(), out.spec.replace(shape=(*batch, rows, columns)))
        operator = aten.bmm.default if batch else aten.mm.default
        whole.producer = Node(operator, (left, right), {}, (whole,), node.where)
        self.nodes.append(whole.producer)
        part = whole
        for dim, size in zip((-2, -1), out.spec.shape[-2:], strict=True):
            if part.spec.shape[dim] != size:
                part = b.slice(part, out.spec.ndim + dim, 0, size, 1)
        if node.op is aten.addmm.default:
            wide = torch.float32
            bias = b.expand(b.unsqueeze(b.cast(node.args[0], wide), 0), out.spec.shape)
            total = b.add(b.cast(part, wide), bias)
            self.define(out, Node(prims.cast, (total, out.spec.dtype), {}, (), node.where))
            return
        if part.spec.stride != out.spec.stride:
            change = self.change(out, part.spec)
            if change is None:
                self.define(out, Node(prims.clone, (part,), {}, (), node.where))
                return
            specs, leaving = change
            self.leaving.update((value, value.spec) for value in leaving)
            for value, spec in specs.items():
                value.spec = spec
        last = self.nodes.pop()  # the slice, under the old Value
        self.define(out, Node(last.op, last.args, {}, (), node.where))
        self.padded[out, whole.spec.shape] = whole

    def define(self, out: Value, node: Node) -> None:
        node.outputs = (out,)
        out.producer = node
        self.nodes.append(node)

    def operand(self, value: Value, shape: Shape) -> Value:
        """A matrix padded with zeros to a shape, in the order in memory that it has."""
        if value.spec.shape == shape:
            return value
        base, order = _base(value)
        wanted = tuple(shape[d] for d in order)
        known = self.padded.get((base, wanted))
        if known is None:
            known = self.padded[base, wanted] = self.fill(base, wanted)
        return known if base is value else self.builder.permute(known, order)

    def fill(self, base: Value, shape: Shape) -> Value:
        """A matrix with zeros around it."""
        b = self.builder
        sizes = zip(shape, base.spec.shape, strict=True)
        highs = tuple(0 if size == have else size - have for size, have in sizes)
        dims = [dim for dim, high in enumerate(highs) if high]
        if _is_computed(base) and len(dims) == 1:
            # Parts are written by separate kernels: the matrix as if nothing were padded.
            (dim,) = dims
            spec = base.spec
            rest = (*spec.shape[:dim], highs[dim], *spec.shape[dim + 1 :])
            padded = b.cat([base, b.full(rest, 0, spec.dtype, spec.device)], dim)
        else:
            padded = b.pad(base, (0,) * len(shape), highs, 0)
        padded.spec = _in_order_of(base.spec, shape)
        return padded

    def restore(self, out: Value, spec: Spec) -> None:
        """Let a copy in eager's strides, in `spec`, leave the graph."""
        graph = self.graph
        assert out.producer is not None
        self.builder.line = out.producer.where
        copy = Value(self.builder.fresh_name(), spec.replace(stride=spec.stride, offset=0))
        self.define(copy, Node(prims.clone, (out,), {}, (), self.builder.line))
        graph.outputs = [copy if item is out else item for item in graph.outputs]
        graph.writes = [(target, copy if item is out else item) for target, item in graph.writes]

    # The readers of a result

    def change(self, root: Value, new: Spec) -> tuple[dict[Value, Spec], list[Value]] | None:
        """The Specs of a result and its views if its rows lie further apart, and which of them
        leave the graph; None if a reader does not take them.
        """
        specs = {root: new}
        leaving = []
        pending = [root]
        while pending:
            value = pending.pop()
            if value in self.exits:
                leaving.append(value)
            for user in self.users[value]:
                op = user.op
                if isinstance(op, Prim) and op.kind is Kind.VIEW:
                    spec = _view_of(user, specs)
                    if spec is None:
                        return None
                    (out,) = user.outputs
                    assert out is not None
                    specs[out] = spec
                    pending.append(out)
                elif op not in _OPERANDS and not (
                    isinstance(op, Prim) and op.kind in _READERS and op is not prims.to_device
                ):
                    return None
        # Tensors that share memory outside would do so no more.
        return (specs, leaving) if len(leaving) <= 1 else None


def _is_computed(value: Value) -> bool:
    """Whether kernels of this graph compute a matrix."""
    while (node := value.producer) is not None and isinstance(node.op, Prim):
        if node.op.kind is not Kind.VIEW:
            return node.op.kind in _COMPUTED and node.op is not prims.to_device
        value = node.args[0]
    return False


def _in_order_of(like: Spec, shape: Shape) -> Spec:
    """Dense in a shape, with columns side by side if `like` has them so, else rows."""
    if like.stride[-2] == 1 and like.stride[-1] != 1:
        *outer, step = contiguous_stride((*shape[:-2], shape[-1], shape[-2]))
        outer, last = outer[:-1], outer[-1]
        return like.replace(shape=shape, stride=(*outer, step, last), offset=0)
    return like.replace(shape=shape, stride=None, offset=0)


def _view_of(node: Node, specs: dict[Value, Spec]) -> Spec | None:
    """The Spec of a view of a changed operand; None if it would have to be a copy."""
    if node.op is prims.as_strided:
        return None
    args: list[Any] = list(map_values(node.args, lambda value: specs.get(value, value.spec)))
    if node.op is prims.reshape and view_stride(args[0].shape, args[0].stride, args[1]) is None:
        return None
    spec: Spec = node.op.infer(*args)
    return spec
