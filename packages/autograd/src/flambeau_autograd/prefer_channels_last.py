"""Run convolutions in channels-last layout, and what lies between them too.

    c: f32[2, 8, 9, 9] = aten.convolution(x, w, ...)
    r: f32[2, 8, 9, 9] = aten.relu(c)
    return (r,)

      ->

    xl: stride [243, 1, 27, 3] = aten.clone(x, channels_last)
    c: stride [648, 1, 72, 8] = aten.convolution(xl, w, ...)
    r: stride [648, 1, 72, 8] = aten.relu(c)
    rc: f32[2, 8, 9, 9] = aten.clone(r, contiguous_format)
    return (rc,)

Convolution libraries work on channels-last data; given other data they convert on every call. On a
CPU the library orders row-major weights for row-major data sooner than for channels-last data, so
convolutions by weights that are much larger than their images stay row-major, unless they are
computed in integers (`integer_convolutions.py`).

The pass relies on the shape rules: the Specs behind a changed operand are those that eager would
give on channels-last tensors. Where memory order is part of an operator's meaning (random draws,
as_strided) or its rule refuses the layout (a view), the operand is restored first, and so is
whatever leaves the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.integer_convolutions import is_worth_it
from flambeau_autograd.operators import Work, work
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.image_convolutions import image_convolution
from flambeau_prims.rules.registry import infer
from flambeau_prims.strides import is_channels_last, is_contiguous, product

if TYPE_CHECKING:
    from flambeau_prims.spec import Spec

aten = torch.ops.aten

FEWEST_CONVOLUTIONS = 3
"""With fewer, converting at the borders costs more than it gains."""

MUCH_LARGER = 4
"""Weights of so many times the numbers of input and result take longer to order than these."""

FEWEST_WEIGHTS = 1 << 18

FEWEST_PIXELS = 0.5
"""With fewer pixels in the result, for each of its channels, a forward pass by weights as large is
a matrix product of channels-last data (`flambeau_inductor.graph_passes.convolution_products`).
"""

_CONVOLUTIONS = {aten.convolution.default, aten.convolution_backward.default}
_DEQUANTISE = {
    aten.mul.Tensor,
    aten.sub.Tensor,
    aten._to_copy.default,
}
_BY_MEMORY = {
    aten.as_strided.default,
    aten.as_strided_scatter.default,
    aten.view_as_real.default,
    aten.view_as_complex.default,
}


def prefer_channels_last(graph: Graph, *, integer_products: bool = False) -> Graph:
    """The graph with 2-D convolutions in channels-last layout; `graph` itself if it has few.
    `integer_products`: convolutions of quantised images are computed in integers.
    """
    count = sum(
        node.op is aten.convolution.default and _is_image(node.args[0]) for node in graph.nodes
    )
    if count < FEWEST_CONVOLUTIONS:
        return graph
    return _Converter(graph, integer_products).convert()


def _is_image(value: Any) -> bool:
    return isinstance(value, Value) and value.spec.ndim == 4


def _takes_channels_last_weight(weight: Value, node: Node) -> bool:
    """Whether the library works on a weight in channels-last layout: on a CPU its layout is
    another, and kernels for groups are not the library's.
    """
    groups = node.args[9 if node.op is aten.convolution_backward.default else 8]
    return weight.spec.device.type == "cuda" and isinstance(groups, int) and groups == 1


def _stays_row_major(node: Node) -> bool:
    """Whether ordering the weight takes longer than converting the images."""
    if node.op is aten.convolution_backward.default:
        result, x, weight = node.args[:3]
        transposed, groups = node.args[7], node.args[9]
    else:
        (result,) = node.outputs
        x, weight = node.args[:2]
        transposed, groups = node.args[6], node.args[8]
    spec = weight.spec
    if spec.device.type != "cpu" or spec.dtype is not torch.float32 or result is None:
        return False
    shapes = (spec.shape, x.spec.shape, result.spec.shape)
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        return False
    weights, *images = (product(shape) for shape in shapes)
    if transposed or groups != 1 or not is_contiguous(spec) or weights < FEWEST_WEIGHTS:
        return False
    pixels, channels = product(result.spec.shape[:1] + result.spec.shape[2:]), spec.shape[0]
    if node.op is aten.convolution.default and pixels <= FEWEST_PIXELS * channels:
        return False
    return bool(weights >= MUCH_LARGER * sum(images))


def _multiplies_integers(node: Node) -> bool:
    """Whether a convolution's factors look dequantised, and a product of integers computes it."""
    call = image_convolution(node)
    return (
        call is not None
        and is_worth_it(call)
        and _is_dequantised(call.x)
        and _is_dequantised(call.weight)
    )


def _is_dequantised(value: Value) -> bool:
    """Whether a value of floats is computed from 8-bit integers by the steps of dequantisation."""
    while value.producer is not None:
        operands = [arg for arg in value.producer.args if isinstance(arg, Value)]
        if any(arg.spec.dtype in (torch.int8, torch.uint8) for arg in operands):
            return True
        if value.producer.op not in _DEQUANTISE or not operands:
            return False
        value = operands[0]
    return False


