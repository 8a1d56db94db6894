"""Random calls of convolution, normalisation, indexing and attention operators; adds to
`calls.CALLS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from rules.calls import CALLS, anything, calls, dim_of, floating, pair
from rules.tensors import broadcastable, index_tensor, shape, tensor

if TYPE_CHECKING:
    import random

aten = torch.ops.aten


# 6. Convolutions


def convolution_arguments(rng: random.Random) -> Any:
    """Arguments of aten.convolution, transposed or not, of 1 to 3 spatial dimensions."""
    spatial = rng.choice((1, 1, 2, 2, 3))
    groups = rng.choice((1, 1, 2))
    channels, out = groups * rng.randint(1, 3), groups * rng.randint(1, 3)
    kernel = [rng.choice((1, 2, 3)) for _ in range(spatial)]
    sizes = [rng.randint(4, 8) for _ in range(spatial)]
    transposed = rng.random() < 0.25
    dtype = rng.choice((torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16))
    self = tensor(rng, (rng.randint(1, 3), channels, *sizes), dtype)
    first, second = (channels, out // groups) if transposed else (out, channels // groups)
    layout = rng.choice(("contiguous", "contiguous", "channels_last"))
    weight = tensor(rng, (first, second, *kernel), dtype, layout)
    bias = tensor(rng, (out,), dtype) if rng.random() < 0.5 else None
    stride = [rng.randint(1, 2) for _ in range(spatial)]
    padding = [rng.randint(0, 1) for _ in range(spatial)]
    dilation = [rng.choice((1, 1, 2)) for _ in range(spatial)]
    return self, weight, bias, stride, padding, dilation, transposed, [0] * spatial, groups


@calls(aten.convolution.default)
def _convolution(rng: random.Random) -> Any:
    return convolution_arguments(rng)


@calls(aten.convolution_backward.default)
def _convolution_backward(rng: random.Random) -> Any:
    while True:
        self, weight, bias, *rest = convolution_arguments(rng)
        try:
            out = aten.convolution.default(self, weight, bias, *rest)
            break
        except RuntimeError:  # the kernel is larger than the input: draw again
            continue
    # Eager computes the weight's gradient even unasked, in odd shapes; so it is always asked for.
    mask = [rng.random() < 0.8, True, rng.random() < 0.8]
    grad = tensor(
        rng, out.shape, out.dtype, rng.choice(("contiguous", "channels_last", "expanded"))
    )
    return grad, self, weight, [out.shape[1]], *rest, mask


# 7. Norms and softmax


def _parameters(rng: random.Random, sizes: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    if dtype in (torch.bfloat16, torch.float16) and rng.random() < 0.5:
        dtype = torch.float32
    if rng.random() < 0.2:
        return None, None
    return tensor(rng, sizes, dtype, "contiguous"), tensor(rng, sizes, dtype, "contiguous")


@calls(aten.native_batch_norm.default)
def _native_batch_norm(rng: random.Random) -> Any:
    self = floating(rng, shape(rng, 2, 5, empty=False))
    weight, bias = _parameters(rng, (self.shape[1],), self.dtype)
    dtype = self.dtype if weight is None else weight.dtype
    mean, var = (tensor(rng, (self.shape[1],), dtype, "contiguous") for _ in range(2))
    return self, weight, bias, mean, var, rng.random() < 0.5, 0.1, 1e-5


@calls(aten.native_batch_norm_backward.default)
def _native_batch_norm_backward(rng: random.Random) -> Any:
    self, weight, bias, mean, var, train, momentum, eps = _native_batch_norm(rng)
    out, saved, invstd = aten.native_batch_norm.default(
        self, weight, bias, mean, var, train, momentum, eps
    )
    grad = tensor(rng, out.shape, out.dtype)
    return (
        grad,
        self,
        weight,
        mean,
        var,
        saved,
        invstd,
        train,
        eps,
        [rng.random() < 0.8 for _ in range(3)],
    )


@calls(aten.native_layer_norm.default)
def _native_layer_norm(rng: random.Random) -> Any:
    self = floating(rng, shape(rng, 1, 4, empty=False))
    sizes = list(self.shape[rng.randrange(self.ndim) :])
    return self, sizes, *_parameters(rng, sizes, self.dtype), 1e-5


@calls(aten.native_layer_norm_backward.default)
def _native_layer_norm_backward(rng: random.Random) -> Any:
    self, sizes, weight, bias, eps = _native_layer_norm(rng)
    out, mean, rstd = aten.native_layer_norm.default(self, sizes, weight, bias, eps)
    mask = [True, weight is not None, bias is not None]
    return tensor(rng, out.shape, out.dtype), self, sizes, mean, rstd, weight, bias, mask


@calls(aten.native_group_norm.default)
def _any_group_norm(rng: random.Random) -> Any:
    self, *others = _native_group_norm(rng)
    return (rng.choice((self, self, self.mT.contiguous().mT)), *others)


def _native_group_norm(rng: random.Random) -> Any:
    group = rng.randint(1, 3)
    sizes = (
        rng.randint(1, 3),
        group * rng.randint(1, 2),
        *(rng.randint(1, 4) for _ in range(rng.randint(1, 3))),
    )
    self = floating(
        rng, sizes, rng.choice(("contiguous", "channels_last")) if len(sizes) == 4 else "contiguous"
    )
    count = self.numel() // (sizes[0] * sizes[1])
    return self, *_parameters(rng, (sizes[1],), self.dtype), sizes[0], sizes[1], count, group, 1e-5


@calls(aten.native_group_norm_backward.default)
def _native_group_norm_backward(rng: random.Random) -> Any:
    self, weight, bias, n, c, count, group, eps = _native_group_norm(rng)
    _, mean, rstd = aten.native_group_norm.default(self, weight, bias, n, c, count, group, eps)
    grad = torch.ones_like(self)
    return (
        grad,
        self,
        mean,
        rstd,
        weight,
        n,
        c,
        count,
        group,
        [True, weight is not None, weight is not None],
    )


@calls(aten._softmax.default, aten._log_softmax.default)
def _softmax(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim), False


@calls(aten._safe_softmax.default)
def _safe_softmax(rng: random.Random) -> Any:
    self = floating(rng, shape(rng))
    return self, dim_of(rng, self.ndim)


@calls(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(rng: random.Random) -> Any:
    grad, out = pair(rng)
    return grad, out, dim_of(rng, grad.ndim), grad.dtype


@calls(aten._fused_rms_norm.default)
def _fused_rms_norm(rng: random.Random) -> Any:
    self, sizes, weight, _, _ = _native_layer_norm(rng)
    return self, sizes, None if weight is None else weight.to(self.dtype), 1e-5


# 8. Indexing


@calls(aten.gather.default)
def _gather(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, empty=False))
    dim = dim_of(rng, self.ndim)
    at = dim % max(self.ndim, 1)
    sizes = [
        rng.randint(0, 3) if d == at else rng.randint(1, size) for d, size in enumerate(self.shape)
    ]
    return self, dim, index_tensor(rng, sizes, self.shape[at] if at < self.ndim else 1)


@calls(aten.scatter.src, aten.scatter_add.default, aten.scatter.value, aten.scatter_reduce.two)
def _scatter(rng: random.Random) -> Any:
    self = tensor(rng, shape(rng, empty=False))
    dim = dim_of(rng, self.ndim, wrong=0)
    at = dim % max(self.ndim, 1)
    sizes = [
        rng.randint(0, size) if d == at else rng.randint(1, size)
        for d, size in enumerate(self.shape)
    ]
    return (
        self,
        dim,
        index_tensor(rng, sizes, self.shape[at] if self.ndim else 1),
        tensor(rng, self.shape),
    )


CALLS["aten.scatter.value"] = lambda rng: (aten.scatter.value, (*_scatter(rng)[:3], 1.5), {})
CALLS["aten.scatter_reduce.two"] = lambda rng: (
    aten.scatter_reduce.two,
    (*_scatter(rng), "amax"),
    {},
)


@calls(aten.index.Tensor)
def _index(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 1, 4, empty=False))
    sizes = shape(rng, 0, 3, empty=False)
    indices = [
        index_tensor(rng, broadcastable(rng, sizes), size) if rng.random() < 0.6 else None
        for size in self.shape
    ]
    while indices and indices[-1] is None:
        indices.pop()
    return self, indices


@calls(aten.index_put.default)
def _index_put(rng: random.Random) -> Any:
    self, indices = _index(rng)
    if not indices:
        indices = [index_tensor(rng, (2,), self.shape[0])]
    shaped = aten.index.Tensor(self, indices)
    return (
        self,
        indices,
        tensor(rng, broadcastable(rng, shaped.shape), self.dtype),
        rng.random() < 0.5,
    )


@calls(aten.index_select.default)
def _index_select(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 1, 4, empty=False))
    dim = rng.randrange(self.ndim)
    return self, dim, index_tensor(rng, (rng.randint(0, 4),), self.shape[dim])


@calls(aten.index_add.default, aten.index_copy.default)
def _index_add(rng: random.Random) -> Any:
    self = tensor(rng, shape(rng, 1, 4, empty=False))
    dim = rng.randrange(self.ndim)
    count = rng.randint(0, 4)
    source = tensor(rng, [count if d == dim else size for d, size in enumerate(self.shape)])
    return self, dim, index_tensor(rng, (count,), self.shape[dim]), source


@calls(aten.index_fill.int_Scalar)
def _index_fill(rng: random.Random) -> Any:
    self, dim, index, _ = _index_add(rng)
    return self, dim, index, 1.5


@calls(aten.take.default)
def _take(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, empty=False))
    return self, index_tensor(rng, shape(rng), self.numel())


@calls(aten.embedding.default)
def _embedding(rng: random.Random) -> Any:
    return tensor(rng, (5, 3)), index_tensor(rng, shape(rng, 0, 3), 5)


@calls(aten.embedding_dense_backward.default)
def _embedding_dense_backward(rng: random.Random) -> Any:
    indices = index_tensor(rng, shape(rng, 1, 3), 5)
    return tensor(rng, (*indices.shape, 4)), indices, 5, -1, False


@calls(aten.cat.default)
def _cat(rng: random.Random) -> Any:
    sizes = shape(rng, 1, 5)
    dim = rng.randrange(len(sizes))
    pieces = [
        anything(rng, [rng.randint(1, 3) if d == dim else size for d, size in enumerate(sizes)])
        for _ in range(rng.randint(1, 3))
    ]
    if rng.random() < 0.1:
        pieces.append(torch.empty(0))
    return pieces, dim


@calls(aten.stack.default)
def _stack(rng: random.Random) -> Any:
    sizes = shape(rng, 0, 4)
    return [anything(rng, sizes) for _ in range(rng.randint(1, 3))], dim_of(rng, len(sizes) + 1)


@calls(aten.constant_pad_nd.default)
def _constant_pad_nd(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, [rng.randint(-1, 2) for _ in range(2 * rng.randint(0, self.ndim))], 1


@calls(aten.roll.default)
def _roll(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 1, 4))
    dims = rng.sample(range(self.ndim), rng.randint(0, self.ndim))
    return self, [rng.randint(-3, 3) for _ in dims] or [1], dims


@calls(aten.flip.default)
def _flip(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, rng.sample(range(self.ndim), rng.randint(0, self.ndim))


@calls(aten.rot90.default)
def _rot90(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 2, 4))
    return self, rng.randint(-1, 4), rng.sample(range(self.ndim), 2)


@calls(aten.repeat.default)
def _repeat(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, [rng.randint(0, 3) for _ in range(self.ndim + rng.randint(0, 2))]


@calls(aten.repeat_interleave.self_int)
def _repeat_interleave(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 1, 3))
    return self, rng.randint(0, 3), rng.choice((None, 0, -1))


@calls(aten.tril.default, aten.triu.default)
def _tril(rng: random.Random) -> Any:
    return anything(rng, shape(rng, 1, 4)), rng.randint(-2, 2)


@calls(aten.diag_embed.default)
def _diag_embed(rng: random.Random) -> Any:
    return anything(rng, shape(rng, 1, 3)), rng.randint(-2, 2)


@calls(aten.masked_scatter.default)
def _masked_scatter(rng: random.Random) -> Any:
    sizes = shape(rng)
    self = tensor(rng, broadcastable(rng, sizes))
    return self, tensor(rng, broadcastable(rng, sizes), torch.bool), torch.ones(2000)


# 9. Attention


def attention_operands(rng: random.Random) -> Any:
    """query, key and value as models make them: contiguous, or heads split off a projection."""
    b, h, d = rng.randint(1, 3), rng.randint(1, 3), rng.choice((4, 8))
    queries, keys = rng.randint(1, 5), rng.randint(1, 5)
    dtype = rng.choice((torch.float32, torch.float64, torch.bfloat16))

    def operand(length: int) -> torch.Tensor:
        if rng.random() < 0.5:
            return tensor(rng, (b, h, length, d), dtype, "contiguous")
        return tensor(rng, (b, length, h, d), dtype, "contiguous").transpose(1, 2)

    return operand(queries), operand(keys), operand(keys)


@calls(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _flash_for_cpu(rng: random.Random) -> Any:
    return attention_operands(rng)


@calls(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _flash_for_cpu_backward(rng: random.Random) -> Any:
    query, key, value = attention_operands(rng)
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu.default(query, key, value)
    grad = tensor(rng, out.shape, out.dtype)
    return grad, query, key, value, out, logsumexp, 0.0, False


# 10. Pooling and resampling


@calls(aten.max_pool2d_with_indices.default)
def _max_pool2d(rng: random.Random) -> Any:
    sizes = (rng.randint(1, 3), rng.randint(1, 3), rng.randint(3, 9), rng.randint(3, 9))[
        rng.randint(0, 1) :
    ]
    self = floating(rng, sizes)
    kernel = [rng.randint(1, 3), rng.randint(1, 3)]
    stride = rng.choice(([], [2], [1, 2]))
    return self, kernel, stride, [rng.randint(0, 1)], [rng.randint(1, 2)], rng.random() < 0.5


@calls(aten.max_pool2d_with_indices_backward.default)
def _max_pool2d_backward(rng: random.Random) -> Any:
    args = _max_pool2d(rng)
    while True:
        try:
            out, indices = aten.max_pool2d_with_indices.default(*args)
            break
        except RuntimeError:
            args = _max_pool2d(rng)
    return tensor(rng, out.shape, out.dtype), *args, indices


# 10. Linear algebra


def _square(rng: random.Random) -> torch.Tensor:
    size = rng.randint(1, 4)
    return tensor(rng, (*shape(rng, 0, 2, empty=False), size, size)) + 5 * torch.eye(size)


@calls(
    aten.linalg_inv_ex.default,
    aten.linalg_lu_factor_ex.default,
    aten._linalg_det.default,
    aten._linalg_slogdet.default,
    aten._linalg_eigh.default,
)
def _on_square(rng: random.Random) -> Any:
    return (_square(rng),)


@calls(aten.linalg_cholesky_ex.default)
def _cholesky(rng: random.Random) -> Any:
    square = _square(rng)
    return (square @ square.mT,)


@calls(aten.linalg_qr.default)
def _qr(rng: random.Random) -> Any:
    return tensor(
        rng, (*shape(rng, 0, 2, empty=False), rng.randint(1, 4), rng.randint(1, 4))
    ), rng.choice(("reduced", "complete", "r"))


@calls(aten._linalg_svd.default)
def _svd(rng: random.Random) -> Any:
    sizes = (rng.randint(1, 4), rng.randint(1, 4))
    matrix = tensor(rng, (*shape(rng, 0, 2, empty=False), *sizes))
    return matrix, rng.random() < 0.5, rng.random() < 0.8


@calls(aten._linalg_solve_ex.default)
def _solve(rng: random.Random) -> Any:
    square = _square(rng)
    return square, tensor(rng, (*square.shape[:-1], rng.randint(1, 3)))


@calls(aten.linalg_cross.default)
def _cross(rng: random.Random) -> Any:
    return tensor(rng, (rng.randint(1, 4), 3)), tensor(rng, (1, 3))


@calls(aten.trace.default)
def _trace(rng: random.Random) -> Any:
    return (anything(rng, (rng.randint(1, 4), rng.randint(1, 4))),)
