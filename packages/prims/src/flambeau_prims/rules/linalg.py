"""Shape rules of linear algebra kept as external calls: factorisations, solves, inverse, determinant, cross product.

LAPACK works column by column, so matrices that come out of it are column-major, whatever went in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.promotion import dtype_name, real_dtype
from flambeau_prims.rules.pointwise import elementwise, refuse
from flambeau_prims.rules.reduction import sum_
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import eq, size_min
from flambeau_prims.spec import Spec, contiguous_stride
from flambeau_prims.strides import broadcast_shapes, wrap_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size

aten = torch.ops.aten


def _fresh(like: Spec, shape: Sequence[Size], dtype: torch.dtype | None = None) -> Spec:
    return Spec.of(shape, dtype=dtype or like.dtype, device=like.device)


def column_major(like: Spec, shape: tuple[Size, ...]) -> Spec:
    """A batch of matrices of this shape, each stored column by column."""
    inner = contiguous_stride((*shape[:-2], shape[-1], shape[-2]))
    return Spec.of(
        shape, stride=(*inner[:-2], inner[-1], inner[-2]), dtype=like.dtype, device=like.device
    )


def _check_matrix(A: Spec, name: str, *, square: bool = False) -> None:
    if A.ndim < 2:
        raise RuntimeError(f"{name}: The input tensor A must have at least 2 dimensions.")
    if square and not eq(A.shape[-1], A.shape[-2]):
        raise RuntimeError(
            f"{name}: A must be batches of square matrices, but they are {A.shape[-2]} by {A.shape[-1]} matrices"
        )
    if not A.dtype.is_floating_point and not A.dtype.is_complex:
        raise RuntimeError(
            f"{name}: Expected a floating point or complex tensor as input. Got {dtype_name(A.dtype)}"
        )


def _check_square(A: Spec, name: str) -> None:
    _check_matrix(A, name, square=True)


def _info(A: Spec) -> Spec:
    return _fresh(A, A.shape[:-2], torch.int32)


# 1. Factorisations


@rule(aten.linalg_inv_ex.default)
def inv_ex(A: Spec, *, check_errors: bool = False) -> tuple[Spec, Spec]:
    """The inverse, and LAPACK's status of each matrix."""
    _check_square(A, "linalg.inv")
    return column_major(A, A.shape), _info(A)


@rule(aten.linalg_cholesky_ex.default)
def cholesky_ex(
    self: Spec, *, upper: bool = False, check_errors: bool = False
) -> tuple[Spec, Spec]:
    """The factor, and LAPACK's status of each matrix."""
    _check_square(self, "linalg.cholesky")
    return column_major(self, self.shape), _info(self)


@rule(aten.linalg_lu_factor_ex.default)
def lu_factor_ex(
    A: Spec, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Spec, Spec, Spec]:
    """LU in one matrix, the pivots, and LAPACK's status of each matrix."""
    _check_matrix(A, "torch.lu_factor")
    pivots = _fresh(A, (*A.shape[:-2], size_min(A.shape[-2], A.shape[-1])), torch.int32)
    return column_major(A, A.shape), pivots, _info(A)


@rule(aten.linalg_qr.default)
def qr(A: Spec, mode: str = "reduced") -> tuple[Spec, Spec]:
    """Q and R."""
    _check_matrix(A, "linalg.qr")
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced', 'r', or 'complete'"
        )
    rows, columns = A.shape[-2:]
    rank = size_min(rows, columns)
    inner = rows if mode == "complete" else rank
    q = _fresh(A, (0,)) if mode == "r" else column_major(A, (*A.shape[:-2], rows, inner))
    return q, column_major(A, (*A.shape[:-2], inner, columns))


@rule(aten._linalg_eigh.default)
def eigh(A: Spec, UPLO: str = "L", compute_v: bool = True) -> tuple[Spec, Spec]:
    """Eigenvalues (real) and eigenvectors."""
    _check_square(A, "linalg.eigh")
    values = _fresh(A, A.shape[:-1], real_dtype(A.dtype))
    return values, column_major(A, A.shape) if compute_v else _fresh(A, (0,))


