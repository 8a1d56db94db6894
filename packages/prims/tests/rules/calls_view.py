"""Random calls of view, reduction and matrix-product operators; adds to `calls.CALLS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from rules.calls import anything, calls, dim_of, floating
from rules.tensors import COMPLEX, broadcastable, shape, tensor

if TYPE_CHECKING:
    import random

aten = torch.ops.aten


# 3. Views


@calls(aten.view.default)
def _view(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, _regrouped(rng, list(self.shape))


def _regrouped(rng: random.Random, sizes: list[int]) -> list[int]:
    out = list(sizes)
    for _ in range(rng.randint(0, 3)):
        move = rng.random()
        if move < 0.4 and len(out) > 1:
            at = rng.randrange(len(out) - 1)
            out[at : at + 2] = [out[at] * out[at + 1]]
        elif move < 0.6 and out:
            at = rng.randrange(len(out))
            if out[at] % 2 == 0:
                out[at : at + 1] = [2, out[at] // 2]
        elif move < 0.8:
            out.insert(rng.randint(0, len(out)), 1)
        elif out and -1 not in out:
            out[rng.randrange(len(out))] = -1
    return out


@calls(aten.expand.default)
def _expand(rng: random.Random) -> Any:
    sizes = shape(rng)
    self = anything(rng, broadcastable(rng, sizes))
    return self, [-1 if rng.random() < 0.1 else size for size in sizes]


@calls(aten.transpose.int)
def _transpose(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim), dim_of(rng, self.ndim)


@calls(aten.t.default, aten.squeeze.default, aten.detach.default, aten.alias.default)
def _whole(rng: random.Random) -> Any:
    return (anything(rng, shape(rng, 0, 3)),)


@calls(aten.permute.default)
def _permute(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    order = rng.sample(range(self.ndim), self.ndim)
    return self, order if rng.random() < 0.95 else [0, *order]


@calls(aten.unsqueeze.default, aten.squeeze.dim, aten.unbind.int)
def _one_dim(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim)


@calls(aten.squeeze.dims)
def _squeeze_dims(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, rng.sample(range(self.ndim), rng.randint(0, self.ndim))


@calls(aten.diagonal.default)
def _diagonal(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 2, 4))
    return self, rng.randint(-4, 4), dim_of(rng, self.ndim), dim_of(rng, self.ndim)


@calls(aten.slice.Tensor)
def _slice(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    bounds = (None, -9, -2, 0, 1, 3, 2**63 - 1)
    return (
        self,
        dim_of(rng, self.ndim),
        rng.choice(bounds),
        rng.choice(bounds),
        rng.choice((1, 2, 3)),
    )


@calls(aten.select.int)
def _select(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim), rng.randint(-4, 4)


@calls(aten.split.Tensor, aten.unsafe_split.Tensor)
def _split(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, rng.randint(0, 4), dim_of(rng, self.ndim)


@calls(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def _split_with_sizes(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, 1, 4))
    dim = rng.randrange(self.ndim)
    first = rng.randint(0, self.shape[dim])
    return self, [first, self.shape[dim] - first], dim


@calls(aten.unfold.default)
def _unfold(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim), rng.randint(1, 3), rng.randint(1, 3)


@calls(aten.as_strided.default)
def _as_strided(rng: random.Random) -> Any:
    return (
        tensor(rng, (4, 5, 6), layout="contiguous"),
        [2, 3],
        [rng.randint(0, 9), rng.randint(0, 9)],
        rng.choice((None, 4)),
    )


@calls(aten.view.dtype)
def _view_dtype(rng: random.Random) -> Any:
    return anything(rng, shape(rng)), rng.choice(
        (torch.int32, torch.float64, torch.uint8, torch.bfloat16)
    )


@calls(aten.view_as_real.default)
def _view_as_real(rng: random.Random) -> Any:
    return (tensor(rng, shape(rng), rng.choice(COMPLEX)),)


@calls(aten.view_as_complex.default)
def _view_as_complex(rng: random.Random) -> Any:
    return (tensor(rng, (*shape(rng, 0, 3), 2)),)


def _packed(rng: random.Random, low: int) -> torch.Tensor:
    """Without gaps and offset: eager's view_scatters would copy these too, the rules do not."""
    return tensor(
        rng, shape(rng, low, 4, empty=False), torch.float32, rng.choice(("contiguous", "permuted"))
    )


