"""Lower the recurrence of an LSTM's layer to kernels of our own (`codegen/cpp/lstm.py`).

out, h, c = flambeau.lstm_recurrence.default(x, w, b, b2, hx, cx, False)
->  buf0 = extern flambeau.lstm_weights(w, [sizes and strides])
    buf1, buf2, buf3 = extern flambeau.lstm_recurrence(x, buf0, hx, cx, b, b2, [sizes and strides])

Where the weights do not change between calls, their order is one of the steps that `prepare` takes
out of the calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_inductor.lowering.kernel_calls import append_kernel_call
from flambeau_prims.lstm import lstm_recurrence

if TYPE_CHECKING:
    from flambeau_prims.graph import Node

WEIGHTS, RECURRENCE = "flambeau.lstm_weights", "flambeau.lstm_recurrence"

WIDEST = 16
"""Hidden units come in panels of a vector; the widest one has so many."""


def lower_lstm(lowering: Any, node: Node) -> bool:
    """Append the calls for a node, if it is a recurrence. `lowering` is the `_GraphLowering`, whose
    module imports this one.
    """
    if node.op is not lstm_recurrence:
        return False
    x, weight, *biases, hx, cx, reverse = node.args
    steps, batch, gates = x.spec.shape
    hidden = weight.spec.shape[1]
    count = -(-hidden // WIDEST) * WIDEST * gates
    panels = lowering.make_unnamed(weight.spec.fresh((count,)))
    ints = [hidden, *weight.spec.stride]
    operands = [lowering.tensor(weight)]
    append_kernel_call(lowering, node, WEIGHTS, operands, ints, [panels.buffer])
    values = [hx, cx, *(bias for bias in biases if bias is not None)]
    operands = [lowering.tensor(x), panels, *map(lowering.tensor, values)]
    ints = [
        hidden, hx.spec.stride[0], cx.spec.stride[0], steps, batch, reverse, biases[0] is not None,
    ]  # fmt: skip
    results = [lowering.make(out) for out in node.outputs]
    append_kernel_call(lowering, node, RECURRENCE, operands, ints, results)
    return True
