"""Shape rules of recurrent layers and cells: oneDNN's LSTM layer, the fused cells, cuDNN's RNN."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import as_int
from flambeau_prims.spec import Spec, contiguous_stride

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size, Sizes

aten = torch.ops.aten


# 1. oneDNN, one layer in one direction


@rule(aten.mkldnn_rnn_layer.default)
def mkldnn_rnn_layer(
    input: Spec, hx_: Spec, cx_: Spec, hidden_size: int, train: bool, **options: Any
) -> tuple[Spec, Spec, Spec, Spec | None]:
    """output [t, b, hidden], the last hidden and cell states; in training, workspace."""
    steps, batch, features = input.shape
    workspace = None
    if train:
        settings = (hidden_size, *(options[name] for name in _SETTINGS))
        sizes = (as_int(steps), as_int(batch), as_int(features))
        workspace = input.fresh(
            (_workspace_bytes(sizes, input.dtype, settings),), dtype=torch.uint8
        )
    return input.fresh((steps, batch, hidden_size)), hx_.fresh(), cx_.fresh(), workspace


_SETTINGS = ("reverse", "mode", "num_layers", "has_biases", "bidirectional", "batch_first")


@lru_cache(maxsize=256)
def _workspace_bytes(
    sizes: tuple[int, int, int], dtype: torch.dtype, settings: tuple[Any, ...]
) -> int:
    """The size of oneDNN's workspace, found by running the layer once on zeros."""
    steps, batch, features = sizes
    hidden, reverse, mode, layers, *flags = settings

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device="cpu")

    gates = 4 * hidden
    weights = (zeros(gates, features), zeros(gates, hidden), zeros(gates), zeros(gates))
    states = (zeros(batch, hidden), zeros(batch, hidden))
    call = (reverse, [], mode, hidden, layers, *flags, True)
    with torch.enable_grad():  # oneDNN makes no workspace without
        results = aten.mkldnn_rnn_layer.default(
            zeros(steps, batch, features), *weights, *states, *call
        )
    return results[3].numel()


@rule(aten.mkldnn_rnn_layer_backward.default)
def mkldnn_rnn_layer_backward(
    input: Spec, weight1: Spec, weight2: Spec, weight3: Spec, weight4: Spec, hx_: Spec, cx_tmp: Spec
) -> tuple[Spec, ...]:
    """Gradients of input, of the four parameters, and of the initial states: oneDNN computes them
    in float32 for bfloat16, too.
    """
    inputs = (input, weight1, weight2, weight3, weight4, hx_, cx_tmp)
    return tuple(spec.fresh(dtype=torch.float32) for spec in inputs)


# 2. Fused cells (CUDA)


@rule(aten._thnn_fused_lstm_cell.default)
def fused_lstm_cell(input_gates: Spec, cx: Spec) -> tuple[Spec, Spec, Spec]:
    """The new hidden and cell states, and the gates for the backward."""
    state = cx.fresh()
    return state, state, input_gates.fresh()


@rule(aten._thnn_fused_lstm_cell_backward_impl.default)
def fused_lstm_cell_backward(
    cx: Spec, workspace: Spec, has_bias: bool
) -> tuple[Spec, Spec, Spec | None]:
    """Gradients of the gates, of the cell state, and of the bias."""
    bias = workspace.fresh((workspace.shape[1],))
    return workspace.fresh(), cx.fresh(), bias if has_bias else None


@rule(aten._thnn_fused_gru_cell.default)
def fused_gru_cell(hx: Spec) -> tuple[Spec, Spec]:
    """The new hidden state, and a workspace of five hidden vectors."""
    batch, hidden = hx.shape
    return hx.fresh(), hx.fresh((batch, hidden * 5))


@rule(aten._thnn_fused_gru_cell_backward.default)
def fused_gru_cell_backward(
    grad_hy: Spec, workspace: Spec, has_bias: bool
) -> tuple[Spec, Spec, Spec, Spec | None, Spec | None]:
    """Gradients of the two gates, of the hidden state, and of the two biases."""
    batch, hidden = grad_hy.shape
    gates = workspace.fresh((batch, hidden * 3))
    bias = gates.fresh((hidden * 3,)) if has_bias else None
    return gates, gates, grad_hy.fresh(), bias, bias


# 3. cuDNN


@rule(aten._cudnn_rnn.default)
def cudnn_rnn(
    input: Spec,
    weight: Sequence[Spec],
    weight_buf: Spec | None,
    hx: Spec,
    cx: Spec | None,
    hidden_size: Size,
    proj_size: Size,
    num_layers: int,
    batch_first: bool,
    bidirectional: bool,
    batch_sizes: Sizes,
) -> tuple[Spec, Spec, Spec, Spec, Spec]:
    """output, last states, cuDNN's reserve (of unknown size), and the packed weights."""
    directions = 2 if bidirectional else 1
    width = (proj_size if proj_size else hidden_size) * directions
    if batch_sizes:
        batch = batch_sizes[0]
        output = input.fresh((input.shape[0], width))
    elif batch_first:
        batch, steps = input.shape[:2]
        inner = contiguous_stride((steps, batch, width))
        output = input.fresh((batch, steps, width), (inner[1], inner[0], inner[2]))
    else:
        steps, batch = input.shape[:2]
        output = input.fresh((steps, batch, width))
    states = num_layers * directions
    hy = hx.fresh((states, batch, proj_size or hidden_size))
    cy = hx.fresh((0,) if cx is None else (states, batch, hidden_size))
    reserve = input.fresh((0,), dtype=torch.uint8)
    packed = weight_buf or input.fresh((sum((as_int(w.numel) for w in weight), 0),))
    return output, hy, cy, reserve, packed
