"""Random calls of pooling, resampling, losses, sorting, random and _foreach operators; adds to
`calls.CALLS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from rules.calls import anything, calls, dim_of, every, floating
from rules.tensors import broadcastable, index_tensor, shape, tensor

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

aten = torch.ops.aten


# 1. Pooling


def _image(rng: random.Random, spatial: int, *, batched: bool | None = None) -> torch.Tensor:
    sizes = [rng.randint(1, 3), rng.randint(1, 3), *(rng.randint(3, 8) for _ in range(spatial))]
    if batched is False or (batched is None and rng.random() < 0.2):
        sizes = sizes[1:]
    return floating(rng, sizes)


def _window(rng: random.Random, spatial: int) -> list[Any]:
    kernel = [rng.randint(1, 3) for _ in range(spatial)]
    return [kernel, rng.choice(([], [2], [1] * spatial)), [rng.randint(0, 1)]]


@calls(aten.max_pool3d_with_indices.default)
def _max_pool3d(rng: random.Random) -> Any:
    return _image(rng, 3), *_window(rng, 3), [1], rng.random() < 0.5


@calls(aten.avg_pool2d.default)
def _avg_pool2d(rng: random.Random) -> Any:
    return _image(rng, 2), *_window(rng, 2), rng.random() < 0.5


@calls(aten.avg_pool3d.default)
def _avg_pool3d(rng: random.Random) -> Any:
    return _image(rng, 3), *_window(rng, 3), rng.random() < 0.5


def _backward_of(
    forward: Any, make: Callable[[random.Random], Any], with_indices: bool = False
) -> Callable[[random.Random], Any]:
    """Arguments of a pool's backward: a gradient of the forward's shape before the forward's own
    arguments.
    """

    def arguments(rng: random.Random) -> Any:
        while True:
            args = make(rng)
            try:
                result = forward(*args)
            except RuntimeError:  # an invalid window: draw again
                continue
            out = result[0] if with_indices else result
            grad = tensor(rng, out.shape, out.dtype)
            return (grad, *args, result[1]) if with_indices else (grad, *args)

    return arguments


calls(aten.max_pool3d_with_indices_backward.default)(
    _backward_of(aten.max_pool3d_with_indices.default, _max_pool3d, with_indices=True)
)
calls(aten.avg_pool2d_backward.default)(
    _backward_of(aten.avg_pool2d.default, lambda rng: (*_avg_pool2d(rng), True, None))
)
calls(aten.avg_pool3d_backward.default)(
    _backward_of(aten.avg_pool3d.default, lambda rng: (*_avg_pool3d(rng), True, None))
)


def _adaptive(spatial: int) -> Callable[[random.Random], Any]:
    return lambda rng: (_image(rng, spatial), [rng.randint(1, 4) for _ in range(spatial)])


calls(aten._adaptive_avg_pool2d.default, aten.adaptive_max_pool2d.default)(_adaptive(2))
calls(aten._adaptive_avg_pool3d.default, aten.adaptive_max_pool3d.default)(_adaptive(3))


@calls(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_avg_pool2d_backward(rng: random.Random) -> Any:
    self, size = _adaptive(2)(rng)
    return tensor(rng, (*self.shape[:-2], *size), self.dtype), self


@calls(aten._adaptive_avg_pool3d_backward.default)
def _adaptive_avg_pool3d_backward(rng: random.Random) -> Any:
    self, size = _adaptive(3)(rng)
    return tensor(rng, (*self.shape[:-3], *size), self.dtype), self


@calls(aten.adaptive_max_pool2d_backward.default)
def _adaptive_max_pool2d_backward(rng: random.Random) -> Any:
    self, size = _adaptive(2)(rng)
    out, indices = aten.adaptive_max_pool2d.default(self, size)
    return tensor(rng, out.shape, out.dtype), self, indices


# 2. Resampling


def _upsample(spatial: int, corners: bool) -> Callable[[random.Random], Any]:
    def arguments(rng: random.Random) -> Any:
        size = [rng.randint(1, 9) for _ in range(spatial)]
        return (
            _image(rng, spatial, batched=True),
            size,
            *([rng.random() < 0.5] if corners else []),
        )

    return arguments


def _upsample_backward(spatial: int, corners: bool) -> Callable[[random.Random], Any]:
    def arguments(rng: random.Random) -> Any:
        size = [rng.randint(1, 9) for _ in range(spatial)]
        self = _image(rng, spatial, batched=True)
        grad = tensor(rng, (*self.shape[:2], *size), self.dtype)
        return (grad, size, list(self.shape), *([rng.random() < 0.5] if corners else []))

    return arguments


for _name, _spatial, _corners in (
    ("upsample_nearest1d", 1, False),
    ("upsample_nearest2d", 2, False),
    ("upsample_nearest3d", 3, False),
    ("_upsample_nearest_exact2d", 2, False),
    ("upsample_linear1d", 1, True),
    ("upsample_bilinear2d", 2, True),
    ("upsample_trilinear3d", 3, True),
    ("upsample_bicubic2d", 2, True),
    ("_upsample_bilinear2d_aa", 2, True),
):
    calls(getattr(aten, _name).default)(_upsample(_spatial, _corners))
    calls(getattr(aten, f"{_name}_backward").default)(_upsample_backward(_spatial, _corners))


@calls(aten.grid_sampler_2d.default)
def _grid_sampler_2d(rng: random.Random) -> Any:
    self = tensor(rng, (2, 3, 4, 5))
    return self, tensor(rng, (2, rng.randint(1, 4), rng.randint(1, 4), 2)), 0, 0, False


@calls(aten.grid_sampler_2d_backward.default)
def _grid_sampler_2d_backward(rng: random.Random) -> Any:
    args = _grid_sampler_2d(rng)
    grad = tensor(rng, aten.grid_sampler_2d.default(*args).shape)
    return grad, *args, [rng.random() < 0.8, True]


def _pad(spatial: int) -> Callable[[random.Random], Any]:
    return lambda rng: (_image(rng, spatial), [rng.randint(0, 3) for _ in range(2 * spatial)])


def _pad_backward(forward: Any, spatial: int) -> Callable[[random.Random], Any]:
    def arguments(rng: random.Random) -> Any:
        while True:
            self, padding = _pad(spatial)(rng)
            try:
                out = forward(self, padding)
            except RuntimeError:  # reflection wider than the input: draw again
                continue
            return tensor(rng, out.shape, out.dtype), self, padding

    return arguments


for _name in ("reflection_pad", "replication_pad"):
    for _spatial in (1, 2, 3):
        _forward = getattr(aten, f"{_name}{_spatial}d").default
        calls(_forward)(_pad(_spatial))
        calls(getattr(aten, f"{_name}{_spatial}d_backward").default)(
            _pad_backward(_forward, _spatial)
        )


@calls(aten.im2col.default)
def _im2col(rng: random.Random) -> Any:
    return (
        _image(rng, 2),
        [rng.randint(1, 3), 2],
        [1, rng.randint(1, 2)],
        [rng.randint(0, 1), 0],
        [1, rng.randint(1, 2)],
    )


@calls(aten.col2im.default)
def _col2im(rng: random.Random) -> Any:
    size = [rng.randint(3, 6), rng.randint(3, 6)]
    blocks = (size[0] - 1) * (size[1] - 1)
    return tensor(rng, (2, 3 * 4, blocks)), size, [2, 2], [1, 1], [0, 0], [1, 1]


@calls(aten.pixel_shuffle.default)
def _pixel_shuffle(rng: random.Random) -> Any:
    return tensor(rng, (*shape(rng, 0, 2), 8, rng.randint(1, 3), rng.randint(1, 3))), 2


@calls(aten.pixel_unshuffle.default)
def _pixel_unshuffle(rng: random.Random) -> Any:
    return tensor(rng, (*shape(rng, 0, 2, empty=False), 3, 4, 6)), 2


@calls(aten.channel_shuffle.default)
def _channel_shuffle(rng: random.Random) -> Any:
    return tensor(rng, (rng.randint(1, 3), 6, 4, 5)), rng.choice((1, 2, 3, 4))


# 3. Losses


@calls(aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default)
def _loss(rng: random.Random) -> Any:
    sizes = shape(rng)
    return floating(rng, sizes), floating(rng, broadcastable(rng, sizes)), rng.randint(0, 2)


@calls(aten.mse_loss_backward.default)
def _loss_backward(rng: random.Random) -> Any:
    sizes = shape(rng)
    self, target = tensor(rng, sizes), tensor(rng, sizes)
    reduction = rng.randint(0, 2)
    grad = tensor(rng, sizes if reduction == 0 else ())
    return grad, self, target, reduction


@calls(aten.smooth_l1_loss_backward.default, aten.huber_loss_backward.default)
def _loss_backward_beta(rng: random.Random) -> Any:
    return *_loss_backward(rng), 1.0


def _unit(rng: random.Random, sizes: Any) -> torch.Tensor:
    return tensor(rng, sizes).div(4)


@calls(aten.binary_cross_entropy_with_logits.default)
def _with_logits(rng: random.Random) -> Any:
    sizes = shape(rng)

    def operand() -> torch.Tensor:
        return anything(rng, sizes if rng.random() < 0.7 else broadcastable(rng, sizes))

    weights = [operand() if rng.random() < 0.4 else None for _ in range(2)]
    return operand(), operand(), *weights, rng.randint(0, 2)


@calls(aten.binary_cross_entropy.default)
def _binary_cross_entropy(rng: random.Random) -> Any:
    sizes = shape(rng)
    return _unit(rng, sizes), _unit(rng, sizes)


@calls(aten.binary_cross_entropy_backward.default)
def _binary_cross_entropy_backward(rng: random.Random) -> Any:
    sizes = shape(rng)
    return tensor(rng, ()), _unit(rng, sizes), _unit(rng, sizes), None, 1


@calls(aten.nll_loss_forward.default)
def _nll_loss(rng: random.Random) -> Any:
    rows, classes = rng.randint(1, 4), rng.randint(1, 4)
    weight = tensor(rng, (classes,), layout="contiguous") if rng.random() < 0.5 else None
    if rng.random() < 0.2:
        return (
            tensor(rng, (classes,)),
            index_tensor(rng, (), classes),
            weight,
            rng.randint(0, 2),
            -100,
        )
    return (
        tensor(rng, (rows, classes)),
        index_tensor(rng, (rows,), classes),
        weight,
        rng.randint(0, 2),
        -100,
    )


@calls(aten.nll_loss_backward.default)
def _nll_loss_backward(rng: random.Random) -> Any:
    args = _nll_loss(rng)
    out, total = aten.nll_loss_forward.default(*args)
    return torch.ones_like(out), *args, total


@calls(aten.nll_loss2d_forward.default)
def _nll_loss2d(rng: random.Random) -> Any:
    self = tensor(rng, (2, 3, 4, 5))
    return self, index_tensor(rng, (2, 4, 5), 3), None, rng.randint(0, 2), -100


@calls(aten.nll_loss2d_backward.default)
def _nll_loss2d_backward(rng: random.Random) -> Any:
    args = _nll_loss2d(rng)
    out, total = aten.nll_loss2d_forward.default(*args)
    return torch.ones_like(out), *args, total


# 4. Sorting and searching


@calls(aten.sort.default)
def _sort(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim), rng.random() < 0.5


@calls(aten.sort.stable)
def _sort_stable(rng: random.Random) -> Any:
    self = floating(rng, shape(rng))
    return (self,), {"stable": True, "dim": dim_of(rng, self.ndim)}


@calls(aten.topk.default)
def _topk(rng: random.Random) -> Any:
    self = floating(rng, shape(rng))
    return self, rng.randint(0, 3), dim_of(rng, self.ndim)


@calls(aten.searchsorted.Tensor)
def _searchsorted(rng: random.Random) -> Any:
    return (tensor(rng, (4,)), tensor(rng, shape(rng))), {"out_int32": rng.random() < 0.5}


@calls(aten.bucketize.Tensor)
def _bucketize(rng: random.Random) -> Any:
    return tensor(rng, shape(rng)), tensor(rng, (4,))


@calls(aten.isin.Tensor_Tensor)
def _isin(rng: random.Random) -> Any:
    return tensor(rng, shape(rng)), tensor(rng, shape(rng), layout="contiguous")


@calls(aten.kthvalue.default)
def _kthvalue(rng: random.Random) -> Any:
    self = floating(rng, shape(rng, 1, 4, empty=False))
    return self, 1, dim_of(rng, self.ndim)


# 5. Random


@calls(aten.bernoulli.p)
def _bernoulli(rng: random.Random) -> Any:
    return _unit(rng, shape(rng)), 0.5


@calls(aten.bernoulli.default)
def _bernoulli_elementwise(rng: random.Random) -> Any:
    return (_unit(rng, shape(rng)),)


@calls(aten.rand_like.default, aten.randn_like.default)
def _rand_like(rng: random.Random) -> Any:
    return (floating(rng, shape(rng)),)


@calls(aten.rand.default, aten.randn.default)
def _rand(rng: random.Random) -> Any:
    return (list(shape(rng)),), {"dtype": rng.choice((None, torch.float64))}


@calls(aten.randint.low)
def _randint(rng: random.Random) -> Any:
    return 1, 5, list(shape(rng))


@calls(aten.randperm.default)
def _randperm(rng: random.Random) -> Any:
    return (rng.randint(0, 6),)


@calls(aten.bernoulli_.float)
def _fill_with_bits(rng: random.Random) -> Any:
    return (anything(rng, shape(rng)).clone(),)


@calls(aten.normal_.default, aten.uniform_.default)
def _fill_randomly(rng: random.Random) -> Any:
    """Of dtypes that eager takes: the others are `eager_checks.check_fill`'s to refuse."""
    return (tensor(rng, shape(rng)).clone(),)


