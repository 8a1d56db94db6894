"""Check in Triton's interpreter that each access of a kernel lies within its buffers.

Elsewhere such an access may go unnoticed: it reads what is masked later, or memory of a neighbour.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

VECTOR = np.uint64(16)
"""Bytes of the widest access, which is aligned: no page ends within one."""


class OutsideOfBuffers(Exception):
    """A kernel reads or writes where none of its buffers is."""


class _Bounds:
    """The memory of a kernel's buffers while it runs: sorted first bytes, and those behind."""

    def __init__(self) -> None:
        self.file: str | None = None
        self.begins = self.ends = np.zeros(0, np.uint64)

    def check(self, pointers: Any, mask: Any, access: str) -> None:
        """Refuse an access that is outside in a lane that the mask lets through."""
        if self.file is None:
            return
        places = np.asarray(pointers.data, np.uint64)
        if mask is not None:
            places = places[np.broadcast_to(mask.data, places.shape).astype(bool)]
        if not places.size:
            return
        size = np.uint64(max(8, pointers.get_element_ty().primitive_bitwidth) // 8)
        begins, ends = self.begins, self.ends
        if access == "load":
            # A vector that holds an element can be read, whatever else it holds (`vector_rows`).
            begins, ends = begins // VECTOR * VECTOR, (ends + VECTOR - 1) // VECTOR * VECTOR
        buffers = np.searchsorted(begins, places, side="right") - 1
        outside = (buffers < 0) | (places + size > ends[buffers])
        if outside.any():
            place = int(places[outside].flat[0])
            near = min((abs(place - int(end)), place - int(end)) for end in self.ends)[1]
            raise OutsideOfBuffers(
                f"{access} of {int(outside.sum())} lanes, one {near} bytes behind the end of a "
                f"buffer: {self.line()}"
            )

    def line(self) -> str:
        """The line of the kernel that is running."""
        frame: Any = sys._getframe()
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return "" if frame is None else linecache.getline(self.file or "", frame.f_lineno).strip()


_BOUNDS = _Bounds()


@contextlib.contextmanager
def within(buffers: Sequence[torch.Tensor], file: str) -> Iterator[None]:
    """Accesses of the kernel in `file` must lie in the storages of these tensors."""
    storages = [buffer.untyped_storage() for buffer in buffers]
    spans = sorted({(each.data_ptr(), each.data_ptr() + each.nbytes()) for each in storages})
    _BOUNDS.begins = np.array([begin for begin, _ in spans], np.uint64)
    _BOUNDS.ends = np.array([end for _, end in spans], np.uint64)
    _BOUNDS.file = file if spans else None
    try:
        yield
    finally:
        _BOUNDS.file = None


def _checked(access: str, method: Callable[..., Any], pointers: int, mask: int | None) -> Any:
    def call(self: InterpreterBuilder, *args: Any, **options: Any) -> Any:
        _BOUNDS.check(args[pointers], None if mask is None else args[mask], access)
        return method(self, *args, **options)

    return call


for _name, _access, _pointers, _mask in (
    ("create_masked_load", "load", 0, 1),
    ("create_masked_store", "store", 0, 2),
    ("create_atomic_rmw", "atomic update", 1, 3),
    ("create_atomic_cas", "atomic exchange", 0, None),
):
    _method = getattr(InterpreterBuilder, _name)
    setattr(InterpreterBuilder, _name, _checked(_access, _method, _pointers, _mask))
