"""Objects of NumPy's that its own Python code uses: argument converters, shapes of broadcasts, error states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flambeau_capture.interpreter.arrays.base import SYMBOLIC, ArrayBase, as_array
from flambeau_capture.interpreter.classes import Native

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


class ErrorState(Native):
    """`with np.errstate(divide="ignore")`: what the graph computes gives no warnings anyway."""

    __slots__ = ("machine",)

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: Any) -> None:
        return None


class ArrayConverter(Native):
    """`_array_converter(*values)`: arguments as arrays, and whether they were scalars."""

    __slots__ = ("arrays", "machine", "values")

    def __init__(self, machine: Machine, values: tuple[Any, ...]) -> None:
        self.machine, self.values = machine, values
        self.arrays = [as_array(machine, value) for value in values]

    @property
    def scalar_input(self) -> tuple[bool, ...]:
        """For each argument, whether it was a number or scalar."""
        return tuple(_is_scalar(value) for value in self.values)

    def __getitem__(self, at: int) -> Any:
        return self.arrays[at]

    def __len__(self) -> int:
        return len(self.arrays)

    def as_arrays(
        self, subok: bool = True, pyscalars: str = "convert_if_no_array"
    ) -> tuple[Any, ...]:
        """All arguments as arrays, numbers as they are where they are to take part weakly."""
        numbers = [type(value) in (int, float, complex, *SYMBOLIC) for value in self.values]
        keeps = pyscalars == "preserve" or (pyscalars == "convert_if_no_array" and not all(numbers))
        return tuple(
            value if number and keeps else array
            for value, number, array in zip(self.values, numbers, self.arrays, strict=True)
        )

    def result_type(self, extra_dtype: Any = None, ensure_inexact: bool = False) -> Any:
        """The common dtype."""
        kinds: list[Any] = [
            array.dtype if type(value) not in (bool, int, float, complex) else value
            for value, array in zip(self.values, self.arrays, strict=True)
        ]
        kinds += [] if extra_dtype is None else [extra_dtype]
        return np.result_type(*kinds, *([0.0] if ensure_inexact else []))

    def wrap(self, array: Any, /, to_scalar: Any = None) -> Any:
        """A result as the function gives it back."""
        scalar = all(self.scalar_input) if to_scalar is None else to_scalar
        if scalar and issubclass(type(array), ArrayBase) and array.ndim == 0:
            return array.new(array.base, scalar=True)
        return array


def _is_scalar(value: Any) -> bool:
    if issubclass(type(value), ArrayBase):
        return bool(value.scalar)
    return not isinstance(value, (list, tuple))


def broadcast_of(values: tuple[Any, ...]) -> Any:
    """`np.broadcast` of arrays, for its shape."""
    empty = np.empty(())
    return np.broadcast(
        *[
            np.broadcast_to(empty, tuple(int(size) for size in value.shape))
            if issubclass(type(value), ArrayBase)
            else value
            for value in values
        ]
    )
