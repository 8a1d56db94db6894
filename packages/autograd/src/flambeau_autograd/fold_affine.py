"""Fold a batch norm behind a convolution or a linear layer into frozen weights: whatever multiplies
and adds numbers by channel.

    y = aten.convolution.default(x, w, b, ...)
    s = prims.sub(y, mean)                             v = prims.mul(w, r)
    t = prims.mul(s, r)                           ->   c = (b - mean) * r + d
    z = prims.add(t, d)                                z = aten.convolution.default(x, v, c, ...)

`mean`, `r` and `d` are constants, expanded from one number a channel. `v` and `c` are constants,
too, and computed once (`freezing`). Only in float32 and float64: in shorter formats the scaled
weights would be rounded once more. Relies on Specs for what an expanded tensor is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.functionalize import dense_order
from flambeau_prims import primitives as prims
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value

if TYPE_CHECKING:
    from flambeau_prims.primitives import Prim
    from flambeau_prims.spec import Size

aten = torch.ops.aten

_STEPS = {prims.add, prims.sub, prims.mul, prims.div}
_DTYPES = (torch.float32, torch.float64)
_LAYERS = (aten.convolution.default, aten.mm.default, aten.addmm.default)


def fold_affine(graph: Graph, constant: set[Value]) -> None:
    """Fold into the convolutions of `graph` by `constant` weights, in place; adds to `constant`."""
    if any(node.op in _LAYERS for node in graph.nodes):
        _Folding(graph, constant).run()


@dataclass(frozen=True, slots=True)
class _Layer:
    """A convolution or product by a weight, whose dim `channels` is that of the result's."""

    node: Node
    x: Value
    weight: Value
    bias: Value | None
    channels: int

    @classmethod
    def of(cls, node: Node) -> _Layer | None:
        """The layer that a node computes, if its channels are those of one weight."""
        if node.kwargs:
            return None
        if node.op is aten.convolution.default:
            x, weight, bias, *_, transposed, _, groups = node.args
            if transposed and groups != 1:
                return None
            return cls(node, x, weight, bias, 1 if transposed else 0)
        *biases, x, weight = node.args
        bias = biases[0] if biases else None
        if bias is not None and bias.spec.shape != weight.spec.shape[1:]:
            return None
        return cls(node, x, weight, bias, 1)

    def with_parameters(self, weight: Value, bias: Value | None) -> Node:
        """The call by other weights, without results yet."""
        node = self.node
        if node.op is aten.convolution.default:
            return Node(node.op, (self.x, weight, bias, *node.args[3:]), {}, (), node.where)
        if bias is None:
            return Node(aten.mm.default, (self.x, weight), {}, (), node.where)
        return Node(aten.addmm.default, (bias, self.x, weight), {}, (), node.where)


@dataclass(slots=True)
class _Affine:
    """x * scale + shift; None is 1, or 0."""

    scale: Value | None = None
    shift: Value | None = None


