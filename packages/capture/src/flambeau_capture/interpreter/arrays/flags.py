"""`array.flags`: what is known of an array's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.arrays import layout
from flambeau_capture.interpreter.classes import Native
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.arrays.array import Array


class Flags(Native):
    """`array.flags`."""

    __slots__ = ("aligned", "array", "writeable")

    def __init__(self, array: Array) -> None:
        self.array, self.writeable, self.aligned = array, array.writeable, True

    def seen_attribute(self, name: str) -> Any:
        """One flag."""
        if name not in _FLAGS:
            raise GraphBreak("numpy-unsupported", f"ndarray.flags.{name}")
        return getattr(self, name)

    def __getitem__(self, name: str) -> Any:
        return self.seen_attribute(_SHORT_FLAGS.get(name, name.lower()))

    @property
    def c_contiguous(self) -> bool:
        """Row-major without gaps."""
        return self._is_in(layout.c_order(self.array.ndim))

    contiguous = c_contiguous

    @property
    def f_contiguous(self) -> bool:
        """Column-major without gaps."""
        return self._is_in(tuple(reversed(layout.c_order(self.array.ndim))))

    @property
    def fnc(self) -> bool:
        """Column-major and not row-major."""
        return self.f_contiguous and not self.c_contiguous

    @property
    def forc(self) -> bool:
        """Either."""
        return self.f_contiguous or self.c_contiguous

    def _is_in(self, order: tuple[int, ...]) -> bool:
        flips = any(self.array.base.shape[axis] > 1 for axis in self.array.flips)
        return not flips and layout.is_in_order(self.array.base, order)


_FLAGS = frozenset(
    {"c_contiguous", "f_contiguous", "contiguous", "fnc", "forc", "writeable", "aligned"}
)
_SHORT_FLAGS = {"C": "c_contiguous", "F": "f_contiguous", "W": "writeable", "A": "aligned"}
