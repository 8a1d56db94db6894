"""Triton's interpreter with sums that read products computed as LLVM does it for a GPU: of float32,
rounded once.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

if TYPE_CHECKING:
    from collections.abc import Iterator

EXACT = "exact product"
"""The attribute of a handle that holds the product in float64, which rounds none of float32s."""


def multiply(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle) -> TensorHandle:
    """A product that remembers its exact value; a product with -1 is a negation."""
    result = self.binary_op(a, b, np.multiply)
    if a.dtype.scalar is tl.float32:
        negates = EXACT in a.attr and bool((b.data == -1).all())
        exact = -a.attr[EXACT] if negates else a.data.astype(np.float64) * b.data
        result.set_attr(EXACT, exact)
    return result


def broadcast(self: InterpreterBuilder, a: TensorHandle, shape: Any) -> TensorHandle:
    """The same value in more lanes."""
    result = TensorHandle(np.broadcast_to(a.data, shape), a.dtype.scalar)
    if EXACT in a.attr:
        result.set_attr(EXACT, np.broadcast_to(a.attr[EXACT], shape))
    return result


def add(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle) -> TensorHandle:
    """A sum, with the exact value of one operand."""
    return contracted(self, a, b, np.add)


def subtract(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle) -> TensorHandle:
    """A difference, with the exact value of one operand."""
    return contracted(self, a, b, np.subtract)


def contracted(
    self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, function: Any
) -> TensorHandle:
    """What a fused instruction gives, where an operand is a product."""
    if EXACT in a.attr:
        exact = function(a.attr[EXACT], b.data.astype(np.float64))
    elif EXACT in b.attr:
        exact = function(a.data.astype(np.float64), b.attr[EXACT])
    else:
        return self.binary_op(a, b, function)
    return TensorHandle(exact.astype(np.float32), a.dtype.scalar)


@contextmanager
def contraction() -> Iterator[None]:
    """Contract the sums of kernels that run in the interpreter."""
    functions = {
        "create_fmul": multiply,
        "create_fadd": add,
        "create_fsub": subtract,
        "create_broadcast": broadcast,
    }
    with mock.patch.multiple(InterpreterBuilder, **functions):
        yield
