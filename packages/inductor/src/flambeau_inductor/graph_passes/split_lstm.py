"""Split a layer of an LSTM without a backward, on a CPU, into one product of all steps' inputs and
the recurrence, which kernels of our own compute.

    out, h, c, _ = aten.mkldnn_rnn_layer.default(x, wi, w, b, b2, hx, cx, ...)      x: f32[t, b, n]
    ->  f = prims.reshape(x, (t * b, n));  p = aten.mm.default(f, prims.permute(wi, (1, 0)))
        out, h, c = flambeau.lstm_recurrence.default(prims.reshape(p, (t, b, m)), w, b, b2, ...)

oneDNN orders the weights in each call, and its threads meet twice a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.builder import Builder
from flambeau_prims.lstm import append_recurrence, lstm_layer, lstm_recurrence
from flambeau_prims.sizes import hint_of

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph, Node
    from flambeau_prims.lstm import LstmLayer

aten = torch.ops.aten

MOST_HIDDEN, MOST_ROWS = 312, 16
"""A layer of more hidden units, and more rows in a step, is left to oneDNN."""


def split_lstm(graph: Graph) -> Graph:
    """Rewrite the layers of `graph` that are worth it, in place."""
    layers = {node: each for node in graph.nodes if (each := lstm_layer(node)) and _pays(each)}
    if not layers:
        return graph
    users, kept = graph.users(), {*graph.live_at_exit()}
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in users))
    for node in graph.nodes:
        workspace = node.outputs[-1] if node in layers else None
        is_read = workspace is not None and (workspace in kept or users[workspace])
        if node in layers and not is_read:
            _split(builder, node, layers[node])
        else:
            nodes.append(node)
    graph.nodes = nodes
    return graph


def _pays(layer: LstmLayer) -> bool:
    """Whether the kernels compute the layer sooner than oneDNN: large weights, which come from
    beyond the second-level cache in each step, oneDNN multiplies by many rows as fast or faster.
    """
    batch, hidden = hint_of(layer.x.spec.shape[1]), layer.weight.spec.shape[1]
    return bool(hidden <= MOST_HIDDEN or batch <= MOST_ROWS)


def _split(b: Builder, node: Node, layer: LstmLayer) -> None:
    """Append the product and the recurrence, which makes the layer's results."""
    b.line = node.where
    recurrence = append_recurrence(b, layer, lstm_recurrence)
    recurrence.outputs = layer.outputs
    for out in layer.outputs:
        out.producer = recurrence
