"""Programs of products, convolutions, attention, recurrent cells, whole layers, dropout and
autocast.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.draw import channels_last, grad, ints, rand, transposed
from tests.programs.program import Program, program

# fmt: off
# A line a program.
PROGRAMS: dict[str, Program] = {}
add = program(PROGRAMS)

# Products
# ----------------------------------------------------------------------------
add(
    "matmuls",
    lambda x, y, v, b: (
        x @ y, x @ v, v @ y, v @ v, b @ y, torch.mm(x, y), torch.mv(x, v), torch.dot(v, v),
        torch.matmul(b, v), x.T @ x,
    ),
    lambda: (grad(4, 6), grad(6, 5), grad(6), grad(2, 3, 6)),
)
add(
    "batched_matmuls",
    lambda x, y: (
        torch.bmm(x, y), x @ y, x @ y[0], x[0] @ y, torch.baddbmm(x @ y, x, y, beta=0.5),
        (x[:, None] @ y[None]).sum(0), x.transpose(1, 2) @ x,
    ),
    lambda: (grad(3, 4, 6), grad(3, 6, 5)),
)
add(
    "addmms",
    lambda b, x, y: (
        torch.addmm(b, x, y), torch.addmm(b, x, y, alpha=2, beta=0.5), F.linear(x, y.T, b),
        F.linear(x, y.T), torch.addmv(x[:, 0], x, y[:, 0]), F.linear(x, y.T, b).relu(),
    ),
    lambda: (grad(5), grad(4, 6), grad(6, 5)),
)
add("empty_matmuls", lambda x, y: (x @ y, y @ x, (x @ y).sum()), lambda: (grad(4, 0), grad(0, 4)))
add("tiny_matmuls", lambda x, y: (x @ y, y @ x, x.T @ y.T), lambda: (grad(1, 5), grad(5, 1)))
add("integer_matmul", lambda x, y: (x @ y, x.float() @ y.float()), lambda: (ints(3, 4), ints(4, 5)))
add(
    "half_matmuls",
    lambda x, y: (x @ y, F.linear(x, y.T), (x @ y).relu().sum(0)),
    lambda: (grad(5, 6, dtype=torch.bfloat16), grad(6, 7, dtype=torch.bfloat16)),
)
add(
    "transposed_matmuls",
    lambda x, y: (x @ y, y.T @ x.T, x.contiguous() @ y),
    lambda: (transposed(5, 6), transposed(6, 7)),
)
add(
    "einsums",
    lambda x, y: (
        torch.einsum("bij,bjk->bik", x, y), torch.einsum("bij->ji", x),
        torch.einsum("bij,bij->b", x, x), torch.einsum("bij,cjk->bcik", x, y),
        torch.einsum("...ij->...ji", x), torch.einsum("ii->i", x[0, :, :4]),
    ),
    lambda: (grad(3, 4, 6), grad(3, 6, 5)),
)
add(
    "tensordots",
    lambda x, y: (
        torch.tensordot(x, y, 1), torch.kron(x, y), torch.outer(x[0], y[0]), torch.inner(x, x),
        torch.linalg.multi_dot([x, y, y.T]), torch.cross(x[:, :3], x[:, 3:], dim=1),
        torch.chain_matmul(x, y),
    ),
    lambda: (grad(4, 6), grad(6, 5)),
)
add(
    "bilinear",
    lambda x, y, w: (F.bilinear(x, y, w), torch.trapezoid(x), torch.vander(x[0], 3)),
    lambda: (grad(4, 3), grad(4, 2), grad(5, 3, 2)),
)
add(
    "linear_chain",
    lambda x, a, b: F.linear(F.gelu(F.linear(x, a)), b).softmax(-1),
    lambda: (grad(2, 3, 8), grad(16, 8), grad(5, 16)),
)
add(
    "linalg",
    lambda x: (
        torch.linalg.inv(x), torch.linalg.det(x), torch.linalg.cholesky(x @ x.T + torch.eye(4)),
        torch.linalg.solve(x, x[:, :2]),
    ),
    lambda: ((rand(4, 4) + 4 * torch.eye(4)).requires_grad_(),),
    factor=32.0,
)

add(
    "integer_average_pools",
    lambda x: (
        F.avg_pool1d(x[0], 3, 2, 1), F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1, True, False),
        F.avg_pool2d(x, 2, divisor_override=3), F.avg_pool3d(x[None], 2),
        F.avg_pool2d(x[:, 1:, ::2], (2, 1), count_include_pad=False),
    ),
    lambda: (ints(3, 4, 6, 7),),
)
add(
    "integer_local_response_norm",
    lambda x: (F.local_response_norm(x, 3), F.local_response_norm(x[0], 2, alpha=0.5)),
    lambda: (ints(2, 4, 6),),
)

# Convolutions
# ----------------------------------------------------------------------------
add(
    "conv1d",
    lambda x, w, b: (
        F.conv1d(x, w, b), F.conv1d(x, w, padding=1, stride=2), F.conv1d(x, w, dilation=2),
        F.conv1d(x, w, padding="same"),
    ),
    lambda: (grad(2, 3, 11), grad(4, 3, 3), grad(4)),
)
add(
    "conv2d",
    lambda x, w, b: (
        F.conv2d(x, w, b), F.conv2d(x, w, b, stride=2, padding=1).relu(),
        F.conv2d(x, w[:, :, :1, :1]),
    ),
    lambda: (grad(2, 3, 9, 7), grad(4, 3, 3, 3), grad(4)),
)
add(
    "conv2d_groups",
    lambda x, w: (
        F.conv2d(x, w, groups=2), F.conv2d(x, w.view(8, 1, 3, 3)[:4].contiguous(), groups=4),
    ),
    lambda: (grad(2, 4, 6, 7), grad(4, 2, 3, 3)),
)
add(
    "conv2d_channels_last",
    lambda x, w, b: (F.conv2d(x, w, b).relu() + 1, F.conv2d(x, w).sum(1)),
    lambda: (channels_last(2, 3, 9, 7), channels_last(4, 3, 3, 3), grad(4)),
)
add(
    "conv2d_then_norm",
    lambda x, w, g: F.max_pool2d(
        F.batch_norm(F.conv2d(x, w, padding=1), None, None, g, training=True).relu(), 2,
    ),
    lambda: (grad(3, 3, 8, 8), grad(5, 3, 3, 3), grad(5)),
)
add(
    "norms_of_one_channel_or_pixel",
    lambda x, y, w: (
        F.batch_norm(x, None, None, training=True), F.batch_norm(y, None, None, training=True),
        F.conv2d(F.batch_norm(x, None, None, training=True), w),
        F.batch_norm(x, torch.ones(1), torch.ones(1)).relu(),
    ),
    lambda: (
        # Unlike `contiguous`, `to` gives a tensor that is contiguous already other strides.
        rand(2, 1, 5, 4).to(memory_format=torch.channels_last),
        rand(2, 3, 1, 1).to(memory_format=torch.channels_last), rand(3, 1, 2, 3),
    ),
)
add(
    "conv3d",
    lambda x, w: F.conv3d(x, w, padding=1),
    lambda: (grad(1, 2, 4, 5, 3), grad(3, 2, 3, 3, 3)),
)
add(
    "conv_transpose",
    lambda x, w, b: (
        F.conv_transpose2d(x, w, b),
        F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        F.conv_transpose1d(x[:, :, 0], w[..., 0]),
    ),
    lambda: (grad(2, 3, 5, 4), grad(3, 4, 3, 3), grad(4)),
)
add("conv_unbatched", lambda x, w: F.conv2d(x, w), lambda: (grad(3, 9, 7), grad(4, 3, 3, 3)))
add(
    "interpolate",
    lambda x: (
        F.interpolate(x, scale_factor=2), F.interpolate(x, size=(7, 3)),
        F.interpolate(x, scale_factor=2, mode="bilinear"),
        F.interpolate(x, size=(3, 9), mode="bilinear", align_corners=True),
        F.interpolate(x, scale_factor=1.7, mode="bicubic"),
        F.interpolate(x, size=(3, 2), mode="area"),
        F.interpolate(x, size=(8, 9), mode="nearest-exact"),
    ),
    lambda: (grad(2, 3, 5, 4),),
)
add(
    "interpolate_others",
    lambda x: (
        F.interpolate(x, scale_factor=2, mode="linear"),
        F.interpolate(x[..., None], scale_factor=2),
        F.interpolate(x, size=9, mode="linear", align_corners=True),
    ),
    lambda: (grad(2, 3, 5),),
)
add(
    "interpolate_antialias",
    lambda x: (
        F.interpolate(x, size=(3, 3), mode="bilinear", antialias=True),
        F.interpolate(x, scale_factor=0.5, mode="bilinear"),
    ),
    lambda: (grad(2, 3, 8, 7),),
)
add(
    "grid_sample",
    lambda x, theta: F.grid_sample(
        x, F.affine_grid(theta, [2, 3, 4, 4], align_corners=False), align_corners=False,
    ),
    lambda: (grad(2, 3, 5, 4), grad(2, 2, 3)),
    factor=32.0,
)

# Attention
# ----------------------------------------------------------------------------
add(
    "attention",
    lambda q, k, v: (
        F.scaled_dot_product_attention(q, k, v),
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
        F.scaled_dot_product_attention(q, k, v, scale=0.3),
    ),
    lambda: (grad(2, 3, 7, 8), grad(2, 3, 7, 8), grad(2, 3, 7, 8)),
)
add(
    "attention_mask",
    lambda q, k, v, m: (
        F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0),
    ),
    lambda: (grad(2, 3, 5, 8), grad(2, 3, 7, 8), grad(2, 3, 7, 8), rand(5, 7)),
)
add(
    "attention_by_hand",
    lambda q, k, v: ((q @ k.transpose(-1, -2)) / 8**0.5).masked_fill(
        torch.ones(7, 7).triu(1) > 0, float("-inf"),
    ).softmax(-1) @ v,
    lambda: (grad(2, 3, 7, 8), grad(2, 3, 7, 8), grad(2, 3, 7, 8)),
)
add(
    "attention_grouped",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    lambda: (grad(2, 4, 7, 8), grad(2, 2, 7, 8), grad(2, 2, 7, 8)),
)

# Dropout
# ----------------------------------------------------------------------------
add(
    "dropouts",
    lambda x: (
        F.dropout(x, 0.4), F.dropout(x, 0.0), F.dropout(x, 1.0), F.dropout(x, 0.5, training=False),
        F.dropout1d(x, 0.5), F.alpha_dropout(x, 0.2),
    ),
    lambda: (grad(4, 6, 3),),
)
add(
    "dropout_and_random",
    lambda x: (F.dropout(x + torch.rand_like(x), 0.4) * torch.randn(4, 1), torch.rand(2)),
    lambda: (grad(4, 6),),
)
add("dropout_halves", lambda x: F.dropout(x, 0.4) * 2, lambda: (grad(4, 6, dtype=torch.bfloat16),))

# Autocast
# ----------------------------------------------------------------------------


def autocast_inside(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Products in bfloat16, norms in float32, in a region of the program."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = F.linear(x, w)
        normed = F.layer_norm(hidden, (5,))
        out = (normed @ w).softmax(-1)
    return hidden, normed, out, x @ w.T


def autocast_off_inside(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A region in float32 inside one in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = x @ w.T
        with torch.autocast("cpu", enabled=False):
            second = x @ w.T
        third = torch.cat([first, second.to(first.dtype)])
    return first, second, third


add("autocast_inside", autocast_inside, lambda: (grad(4, 6), grad(5, 6)), factor=16.0)
add("autocast_off_inside", autocast_off_inside, lambda: (grad(4, 6), grad(5, 6)), factor=16.0)
add(
    "autocast_decorator",
    torch.autocast("cpu", dtype=torch.bfloat16)(lambda x, w: (x @ w.T).relu()),
    lambda: (grad(4, 6), grad(5, 6)),
    factor=16.0,
    fullgraph=False,
)

# Modules: parameters as arguments, so that their gradients are compared
# ---------------------------------------------------


def layer(
    name: str, module: nn.Module, make: Any, *, training: bool = True, **options: Any
) -> None:
    """A program that runs a module functionally on copies of its parameters and buffers."""
    module.train(training)
    state = {key: value.detach().clone() for key, value in module.state_dict().items()}
    trained = {key for key, _ in module.named_parameters()}

    def run(state: dict[str, torch.Tensor], *args: Any) -> Any:
        return torch.func.functional_call(module, state, args)

    def inputs() -> tuple[Any, ...]:
        fresh = {key: value.clone().requires_grad_(key in trained) for key, value in state.items()}
        return (fresh, *make())

    add(name, run, inputs, **options)


torch.manual_seed(0)
layer("lstm_cell", nn.LSTMCell(4, 5), lambda: (grad(3, 4), (grad(3, 5), grad(3, 5))))
layer("gru_cell", nn.GRUCell(4, 5), lambda: (grad(3, 4), grad(3, 5)))
layer("rnn_cell", nn.RNNCell(4, 5), lambda: (grad(3, 4), grad(3, 5)))
layer("lstm", nn.LSTM(4, 5, batch_first=True), lambda: (grad(3, 6, 4),), fullgraph=False)
layer(
    "gru_bidirectional",
    nn.GRU(4, 5, bidirectional=True),
    lambda: (grad(3, 2, 4),),
    fullgraph=False,
)
layer(
    "multihead_attention",
    nn.MultiheadAttention(8, 2, batch_first=True),
    lambda: (x := grad(2, 5, 8), x, x),
)
layer(
    "multihead_attention_eval",
    nn.MultiheadAttention(8, 2),
    lambda: (grad(5, 2, 8), grad(6, 2, 8), grad(6, 2, 8)),
    training=False,
)
layer(
    "encoder_layer",
    nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    lambda: (grad(2, 5, 8),),
    factor=16.0,
)
layer(
    "encoder_layer_eval",
    nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu"),
    lambda: (grad(2, 5, 8),),
    training=False,
)
layer(
    "decoder_layer",
    nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0),
    lambda: (grad(5, 2, 8), grad(6, 2, 8)),
    factor=16.0,
)
layer("batch_norm", nn.BatchNorm2d(3), lambda: (grad(4, 3, 5, 2),))
layer("batch_norm_eval_module", nn.BatchNorm1d(3), lambda: (grad(4, 3),), training=False)
layer(
    "batch_norm_cumulative",
    nn.BatchNorm1d(3, momentum=None),
    lambda: (grad(4, 3),),
    fullgraph=False,
)
layer(
    "instance_norm_tracked",
    nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
    lambda: (grad(4, 3, 5, 2),),
)
layer(
    "sequential",
    nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4 * 3 * 2, 5), nn.Dropout(0.3), nn.LogSoftmax(-1),
    ),
    lambda: (grad(2, 3, 8, 6),),
    factor=16.0,
)
layer(
    "embedding_module",
    nn.Sequential(
        nn.Embedding(9, 4, padding_idx=0), nn.LayerNorm(4), nn.Linear(4, 3, bias=False), nn.Tanh(),
    ),
    lambda: (ints(3, 5, low=0, high=9),),
)
layer(
    "upsample_prelu",
    nn.Sequential(
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.PReLU(3), nn.ZeroPad2d(1),
        nn.AdaptiveAvgPool2d(2), nn.GroupNorm(3, 3), nn.Softplus(), nn.Softmax2d(),
    ),
    lambda: (grad(2, 3, 4, 5),),
)
layer(
    "spectral_and_weight_norm",
    nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
    lambda: (grad(2, 4),),
    fullgraph=False,
)
