"""Every composite operator that real models' training graphs hold decomposes, for the arguments
that they use.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_op import decomposed, flat, is_decomposed

aten = torch.ops.aten


def image(*shape: int) -> torch.Tensor:
    """A channels-last image, as convolutions make them on a CPU."""
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def calls() -> dict[str, tuple[Any, ...]]:
    """The arguments of a usual call of each operator, by its name (overload `default`)."""
    x, grad = torch.randn(4, 6), torch.randn(4, 6)
    weight, bias, mean, var = torch.randn(8), torch.randn(8), torch.randn(8), torch.rand(8) + 1
    nchw = image(2, 8, 6, 6)
    rows = torch.randn(2, 5, 8)
    pooled, indices = aten.max_pool2d_with_indices(nchw, [3, 3], [2, 2], [1, 1])
    _, row_mean, row_rstd = aten.native_layer_norm(rows, [8], weight, bias, 1e-5)
    _, batch_mean, batch_rstd = aten.native_batch_norm(
        nchw, weight, bias, mean.clone(), var.clone(), True, 0.1, 1e-5
    )
    _, group_mean, group_rstd = aten.native_group_norm(
        nchw.contiguous(), weight, bias, 2, 8, 36, 4, 1e-5
    )
    whole = [True, True, True]
    return {
        "native_batch_norm": (nchw, weight, bias, mean, var, False, 0.1, 1e-5),
        "native_batch_norm_backward": (
            *(nchw, nchw, weight, mean, var, batch_mean, batch_rstd, True, 1e-5, whole),
        ),
        "threshold_backward": (grad, x, 0),
        "native_layer_norm": (rows, [8], weight, bias, 1e-5),
        "native_layer_norm_backward": (rows, rows, [8], row_mean, row_rstd, weight, bias, whole),
        "sigmoid_backward": (grad, x.sigmoid()),
        "tanh_backward": (grad, x.tanh()),
        "_softmax_backward_data": (grad, x.softmax(-1), -1, torch.float32),
        "_safe_softmax": (x, -1),
        "cat": ([x, grad], 1),
        "gelu": (x,),
        "gelu_backward": (grad, x),
        "constant_pad_nd": (nchw, [0, 0, 0, 1, 0, 1], 0),
        "stack": ([x, grad],),
        "hardswish_backward": (grad, x),
        "roll": (nchw, [-3, -3], [2, 3]),
        "silu": (x,),
        "silu_backward": (grad, x),
        "slice_backward": (x[:, 1:4], [4, 6], 1, 1, 4, 1),
        "_softmax": (x, -1, False),
        "native_group_norm": (nchw.contiguous(), weight, bias, 2, 8, 36, 4, 1e-5),
        "native_group_norm_backward": (
            *(nchw.contiguous(), nchw.contiguous(), group_mean, group_rstd, weight),
            *(2, 8, 36, 4, whole),
        ),
        "hardsigmoid": (x,),
        "hardsigmoid_backward": (grad, x),
        "max_pool2d_with_indices": (nchw, [3, 3], [2, 2], [1, 1]),
        "max_pool2d_with_indices_backward": (
            *(pooled, nchw, [3, 3], [2, 2], [1, 1], [1, 1], False, indices),
        ),
        "select_backward": (x[:, 0], [4, 6], 1, 0),
        "upsample_nearest2d": (nchw, [12, 12], 2.0, 2.0),
        "upsample_nearest2d_backward": (nchw, [6, 6], [2, 8, 3, 3], 2.0, 2.0),
    }


CALLS = calls()


@pytest.mark.parametrize("name", CALLS)
def test_decomposes(name: str) -> None:
    op, args = getattr(aten, name).default, CALLS[name]
    graph, _ = decomposed(op, args, {}, flat(op(*args)))
    assert is_decomposed(graph), str(graph)
