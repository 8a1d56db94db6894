"""Products of vectors and matrices beside `matmul`: dot, inner, vdot, einsum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.interpreter.arrays import layout
from flambeau_capture.interpreter.arrays.base import as_array, cast
from flambeau_capture.interpreter.arrays.ufuncs import call_ufunc, store
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


def promoted(machine: Machine, *values: Any) -> list[torch.Tensor]:
    """Operands as tensors of their common dtype (without weak promotion: the functions here take arrays)."""
    arrays = [as_array(machine, value) for value in values]
    kind = np.result_type(*[array.dtype for array in arrays])
    if kind.kind == "b":
        raise GraphBreak("numpy-unsupported", "a product of booleans")
    return [cast(machine, array.tensor, kind) for array in arrays]


def finished(machine: Machine, found: torch.Tensor, out: Any = None) -> Any:
    """A product's outcome, row-major, in `out` if one is given."""
    if out is not None:
        store(out, found)
        return out
    found = layout.in_order(machine.tape, found, layout.c_order(found.ndim))
    return machine.arrays.new(found, scalar=found.ndim == 0)


def dot(machine: Machine, left: Any, right: Any, out: Any = None) -> Any:
    """`np.dot`: the last axis of one with the last but one of the other."""
    first, second = as_array(machine, left), as_array(machine, right)
    if not first.ndim or not second.ndim:
        return call_ufunc(machine, np.multiply, (left, right), {"out": out})
    a, b = promoted(machine, first, second)
    inner, outer = a.shape[-1], b.shape[0 if b.ndim == 1 else -2]
    if type(inner) is int and type(outer) is int and inner != outer:
        raise ValueError(
            f"shapes {_text(a)} and {_text(b)} not aligned: {inner} (dim {a.ndim - 1}) != {outer} (dim {max(b.ndim - 2, 0)})"
        )
    if b.ndim <= 2:
        return finished(machine, machine.tape.call_function(torch.matmul, (a, b)), out)
    dims = ([a.ndim - 1], [b.ndim - 2])
    return finished(machine, machine.tape.call_function(torch.tensordot, (a, b, dims)), out)


def _text(tensor: torch.Tensor) -> str:
    return str(tuple(int(size) for size in tensor.shape)).replace(" ", "")


def inner(machine: Machine, left: Any, right: Any) -> Any:
    """`np.inner`: last axes with each other."""
    first, second = as_array(machine, left), as_array(machine, right)
    if not first.ndim or not second.ndim:
        return call_ufunc(machine, np.multiply, (left, right), {})
    a, b = promoted(machine, first, second)
    dims = ([a.ndim - 1], [b.ndim - 1])
    return finished(machine, machine.tape.call_function(torch.tensordot, (a, b, dims)))


def vdot(machine: Machine, left: Any, right: Any) -> Any:
    """`np.vdot`: of all elements, the first operand conjugated."""
    first = as_array(machine, left).ravel()
    return dot(
        machine,
        first.conj() if first.dtype.kind == "c" else first,
        as_array(machine, right).ravel(),
    )


def einsum(
    machine: Machine, *operands: Any, out: Any = None, optimize: Any = False, **options: Any
) -> Any:
    """`np.einsum` with subscripts as text."""
    if options or not isinstance(operands[0], str):
        raise GraphBreak(
            "numpy-unsupported", "np.einsum with lists of subscripts, dtype= or order="
        )
    subscripts = operands[0].replace(" ", "")
    inputs, _, output = subscripts.partition("->")
    labels = set(inputs) - set(",.")
    if len(operands) == 2 and "->" in subscripts and labels <= set(output):
        raise GraphBreak("numpy-unsupported", "np.einsum that gives a view of its operand")
    tensors = promoted(machine, *operands[1:])
    return finished(machine, machine.tape.call_function(torch.einsum, (subscripts, *tensors)), out)
