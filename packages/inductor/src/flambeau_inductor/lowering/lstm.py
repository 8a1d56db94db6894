"""Lower the recurrence of an LSTM's layer, and its backward, to kernels of our own
(`codegen/cpp/lstm.py`).

out, h, c = flambeau.lstm_recurrence.default(x, w, b, b2, hx, cx, False)
->  buf0 = extern flambeau.lstm_weights(w, [sizes and strides])
    buf1, buf2, buf3 = extern flambeau.lstm_recurrence(x, buf0, hx, cx, b, b2, [sizes and strides])

dg, dcx, before = flambeau.lstm_gate_gradients.default(dout, dh, dc, gates, cells, out, w, ...)
->  buf0 = extern flambeau.lstm_gradient_weights(w, [sizes and strides])
    buf1, buf2, buf3 = extern flambeau.lstm_gate_gradients(gates, cells, out, buf0, ...)

Where the weights do not change between calls, their order is one of the steps that `prepare` takes
out of the calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_inductor.lowering.kernel_calls import append_kernel_call
from flambeau_prims.lstm import (
    lstm_gate_gradients,
    lstm_recurrence,
    lstm_training_recurrence,
)

if TYPE_CHECKING:
    from flambeau_inductor.nodes import TensorRef
    from flambeau_prims.graph import Node, Value

WEIGHTS, RECURRENCE = "flambeau.lstm_weights", "flambeau.lstm_recurrence"
TRAINING_RECURRENCE = "flambeau.lstm_training_recurrence"
GRADIENT_WEIGHTS = "flambeau.lstm_gradient_weights"
GATE_GRADIENTS = "flambeau.lstm_gate_gradients"

WIDEST = 16
"""Hidden units come in panels of a vector; the widest one has so many."""

VECTORS = 4
"""Hidden units of a backward come in panels of so many vectors."""


def lower_lstm(lowering: Any, node: Node) -> bool:
    """Append the calls for a node, if it is a recurrence or its backward. `lowering` is the
    `_GraphLowering`, whose module imports this one.
    """
    if node.op in (lstm_recurrence, lstm_training_recurrence):
        _recur(lowering, node)
    elif node.op is lstm_gate_gradients:
        _differentiate(lowering, node)
    else:
        return False
    return True


def _recur(lowering: Any, node: Node) -> None:
    x, weight, *biases, hx, cx, reverse = node.args
    keeps = node.op is lstm_training_recurrence
    steps, batch, _ = x.spec.shape
    hidden = weight.spec.shape[1]
    panels = _ordered_weights(lowering, node, WEIGHTS, weight, WIDEST)
    values = [hx, cx, *(bias for bias in biases if bias is not None)]
    operands = [lowering.tensor(x), panels, *map(lowering.tensor, values)]
    ints = [
        hidden, hx.spec.stride[0], cx.spec.stride[0], steps, batch, reverse, biases[0] is not None,
    ]  # fmt: skip
    results = [lowering.make(out) for out in node.outputs]
    overwrites = ((operands[0].buffer, results[3]),) if keeps else ()
    call = TRAINING_RECURRENCE if keeps else RECURRENCE
    append_kernel_call(lowering, node, call, operands, ints, results, overwrites)


def _differentiate(lowering: Any, node: Node) -> None:
    *gradients, gates, cells, out, weight, hx, cx, reverse = node.args
    steps, batch, _ = gates.spec.shape
    hidden = weight.spec.shape[1]
    panels = _ordered_weights(lowering, node, GRADIENT_WEIGHTS, weight, VECTORS * WIDEST)
    given = [each for each in gradients if each is not None]
    operands = [*map(lowering.tensor, (gates, cells, out, hx, cx)), panels]
    operands += map(lowering.tensor, given)
    dout, dh, dc = (each and each.spec.stride for each in gradients)
    ints = [
        hidden, hx.spec.stride[0], cx.spec.stride[0], steps, batch, reverse,
        *(each is not None for each in gradients),
        *(dout[:2] if dout else (0, 0)), dh[0] if dh else 0, dc[0] if dc else 0,
    ]  # fmt: skip
    results = [lowering.make(out) for out in node.outputs]
    append_kernel_call(lowering, node, GATE_GRADIENTS, operands, ints, results)


def _ordered_weights(lowering: Any, node: Node, call: str, weight: Value, units: int) -> TensorRef:
    """Append the call that orders weights in panels of at most so many hidden units."""
    gates, hidden = weight.spec.shape
    panels: TensorRef = lowering.make_unnamed(
        weight.spec.fresh((-(-hidden // units) * units * gates,))
    )
    ints = [hidden, *weight.spec.stride]
    operands = [lowering.tensor(weight)]
    append_kernel_call(lowering, node, call, operands, ints, [panels.buffer])
    return panels
