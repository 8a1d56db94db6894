"""The recurrence of an LSTM's layer in one direction, apart from the product of its inputs.

    g: f32[32, 16, 1024]             the inputs of all steps times the input weights
    out, h, c = flambeau.lstm_recurrence.default(g, w, b, b2, hx, cx, False)

A compiler that computes `aten.mkldnn_rnn_layer` itself makes this call of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.rules.registry import rule

if TYPE_CHECKING:
    from torch import Tensor

    from flambeau_prims.graph import Node, Value
    from flambeau_prims.spec import Spec

aten = torch.ops.aten

LSTM = 2
"""The `mode` of an LSTM in `mkldnn_rnn_layer`."""

_LIBRARY = torch.library.Library("flambeau", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "lstm_recurrence(Tensor gates, Tensor weight, Tensor? bias, Tensor? second_bias, Tensor hx,"
    " Tensor cx, bool reverse) -> (Tensor, Tensor, Tensor)"
)


def _recur(
    gates: Tensor, weight: Tensor, bias: Tensor | None, second_bias: Tensor | None, hx: Tensor,
    cx: Tensor, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    h, c = hx.contiguous().clone(), cx.contiguous().clone()
    steps = len(gates)
    out = gates.new_empty(steps, *h.shape)
    for t in reversed(range(steps)) if reverse else range(steps):
        sums = gates[t] + h @ weight.t()
        for each in (bias, second_bias):
            sums = sums if each is None else sums + each
        i, f, g, o = sums.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        out[t] = h = o.sigmoid() * c.tanh()
    return out, h, c


_LIBRARY.impl("lstm_recurrence", _recur, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
lstm_recurrence = torch.ops.flambeau.lstm_recurrence.default
"""lstm_recurrence(gates[t, b, 4 * hidden], weight[4 * hidden, hidden], biases, hx[b, hidden], cx,
reverse) -> output[t, b, hidden], the last hidden and cell states.
"""


@rule(lstm_recurrence)
def _recurrence_rule(gates: Spec, hx: Spec, cx: Spec) -> tuple[Spec, Spec, Spec]:
    steps, batch, _ = gates.shape
    return gates.fresh((steps, batch, hx.shape[1])), hx.fresh(), cx.fresh()


@dataclass(frozen=True, slots=True)
class LstmLayer:
    """A layer of an LSTM in one direction; `outputs` are out, h and c."""

    x: Value
    input_weight: Value
    weight: Value
    biases: tuple[Value | None, Value | None]
    hx: Value
    cx: Value
    reverse: bool
    outputs: tuple[Value, ...]


def lstm_layer(node: Node) -> LstmLayer | None:
    """The layer that a node computes in float32 on a CPU. A workspace for its backward, the fourth
    result, is not the layer's.
    """
    if node.op is not aten.mkldnn_rnn_layer.default or node.kwargs:
        return None
    x, input_weight, weight, b, b2, hx, cx, reverse, batch_sizes, mode, *_ = node.args
    has_biases = node.args[12]
    *outputs, _ = node.outputs
    if mode != LSTM or batch_sizes or None in outputs:
        return None
    specs = [value.spec for value in (x, input_weight, weight, b, b2, hx, cx)]
    if any(spec.device.type != "cpu" or spec.dtype is not torch.float32 for spec in specs):
        return None
    if not all(isinstance(size, int) for size in (*weight.spec.shape, *weight.spec.stride)):
        return None
    if any(spec.stride[-1] != 1 for spec in (b.spec, b2.spec)):
        return None
    if torch._C._get_fp32_precision_getter("mkldnn", "rnn") not in ("none", "ieee"):
        return None
    biases: tuple[Any, Any] = (b, b2) if has_biases else (None, None)
    return LstmLayer(x, input_weight, weight, biases, hx, cx, reverse, tuple(outputs))  # type: ignore[arg-type]
