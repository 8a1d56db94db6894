"""Products beside `matmul` (dot, inner, vdot, einsum, convolve), numpy.linalg and numpy.fft.

Decompositions and solvers are torch.linalg functions. The other functions of numpy.linalg are
written in Python and interpreted. Fourier transforms are torch.fft's, with the same arguments,
dtypes and normalisations. Each runs along the last axis of a row-major tensor, as NumPy runs it:
several axes one after the other, from the last.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.numpy import layout
from flambeau_capture.numpy.arrays import as_array, cast, plain, raise_for_status
from flambeau_capture.numpy.layout import handler, unsupported
from flambeau_capture.numpy.ufuncs import call_ufunc, store, wrapped_as_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.numpy.arrays import Arrays


def promoted(arrays: Arrays, *values: Any) -> list[torch.Tensor]:
    """Operands as tensors of their common dtype, without weak promotion."""
    sources = [as_array(arrays, value) for value in values]
    kind = np.result_type(*[source.dtype for source in sources])
    if kind.kind == "b":
        raise unsupported("a product of booleans")
    return [cast(arrays, source.tensor, kind) for source in sources]


def finished(arrays: Arrays, found: torch.Tensor, out: Any = None) -> Any:
    """A product's outcome, row-major, in `out` if one is given."""
    if out is not None:
        store(out, found)
        return out
    found = layout.in_order(arrays.tape, found, layout.c_order(found.ndim))
    return arrays.new(found, scalar=found.ndim == 0)


def dot(arrays: Arrays, left: Any, right: Any, out: Any = None) -> Any:
    """`np.dot`: the last axis of one with the last but one of the other."""
    first, second = as_array(arrays, left), as_array(arrays, right)
    if not first.ndim or not second.ndim:
        return call_ufunc(arrays, np.multiply, _as_arrays(left, first, right, second), {"out": out})
    a, b = promoted(arrays, first, second)
    inner, outer = a.shape[-1], b.shape[0 if b.ndim == 1 else -2]
    if type(inner) is int and type(outer) is int and inner != outer:
        raise ValueError(
            f"shapes {_text(a)} and {_text(b)} not aligned: {inner} (dim {a.ndim - 1}) != "
            f"{outer} (dim {max(b.ndim - 2, 0)})"
        )
    if b.ndim <= 2:
        return finished(arrays, arrays.record(torch.matmul, a, b), out)
    dims = ([a.ndim - 1], [b.ndim - 2])
    return finished(arrays, arrays.record(torch.tensordot, a, b, dims), out)


def _text(tensor: torch.Tensor) -> str:
    return str(tuple(int(size) for size in tensor.shape)).replace(" ", "")


def _as_arrays(*pairs: Any) -> tuple[Any, ...]:
    """Operands, each followed by its array: the array of a tensor, others as they are."""
    return tuple(
        array if isinstance(given, torch.Tensor) else given
        for given, array in zip(pairs[::2], pairs[1::2], strict=True)
    )


def inner(arrays: Arrays, left: Any, right: Any) -> Any:
    """`np.inner`: last axes with each other."""
    first, second = as_array(arrays, left), as_array(arrays, right)
    if not first.ndim or not second.ndim:
        return call_ufunc(arrays, np.multiply, _as_arrays(left, first, right, second), {})
    a, b = promoted(arrays, first, second)
    dims = ([a.ndim - 1], [b.ndim - 1])
    return finished(arrays, arrays.record(torch.tensordot, a, b, dims))


def vdot(arrays: Arrays, left: Any, right: Any) -> Any:
    """`np.vdot`: of all elements, the first operand conjugated."""
    first = as_array(arrays, left).ravel()
    return dot(
        arrays, first.conj() if first.dtype.kind == "c" else first, as_array(arrays, right).ravel()
    )


def einsum(
    arrays: Arrays, *operands: Any, out: Any = None, optimize: Any = False, **options: Any
) -> Any:
    """`np.einsum` with subscripts as text."""
    if options or not isinstance(operands[0], str):
        raise unsupported("np.einsum with lists of subscripts, dtype= or order=")
    subscripts = operands[0].replace(" ", "")
    inputs, _, output = subscripts.partition("->")
    labels = set(inputs) - set(",.")
    if len(operands) == 2 and "->" in subscripts and labels <= set(output):
        raise unsupported("np.einsum that gives a view of its operand")
    tensors = promoted(arrays, *operands[1:])
    return finished(arrays, arrays.record(torch.einsum, subscripts, *tensors), out)


