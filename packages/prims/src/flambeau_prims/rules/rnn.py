"""Shape rules of recurrent layers and cells: oneDNN's LSTM layer, the fused cells, cuDNN's RNN."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import as_int
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size

aten = torch.ops.aten


# 1. oneDNN, one layer in one direction


@rule(aten.mkldnn_rnn_layer.default)
def mkldnn_rnn_layer(
    input: Spec,
    weight0: Spec,
    weight1: Spec,
    weight2: Spec,
    weight3: Spec,
    hx_: Spec,
    cx_: Spec,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[Spec, Spec, Spec, Spec | None]:
    """output [t, b, hidden], the last hidden and cell states; in training, workspace."""
    steps, batch, features = input.shape
    output = Spec.of((steps, batch, hidden_size), dtype=input.dtype, device=input.device)
    workspace = None
    if train:
        sizes = as_int(steps), as_int(batch), as_int(features)
        settings = (mode, hidden_size, num_layers, has_biases)
        length = _workspace_bytes(
            *sizes, input.dtype, *settings, reverse, bidirectional, batch_first
        )
        workspace = Spec.of((length,), dtype=torch.uint8, device=input.device)
    return output, _fresh(hx_), _fresh(cx_), workspace


def _fresh(spec: Spec) -> Spec:
    return Spec.of(spec.shape, dtype=spec.dtype, device=spec.device)


@lru_cache(maxsize=256)
def _workspace_bytes(
    steps: int,
    batch: int,
    features: int,
    dtype: torch.dtype,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    reverse: bool,
    bidirectional: bool,
    batch_first: bool,
) -> int:
    """The size of oneDNN's workspace, which only oneDNN knows: found by running the layer once on
    zeros.
    """
    gates = 4 * hidden_size

    def zeros(*sizes: int) -> torch.Tensor:
        return torch.zeros(sizes, dtype=dtype, device="cpu")

    with torch.enable_grad():  # oneDNN makes no workspace without
        results = aten.mkldnn_rnn_layer.default(
            zeros(steps, batch, features),
            zeros(gates, features),
            zeros(gates, hidden_size),
            zeros(gates),
            zeros(gates),
            zeros(batch, hidden_size),
            zeros(batch, hidden_size),
            reverse,
            [],
            mode,
            hidden_size,
            num_layers,
            has_biases,
            bidirectional,
            batch_first,
            True,
        )
    return results[3].numel()


@rule(aten.mkldnn_rnn_layer_backward.default)
def mkldnn_rnn_layer_backward(
    input: Spec,
    weight1: Spec,
    weight2: Spec,
    weight3: Spec,
    weight4: Spec,
    hx_: Spec,
    cx_tmp: Spec,
    *_rest: Any,
) -> tuple[Spec, ...]:
    """Gradients of input, of the four parameters, and of the initial states."""
    return (
        *(_fresh(spec) for spec in (input, weight1, weight2, weight3, weight4)),
        _fresh(hx_),
        _fresh(cx_tmp),
    )


# 2. Fused cells (CUDA)


@rule(aten._thnn_fused_lstm_cell.default)
def fused_lstm_cell(
    input_gates: Spec,
    hidden_gates: Spec,
    cx: Spec,
    input_bias: Spec | None = None,
    hidden_bias: Spec | None = None,
) -> tuple[Spec, Spec, Spec]:
    """The new hidden and cell states, and the gates for the backward."""
    state = _fresh(cx)
    return state, state, _fresh(input_gates)


@rule(aten._thnn_fused_lstm_cell_backward_impl.default)
def fused_lstm_cell_backward(
    grad_hy: Spec | None,
    grad_cy: Spec | None,
    cx: Spec,
    cy: Spec,
    workspace: Spec,
    has_bias: bool,
) -> tuple[Spec, Spec, Spec | None]:
    """Gradients of the gates, of the cell state, and of the bias."""
    bias = Spec.of((workspace.shape[1],), dtype=workspace.dtype, device=workspace.device)
    return _fresh(workspace), _fresh(cx), bias if has_bias else None


@rule(aten._thnn_fused_gru_cell.default)
def fused_gru_cell(
    input_gates: Spec,
    hidden_gates: Spec,
    hx: Spec,
    input_bias: Spec | None = None,
    hidden_bias: Spec | None = None,
) -> tuple[Spec, Spec]:
    """The new hidden state, and a workspace of five hidden vectors."""
    batch, hidden = hx.shape
    workspace = Spec.of((batch, hidden * 5), dtype=hx.dtype, device=hx.device)
    return _fresh(hx), workspace


@rule(aten._thnn_fused_gru_cell_backward.default)
def fused_gru_cell_backward(
    grad_hy: Spec, workspace: Spec, has_bias: bool
) -> tuple[Spec, Spec, Spec, Spec | None, Spec | None]:
    """Gradients of the two gates, of the hidden state, and of the two biases."""
    batch, hidden = grad_hy.shape
    gates = Spec.of((batch, hidden * 3), dtype=workspace.dtype, device=workspace.device)
    bias = Spec.of((hidden * 3,), dtype=gates.dtype, device=gates.device) if has_bias else None
    return gates, gates, _fresh(grad_hy), bias, bias


# 3. cuDNN


@rule(aten._cudnn_rnn.default)
def cudnn_rnn(
    input: Spec,
    weight: Sequence[Spec],
    weight_stride0: int,
    weight_buf: Spec | None,
    hx: Spec,
    cx: Spec | None,
    mode: int,
    hidden_size: Size,
    proj_size: Size,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[Size],
    dropout_state: Spec | None,
) -> tuple[Spec, Spec, Spec, Spec, Spec]:
    """output, last states, cuDNN's reserve (its size is not known before the run), and the packed
    weights.
    """
    directions = 2 if bidirectional else 1
    width = (proj_size if proj_size else hidden_size) * directions
    if batch_sizes:
        shape: tuple[Size, ...] = (input.shape[0], width)
        batch = batch_sizes[0]
    else:
        steps, batch = (input.shape[1], input.shape[0]) if batch_first else input.shape[:2]
        shape = (batch, steps, width) if batch_first else (steps, batch, width)
    if batch_first and not batch_sizes:
        inner = Spec.of((steps, batch, width)).stride
        output = Spec.of(
            shape, stride=(inner[1], inner[0], inner[2]), dtype=input.dtype, device=input.device
        )
    else:
        output = Spec.of(shape, dtype=input.dtype, device=input.device)
    states = num_layers * directions
    hy = Spec.of((states, batch, proj_size or hidden_size), dtype=hx.dtype, device=hx.device)
    cy_shape = (0,) if cx is None else (states, batch, hidden_size)
    cy = Spec.of(cy_shape, dtype=hx.dtype, device=hx.device)
    reserve = Spec.of((0,), dtype=torch.uint8, device=input.device)
    packed = weight_buf or Spec.of(
        (sum((as_int(w.numel) for w in weight), 0),), dtype=input.dtype, device=input.device
    )
    return output, hy, cy, reserve, packed
