"""numpy.linalg: decompositions and solvers, each a torch.linalg function; its other functions are written in Python and interpreted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.interpreter.arrays.base import as_array, cast
from flambeau_capture.interpreter.arrays.handlers import handler
from flambeau_capture.interpreter.arrays.products import finished
from flambeau_capture.numpy_arrays import raise_for_status
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

_SINGULAR = "Singular matrix"


def _matrix(machine: Machine, value: Any, *, square: bool = True) -> torch.Tensor:
    """Stacked matrices in the dtype that NumPy computes in."""
    array = as_array(machine, value)
    if array.ndim < 2:
        raise np.linalg.LinAlgError(
            f"{array.ndim}-dimensional array given. Array must be at least two-dimensional"
        )
    if square and array.base.shape[-1] != array.base.shape[-2]:
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square")
    if array.dtype == np.float16:
        raise TypeError("array type float16 is unsupported in linalg")
    return cast(machine, array.tensor, np.float64 if array.dtype.kind in "biu" else array.dtype)


def _result(machine: Machine, value: torch.Tensor) -> Any:
    return finished(machine, value)


@handler(np.linalg.det)
def _det(machine: Machine, a: Any) -> Any:
    return _result(machine, machine.tape.call_function(torch.linalg.det, (_matrix(machine, a),)))


@handler(np.linalg.slogdet)
def _slogdet(machine: Machine, a: Any) -> Any:
    found = machine.tape.call_function(torch.linalg.slogdet, (_matrix(machine, a),))
    named: Any = type(np.linalg.slogdet(np.eye(1)))
    return named(*(_result(machine, part) for part in found))


def _checked(machine: Machine, name: str, error: str, *args: Any) -> torch.Tensor:
    """A function that gives a status with its result; NumPy's error for one that is not 0 is raised when the graph has run."""
    found, status = machine.tape.call_function(getattr(torch.linalg, name), args)
    machine.defer(raise_for_status, (status, error), {})
    return found  # type: ignore[no-any-return]


@handler(np.linalg.inv)
def _inv(machine: Machine, a: Any) -> Any:
    return _result(machine, _checked(machine, "inv_ex", _SINGULAR, _matrix(machine, a)))


@handler(np.linalg.solve)
def _solve(machine: Machine, a: Any, b: Any) -> Any:
    matrix, right = _matrix(machine, a), as_array(machine, b)
    kind = np.result_type(right.dtype, as_array(machine, a).dtype)
    kind = np.dtype(np.float64) if kind.kind in "biu" else kind
    found = machine.tape.call_function
    matrix, side = cast(machine, matrix, kind), cast(machine, right.tensor, kind)
    if right.ndim == 1:
        side = machine.tape.call_method("unsqueeze", (side, -1))
        solved = _checked(machine, "solve_ex", _SINGULAR, matrix, side)
        return _result(machine, found(torch.squeeze, (solved, -1)))
    return _result(machine, _checked(machine, "solve_ex", _SINGULAR, matrix, side))


@handler(np.linalg.cholesky)
def _cholesky(machine: Machine, a: Any, /, *, upper: bool = False) -> Any:
    if upper:
        raise GraphBreak("numpy-unsupported", "np.linalg.cholesky(upper=True)")
    error = "Matrix is not positive definite"
    return _result(machine, _checked(machine, "cholesky_ex", error, _matrix(machine, a)))


@handler(np.linalg.eigvalsh)
def _eigvalsh(machine: Machine, a: Any, UPLO: str = "L") -> Any:
    return _result(
        machine,
        machine.tape.call_function(
            torch.linalg.eigvalsh,
            (
                _matrix(machine, a),
                UPLO,
            ),
        ),
    )


@handler(np.linalg.eigh)
def _eigh(machine: Machine, a: Any, UPLO: str = "L") -> Any:
    found = machine.tape.call_function(
        torch.linalg.eigh,
        (
            _matrix(machine, a),
            UPLO,
        ),
    )
    named: Any = type(np.linalg.eigh(np.eye(1)))
    return named(*(_result(machine, part) for part in found))


@handler(np.linalg.svd)
def _svd(
    machine: Machine, a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:  # fmt: skip
    if hermitian:
        raise GraphBreak("numpy-unsupported", "np.linalg.svd(hermitian=True)")
    matrix = _matrix(machine, a, square=False)
    if not compute_uv:
        return _result(machine, machine.tape.call_function(torch.linalg.svdvals, (matrix,)))
    found = machine.tape.call_function(
        torch.linalg.svd,
        (
            matrix,
            full_matrices,
        ),
    )
    named: Any = type(np.linalg.svd(np.eye(1)))
    return named(*(_result(machine, part) for part in found))


@handler(np.linalg.qr)
def _qr(machine: Machine, a: Any, mode: str = "reduced") -> Any:
    if mode not in ("reduced", "complete", "r"):
        raise GraphBreak("numpy-unsupported", f"np.linalg.qr(mode={mode!r})")
    found = machine.tape.call_function(torch.linalg.qr, (_matrix(machine, a, square=False), mode))
    if mode == "r":
        return _result(machine, found[1])
    named: Any = type(np.linalg.qr(np.eye(1)))
    return named(*(_result(machine, part) for part in found))
