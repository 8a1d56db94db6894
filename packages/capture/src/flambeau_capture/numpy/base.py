"""The stand-in of one ndarray or NumPy scalar on the program's stack: which tensor it is, and
reading and writing that.

An array is a tensor (`base`) of which some axes may be read backwards (`flips`: torch has no
negative strides). What is computed from arrays is computed by torch calls on the tape; what NumPy
returns as a scalar (`np.float64(...)`) is a tensor without dimensions marked `scalar`.

`array.flags`: what is known of an array's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.interpreter.foreign_types import ForeignProxy
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.numpy import layout
from flambeau_capture.numpy.arrays import arrays_of
from flambeau_capture.numpy.layout import NUMBERS, TO_NUMPY, torch_dtype
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.torch_calls.tape import Tape
    from flambeau_capture.record import Recipe

_LISTED = 256
"""Arrays of constants up to this size stand as literals in the graph, larger ones are inputs of it.
"""
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class ArrayBase(ForeignProxy):
    """Fields of a stand-in, and its tensor."""

    __slots__ = ("__weakref__", "base", "flips", "machine", "scalar", "writeable")

    def __init__(
        self,
        machine: Machine,
        base: torch.Tensor,
        *,
        flips: frozenset[int] = frozenset(),
        scalar: bool = False,
        writeable: bool = True,
    ) -> None:
        self.machine = machine
        self.base = base
        self.flips = flips
        self.scalar = scalar
        self.writeable = writeable

    @property
    def tape(self) -> Tape:
        """Where calls are recorded."""
        return self.machine.tape

    @property
    def tensor(self) -> torch.Tensor:
        """The elements in their order: the tensor itself, or a copy where an axis is reversed."""
        if not self.flips:
            return self.base
        found: torch.Tensor = self.call(torch.flip, self.base, sorted(self.flips))
        return found

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A torch function on the tape."""
        return self.tape.call_function(function, args, kwargs)

    def new(self, tensor: torch.Tensor, **fields: Any) -> Any:
        """Another array (or with `scalar=True`, scalar)."""
        return type(self)(self.machine, tensor, **fields)

    def sharing(self, tensor: torch.Tensor, flips: frozenset[int] = frozenset()) -> Any:
        """An array that shares this one's memory."""
        return self.new(tensor, flips=flips, writeable=self.writeable)

    def result(self, tensor: torch.Tensor) -> Any:
        """What NumPy returns for this outcome of a computation: without dimensions, a scalar."""
        return self.new(tensor, scalar=not tensor.ndim)

    def write(self, value: torch.Tensor, what: str = "assignment destination") -> None:
        """Overwrite all elements, cast and broadcast."""
        if not self.writeable:
            raise ValueError(f"{what} is read-only")
        value = self.apart(value)
        arrays_of(self.machine).forget(self)
        if self.flips:
            if value.ndim < self.base.ndim or value.shape != self.base.shape:
                value = self.call(torch.broadcast_to, value, tuple(self.base.shape))
            value = self.call(torch.flip, value, sorted(self.flips))
        if value.dtype.is_complex and not self.base.dtype.is_complex:
            value = self.call(torch.real, value)
        self.tape.call_method("copy_", (self.base, value))

    def apart(self, value: torch.Tensor) -> torch.Tensor:
        """A value to be written here; a copy of one that is read from the same memory."""
        same = value.storage_record is self.base.storage_record  # type: ignore[attr-defined]
        return self.tape.call_method("clone", (value,)) if same else value

    def unflipped(self, what: str) -> torch.Tensor:
        """The tensor, for what gives a view of it."""
        if self.flips:
            raise GraphBreak("numpy-unsupported", f"{what} of an array with a negative stride")
        return self.base

    # ------------------------------------------------------------ what it is

    def seen_type(self) -> type:
        """The type that the program sees."""
        return self.dtype.type if self.scalar else np.ndarray  # type: ignore[no-any-return]

    def recipe(self, rebuild: Any) -> Recipe:
        """How the array is rebuilt at exit."""
        return arrays_of(self.machine).recipe(self)

    @property
    def dtype(self) -> Any:
        """The NumPy dtype."""
        return TO_NUMPY[self.base.dtype]

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes, symbolic where they are."""
        return tuple(self.base.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.base.ndim


def cast(machine: Machine, tensor: torch.Tensor, dtype: Any) -> torch.Tensor:
    """The tensor in another NumPy dtype, as `astype` casts."""
    wanted = torch_dtype(dtype)
    if tensor.dtype == wanted:
        return tensor
    if tensor.dtype.is_complex and not wanted.is_complex:
        tensor = (
            machine.tape.call_function(torch.ne, (tensor, 0))
            if wanted is torch.bool
            else machine.tape.call_function(torch.real, (tensor,))
        )
    return machine.tape.call_method("to", (tensor, wanted))


def is_constant(value: Any) -> bool:
    """Whether an argument of a NumPy function is the same in every call that the entry serves."""
    kind = type(value)
    if kind in (list, tuple, torch.Size):
        return all(is_constant(item) for item in value)
    if kind is dict:
        return all(is_constant(item) for item in value.values())
    if kind is slice:
        return is_constant((value.start, value.stop, value.step))
    return (
        kind in (str, type(None), type(...), *NUMBERS)
        or issubclass(kind, (np.generic, np.dtype, np.ufunc))
        or (isinstance(value, type) and issubclass(value, (np.generic, *NUMBERS)))
    )


def plain(machine: Machine, value: Any) -> Any:
    """A shape, axis or place as plain integers, where its contents are known."""
    if issubclass(type(value), ArrayBase):
        known = arrays_of(machine).contents(value)
        return (
            value.item()
            if known is None and value.ndim == 0
            else known.tolist()
            if known is not None
            else value
        )
    if isinstance(value, (tuple, list)):
        return type(value)(plain(machine, item) for item in value)
    return int(value) if isinstance(value, np.integer) else value


def as_array(machine: Machine, value: Any, dtype: Any = None) -> Any:
    """`np.asarray(value)`: arrays as they are, tensors as their arrays, and nested lists of numbers
    and arrays.
    """
    arrays = arrays_of(machine)
    if isinstance(value, torch.Tensor):
        value = from_tensor(machine, value)
    if issubclass(type(value), ArrayBase):
        if dtype is None or np.dtype(dtype) == value.dtype:
            return value.new(value.base) if value.scalar else value
        return value.new(cast(machine, value.tensor, dtype))
    if is_constant(value):
        return constant(machine, np.asarray(value, dtype))
    if type(value) in SYMBOLIC:
        kind = np.asarray(_hint(value)).dtype if dtype is None else np.dtype(dtype)
        return arrays.new(
            machine.tape.call_function(
                torch.full,
                ((), value),
                {"dtype": torch_dtype(kind), "device": arrays_of(machine).device},
            )
        )
    if type(value) in (list, tuple, torch.Size):
        parts = [as_array(machine, item) for item in value]
        kind = np.result_type(*[_kind(item, part) for item, part in zip(value, parts, strict=True)])
        if any(part.ndim != parts[0].ndim for part in parts):
            raise ValueError(
                "setting an array element with a sequence. The requested array has an "
                "inhomogeneous shape"
            )
        tensors = [cast(machine, part.tensor, dtype or kind) for part in parts]
        return arrays.new(machine.tape.call_function(torch.stack, (tensors,)))
    raise GraphBreak("numpy-unsupported", f"an array is made of a {type(value).__name__}")


def _kind(item: Any, part: Any) -> Any:
    return np.asarray(_hint(item)).dtype if type(item) in SYMBOLIC else part.dtype


def _hint(value: Any) -> Any:
    """A number of the type that a symbolic number has."""
    return {torch.SymInt: 0, torch.SymFloat: 0.0, torch.SymBool: False}[type(value)]


def constant(machine: Machine, made: Any) -> Any:
    """A fresh array with the contents of a real one."""
    dtype = torch_dtype(made.dtype)
    if made.size <= _LISTED and made.flags.c_contiguous:
        tensor = machine.tape.call_function(
            torch.tensor, (made.tolist(),), {"dtype": dtype, "device": arrays_of(machine).device}
        )
        if 0 in made.shape:  # a list does not say the sizes behind one of 0
            tensor = machine.tape.call_function(
                torch.empty, (made.shape,), {"dtype": dtype, "device": arrays_of(machine).device}
            )
        array = arrays_of(machine).new(tensor)
        arrays_of(machine).learn(array, made)
        return array
    held = arrays_of(machine).held(made)
    if arrays_of(machine).device.type != "cpu":
        return arrays_of(machine).new(
            machine.tape.call_method("to", (held, arrays_of(machine).device))
        )
    return arrays_of(machine).new(
        layout.copy_in_order(machine.tape, held, layout.k_order([held], made.ndim))
    )


def from_tensor(machine: Machine, tensor: torch.Tensor) -> Any:
    """`tensor.numpy()`: an array that shares the tensor's memory."""
    if tensor.requires_grad:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    if tensor.device.type != "cpu":
        raise TypeError(
            f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() "
            f"to copy the tensor to host memory first."
        )
    if tensor.dtype not in TO_NUMPY:
        raise GraphBreak("numpy-dtype", f"a tensor of {tensor.dtype} becomes an array")
    return arrays_of(machine).new(machine.tape.call_method("detach", (tensor,)))


# ---------------------------------------------------------------- flags


class Flags(Proxy):
    """`array.flags`."""

    __slots__ = ("aligned", "array", "writeable")

    def __init__(self, array: ArrayBase) -> None:
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
