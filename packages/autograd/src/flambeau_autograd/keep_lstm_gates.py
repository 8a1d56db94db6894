"""Let an LSTM's layer on a CPU keep its gates for its backward, and write that backward as one pass
over the steps and products of all of them.

    out, h, c, workspace = aten.mkldnn_rnn_layer.default(x, wi, w, b, b2, hx, cx, ..., train=True)
    dx, dwi, dw, db, db2, dhx, dcx = aten.mkldnn_rnn_layer_backward.default(..., workspace)
      ->
    g = aten.mm.default(x, wi transposed)
    out, h, c, gates, cells = flambeau.lstm_training_recurrence.default(g, w, b, b2, hx, cx, ...)
    dg, dcx, before = flambeau.lstm_gate_gradients.default(dout, dh, dc, gates, cells, ...)
    dx = aten.mm.default(dg, wi);  dwi = aten.mm.default(dg transposed, x)
    dw = aten.mm.default(dg transposed, before);  db = db2 = prims.sum(dg, (0,))
    dhx = aten.mm.default(dg of the first step, w)

The library's workspace is opaque: its forward and backward give way together or not at all, so this
stands where both are in one graph. Behind it the partition sees what is saved, and gradients that
nobody reads are dead calls. Relies on exact Specs; calls of the library whose workspace leaves the
graph, or that differ in their operands, stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_autograd.substitution import Substitution
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.lstm import (
    append_product,
    append_recurrence,
    in_rows,
    lstm_gate_gradients,
    lstm_layer,
    lstm_training_recurrence,
)
from flambeau_prims.rules.registry import infer

if TYPE_CHECKING:
    from flambeau_prims.lstm import LstmLayer

aten = torch.ops.aten
_BACKWARD = aten.mkldnn_rnn_layer_backward.default
_OPERANDS, _GRADIENTS, _HAS_BIASES = slice(0, 7), slice(10, 13), 17
"""The positions of the backward's arguments."""
_BIASES = slice(3, 5)
"""The positions of the biases' gradients among the backward's results."""


def keep_lstm_gates(graph: Graph) -> Graph:
    """Rewrite such layers of `graph`, with their backwards, in place."""
    layers, backwards = _pairs(graph)
    if not layers:
        return graph
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in graph.users()))
    replaced = Substitution()
    kept: dict[Node, list[Value]] = {}
    for node in graph.nodes:
        replaced.apply(node)
        builder.line = node.where
        if node in layers:
            layer = layers[node] = lstm_layer(node) or layers[node]  # of the replacements
            kept[node] = _append_forward(builder, layer)
        elif node in backwards:
            forward = backwards[node]
            gradients = _append_backward(builder, node, layers[forward], kept[forward])
            for old, new in zip(node.outputs, gradients, strict=True):
                if old is not None and new is not None:
                    replaced.replace(old, new)
        else:
            nodes.append(node)
    replaced.apply_to_exits(graph)
    graph.nodes = nodes
    return graph


def _pairs(graph: Graph) -> tuple[dict[Node, LstmLayer], dict[Node, Node]]:
    """The layers whose workspace only their backwards read, and the layer of each such backward."""
    layers: dict[Node, LstmLayer] = {}
    backwards: dict[Node, Node] = {}
    if not any(node.op is _BACKWARD for node in graph.nodes):
        return layers, backwards
    users, exits = graph.users(), set(graph.live_at_exit())
    for node in graph.nodes:
        layer = lstm_layer(node)
        workspace = node.outputs[-1] if layer is not None else None
        if layer is None or workspace is None or workspace in exits or not users[workspace]:
            continue
        if all(_is_backward(user, node, users, exits) for user in users[workspace]):
            layers[node] = layer
            backwards.update(dict.fromkeys(users[workspace], node))
    return layers, backwards


def _is_backward(
    node: Node, forward: Node, users: dict[Value, list[Node]], exits: set[Value]
) -> bool:
    """Whether a node computes the gradients of a layer, in float32."""
    if node.op is not _BACKWARD or node.kwargs or node.args[_OPERANDS] != forward.args[_OPERANDS]:
        return False
    if not node.args[_HAS_BIASES] and any(
        out is not None and (users[out] or out in exits) for out in node.outputs[_BIASES]
    ):
        return False
    return all(each is None or each.spec.dtype is torch.float32 for each in node.args[_GRADIENTS])


def _append_forward(b: Builder, layer: LstmLayer) -> list[Value]:
    """Append the layer; returns what its backward reads: gates, cell states, and the output."""
    node = append_recurrence(b, layer, lstm_training_recurrence)
    gates, cells = _results_of(b, node)[3:]
    node.outputs = (*layer.outputs, gates, cells)
    for out in layer.outputs:
        out.producer = node
    return [gates, cells, layer.outputs[0]]


def _append_backward(
    b: Builder, node: Node, layer: LstmLayer, kept: list[Value]
) -> list[Value | None]:
    """Append what computes the gradients; returns them in the order of the library's results."""
    given = [each if each is None else in_rows(b, each) for each in node.args[_GRADIENTS]]
    hx, cx = (in_rows(b, state) for state in (layer.hx, layer.cx))
    args = (*given, *kept, layer.weight, hx, cx, layer.reverse)
    call = Node(lstm_gate_gradients, args, {}, (), b.line)
    gates, dcx, before = call.outputs = tuple(_results_of(b, call))
    b.nodes.append(call)
    steps, batch, features = layer.x.spec.shape
    hidden = layer.weight.spec.shape[1]
    rows = steps * batch
    flat = b.reshape(gates, (rows, 4 * hidden))
    columns = b.permute(flat, (1, 0))
    dx = b.reshape(append_product(b, flat, layer.input_weight), (steps, batch, features))
    dwi = append_product(b, columns, b.reshape(layer.x, (rows, features)))
    dw = append_product(b, columns, b.reshape(before, (rows, hidden)))
    bias = b.sum(flat, (0,))
    first = b.select(gates, 0, steps - 1 if layer.reverse else 0)
    return [dx, dwi, dw, bias, bias, append_product(b, first, layer.weight), dcx]


def _results_of(b: Builder, node: Node) -> list[Value]:
    """New Values for the results of a call."""
    specs = infer(node.op, tuple(arg.spec if isinstance(arg, Value) else arg for arg in node.args))
    return [Value(b.fresh_name(), spec, node) for spec in specs]