@rule(aten._linalg_svd.default)
def svd(
    A: Spec, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Spec, Spec, Spec]:
    """Left singular vectors, singular values (real), and right singular vectors: row-major on a GPU, whose library gives their transpose."""
    _check_matrix(A, "linalg.svd")
    batch, (rows, columns) = A.shape[:-2], A.shape[-2:]
    rank = size_min(rows, columns)
    values = _fresh(A, (*batch, rank), real_dtype(A.dtype))
    if not compute_uv:
        return _fresh(A, (0,)), values, _fresh(A, (0,))
    left = column_major(A, (*batch, rows, rows if full_matrices else rank))
    shape = (*batch, columns if full_matrices else rank, columns)
    right = column_major(A, shape) if A.device.type == "cpu" else _fresh(A, shape)
    return left, values, right


# 2. Determinant and solves


@rule(aten._linalg_det.default)
def det(A: Spec) -> tuple[Spec, Spec, Spec]:
    """The determinant, LU and the pivots."""
    lu, pivots, info = lu_factor_ex(A)
    _check_square(A, "linalg.det")
    return info.replace(dtype=A.dtype), lu, pivots


@rule(aten._linalg_slogdet.default)
def slogdet(A: Spec) -> tuple[Spec, Spec, Spec, Spec]:
    """The determinant's sign and logarithm (real), LU and the pivots."""
    sign, lu, pivots = det(A)
    return sign, sign.replace(dtype=real_dtype(A.dtype)), lu, pivots


@rule(aten._linalg_solve_ex.default)
def solve_ex(
    A: Spec, B: Spec, *, left: bool = True, check_errors: bool = False
) -> tuple[Spec, Spec, Spec, Spec]:
    """The solution, LU, the pivots and LAPACK's status of each matrix."""
    _check_square(A, "linalg.solve")
    lu, pivots, info = lu_factor_ex(A)
    if B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1]):
        return _fresh(B, (*A.shape[:-2], A.shape[-1])), lu, pivots, info
    if not eq(B.shape[-2 if left else -1], A.shape[-1]):
        raise RuntimeError(
            f"linalg.solve: Incompatible shapes of A and B for the equation {'AX = B' if left else 'XA = B'} "
            f"({A.shape[-2]}x{A.shape[-1]} and {B.shape[-2]}x{B.shape[-1]})"
        )
    batch = broadcast_shapes(A.shape[:-2], B.shape[:-2])
    return column_major(B, (*batch, *B.shape[-2:])), lu, pivots, info


# 3. Small operators


@rule(aten.linalg_cross.default)
def cross(self: Spec, other: Spec, *, dim: int = -1) -> Spec:
    """The cross product along a dimension of size 3."""
    if self.ndim != other.ndim:
        raise RuntimeError("linalg.cross: inputs must have the same number of dimensions.")
    at = wrap_dim(dim, self.ndim)
    if not eq(self.shape[at], 3) or not eq(other.shape[at], 3):
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim} must have length 3. Got {self.shape[at]} and {other.shape[at]}"
        )
    return _fresh(self, broadcast_shapes(self.shape, other.shape))


@rule(aten.trace.default)
def trace(self: Spec) -> Spec:
    """The sum of a matrix's diagonal."""
    if self.ndim != 2:
        raise RuntimeError("trace: expected a matrix")
    refuse("trace", self.dtype, self.device, "b")
    return sum_(self)


@rule(aten.linalg_matrix_exp.default)
def matrix_exp(self: Spec) -> Spec:
    """Row-major."""
    _check_square(self, "linalg.matrix_exp")
    return _fresh(self, self.shape)


@rule(aten._weight_norm_interface.default)
def weight_norm(v: Spec, g: Spec, dim: int = 0) -> tuple[Spec, Spec]:
    """The weight v * g / |v|, and the norms."""
    return elementwise((v,), v.dtype), _fresh(g, g.shape)


@rule(aten._weight_norm_interface_backward.default)
def weight_norm_backward(
    grad_w: Spec, saved_v: Spec, saved_g: Spec, saved_norms: Spec, dim: int
) -> tuple[Spec, Spec]:
    """The gradients of v and of g."""
    return _fresh(saved_v, saved_v.shape), _fresh(saved_g, saved_g.shape)
