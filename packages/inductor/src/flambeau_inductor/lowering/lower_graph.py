"""Lower a graph: one loop nest for each realized value, one extern call for each ATen node, in
program order.

    graph(x: f32[4, 8]) { y = prims.exp(x); s = prims.sum(y, (1,)); return (s,) }
    nest exp_sum (i0 < 4 | r0 < 8) { v0 = load arg0[8*i0 + r0]; v1 = exp v0; v2 = reduce sum v1;
    store buf0[i0] v2 }

Relies on `realize` for what gets memory. Every nest's axes follow the memory order of what it
writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.indexing.expressions import int_if_known, linear, symbol
from flambeau_inductor.indexing.sizes import SizeTable
from flambeau_inductor.indexing.symbols import SymbolSources
from flambeau_inductor.ir import Axis, Load
from flambeau_inductor.lowering.collectives import check_waits
from flambeau_inductor.lowering.column_reduction import find_shared_rows, lower_column_reduction
from flambeau_inductor.lowering.elements import Elements, host_symbol
from flambeau_inductor.lowering.extern import (
    copy_into,
    copy_to_device,
    is_update,
    lower_extern,
    lower_update,
    updated_operands,
)
from flambeau_inductor.lowering.flex_attention import lower_attention
from flambeau_inductor.lowering.index import continued_scatters, store_scattered
from flambeau_inductor.lowering.lstm import lower_lstm
from flambeau_inductor.lowering.random import STATE
from flambeau_inductor.lowering.realize import realize, result_of
from flambeau_inductor.lowering.reduction import lower_reduction
from flambeau_inductor.lowering.registry import load_all
from flambeau_inductor.lowering.scan import follow, follow_one
from flambeau_inductor.lowering.split_axes import split_axes
from flambeau_inductor.lowering.split_reduction import lower_split_reduction
from flambeau_inductor.lowering.split_scan import choose_chunk, lower_chunks
from flambeau_inductor.lowering.winograd import lower_winograd
from flambeau_inductor.nodes import Buffer, LoopNest, Lowered, SizeRef, TensorRef
from flambeau_inductor.split_reduction import choose_split, reduced_dims
from flambeau_prims.flex_attention import EAGER
from flambeau_prims.graph import Value
from flambeau_prims.primitives import STORED_DTYPES, Kind, Prim
from flambeau_prims.sizes import hint_of
from flambeau_runtime.program import Symbol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from flambeau_inductor.lowering.split_reduction import Partials
    from flambeau_inductor.options import InductorOptions
    from flambeau_prims.graph import Graph, Node
    from flambeau_prims.spec import Size, Spec

MAX_LABEL = 4
"""A nest is named after at most this many operators."""


def lower_graph(graph: Graph, options: InductorOptions) -> Lowered:
    """Nests and extern calls for a graph of primitives and ATen calls."""
    load_all()
    check_waits(graph)
    return _GraphLowering(graph, options).run()


class _GraphLowering:
    def __init__(self, graph: Graph, options: InductorOptions) -> None:
        self.graph = graph
        self.options = options
        sources = SymbolSources(graph.inputs)
        self.sizes = SizeTable(sources.names)
        self.lowered = Lowered(graph, self.sizes, tuple(sources.symbols))
        self.lowered.frozen = frozenset(
            f"arg{number}" for number, value in enumerate(graph.inputs) if value in graph.frozen
        )
        self.realized = realize(graph, options)
        self.memory: dict[Value, str] = {}
        self.continued = continued_scatters(graph)
        self.made = 0
        self.copies: dict[tuple[str, torch.device], Value] = {}
        self.partial: Partials = {}
        self.shares = find_shared_rows(graph, options)

    def run(self) -> Lowered:
        graph = self.graph
        for number, value in enumerate(graph.inputs):
            name = f"arg{number}"
            if isinstance(value, Value):
                self.memory[value] = self.declare(name, value.spec, "input")
            self.lowered.inputs.append(name)
        for node in graph.nodes:
            first = len(self.lowered.nodes)
            self.lower_node(node)
            for made in self.lowered.nodes[first:]:
                made.computes[node] = None
        self.lower_outputs()
        self.lower_writes()
        self.declare_host_values()
        return self.lowered

    def declare_host_values(self) -> None:
        """Symbols for the elements of inputs that launches pass by value, behind all sizes."""
        read = {name for node in self.lowered.nodes for name in getattr(node, "host_reads", ())}
        self.lowered.symbols += tuple(
            Symbol(host_symbol(name, number), position, number, is_element=True)
            for position, name in enumerate(self.lowered.inputs)
            if name in read
            for number in range(len(STATE))
        )

    def declare(self, name: str, spec: Spec, role: str) -> str:
        self.lowered.buffers[name] = Buffer(name, spec, role)
        return name

    def make(self, value: Value, role: str = "computed") -> str:
        """A new buffer for a value."""
        name = self.memory[value] = self.declare(f"buf{self.made}", value.spec, role)
        self.made += 1
        if value in self.realized.compared:
            self.lowered.compared.add(name)
        return name

    def make_unnamed(self, spec: Spec) -> TensorRef:
        """A new buffer for what no value of the graph stands for."""
        self.made += 1
        return TensorRef(self.declare(f"buf{self.made - 1}", spec, "computed"), spec)

    def tensor(self, value: Value) -> TensorRef:
        """A realized value, or a view of one, as a tensor."""
        return TensorRef(self.memory[self.realized.root(value)], value.spec)

    def lower_node(self, node: Node) -> None:
        nodes = self.lowered.nodes
        if is_update(node):
            self.update(node)
            return
        if node.op in EAGER:
            lower_attention(self, node)
            return
        if not isinstance(node.op, Prim):
            if lower_lstm(self, node) or (not self.options.strict and lower_winograd(self, node)):
                return
            nodes.append(lower_extern(node, len(nodes), self.tensor, self.make))
            return
        if (out := result_of(node)) in self.realized.roots or out not in self.realized.values:
            return
        if node.op.name == "to_device":
            source = self.tensor(node.args[0])
            nodes.append(
                copy_to_device(len(nodes), source, self.make(out, "extern"), out.spec.device)
            )
        elif node.op.name == "empty" or _is_empty(out.spec.shape):
            self.make(out)
        elif out.spec.dtype not in STORED_DTYPES:
            assert node.op.name == "clone", node
            self.copy_value(node.args[0], out)
        elif node.op.kind is Kind.REDUCTION:
            self.reduction_nest(node)
        elif node.op.kind in (Kind.SCAN, Kind.SORT):
            self.scan_nest(node)
        elif node.op.name == "cat" and self.realized.in_parts(node):
            self.cat_nests(node)
        elif node.op.kind is Kind.SCATTER:
            self.scatter_nests(node)
        else:
            self.pointwise_nest(out, node.where)

    def update(self, node: Node) -> None:
        """Copies of what is updated, and a call that changes the copies."""
        copies: dict[int, TensorRef] = {}
        for at, out in zip(updated_operands(node), node.outputs, strict=True):
            assert out is not None
            if not (_is_empty(out.spec.shape) or _is_uninitialised(node.args[at])):
                axes, index = self.axes(out.spec.shape, out.spec.stride, "i")
                elements = self.elements(axes, out.spec.device)
                name = elements.element(node.args[at], index)
                self.finish(elements, self.make(out), out.spec, index, name, axes, (), node.where)
            else:
                self.make(out)
            copies[at] = self.tensor(out)
        nodes = self.lowered.nodes
        nodes.append(lower_update(node, len(nodes), self.tensor, copies))
        self.lowered.updated.update(copy.buffer for copy in copies.values())

    def copy_value(self, value: Value, target: Value) -> None:
        """Copy a value of a dtype without kernels into another's memory, allocated if needed."""
        if target not in self.memory:
            self.make(target)
        ref = TensorRef(self.memory[target], target.spec)
        nodes = self.lowered.nodes
        nodes.append(copy_into(len(nodes), self.tensor(value), ref))

    # Loop nests

    def pointwise_nest(self, value: Value, where: str) -> None:
        """Compute a value at every index, into a separate buffer."""
        axes, index = self.axes(value.spec.shape, value.spec.stride, "i")
        elements = self.elements(axes, value.spec.device)
        name = elements.inline(value, index)
        self.finish(elements, self.make(value), value.spec, index, name, axes, (), where)

    def reduction_nest(self, node: Node) -> None:
        """Reduce a value into a separate buffer."""
        if node in self.shares:
            lower_column_reduction(self, node, self.shares[node])
            return
        out, x = result_of(node), node.args[0]
        dims = reduced_dims(node)
        split = choose_split(node, dims, self.options)
        if split.splits:
            lower_split_reduction(self, node, split, self.partial)
            return
        outer, kept = self.axes(out.spec.shape, out.spec.stride, "i")
        inner, reduced = self.axes(
            [x.spec.shape[d] for d in dims], [x.spec.stride[d] for d in dims], "r"
        )
        elements = self.elements(outer + inner, out.spec.device)
        name = lower_reduction(elements, node, node.op.name, kept, reduced, has_inner=bool(inner))
        self.finish(elements, self.make(out), out.spec, kept, name, outer, inner, node.where)

    def scan_nest(self, node: Node) -> None:
        """Scan or sort the rows of a value into a separate buffer."""
        chunk = choose_chunk(node, self.options)
        if chunk:
            lower_chunks(self, node, chunk)
            return
        out, (x, dim, *_) = result_of(node), node.args
        shape, stride = x.spec.shape, out.spec.stride
        outer, kept = self.axes(_without(shape, dim), _without(stride, dim), "i")
        inner, (place,) = self.axes(shape[dim : dim + 1], stride[dim : dim + 1], "r")
        index = (*kept[:dim], place, *kept[dim:])
        elements = self.elements(outer + inner, out.spec.device)
        value = elements.element(x, index)
        name = (follow if inner else follow_one)(elements, node, value)
        count = out.spec.shape[dim]
        mask = (
            None
            if count is shape[dim] or count == shape[dim]
            else (elements.condition("lt", place, count))
        )
        self.finish(elements, self.make(out), out.spec, index, name, outer, inner, node.where, mask)

    def cat_nests(self, node: Node) -> None:
        """Each part of a cat, copied to its place by a separate nest. Parts computed from other
        places of a value that the cat may overwrite are computed beforehand.
        """
        out = result_of(node)
        xs, dim = node.args
        if node in self.realized.parted:
            xs = self.parts_apart(node)
        buffer = self.make(out)
        start: sympy.Expr = sympy.S.Zero
        for x in xs:
            if not _is_empty(x.spec.shape):
                axes, index = self.axes(x.spec.shape, out.spec.stride, "i")
                elements = self.elements(axes, out.spec.device)
                elements.labels["cat"] = None
                name = elements.element(x, index)
                place = (*index[:dim], sympy.expand(index[dim] + start), *index[dim + 1 :])
                self.finish(elements, buffer, out.spec, place, name, axes, (), node.where)
            start = start + self.sizes.convert(x.spec.shape[dim])

    def scatter_nests(self, node: Node) -> None:
        """A copy of what is scattered into, and a nest over what is scattered."""
        out = result_of(node)
        x, indices, source, mode = node.args
        if x in self.continued:
            buffer = self.memory[out] = self.memory[x]
        else:
            axes, index = self.axes(out.spec.shape, out.spec.stride, "i")
            elements = self.elements(axes, out.spec.device)
            name = elements.element(x, index)
            buffer = self.make(out)
            self.finish(elements, buffer, out.spec, index, name, axes, (), node.where)
        if _is_empty(source.spec.shape):
            return
        base = self.realized.root(x)
        if base in self.realized.overwritten:
            # The copy can go only if what is read from the base is read beforehand.
            kept = self.memory[base]
            source, *indices = (
                self.apart(item, node.where) if item and kept in self.sources_of(item) else item
                for item in (source, *indices)
            )
        spec = source.spec
        # A CPU adds in the order of the indices, as eager does.
        order = spec.fresh(spec.shape).stride if spec.device.type == "cpu" else spec.stride
        axes, index = self.axes(spec.shape, order, "i")
        elements = self.elements(axes, spec.device)
        if not isinstance(mode, str):
            mode = "add" if mode else "set"
        store_scattered(elements, (buffer, out), indices, source, index, mode)
        elements.labels[node.op.name] = None
        self.append(elements, spec, axes, (), node.where)

    def parts_apart(self, node: Node) -> list[Value]:
        """The parts of a cat, in separate memory if they are computed from elements that the cat
        may overwrite, other than those at their own place.
        """
        out = result_of(node)
        xs, dim = node.args
        base = self.realized.parted[node]
        kept, older = self.memory[base], set()
        while base.producer is not None and base.producer in self.realized.parted:
            base = self.realized.parted[base.producer]
            older.add(self.memory[base])
        strides = self.sizes.convert_all(out.spec.stride)
        start: sympy.Expr = sympy.S.Zero
        result = []
        for x in xs:
            axes, index = self.axes(x.spec.shape, out.spec.stride, "i")
            elements = self.elements(axes, out.spec.device)
            elements.element(x, index)
            place = linear(index, strides, start * strides[dim])
            loads = [s for s in elements.builder.statements if isinstance(s, Load)]
            elsewhere = any(
                load.buffer in older or (load.buffer == kept and load.index != place)
                for load in loads
            )
            result.append(self.apart(x, node.where) if elsewhere else x)
            start = start + self.sizes.convert(x.spec.shape[dim])
        return result

    def sources_of(self, value: Value) -> set[str]:
        """The buffers that a value is computed from."""
        axes, index = self.axes(value.spec.shape, value.spec.stride, "i")
        elements = self.elements(axes, value.spec.device)
        elements.element(value, index)
        return {s.buffer for s in elements.builder.statements if isinstance(s, Load)}

    def apart(self, value: Value, where: str) -> Value:
        """A copy of a value, row by row."""
        copy = Value(f"{value.name}_apart", value.spec.fresh())
        axes, index = self.axes(copy.spec.shape, copy.spec.stride, "i")
        elements = self.elements(axes, copy.spec.device)
        name = elements.element(value, index)
        self.finish(elements, self.make(copy), copy.spec, index, name, axes, (), where)
        return copy

    def axes(
        self, shape: Sequence[Size], stride: Sequence[Size], prefix: str
    ) -> tuple[tuple[Axis, ...], tuple[sympy.Expr, ...]]:
        """Loop axes over a shape, outermost first in memory, and the index of each dim; dims of
        size 1 have no axis.
        """
        sizes = self.sizes.convert_all(shape)
        dims = [d for d, size in enumerate(sizes) if size is not sympy.S.One]
        dims.sort(key=lambda d: -hint_of(stride[d]))
        index: list[sympy.Expr] = [sympy.S.Zero] * len(sizes)
        axes = []
        for number, d in enumerate(dims):
            index[d] = symbol(f"{prefix}{number}")
            axes.append(Axis(index[d], int_if_known(sizes[d])))
        return tuple(axes), tuple(index)

    def elements(self, axes: tuple[Axis, ...], device: torch.device) -> Elements:
        ranges = {axis.symbol.name: sympy.sympify(axis.size) for axis in axes}
        return Elements(
            self.memory,
            self.realized.roots,
            self.sizes,
            ranges,
            device,
            self.on_device,
            self.options.elides_casts,
        )

    def finish(
        self, elements: Elements, buffer: str, spec: Spec, index: tuple[sympy.Expr, ...], name: str,
        outer: tuple[Axis, ...], inner: tuple[Axis, ...], where: str, mask: str | None = None,
    ) -> LoopNest:  # fmt: skip
        """Store the value, where the mask holds, and append the nest."""
        address = linear(index, self.sizes.convert_all(spec.stride), sympy.S.Zero)
        value = elements.builder.cast(name, spec.dtype)
        elements.builder.store(buffer, address, value, mask=mask)
        return self.append(elements, spec, outer, inner, where)

    def append(
        self, elements: Elements, spec: Spec, outer: tuple[Axis, ...], inner: tuple[Axis, ...],
        where: str,
    ) -> LoopNest:  # fmt: skip
        """Append the nest of a finished body."""
        body = elements.builder.finish()
        outer, inner, body = split_axes(outer, inner, body)
        labels = list(elements.labels)
        label = "_".join([*labels[: MAX_LABEL - 1], *labels[MAX_LABEL - 1 :][-1:]]) or "copy"
        nest = LoopNest(
            len(self.lowered.nodes),
            str(spec.device),
            outer,
            inner,
            body,
            label,
            where,
            host_reads=tuple(elements.host_reads),
            computes=elements.computed,
        )
        self.lowered.nodes.append(nest)
        return nest

    def on_device(self, root: Value, device: torch.device) -> Value:
        """A scalar that lives elsewhere, copied to the device of the nest that reads it."""
        buffer = self.memory[root]
        known = self.copies.get((buffer, device))
        if known is None:
            known = Value(f"{root.name}_{device.type}", root.spec.replace(device=device, offset=0))
            nodes = self.lowered.nodes
            source = TensorRef(buffer, root.spec)
            nodes.append(copy_to_device(len(nodes), source, self.make(known, "extern"), device))
            self.copies[buffer, device] = known
        return known

    # The graph's exit

    def lower_outputs(self) -> None:
        """The program's results; an input that will be written to is copied first."""
        written = {target for target, _ in self.graph.writes}
        copies: dict[Value, Value] = {}
        for out in self.graph.outputs:
            if out is None:
                self.lowered.outputs.append(None)
            elif not isinstance(out, Value):
                self.lowered.outputs.append(SizeRef(out))
            else:
                if self.realized.root(out) in written:
                    if out not in copies:
                        copies[out] = self.copy_of(out)
                    out = copies[out]
                self.lowered.outputs.append(self.tensor(out))

    def copy_of(self, value: Value) -> Value:
        """A copy of a value, in its strides; a dim of stride 0 is copied once."""
        spec = value.spec
        copy = Value(f"{value.name}_copy", spec.replace(offset=0))
        if spec.dtype not in STORED_DTYPES:
            self.copy_value(value, copy)
            return copy
        shape = [
            1 if isinstance(s, int) and s == 0 else n
            for n, s in zip(spec.shape, spec.stride, strict=True)
        ]
        axes, index = self.axes(shape, spec.stride, "i")
        elements = self.elements(axes, value.spec.device)
        name = elements.element(value, index)
        self.finish(elements, self.make(copy), copy.spec, index, name, axes, (), "")
        return copy

    def lower_writes(self) -> None:
        """Store new values into inputs, after all reads that an earlier write would break."""
        targets = {target for target, _ in self.graph.writes}
        writes = []
        for target, value in self.graph.writes:
            if self.realized.root(value) in targets:
                value = self.copy_of(value)
            writes.append((target, value))
        for target, value in writes:
            if _is_empty(target.spec.shape):
                continue
            if target.spec.dtype in STORED_DTYPES:
                axes, index = self.axes(target.spec.shape, target.spec.stride, "i")
                elements = self.elements(axes, target.spec.device)
                name = elements.element(value, index)
                self.finish(elements, self.memory[target], target.spec, index, name, axes, (), "")
            else:
                self.copy_value(value, target)
        self.lowered.write_counts = {
            self.memory[target]: count for target, count in self.graph.counted_writes()
        }


def _without(items: tuple[Size, ...], dim: int) -> tuple[Size, ...]:
    return (*items[:dim], *items[dim + 1 :])


def _is_uninitialised(value: Value) -> bool:
    """Whether nothing has been written to a value's memory."""
    producer = value.producer
    return producer is not None and isinstance(producer.op, Prim) and producer.op.name == "empty"


def _is_empty(shape: Sequence[Size]) -> bool:
    return any(isinstance(size, int) and size == 0 for size in shape)
