"""Views of any geometry (`as_strided`) must lie inside their memory: eager looks at its size, which
no Spec has.

x: f32[3, 4]        x.as_strided((9,), (9,))       needs 292 bytes of 48: eager's error
x = big[0]          x.as_strided((9,), (1,))       needs more than x has: capture guards its
                                                   size; others refuse
x: f32[s0]          x.as_strided((4,), (2,))       guards that s0 >= 7

Relies on `fake.StorageRecord`: the geometry of the first tensor over a memory, and how to ask for
the size of an input's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_prims.sizes import as_int, expect, hint_of
from flambeau_prims.strides import is_empty
from flambeau_prims.unsupported import OutsideKnownMemory

if TYPE_CHECKING:
    from flambeau_prims.fake import StorageRecord
    from flambeau_prims.spec import Size, Spec


def require_inside(view: Spec, storage: StorageRecord) -> None:
    """Raise eager's RuntimeError for a view beyond its memory; OutsideKnownMemory where nobody
    knows how much there is.
    """
    memory = storage.memory
    if memory is not None:
        memory.offset()  # what the view begins at is counted from the start of the memory
    if storage.first is None or is_empty(view.shape):
        return
    if hint_of(view.offset) < 0:
        raise RuntimeError(f"Tensor: invalid storage offset {as_int(view.offset)}")
    if any(hint_of(size) < 0 for size in view.shape):
        raise RuntimeError(
            f"Storage size calculation overflowed with sizes={_ints(view.shape)} and "
            f"strides={_ints(view.stride)}"
        )
    needed, known = _bytes_to_the_end(view), _bytes_to_the_end(storage.first)
    if expect("<=", needed, known):
        return
    if storage.given and memory is None:
        raise OutsideKnownMemory(
            f"a view of {hint_of(needed)} bytes of an input of {hint_of(known)}"
        )
    available = as_int(known) if memory is None else memory.size()
    if expect("<=", needed, available):
        return
    shape, stride, offset = _ints(view.shape), _ints(view.stride), as_int(view.offset)
    raise RuntimeError(
        f"setStorage: sizes {shape}, strides {stride}, storage offset {offset}, and "
        f"itemsize {view.dtype.itemsize} requiring a "
        f"storage size of {as_int(needed)} are out of bounds for storage of size {available}"
    )


def _bytes_to_the_end(spec: Spec) -> Size:
    """Bytes from the start of the memory to a tensor's last element."""
    if is_empty(spec.shape):
        return 0
    last: Size = spec.offset
    for size, step in zip(spec.shape, spec.stride, strict=True):
        last = last + (size - 1) * step
    return (last + 1) * spec.dtype.itemsize


def _ints(sizes: tuple[Size, ...]) -> list[int]:
    return [as_int(size) for size in sizes]
