"""Shape rules of linear algebra kept as external calls: factorisations, solves, inverse,
determinant, cross product.

LAPACK works column by column, so matrices that come out of it are column-major, whatever went in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.promotion import complex_dtype, dtype_name, real_dtype
from flambeau_prims.rules.pointwise import elementwise, refuse
from flambeau_prims.rules.reduction import sum_
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import eq, ge, size_min
from flambeau_prims.spec import Spec, contiguous_stride
from flambeau_prims.strides import broadcast_shapes, same_shape, wrap_dim

if TYPE_CHECKING:
    from flambeau_prims.spec import Size

aten = torch.ops.aten


def column_major(like: Spec, shape: tuple[Size, ...]) -> Spec:
    """A batch of matrices of this shape, each stored column by column."""
    inner = contiguous_stride((*shape[:-2], shape[-1], shape[-2]))
    return like.fresh(shape, (*inner[:-2], inner[-1], inner[-2]))


def _check_matrix(A: Spec, name: str, *, square: bool = False) -> None:
    if A.ndim < 2:
        raise RuntimeError(f"{name}: The input tensor A must have at least 2 dimensions.")
    if square and not eq(A.shape[-1], A.shape[-2]):
        raise RuntimeError(
            f"{name}: A must be batches of square matrices, but they are {A.shape[-2]} by "
            f"{A.shape[-1]} matrices"
        )
    if not A.dtype.is_floating_point and not A.dtype.is_complex:
        raise RuntimeError(
            f"{name}: Expected a floating point or complex tensor as input. Got "
            f"{dtype_name(A.dtype)}"
        )


def _check_square(A: Spec, name: str) -> None:
    _check_matrix(A, name, square=True)


def _check_equation(A: Spec, B: Spec, name: str, left: bool) -> None:
    if not eq(B.shape[-2 if left else -1], A.shape[-1]):
        raise RuntimeError(
            f"{name}: Incompatible shapes of A and B for the equation "
            f"{'AX = B' if left else 'XA = B'} "
            f"({A.shape[-2]}x{A.shape[-1]} and {B.shape[-2]}x{B.shape[-1]})"
        )


def _info(A: Spec) -> Spec:
    return A.fresh(A.shape[:-2], dtype=torch.int32)


# 1. Factorisations


@rule(aten.linalg_inv_ex.default)
def inv_ex(A: Spec) -> tuple[Spec, Spec]:
    """The inverse, and LAPACK's status of each matrix."""
    _check_square(A, "linalg.inv")
    return column_major(A, A.shape), _info(A)


@rule(aten.linalg_cholesky_ex.default)
def cholesky_ex(self: Spec) -> tuple[Spec, Spec]:
    """The factor, and LAPACK's status of each matrix."""
    _check_square(self, "linalg.cholesky")
    return column_major(self, self.shape), _info(self)


@rule(aten.linalg_lu_factor_ex.default)
def lu_factor_ex(A: Spec) -> tuple[Spec, Spec, Spec]:
    """LU in one matrix, the pivots, and LAPACK's status of each matrix."""
    _check_matrix(A, "torch.lu_factor")
    pivots = A.fresh((*A.shape[:-2], size_min(A.shape[-2], A.shape[-1])), dtype=torch.int32)
    return column_major(A, A.shape), pivots, _info(A)


@rule(aten.linalg_qr.default)
def qr(A: Spec, mode: str) -> tuple[Spec, Spec]:
    """Q and R."""
    _check_matrix(A, "linalg.qr")
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced', 'r', "
            f"or 'complete'"
        )
    rows, columns = A.shape[-2:]
    rank = size_min(rows, columns)
    inner = rows if mode == "complete" else rank
    q = A.fresh((0,)) if mode == "r" else column_major(A, (*A.shape[:-2], rows, inner))
    return q, column_major(A, (*A.shape[:-2], inner, columns))


@rule(aten._linalg_eigh.default)
def eigh(A: Spec, compute_v: bool) -> tuple[Spec, Spec]:
    """Eigenvalues (real) and eigenvectors."""
    _check_square(A, "linalg.eigh")
    values = A.fresh(A.shape[:-1], dtype=real_dtype(A.dtype))
    return values, column_major(A, A.shape) if compute_v else A.fresh((0,))


@rule(aten._linalg_svd.default)
def svd(A: Spec, full_matrices: bool, compute_uv: bool) -> tuple[Spec, Spec, Spec]:
    """Left singular vectors, singular values (real), and right singular vectors: row-major on a
    GPU, whose library gives their transpose.
    """
    _check_matrix(A, "linalg.svd")
    batch, (rows, columns) = A.shape[:-2], A.shape[-2:]
    rank = size_min(rows, columns)
    values = A.fresh((*batch, rank), dtype=real_dtype(A.dtype))
    if not compute_uv:
        return A.fresh((0,)), values, A.fresh((0,))
    left = column_major(A, (*batch, rows, rows if full_matrices else rank))
    shape = (*batch, columns if full_matrices else rank, columns)
    right = column_major(A, shape) if A.device.type == "cpu" else A.fresh(shape)
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
def solve_ex(A: Spec, B: Spec, left: bool) -> tuple[Spec, Spec, Spec, Spec]:
    """The solution, LU, the pivots and LAPACK's status of each matrix."""
    _check_square(A, "linalg.solve")
    lu, pivots, info = lu_factor_ex(A)
    if B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1]):
        return B.fresh((*A.shape[:-2], A.shape[-1])), lu, pivots, info
    _check_equation(A, B, "linalg.solve", left)
    batch = broadcast_shapes(A.shape[:-2], B.shape[:-2])
    return column_major(B, (*batch, *B.shape[-2:])), lu, pivots, info