class _Folding:
    """The folding of one graph; a convolution moves to the last step that it takes over."""

    def __init__(self, graph: Graph, constant: set[Value]) -> None:
        self.graph = graph
        self.constant = constant
        self.users = graph.users()
        self.exits = set(graph.live_at_exit())
        self.nodes: list[Node] = []
        self.builder = Builder(self.nodes, (value.name for value in self.users))

    def run(self) -> None:
        chains = {
            chain[-1]: chain
            for node in self.graph.nodes
            if node.op in _LAYERS
            and self.takes_part(node)
            and self.is_worth_it(chain := self.chain(node))
        }
        folded = {node for chain in chains.values() for node in chain}
        for node in self.graph.nodes:
            start = len(self.nodes)
            if node in chains:
                self.nodes.append(self.fold(*chains[node]))
                self.constant.update(v for new in self.nodes[start:-1] for v in new.outputs if v)
            elif node not in folded:
                self.nodes.append(node)
        self.graph.nodes = self.nodes

    def takes_part(self, node: Node) -> bool:
        layer = _Layer.of(node)
        return (
            layer is not None
            and layer.x not in self.constant
            and layer.weight in self.constant
            and (layer.bias is None or layer.bias in self.constant)
            and layer.weight.spec.dtype in _DTYPES
        )

    def is_worth_it(self, chain: list[Node]) -> bool:
        """Whether there is anything to fold; for a number alone, no weights are kept twice."""
        steps = chain[1:]
        if chain[0].op is aten.convolution.default:
            return bool(steps)
        return any(value in self.constant for step in steps for value in step.operands())

    def chain(self, node: Node) -> list[Node]:
        """A convolution and the steps that it can take over."""
        (out,) = node.outputs
        assert out is not None
        chain, last = [node], out
        while (step := self.next_step(last, out)) is not None and self.is_by_channel(step, last):
            chain.append(step)
            (last,) = step.outputs  # type: ignore[assignment]
        return chain

    def fold(self, node: Node, *steps: Node) -> Node:
        """The convolution that computes what the last step did."""
        b = self.builder
        b.line = node.where
        layer = _Layer.of(node)
        assert layer is not None
        weight = layer.weight
        affine = _Affine(shift=layer.bias)
        (value,) = node.outputs
        for step in steps:
            assert value is not None
            affine = self.after(affine, step.op, self.row(step, value), step.args[1] is value)
            (value,) = step.outputs
        assert value is not None
        if affine.scale is not None:
            shape: list[Size] = [1] * weight.spec.ndim
            shape[layer.channels] = value.spec.shape[1]
            spread = b.expand(b.reshape(affine.scale, tuple(shape)), weight.spec.shape)
            scaled = b.mul(weight, spread)
            if dense_order(weight.spec) is not None:
                scaled.spec = scaled.spec.replace(stride=weight.spec.stride)
            weight = scaled
        call = layer.with_parameters(weight, affine.shift)
        call.outputs = (value,)
        value.producer = call
        return call

    def next_step(self, value: Value, out: Value) -> Node | None:
        """The only reader of a value, if it is arithmetic that keeps the layout of `out`."""
        users = self.users[value]
        if value in self.exits or len(users) != 1 or users[0].op not in _STEPS:
            return None
        (result,) = users[0].outputs
        assert result is not None
        same = result.spec.stride == out.spec.stride and result.spec.shape == out.spec.shape
        return users[0] if same else None

    def is_by_channel(self, step: Node, value: Value) -> bool:
        """Whether a step adds or multiplies with constants, one a channel."""
        left, right = step.args
        other: Any = right if left is value else left
        if other is value or (step.op is prims.div and left is not value):
            return False
        if not isinstance(other, Value):
            return isinstance(other, (int, float)) and math.isfinite(other)
        shape, strides = other.spec.shape, other.spec.stride
        return (
            other in self.constant
            and 0 not in shape
            and not any(
                stride
                for dim, (size, stride) in enumerate(zip(shape, strides, strict=True))
                if dim != 1 and size != 1
            )
        )

    def row(self, step: Node, value: Value) -> Value:
        """The numbers that a step adds or multiplies with."""
        left, right = step.args
        other: Any = right if left is value else left
        b = self.builder
        channels = value.spec.shape[1]
        if not isinstance(other, Value):
            return b.full((channels,), other, value.spec.dtype, value.spec.device)
        for dim in range(other.spec.ndim):
            if dim != 1:
                other = b.slice(other, dim, 0, 1, 1)
        return b.reshape(other, (channels,))

    def after(self, affine: _Affine, op: Prim, row: Value, reverse: bool) -> _Affine:
        """The function followed by one more step; `reverse`: the row is the first operand."""
        b = self.builder
        scale, shift = affine.scale, affine.shift
        if op is prims.add:
            return _Affine(scale, row if shift is None else b.add(shift, row))
        if op is prims.sub and not reverse:
            return _Affine(scale, b.neg(row) if shift is None else b.sub(shift, row))
        if op is prims.sub:
            if scale is None:
                scale = b.full(row.spec.shape, 1, row.spec.dtype, row.spec.device)
            scale = b.neg(scale)
            return _Affine(scale, row if shift is None else b.sub(row, shift))
        if op is prims.div:
            row = b.div(1.0, row)
        return _Affine(
            row if scale is None else b.mul(scale, row),
            None if shift is None else b.mul(shift, row),
        )