class _Converter:
    """One conversion: `now` maps old Values to new ones, `copies` to those in another layout."""

    def __init__(self, graph: Graph, integer_products: bool) -> None:
        self.graph = graph
        self.integer_products = integer_products
        self.nodes: list[Node] = []
        self.now: dict[Value, Value] = {}
        self.copies: dict[tuple[Value, torch.memory_format], Value] = {}

    def convert(self) -> Graph:
        graph = self.graph
        for node in graph.nodes:
            self.node(node)
        return Graph(
            inputs=list(graph.inputs),
            nodes=self.nodes,
            outputs=[
                self.restored(out) if isinstance(out, Value) else out for out in graph.outputs
            ],
            writes=[(target, self.restored(value)) for target, value in graph.writes],
            env=graph.env,
            name=graph.name,
            write_counts=graph.write_counts,
        )

    def node(self, node: Node) -> None:
        """Append a node, its operands in the layouts they have now."""
        read = {old: self.now.get(old, old) for old in node.operands()}
        if node.op in _CONVOLUTIONS and _is_image(node.args[0]):
            count = 2 if node.op is aten.convolution_backward.default else 1
            # The gradient and the input, and the weight, which else the library copies each time.
            count += _takes_channels_last_weight(node.args[count], node)
            row_major = _stays_row_major(node) and not (
                self.integer_products and _multiplies_integers(node)
            )
            order = torch.contiguous_format if row_major else torch.channels_last
            for old in node.args[:count]:
                read[old] = self.copy(read[old], order)
        if all(old.spec is new.spec for old, new in read.items()):
            self.append(node, read, [None if out is None else out.spec for out in node.outputs])
            return
        specs = None if self.needs_old_layout(node) else self.inferred(node, read)
        if specs is None:
            read = {old: self.restored(old) for old in read}
            specs = [None if out is None else out.spec for out in node.outputs]
        self.append(node, read, specs)

    def needs_old_layout(self, node: Node) -> bool:
        """Whether the operator reads memory rather than elements, or draws in memory order."""
        return node.op in _BY_MEMORY or work(node.op) is Work.ONCE

    def inferred(self, node: Node, read: dict[Value, Value]) -> list[Spec | None] | None:
        """The results' Specs in the new layouts; None if the operator refuses them."""
        args, kwargs = (
            map_values(arg, lambda value: read[value].spec) for arg in (node.args, node.kwargs)
        )
        try:
            result = infer(node.op, args, kwargs)
        except RuntimeError:  # the rule of a view raises what eager raises
            return None
        specs = list(result) if isinstance(result, (tuple, list)) else [result]
        return specs if len(specs) == len(node.outputs) else None

    def append(self, node: Node, read: dict[Value, Value], specs: list[Spec | None]) -> None:
        """Append `node` on new operands, giving Values of these Specs."""
        args, kwargs = (map_values(arg, read.__getitem__) for arg in (node.args, node.kwargs))
        result = Node(node.op, args, kwargs, (), node.where)
        outputs: list[Value | None] = []
        for old, spec in zip(node.outputs, specs, strict=True):
            if old is None or spec is None:
                outputs.append(None)
                continue
            value = Value(old.name, spec, result)
            self.now[old] = value
            outputs.append(value)
        result.outputs = tuple(outputs)
        self.nodes.append(result)

    def copy(self, value: Value, memory_format: torch.memory_format) -> Value:
        """`value` in a layout, copied if it is in another."""
        there = is_channels_last if memory_format is torch.channels_last else is_contiguous
        if there(value.spec):
            return value
        known = self.copies.get((value, memory_format))
        if known is None:
            kwargs = {"memory_format": memory_format}
            name = f"{value.name}_{'nhwc' if memory_format is torch.channels_last else 'rows'}"
            where = "" if value.producer is None else value.producer.where
            node = Node(aten.clone.default, (value,), kwargs, (), where)
            known = Value(name, infer(aten.clone.default, (value.spec,), kwargs), node)
            node.outputs = (known,)
            self.nodes.append(node)
            self.copies[value, memory_format] = known
        return known

    def restored(self, old: Value) -> Value:
        """What stands for `old`, in the layout that `old` had."""
        new = self.now.get(old, old)
        if new.spec.stride == old.spec.stride:
            return new
        memory_format = (
            torch.channels_last if is_channels_last(old.spec) else torch.contiguous_format
        )
        copied = self.copy(new, memory_format)
        if copied.spec.stride == old.spec.stride:
            return copied
        # Neither layout: exactly the old strides, through a buffer that has them.
        empty = Node(
            aten.empty_strided.default,
            (list(old.spec.shape), list(old.spec.stride)),
            {"dtype": old.spec.dtype, "device": old.spec.device},
        )
        buffer = Value(f"{old.name}_buffer", old.spec.replace(offset=0), empty)
        empty.outputs = (buffer,)
        node = Node(aten.copy.default, (buffer, new), {})
        result = Value(f"{old.name}_as_it_was", buffer.spec, node)
        node.outputs = (result,)
        self.nodes += [empty, node]
        return result