# 3. Small operators


@rule(aten.linalg_cross.default)
def cross(self: Spec, other: Spec, dim: int) -> Spec:
    """The cross product along a dimension of size 3."""
    if self.ndim != other.ndim:
        raise RuntimeError("linalg.cross: inputs must have the same number of dimensions.")
    axis = wrap_dim(dim, self.ndim)
    if not eq(self.shape[axis], 3) or not eq(other.shape[axis], 3):
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim} must have length 3. Got "
            f"{self.shape[axis]} and {other.shape[axis]}"
        )
    return self.fresh(broadcast_shapes(self.shape, other.shape))


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
    return self.fresh()


@rule(aten._weight_norm_interface.default)
def weight_norm(v: Spec, g: Spec) -> tuple[Spec, Spec]:
    """The weight v * g / |v|, and the norms."""
    return elementwise((v,), v.dtype), g.fresh()


@rule(aten._weight_norm_interface_backward.default)
def weight_norm_backward(saved_v: Spec, saved_g: Spec) -> tuple[Spec, Spec]:
    """The gradients of v and of g."""
    return saved_v.fresh(), saved_g.fresh()


# 4. Factorisations under their older names, and what is computed from factors


def _check_dtype_alike(A: Spec, B: Spec, name: str) -> None:
    if A.dtype != B.dtype:
        raise RuntimeError(
            f"{name}: Expected A and B to have the same dtype, but found "
            f"{dtype_name(A.dtype)} and {dtype_name(B.dtype)}"
        )


def _solution(A: Spec, B: Spec, name: str, *, left: bool = True) -> tuple[Size, ...]:
    """The shape of X in AX = B (XA = B): B's, with the batch that the two broadcast to."""
    _check_square(A, name)
    _check_dtype_alike(A, B, name)
    if B.ndim < 2:
        raise RuntimeError(f"{name}: The input tensor B must have at least 2 dimensions.")
    _check_equation(A, B, name, left)
    return (*broadcast_shapes(B.shape[:-2], A.shape[:-2]), *B.shape[-2:])


@rule(aten._linalg_check_errors.default)
def check_errors() -> None:
    """Raises as it runs, for what the status says; there is no result."""


@rule(aten.linalg_solve_triangular.default)
def solve_triangular(self: Spec, B: Spec, left: bool) -> Spec:
    """Column-major."""
    return column_major(B, _solution(self, B, "linalg.solve_triangular", left=left))


@rule(aten.triangular_solve.default)
def triangular_solve(self: Spec, A: Spec) -> tuple[Spec, Spec]:
    """The solution, and a copy of A, broadcast with it."""
    shape = _solution(A, self, "triangular_solve")
    return column_major(self, shape), column_major(A, (*shape[:-2], *A.shape[-2:]))


@rule(aten.linalg_lu_solve.default)
def lu_solve(LU: Spec, pivots: Spec, B: Spec, left: bool) -> Spec:
    """Column-major, or row-major from the right."""
    shape = _solution(LU, B, "linalg.lu_solve", left=left)
    if pivots.dtype != torch.int32:
        raise RuntimeError("linalg.lu_solve: Expected pivots to be a Tensor of torch.int32")
    return column_major(B, shape) if left else B.fresh(shape)


@rule(aten.lu_unpack.default)
def lu_unpack(
    LU_data: Spec, LU_pivots: Spec, unpack_data: bool, unpack_pivots: bool
) -> tuple[Spec, Spec, Spec]:
    """The permutation, and both triangles, row-major; (0,) for what is not asked for."""
    if unpack_pivots and LU_pivots.dtype != torch.int32:
        raise RuntimeError(
            "torch.lu_unpack: LU_pivots is expected to be a contiguous tensor of torch.int32 dtype."
        )
    permutation, lower, upper = _permutation_and_triangles(LU_data)
    empty = LU_data.fresh((0,))
    triangles = (lower, upper) if unpack_data else (empty, empty)
    return permutation if unpack_pivots else empty, *triangles


def _permutation_and_triangles(A: Spec) -> tuple[Spec, Spec, Spec]:
    batch, (rows, columns) = A.shape[:-2], A.shape[-2:]
    rank = size_min(rows, columns)
    lower, upper = A.fresh((*batch, rows, rank)), A.fresh((*batch, rank, columns))
    return A.fresh((*batch, rows, rows)), lower, upper


