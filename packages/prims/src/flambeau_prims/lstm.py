"""The recurrence of an LSTM's layer in one direction, apart from the products of its inputs, and
its backward, apart from the products that give the gradients of inputs and weights.

    g: f32[32, 16, 1024]             the inputs of all steps times the input weights
    out, h, c = flambeau.lstm_recurrence.default(g, w, b, b2, hx, cx, False)

    out, h, c, gates, cells = flambeau.lstm_training_recurrence.default(g, w, b, b2, hx, cx, False)
    dg, dcx, before = flambeau.lstm_gate_gradients.default(
        dout, dh, dc, gates, cells, out, w, hx, cx, False)

A compiler that computes `aten.mkldnn_rnn_layer` itself makes these calls of it and of its backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.graph import Node, Value
from flambeau_prims.rules.registry import infer, rule

if TYPE_CHECKING:
    from torch import Tensor

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Spec

aten = torch.ops.aten

LSTM = 2
"""The `mode` of an LSTM in `mkldnn_rnn_layer`."""

_LIBRARY = torch.library.Library("flambeau", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPERANDS = "Tensor weight, Tensor? bias, Tensor? second_bias, Tensor hx, Tensor cx, bool reverse"
_SCHEMAS = f"""
lstm_recurrence(Tensor gates, {_OPERANDS}) -> (Tensor, Tensor, Tensor)
lstm_training_recurrence(Tensor gates, {_OPERANDS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)
lstm_gate_gradients(Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, Tensor gates, \
Tensor cells, Tensor output, Tensor weight, Tensor hx, Tensor cx, bool reverse) \
-> (Tensor, Tensor, Tensor)
"""
for _schema in _SCHEMAS.split("\n")[1:-1]:
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]


def _recur(
    gates: Tensor, weight: Tensor, bias: Tensor | None, second_bias: Tensor | None, hx: Tensor,
    cx: Tensor, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _recur_and_keep(gates, weight, bias, second_bias, hx, cx, reverse)[:3]


def _recur_and_keep(
    gates: Tensor, weight: Tensor, bias: Tensor | None, second_bias: Tensor | None, hx: Tensor,
    cx: Tensor, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    h, c = hx.contiguous().clone(), cx.contiguous().clone()
    steps = len(gates)
    kept = gates.new_empty(gates.shape)
    out, cells = (gates.new_empty(steps, *h.shape) for _ in range(2))
    for t in reversed(range(steps)) if reverse else range(steps):
        sums = gates[t] + h @ weight.t()
        for each in (bias, second_bias):
            sums = sums if each is None else sums + each
        i, f, g, o = sums.chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        cells[t] = c = f * c + i * g
        out[t] = h = o * c.tanh()
        kept[t] = torch.cat([i, f, g, o], 1)
    return out, h, c, kept, cells


def _differentiate(
    grad_output: Tensor | None, grad_hy: Tensor | None, grad_cy: Tensor | None, gates: Tensor,
    cells: Tensor, output: Tensor, weight: Tensor, hx: Tensor, cx: Tensor, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    steps = len(gates)
    gradients, before = gates.new_empty(gates.shape), output.new_empty(output.shape)
    dh, dc = (
        gates.new_zeros(hx.shape) if each is None else each.contiguous().clone()
        for each in (grad_hy, grad_cy)
    )
    for t in range(steps) if reverse else reversed(range(steps)):
        earlier = t + 1 if reverse else t - 1
        is_first = not 0 <= earlier < steps
        before[t] = hx if is_first else output[earlier]
        i, f, g, o = gates[t].chunk(4, 1)
        tanh = cells[t].tanh()
        if grad_output is not None:
            dh = dh + grad_output[t]
        dc = dc + dh * o * (1 - tanh * tanh)
        gradients[t] = torch.cat([
            dc * g * i * (1 - i),
            dc * (cx if is_first else cells[earlier]) * f * (1 - f),
            dc * i * (1 - g * g),
            dh * tanh * o * (1 - o),
        ], 1)  # fmt: skip
        dh, dc = gradients[t] @ weight, dc * f
    return gradients, dc, before


for _name, _function in (
    ("lstm_recurrence", _recur),
    ("lstm_training_recurrence", _recur_and_keep),
    ("lstm_gate_gradients", _differentiate),
):
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


def _differentiate_each(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
    """The backward mapped over a batch: one call for each of its items."""
    results = [
        lstm_gate_gradients(*(
            arg if dim is None else arg.select(dim, item)
            for arg, dim in zip(args, in_dims, strict=True)
        ))
        for item in range(info.batch_size)
    ]  # fmt: skip
    return tuple(map(torch.stack, zip(*results, strict=True))), (0, 0, 0)


torch.library.register_vmap("flambeau::lstm_gate_gradients", _differentiate_each, lib=_LIBRARY)
lstm_recurrence = torch.ops.flambeau.lstm_recurrence.default
"""lstm_recurrence(gates[t, b, 4 * hidden], weight[4 * hidden, hidden], biases, hx[b, hidden], cx,
reverse) -> output[t, b, hidden], the last hidden and cell states.
"""
lstm_training_recurrence = torch.ops.flambeau.lstm_training_recurrence.default
"""The same, and what its backward reads: the gates of all steps behind their activations, [t, b,
4 * hidden], and the cell states behind each step, [t, b, hidden].
"""
lstm_gate_gradients = torch.ops.flambeau.lstm_gate_gradients.default
"""lstm_gate_gradients(gradients of output and last states, gates, cells, output, weight, hx, cx,
reverse) -> the gradients of the gates in front of their activations, [t, b, 4 * hidden]; that of
cx; the hidden states in front of each step, [t, b, hidden]. A gradient that is None is zeros.
"""


@rule(lstm_recurrence)
def _recurrence_rule(gates: Spec, hx: Spec, cx: Spec) -> tuple[Spec, Spec, Spec]:
    steps, batch, _ = gates.shape
    return gates.fresh((steps, batch, hx.shape[1])), hx.fresh(), cx.fresh()


@rule(lstm_training_recurrence)
def _training_rule(gates: Spec, hx: Spec, cx: Spec) -> tuple[Spec, Spec, Spec, Spec, Spec]:
    out, h, c = _recurrence_rule(gates, hx, cx)
    return out, h, c, gates.fresh(), out


@rule(lstm_gate_gradients)
def _gradients_rule(gates: Spec, output: Spec, cx: Spec) -> tuple[Spec, Spec, Spec]:
    return gates.fresh(), cx.fresh(), output.fresh()


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


def append_recurrence(b: Builder, layer: LstmLayer, op: Any) -> Node:
    """Append the product of the layer's inputs and a recurrence, which is returned, without
    results.
    """
    steps, batch, features = layer.x.spec.shape
    flat = b.reshape(layer.x, (steps * batch, features))
    product = append_product(b, flat, b.permute(layer.input_weight, (1, 0)))
    sums = b.reshape(product, (steps, batch, layer.weight.spec.shape[0]))
    states = [in_rows(b, state) for state in (layer.hx, layer.cx)]
    node = Node(op, (sums, layer.weight, *layer.biases, *states, layer.reverse), {}, (), b.line)
    b.nodes.append(node)
    return node


def append_product(b: Builder, left: Value, right: Value) -> Value:
    """The product of two matrices."""
    spec = infer(aten.mm.default, (left.spec, right.spec), {})
    node = Node(aten.mm.default, (left, right), {}, (Value(b.fresh_name(), spec),), b.line)
    (result,) = node.outputs
    assert result is not None
    result.producer = node
    b.nodes.append(node)
    return result


def in_rows(b: Builder, value: Value) -> Value:
    """A Value with the same elements whose rows have no gaps."""
    if value.spec.stride[-1] == 1:
        return value
    copy = b.clone(value)
    copy.spec = value.spec.fresh()
    return copy