@calls(aten.slice_scatter.default)
def _slice_scatter(rng: random.Random) -> Any:
    self = _packed(rng, 1)
    dim = rng.randrange(self.ndim)
    part = self.narrow(dim, 0, self.shape[dim] // 2)
    return self, tensor(rng, part.shape, self.dtype), dim, 0, self.shape[dim] // 2


@calls(aten.select_scatter.default)
def _select_scatter(rng: random.Random) -> Any:
    self = _packed(rng, 1)
    dim = rng.randrange(self.ndim)
    return self, tensor(rng, self.select(dim, 0).shape, self.dtype), dim, 0


@calls(aten.diagonal_scatter.default)
def _diagonal_scatter(rng: random.Random) -> Any:
    self = _packed(rng, 2)
    return self, tensor(rng, self.diagonal().shape, self.dtype)


@calls(aten.slice_backward.default)
def _slice_backward(rng: random.Random) -> Any:
    sizes = shape(rng, 1, 4, empty=False)
    return tensor(rng, (sizes[0] // 2, *sizes[1:])), list(sizes), 0, 0, sizes[0] // 2, 1


@calls(aten.select_backward.default)
def _select_backward(rng: random.Random) -> Any:
    sizes = shape(rng, 1, 4, empty=False)
    return floating(rng, sizes[1:]), list(sizes), 0, 0


# 4. Reductions


def _dims(rng: random.Random, ndim: int) -> Any:
    if rng.random() < 0.03:
        return [ndim + 1]
    return [
        d - ndim if rng.random() < 0.5 else d for d in rng.sample(range(ndim), rng.randint(0, ndim))
    ]


@calls(aten.sum.default, aten.any.default, aten.all.default, aten.prod.default, aten.nansum.default)
def _reduce_all(rng: random.Random) -> Any:
    return (anything(rng, shape(rng)),)


@calls(
    aten.mean.default,
    aten.max.default,
    aten.min.default,
    aten.var.default,
    aten.std.default,
    aten.norm.Scalar,
)
def _reduce_all_floating(rng: random.Random) -> Any:
    return (anything(rng, shape(rng, empty=False)),)


@calls(aten.sum.dim_IntList, aten.mean.dim)
def _sum(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    args = (self, _dims(rng, self.ndim), rng.random() < 0.5)
    return args, {"dtype": rng.choice((None, None, torch.float64, torch.int32))}


@calls(aten.amax.default, aten.amin.default, aten.logsumexp.default, aten.any.dims, aten.all.dims)
def _amax(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, _dims(rng, self.ndim), rng.random() < 0.5


@calls(aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction)
def _var(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    dims = rng.choice((None, _dims(rng, self.ndim)))
    return (self, dims), {"correction": rng.choice((None, 0, 1)), "keepdim": rng.random() < 0.5}


@calls(aten.linalg_vector_norm.default)
def _vector_norm(rng: random.Random) -> Any:
    self = anything(rng, shape(rng, empty=False))
    return (
        self,
        rng.choice((2, 1, 0.5)),
        rng.choice((None, _dims(rng, self.ndim))),
        rng.random() < 0.5,
    )


@calls(aten.norm.ScalarOpt_dim)
def _norm(rng: random.Random) -> Any:
    self = floating(rng, shape(rng, empty=False))
    return self, rng.choice((None, 2, 1)), _dims(rng, self.ndim), rng.random() < 0.5


@calls(
    aten.max.dim,
    aten.min.dim,
    aten.median.dim,
    aten.argmax.default,
    aten.argmin.default,
    aten.any.dim,
    aten.all.dim,
    aten.prod.dim_int,
    aten.mode.default,
)
def _along(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim), rng.random() < 0.5


@calls(
    aten.cumsum.default,
    aten.cumprod.default,
    aten.logcumsumexp.default,
    aten.cummax.default,
    aten.cummin.default,
)
def _scan(rng: random.Random) -> Any:
    self = anything(rng, shape(rng))
    return self, dim_of(rng, self.ndim)


@calls(aten.cumsum_.default)
def _scan_in_place(rng: random.Random) -> Any:
    self = anything(rng, shape(rng)).clone()
    return self, dim_of(rng, self.ndim)


# 5. Matrix products


def _matrix(rng: random.Random, *sizes: int) -> torch.Tensor:
    return tensor(rng, sizes, torch.float32 if rng.random() < 0.9 else torch.float64)


@calls(aten.mm.default)
def _mm(rng: random.Random) -> Any:
    m, k, n = (rng.randint(0, 4) for _ in range(3))
    return _matrix(rng, m, k), _matrix(rng, k + (rng.random() < 0.05), n)


@calls(aten.addmm.default)
def _addmm(rng: random.Random) -> Any:
    m, k, n = (rng.randint(1, 4) for _ in range(3))
    return _matrix(rng, *broadcastable(rng, (m, n))), _matrix(rng, m, k), _matrix(rng, k, n)


@calls(aten.bmm.default)
def _bmm(rng: random.Random) -> Any:
    b, m, k, n = (rng.randint(1, 4) for _ in range(4))
    return _matrix(rng, b, m, k), _matrix(rng, b, k, n)


@calls(aten.baddbmm.default)
def _baddbmm(rng: random.Random) -> Any:
    b, m, k, n = (rng.randint(1, 4) for _ in range(4))
    return (
        _matrix(rng, *broadcastable(rng, (b, m, n))),
        _matrix(rng, b, m, k),
        _matrix(rng, b, k, n),
    )


@calls(aten.mv.default)
def _mv(rng: random.Random) -> Any:
    m, k = rng.randint(1, 4), rng.randint(1, 4)
    return _matrix(rng, m, k), _matrix(rng, k)


@calls(aten.dot.default)
def _dot(rng: random.Random) -> Any:
    k = rng.randint(0, 4)
    return _matrix(rng, k), _matrix(rng, k)