@calls(aten.multinomial.default)
def _multinomial(rng: random.Random) -> Any:
    return tensor(rng, rng.choice(((4,), (3, 4)))), rng.randint(1, 3)


# 6. Lists of tensors


def _list(rng: random.Random, shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    return [tensor(rng, sizes) for sizes in shapes]


def _shapes(rng: random.Random) -> list[tuple[int, ...]]:
    return [shape(rng) for _ in range(rng.randint(1, 3))]


@calls(
    *every("_foreach_exp _foreach_sqrt _foreach_neg"),
    aten._foreach_abs.default,
    aten._foreach_reciprocal.default,
)
def _foreach_unary(rng: random.Random) -> Any:
    return (_list(rng, _shapes(rng)),)


@calls(
    aten._foreach_add.List,
    aten._foreach_mul.List,
    aten._foreach_div.List,
    aten._foreach_maximum.List,
)
def _foreach_list(rng: random.Random) -> Any:
    shapes = _shapes(rng)
    return _list(rng, shapes), _list(rng, shapes)


@calls(
    aten._foreach_add.Scalar,
    aten._foreach_mul.Scalar,
    aten._foreach_pow.Scalar,
    aten._foreach_clamp_min.Scalar,
)
def _foreach_scalar(rng: random.Random) -> Any:
    return _list(rng, _shapes(rng)), rng.choice((2, 1.5))


@calls(aten._foreach_div.ScalarList, aten._foreach_sub.ScalarList, aten._foreach_maximum.ScalarList)
def _foreach_scalar_list(rng: random.Random) -> Any:
    shapes = _shapes(rng)
    return _list(rng, shapes), [1.5 for _ in shapes]


@calls(aten._foreach_add.Tensor, aten._foreach_mul.Tensor, aten._foreach_div.Tensor)
def _foreach_tensor(rng: random.Random) -> Any:
    return _list(rng, _shapes(rng)), torch.tensor(2.0)


@calls(aten._foreach_addcmul.Scalar, aten._foreach_addcdiv.Scalar)
def _foreach_addcmul(rng: random.Random) -> Any:
    shapes = _shapes(rng)
    return _list(rng, shapes), _list(rng, shapes), _list(rng, shapes), 0.5


@calls(aten._foreach_lerp.Scalar)
def _foreach_lerp(rng: random.Random) -> Any:
    shapes = _shapes(rng)
    return _list(rng, shapes), _list(rng, shapes), 0.5


@calls(aten._foreach_norm.Scalar)
def _foreach_norm(rng: random.Random) -> Any:
    return (_list(rng, _shapes(rng)),)


# Fake quantization


@calls(aten.fake_quantize_per_tensor_affine_cachemask.default)
def _fake_quantize(rng: random.Random) -> Any:
    return floating(rng, shape(rng)), 0.1, rng.randint(0, 9), 0, 255


@calls(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def _fake_quantize_by_tensors(rng: random.Random) -> Any:
    zero = torch.tensor(3, dtype=torch.int32)
    return floating(rng, shape(rng)), torch.tensor(0.1), zero, torch.tensor(1), 0, 255


@calls(aten.fake_quantize_per_channel_affine_cachemask.default)
def _fake_quantize_channels(rng: random.Random) -> Any:
    x = floating(rng, [rng.randint(1, 4) for _ in range(3)])
    axis = rng.randrange(3)
    scale, zero = torch.full((x.shape[axis],), 0.1), torch.zeros(x.shape[axis], dtype=torch.int32)
    return x, scale, zero, axis, 0, 255
