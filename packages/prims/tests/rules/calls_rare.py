"""Random calls of operators that few programs use: copies of views, solvers, transforms, special
functions, histograms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from rules.calls import anything, calls, every, floating
from rules.tensors import broadcastable, shape, tensor

if TYPE_CHECKING:
    import random

aten = torch.ops.aten


# 1. Copies of views


def _views(rng: random.Random) -> tuple[torch.Tensor, int]:
    base = anything(rng, shape(rng, 1, 4, empty=False))
    return base, rng.randrange(-base.ndim, base.ndim)


@calls(aten.alias_copy.default, aten.detach_copy.default, aten.squeeze_copy.default)
def _plain(rng: random.Random) -> Any:
    return (anything(rng, shape(rng)),)


@calls(aten.unsqueeze_copy.default, aten.squeeze_copy.dim, aten.unbind_copy.int)
def _with_dim(rng: random.Random) -> Any:
    return _views(rng)


@calls(aten.t_copy.default)
def _t(rng: random.Random) -> Any:
    return (anything(rng, shape(rng, 0, 2)),)


@calls(aten.transpose_copy.int)
def _transpose(rng: random.Random) -> Any:
    base, dim = _views(rng)
    return base, dim, rng.randrange(base.ndim)


@calls(aten.permute_copy.default)
def _permute(rng: random.Random) -> Any:
    base, _ = _views(rng)
    return base, rng.sample(range(base.ndim), base.ndim)


@calls(aten.expand_copy.default)
def _expand(rng: random.Random) -> Any:
    wanted = shape(rng, 1, 4, empty=False)
    return anything(rng, broadcastable(rng, wanted)), list(wanted)


@calls(aten.diagonal_copy.default)
def _diagonal(rng: random.Random) -> Any:
    return anything(rng, shape(rng, 2, 4, empty=False)), rng.randint(-1, 1)


@calls(aten.select_copy.int)
def _select(rng: random.Random) -> Any:
    base, dim = _views(rng)
    return base, dim, rng.randint(-1, 0)


@calls(aten.slice_copy.Tensor)
def _slice(rng: random.Random) -> Any:
    return (*_views(rng), rng.choice((None, 0, 1, -2)), rng.choice((None, 3, -1)))


@calls(aten.narrow_copy.default)
def _narrow(rng: random.Random) -> Any:
    base, dim = _views(rng)
    return base, dim, rng.choice((0, 0, 1, -1)), rng.choice((1, 1, 2))


@calls(aten.split_copy.Tensor)
def _split(rng: random.Random) -> Any:
    base, dim = _views(rng)
    return base, rng.randint(1, 3), dim


@calls(aten.split_with_sizes_copy.default)
def _split_with_sizes(rng: random.Random) -> Any:
    base, dim = _views(rng)
    return base, [1, base.shape[dim] - 1], dim


@calls(aten.unfold_copy.default)
def _unfold(rng: random.Random) -> Any:
    base, dim = _views(rng)
    return base, dim, rng.randint(1, base.shape[dim]), rng.randint(1, 2)


# 2. Special functions

_FUNCTIONS = (
    "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 "
    "modified_bessel_k0 modified_bessel_k1"
    " scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0"
)
_POLYNOMIALS = (
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v "
    "chebyshev_polynomial_w hermite_polynomial_h"
    " hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p "
    "shifted_chebyshev_polynomial_t"
    " shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w"
)


@calls(*every(*(f"special_{name}" for name in _FUNCTIONS.split())), aten.frexp.Tensor)
def _function(rng: random.Random) -> Any:
    return (anything(rng, shape(rng)),)


def _polynomial(op: Any) -> Any:
    takes_tensor = ["Tensor" in str(arg.type) for arg in op._schema.arguments[:2]]

    def make(rng: random.Random) -> Any:
        sizes = shape(rng)
        shapes = sizes, broadcastable(rng, sizes)
        pairs = zip(shapes, takes_tensor, strict=True)
        return tuple(anything(rng, wanted) if is_tensor else 2 for wanted, is_tensor in pairs)

    return make


for _op in every(*(f"special_{name}" for name in _POLYNOMIALS.split())):
    calls(_op)(_polynomial(_op))


@calls(aten.ldexp.Tensor)
def _ldexp(rng: random.Random) -> Any:
    sizes = shape(rng)
    return anything(rng, sizes), anything(rng, broadcastable(rng, sizes))


# 3. Linear algebra


def _matrix(rng: random.Random, rows: int, columns: int, batch: Any = None) -> torch.Tensor:
    batch = shape(rng, 0, 2, empty=False) if batch is None else batch
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    like = tensor(rng, (*batch, rows, columns))
    return like.new_empty(0).set_(like.clone()).random_(1, 9, generator=generator)


def _definite(rng: random.Random, size: int, batch: Any = None) -> torch.Tensor:
    made = _matrix(rng, size, size, batch)
    return made @ made.mT + torch.eye(size)


@calls(
    aten.linalg_eig.default,
    aten._linalg_eigvals.default,
    aten.linalg_ldl_factor_ex.default,
    *([aten.cholesky.default] if hasattr(aten, "cholesky") else []),  # gone in torch 2.14
    aten.cholesky_inverse.default,
)
def _of_square(rng: random.Random) -> Any:
    return (_definite(rng, rng.randint(1, 4)),)


@calls(aten.linalg_lu.default, aten.geqrf.default, aten.linalg_pinv.atol_rtol_tensor)
def _of_any(rng: random.Random) -> Any:
    return (_matrix(rng, rng.randint(1, 4), rng.randint(1, 4)),)


def _system(rng: random.Random, left: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    size, count = rng.randint(1, 4), rng.randint(1, 3)
    batch = shape(rng, 0, 2, empty=False)
    sizes = (size, count) if left else (count, size)
    A = _definite(rng, size, broadcastable(rng, batch))
    return A, _matrix(rng, *sizes, broadcastable(rng, batch))


@calls(aten.linalg_solve_triangular.default)
def _solve_triangular(rng: random.Random) -> Any:
    left = rng.random() < 0.5
    return _system(rng, left), {"upper": True, "left": left}


@calls(aten.triangular_solve.default, aten.cholesky_solve.default)
def _solve_for(rng: random.Random) -> Any:
    return _system(rng)[::-1]


@calls(aten.linalg_lu_solve.default)
def _lu_solve(rng: random.Random) -> Any:
    left = rng.random() < 0.5
    A, B = _system(rng, left)
    return (*aten.linalg_lu_factor_ex(A)[:2], B), {"left": left}


@calls(aten.linalg_ldl_solve.default)
def _ldl_solve(rng: random.Random) -> Any:
    A, B = _system(rng)
    factor, pivots, _ = aten.linalg_ldl_factor_ex(A)
    return factor, pivots, B


@calls(aten.lu_unpack.default)
def _lu_unpack(rng: random.Random) -> Any:
    A = _matrix(rng, rng.randint(1, 4), rng.randint(1, 4))
    return (*aten.linalg_lu_factor_ex(A)[:2], rng.random() < 0.8, rng.random() < 0.8)


@calls(aten.linalg_householder_product.default)
def _householder(rng: random.Random) -> Any:
    columns = rng.randint(1, 3)
    A = _matrix(rng, columns + rng.randint(0, 2), columns)
    return A, tensor(rng, (*A.shape[:-2], columns))


@calls(aten.ormqr.default)
def _ormqr(rng: random.Random) -> Any:
    columns, left = rng.randint(1, 3), rng.random() < 0.5
    rows, count = columns + rng.randint(0, 2), rng.randint(1, 3)
    A = _matrix(rng, rows, columns)
    batch, sizes = A.shape[:-2], (rows, count) if left else (count, rows)
    return A, tensor(rng, (*batch, columns)), _matrix(rng, *sizes, batch), left


# 4. Fourier transforms along several dimensions of any layout


def _signal(rng: random.Random, dtype: torch.dtype) -> tuple[torch.Tensor, list[int]]:
    made = tensor(rng, shape(rng, 1, 4, empty=False), dtype)
    return made, rng.sample(range(made.ndim), rng.randint(1, min(made.ndim, 3)))


@calls(aten._fft_c2c.default)
def _c2c(rng: random.Random) -> Any:
    return (*_signal(rng, torch.complex64), rng.randint(0, 2), rng.random() < 0.5)


@calls(aten._fft_r2c.default)
def _r2c(rng: random.Random) -> Any:
    return (*_signal(rng, torch.float32), rng.randint(0, 2), rng.random() < 0.5)


@calls(aten._fft_c2r.default)
def _c2r(rng: random.Random) -> Any:
    signal, dims = _signal(rng, torch.complex64)
    return signal, dims, rng.randint(0, 2), max(1, 2 * signal.shape[dims[-1]] - rng.randint(1, 2))


# 5. Windows, distances, histograms, segments


@calls(aten.max_unpool2d.default)
def _unpool2d(rng: random.Random) -> Any:
    made = tensor(rng, (*shape(rng, 1, 2, empty=False), 4, 6))
    pooled, places = torch.nn.functional.max_pool2d(made, 2, return_indices=True)
    layout = (
        torch.channels_last if pooled.ndim == 4 and rng.random() < 0.5 else torch.contiguous_format
    )
    return pooled.contiguous(memory_format=layout), places, [4, 6]


@calls(aten.max_unpool3d.default)
def _unpool3d(rng: random.Random) -> Any:
    made = tensor(rng, (*shape(rng, 1, 2, empty=False), 4, 6, 4))
    pooled, places = torch.nn.functional.max_pool3d(made, 2, return_indices=True)
    return pooled, places, [4, 6, 4], [2, 2, 2], [0, 0, 0]


@calls(aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default)
def _drawn_windows(rng: random.Random) -> Any:
    batch, channels = rng.randint(1, 3), rng.randint(1, 3)
    spatial = rng.choice((2, 3))  # wrong for one of the two, now and then
    samples = torch.rand(batch, channels, spatial)
    sizes = [rng.randint(5, 8) for _ in range(spatial)]
    return tensor(rng, (batch, channels, *sizes)), [2] * spatial, [3, 2, 4][:spatial], samples


@calls(aten._pdist_forward.default)
def _pdist(rng: random.Random) -> Any:
    return tensor(rng, (rng.randint(0, 4), rng.randint(1, 3))).contiguous(), 2.0


@calls(aten._pdist_backward.default)
def _pdist_backward(rng: random.Random) -> Any:
    made = tensor(rng, (rng.randint(2, 4), rng.randint(1, 3))).contiguous()
    distances = aten._pdist_forward(made, 2.0)
    return distances, made, 2.0, distances


@calls(aten._cdist_backward.default)
def _cdist_backward(rng: random.Random) -> Any:
    batch = shape(rng, 0, 2, empty=False)
    rows, others, columns = (rng.randint(1, 4) for _ in range(3))
    left = _matrix(rng, rows, columns, batch)
    right = _matrix(rng, others, columns, batch)
    distances = aten._cdist_forward(left, right, 2.0, None)
    return distances, left, right, 2.0, distances


@calls(aten.renorm.default)
def _renorm(rng: random.Random) -> Any:
    made = tensor(rng, shape(rng, 1, 4, empty=False))
    return made, 2, rng.randrange(made.ndim), 1.5


@calls(aten.rrelu_with_noise_backward.default)
def _rrelu_backward(rng: random.Random) -> Any:
    sizes = shape(rng)
    return (*(tensor(rng, sizes) for _ in range(3)), 0.1, 0.3, rng.random() < 0.5, False)


@calls(aten.histogram.bin_ct)
def _histogram(rng: random.Random) -> Any:
    return floating(rng, shape(rng, empty=False)), rng.randint(1, 5)


@calls(aten.histogram.bins_tensor)
def _histogram_of_edges(rng: random.Random) -> Any:
    return tensor(rng, shape(rng, empty=False)), torch.arange(rng.randint(2, 5)).float()


@calls(aten._histogramdd_bin_edges.default, aten._histogramdd_from_bin_cts.default)
def _histogram_of_points(rng: random.Random) -> Any:
    bins = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
    points = len(bins) if rng.random() < 0.9 else len(bins) + 1
    return tensor(rng, (*shape(rng, 1, 2, empty=False), points)), bins


@calls(aten._histogramdd_from_bin_tensors.default)
def _histogram_of_points_and_edges(rng: random.Random) -> Any:
    bins = [torch.arange(rng.randint(2, 4)).float() for _ in range(rng.randint(1, 3))]
    return tensor(rng, (rng.randint(1, 4), len(bins))), bins


@calls(aten.segment_reduce.default)
def _segments(rng: random.Random) -> Any:
    batch = shape(rng, 0, 2, empty=False)
    data = tensor(rng, (*batch, 4, *shape(rng, 0, 1, empty=False))).contiguous()
    if rng.random() < 0.5:
        given = {"lengths": torch.tensor([1, 3]).expand(*batch, 2).contiguous()}
    else:
        given = {"offsets": torch.tensor([0, 1, 4]).expand(*batch, 3).contiguous()}
    return (data, "sum"), {**given, "axis": len(batch)}


@calls(aten.hash_tensor.default)
def _hash(rng: random.Random) -> Any:
    made = tensor(rng, shape(rng, 1, 3, empty=False))
    return (made, [rng.randrange(made.ndim)]), {"keepdim": rng.random() < 0.5}


# 6. Indices and joined tensors


@calls(aten.nonzero_static.default)
def _nonzero_static(rng: random.Random) -> Any:
    return (anything(rng, shape(rng)),), {"size": rng.randint(0, 5)}


@calls(aten.masked_scatter_backward.default)
def _masked_scatter_backward(rng: random.Random) -> Any:
    sizes = shape(rng, 1, 3, empty=False)
    gradient = tensor(rng, sizes)
    count = gradient.numel()
    return gradient, tensor(rng, sizes, torch.bool), rng.choice(([count], [2, count], [count, 1]))


@calls(aten._unsafe_masked_index_put_accumulate.default)
def _put_where(rng: random.Random) -> Any:
    rows, columns = rng.randint(1, 4), rng.randint(1, 4)
    made = tensor(rng, (rows, columns)).clone()
    places = torch.zeros(2, 3, dtype=torch.int64)
    mask = tensor(rng, broadcastable(rng, (2, 3)), torch.bool)
    return made, mask, [places, places], tensor(rng, broadcastable(rng, (2, 3)))


@calls(aten.block_diag.default)
def _block_diag(rng: random.Random) -> Any:
    return ([anything(rng, shape(rng, 0, 2)) for _ in range(rng.randint(1, 3))],)


@calls(aten._chunk_cat.default)
def _chunk_cat(rng: random.Random) -> Any:
    sizes = shape(rng, 1, 3, empty=False)
    dim = rng.randrange(len(sizes))
    shapes = [
        (*sizes[:dim], rng.randint(1, 5), *sizes[dim + 1 :]) for _ in range(rng.randint(1, 3))
    ]
    return [tensor(rng, wanted) for wanted in shapes], dim, rng.randint(1, 3)