@rule(aten.linalg_lu.default)
def lu(A: Spec, pivot: bool) -> tuple[Spec, Spec, Spec]:
    """P, L and U, row-major; without pivoting there is no P."""
    _check_matrix(A, "linalg.lu")
    permutation, lower, upper = _permutation_and_triangles(A)
    return permutation if pivot else A.fresh((0,)), lower, upper


@rule(aten._linalg_eigvals.default)
def eigvals(self: Spec) -> Spec:
    """Complex."""
    _check_square(self, "linalg.eigvals")
    return self.fresh(self.shape[:-1], dtype=complex_dtype(self.dtype))


@rule(aten.linalg_eig.default)
def eig(self: Spec) -> tuple[Spec, Spec]:
    """Eigenvalues and eigenvectors, complex; on a GPU these are a copy of LAPACK's result."""
    _check_square(self, "linalg.eig")
    values = self.fresh(self.shape[:-1], dtype=complex_dtype(self.dtype))
    on_cpu = self.device.type == "cpu"
    return values, column_major(values, self.shape) if on_cpu else values.fresh(self.shape)


@rule(aten.linalg_ldl_factor_ex.default)
def ldl_factor_ex(self: Spec) -> tuple[Spec, Spec, Spec]:
    """L and D in one matrix, the pivots, and LAPACK's status of each matrix."""
    _check_square(self, "torch.linalg.ldl_factor_ex")
    pivots = self.fresh(self.shape[:-1], dtype=torch.int32)
    return column_major(self, self.shape), pivots, _info(self)


@rule(aten.linalg_ldl_solve.default)
def ldl_solve(LD: Spec, B: Spec) -> Spec:
    """Column-major."""
    return column_major(B, _solution(LD, B, "torch.linalg.ldl_solve"))


@rule(*([aten.cholesky.default] if hasattr(aten, "cholesky") else []))  # gone in torch 2.14
def cholesky(self: Spec) -> Spec:
    """The factor."""
    _check_square(self, "cholesky")
    return column_major(self, self.shape)


@rule(aten.cholesky_inverse.default)
def cholesky_inverse(self: Spec) -> Spec:
    """The inverse of what the factor was made of."""
    _check_square(self, "cholesky_inverse")
    return column_major(self, self.shape)


@rule(aten.cholesky_solve.default)
def cholesky_solve(self: Spec, input2: Spec) -> Spec:
    """Column-major."""
    return column_major(self, _solution(input2, self, "cholesky_solve"))


@rule(aten.geqrf.default)
def geqrf(self: Spec) -> tuple[Spec, Spec]:
    """R and the reflectors in one matrix, and the reflectors' scales."""
    _check_matrix(self, "torch.geqrf")
    rank = size_min(self.shape[-2], self.shape[-1])
    return column_major(self, self.shape), self.fresh((*self.shape[:-2], rank))


def _check_reflectors(A: Spec, tau: Spec, name: str) -> None:
    _check_matrix(A, name)
    _check_dtype_alike(A, tau, name)
    if tau.ndim != A.ndim - 1 or not same_shape(tau.shape[:-1], A.shape[:-2]):
        raise RuntimeError(
            f"{name}: Expected tau to have the batch of the reflectors, but got "
            f"{list(tau.shape)} for {list(A.shape)}"
        )
    if not ge(A.shape[-1], tau.shape[-1]):
        raise RuntimeError(f"{name}: the input's last dimension must be at least tau's")


@rule(aten.linalg_householder_product.default)
def householder_product(input: Spec, tau: Spec) -> Spec:
    """The first columns of the product of the reflectors."""
    _check_reflectors(input, tau, "torch.linalg.householder_product")
    if not ge(input.shape[-2], input.shape[-1]):
        raise RuntimeError(
            "torch.linalg.householder_product: input.shape[-2] must be greater than or "
            "equal to input.shape[-1]"
        )
    return column_major(input, input.shape)


@rule(aten.ormqr.default)
def ormqr(self: Spec, input2: Spec, input3: Spec, left: bool) -> Spec:
    """The product of the reflectors and `input3`."""
    _check_reflectors(self, input2, "torch.ormqr")
    _check_dtype_alike(self, input3, "torch.ormqr")
    if input3.ndim != self.ndim or not same_shape(input3.shape[:-2], self.shape[:-2]):
        raise RuntimeError("torch.ormqr: Expected other to have the batch of the input")
    if not eq(input3.shape[-2 if left else -1], self.shape[-2]):
        raise RuntimeError("torch.ormqr: the sizes of other and of the input do not match")
    return column_major(input3, input3.shape)


@rule(aten.linalg_pinv.atol_rtol_tensor)
def pinv(self: Spec, hermitian: bool) -> Spec:
    """The pseudoinverse, a product of matrices."""
    _check_matrix(self, "linalg.pinv", square=hermitian)
    return self.fresh((*self.shape[:-2], self.shape[-1], self.shape[-2]))