@handler(np.convolve)
def _convolve(arrays: Arrays, a: Any, v: Any, mode: str = "full") -> Any:
    first, second = (as_array(arrays, value) for value in (a, v))
    if first.ndim > 1 or second.ndim > 1 or mode not in ("full", "same", "valid"):
        raise ValueError("object too deep for desired array")
    first, second = (array.reshape((-1,)) if not array.ndim else array for array in (first, second))
    signal, kernel = promoted(arrays, first, second)
    if kernel.shape[0] > signal.shape[0]:
        signal, kernel = kernel, signal
    if not kernel.shape[0]:
        raise ValueError("v cannot be empty")
    size, call = int(kernel.shape[0]), arrays.record
    left = {"full": size - 1, "same": size // 2, "valid": 0}[mode]
    right = {"full": size - 1, "same": size - 1 - left, "valid": 0}[mode]
    windows = call("unfold", call(torch.constant_pad_nd, signal, [left, right]), 0, size, 1)
    return arrays.new(call(torch.matmul, windows, call(torch.flip, kernel, [0])))


# ---------------------------------------------------------------- linear algebra

_SINGULAR = "Singular matrix"


def _matrix(arrays: Arrays, value: Any, *, square: bool = True) -> torch.Tensor:
    """Stacked matrices in the dtype that NumPy computes in."""
    array = as_array(arrays, value)
    if array.ndim < 2:
        raise np.linalg.LinAlgError(
            f"{array.ndim}-dimensional array given. Array must be at least two-dimensional"
        )
    if square and array.base.shape[-1] != array.base.shape[-2]:
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square")
    if array.dtype == np.float16:
        raise TypeError("array type float16 is unsupported in linalg")
    return cast(arrays, array.tensor, np.float64 if array.dtype.kind in "biu" else array.dtype)


def _like(arrays: Arrays, given: Any, result: torch.Tensor) -> Any:
    """A matrix as a function of numpy.linalg returns it: as a tensor, if it was given one."""
    array = finished(arrays, result)
    return wrapped_as_tensor(arrays, array) if isinstance(given, torch.Tensor) else array


def _named(arrays: Arrays, function: Any, given: Any, parts: Any) -> Any:
    """The named tuple that a function of numpy.linalg returns, of these parts. Those that are no
    matrices stay arrays.
    """
    kind = type(function(np.eye(1)))
    matrices = _MATRICES[function]
    return kind(*(
        _like(arrays, given, part) if name in matrices else finished(arrays, part)
        for name, part in zip(kind._fields, parts, strict=True)
    ))  # fmt: skip


_MATRICES = {
    np.linalg.slogdet: (),
    np.linalg.eigh: ("eigenvectors",),
    np.linalg.svd: ("U", "Vh"),
    np.linalg.qr: ("Q", "R"),
}


def _direct(function: Any, torch_function: Any, *, named: bool = False) -> None:
    """A function of square matrices that torch has with the same options."""
    signature = inspect.signature(function)

    @handler(function)
    def call(arrays: Arrays, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        matrix, *options = bound.args
        found = arrays.record(torch_function, _matrix(arrays, matrix), *options)
        return _named(arrays, function, matrix, found) if named else finished(arrays, found)


_direct(np.linalg.det, torch.linalg.det)
_direct(np.linalg.slogdet, torch.linalg.slogdet, named=True)
_direct(np.linalg.eigvalsh, torch.linalg.eigvalsh)
_direct(np.linalg.eigh, torch.linalg.eigh, named=True)


def _checked(arrays: Arrays, name: str, error: str, *args: Any) -> torch.Tensor:
    """A function that returns a status; NumPy's error for a failure is raised after the graph."""
    found, status = arrays.record(getattr(torch.linalg, name), *args)
    arrays.machine.objects.deferred.add(raise_for_status, (status, error), {})
    return found  # type: ignore[no-any-return]


@handler(np.linalg.inv)
def _inv(arrays: Arrays, a: Any) -> Any:
    return _like(arrays, a, _checked(arrays, "inv_ex", _SINGULAR, _matrix(arrays, a)))


@handler(np.linalg.solve)
def _solve(arrays: Arrays, a: Any, b: Any) -> Any:
    matrix, right = _matrix(arrays, a), as_array(arrays, b)
    kind = np.result_type(right.dtype, as_array(arrays, a).dtype)
    kind = np.dtype(np.float64) if kind.kind in "biu" else kind
    matrix, side = cast(arrays, matrix, kind), cast(arrays, right.tensor, kind)
    if right.ndim == 1:
        column = arrays.record("unsqueeze", side, -1)
        solved = _checked(arrays, "solve_ex", _SINGULAR, matrix, column)
        return _like(arrays, b, arrays.record(torch.squeeze, solved, -1))
    return _like(arrays, b, _checked(arrays, "solve_ex", _SINGULAR, matrix, side))


@handler(np.linalg.cholesky)
def _cholesky(arrays: Arrays, a: Any, /, *, upper: bool = False) -> Any:
    if upper:
        raise unsupported("np.linalg.cholesky(upper=True)")
    error = "Matrix is not positive definite"
    return _like(arrays, a, _checked(arrays, "cholesky_ex", error, _matrix(arrays, a)))


@handler(np.linalg.svd)
def _svd(
    arrays: Arrays, a: Any, full_matrices: bool = True, compute_uv: bool = True,
    hermitian: bool = False,
) -> Any:  # fmt: skip
    if hermitian:
        raise unsupported("np.linalg.svd(hermitian=True)")
    matrix = _matrix(arrays, a, square=False)
    if not compute_uv:
        return finished(arrays, arrays.record(torch.linalg.svdvals, matrix))
    found = arrays.record(torch.linalg.svd, matrix, full_matrices)
    return _named(arrays, np.linalg.svd, a, found)


@handler(np.linalg.qr)
def _qr(arrays: Arrays, a: Any, mode: str = "reduced") -> Any:
    if mode not in ("reduced", "complete", "r"):
        raise unsupported(f"np.linalg.qr(mode={mode!r})")
    found = arrays.record(torch.linalg.qr, _matrix(arrays, a, square=False), mode)
    if mode == "r":
        return _like(arrays, a, found[1])
    return _named(arrays, np.linalg.qr, a, found)


# ---------------------------------------------------------------- fourier


def _source(arrays: Arrays, value: Any) -> torch.Tensor:
    array = as_array(arrays, value)
    if array.dtype == np.float16:
        raise unsupported("numpy.fft of float16")
    return cast(arrays, array.tensor, np.float64) if array.dtype.kind in "biu" else array.tensor


def _transform(
    arrays: Arrays, name: str, value: torch.Tensor, n: Any, axis: Any, norm: Any
) -> torch.Tensor:
    """One transform along one axis."""
    if not -value.ndim <= axis < value.ndim:
        raise np.exceptions.AxisError(axis, value.ndim)
    size = value.shape[axis] if n is None else n
    if type(size) is int and (size < 1 or (name == "irfft" and n is None and size < 2)):
        raise ValueError(f"Invalid number of FFT data points ({size}) specified.")
    moved = arrays.record(torch.movedim, value, axis, -1)
    moved = layout.in_order(arrays.tape, moved, layout.c_order(value.ndim))
    if name != "rfft" and not moved.dtype.is_complex:
        moved = arrays.record("to", moved, torch.promote_types(moved.dtype, torch.complex64))
    found = arrays.record(getattr(torch.fft, name), moved, n, -1, norm)
    return arrays.record(torch.movedim, found, -1, axis)  # type: ignore[no-any-return]


def _finished(arrays: Arrays, source: torch.Tensor, found: torch.Tensor, out: Any) -> Any:
    """The outcome in the memory order of the source."""
    if out is not None:
        store(out, found)
        return out
    return arrays.new(layout.in_order(arrays.tape, found, layout.copied("K", source)))


_SWAPPED = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}
"""The normalisation of the inverse transform."""


def _along_one(name: str) -> Callable[..., Any]:
    def call(
        arrays: Arrays, a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None
    ) -> Any:
        source = _source(arrays, a)
        return _finished(arrays, source, _transform(arrays, name, source, n, axis, norm), out)

    return call


@handler(np.fft.hfft)
def _hfft(
    arrays: Arrays, a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None
) -> Any:
    source = arrays.record(torch.conj_physical, _source(arrays, a))
    found = _transform(arrays, "irfft", source, n, axis, _SWAPPED[norm])
    return _finished(arrays, source, found, out)


@handler(np.fft.ihfft)
def _ihfft(
    arrays: Arrays, a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None
) -> Any:
    source = _source(arrays, a)
    found = _transform(arrays, "rfft", source, n, axis, _SWAPPED[norm])
    found = arrays.record(torch.conj_physical, found)
    return _finished(arrays, source, found, out)


def _along_several(name: str, default: Any) -> Callable[..., Any]:
    def call(
        arrays: Arrays, a: Any, s: Any = None, axes: Any = default, norm: Any = None,
        out: Any = None,
    ) -> Any:  # fmt: skip
        found = source = _source(arrays, a)
        sizes = None if s is None else list(plain(arrays, s))
        if axes is None:
            axes = range(-len(sizes), 0) if sizes is not None else range(-found.ndim, 0)
        axes = [int(axis) for axis in axes]
        functions = ["fft" if name in ("fftn", "rfftn") else "ifft"] * len(axes)
        if name in ("rfftn", "irfftn"):
            functions[-1] = name[:-1]
        steps = list(zip(functions, axes, sizes or [None] * len(axes), strict=True))
        # Half spectra are of the last axis: transformed first, restored last.
        for function, axis, size in steps if name == "irfftn" else reversed(steps):
            found = _transform(arrays, function, found, size, axis, norm)
        return _finished(arrays, source, found, out)

    return call


for _name in ("fft", "ifft", "rfft", "irfft"):
    handler(getattr(np.fft, _name))(_along_one(_name))
    handler(getattr(np.fft, f"{_name}2"))(_along_several(f"{_name}n", (-2, -1)))
    handler(getattr(np.fft, f"{_name}n"))(_along_several(f"{_name}n", None))
