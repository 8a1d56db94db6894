"""The arrays of one capture: where the program's own come from, how arrays leave the frame, and the
conversions that an entry makes at its border.

An entry takes arrays as tensors and returns tensors as arrays. It copies no element in either
direction: a graph that updates its input in place writes the caller's array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from flambeau_capture.numpy import layout
from flambeau_capture.numpy.layout import TO_TORCH
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, Const, FromGraph, FromSource, Recipe
from flambeau_capture.sources import CallOf, Constant, MemoryOf, Source, scalar_key

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

ALIGNED, WRITEABLE = 0x100, 0x400
"""Bits of `PyArrayObject.flags` (NumPy's C API)."""


class _Memory:
    """An array's memory, offered for reading and writing; what is made of it keeps the array alive."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Any) -> None:
        self.array = array
        described = array.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}


def tensor_of_readonly(array: Any) -> torch.Tensor:
    """The tensor of an array that must not be written to, without torch's warning about that."""
    found: torch.Tensor = torch.from_numpy(np.asarray(_Memory(array)))
    return found


@functools.cache
def tensor_of_reversed(flips: frozenset[int], writeable: bool) -> Callable[[Any], torch.Tensor]:
    """A converter of arrays with negative strides along the axes `flips`: to the tensor that runs
    along them forwards.
    """

    def tensor_of_reversed_array(array: Any) -> torch.Tensor:
        forwards = np.flip(array, tuple(sorted(flips)))
        return torch.from_numpy(forwards) if writeable else tensor_of_readonly(forwards)

    return tensor_of_reversed_array


def converter(flips: frozenset[int], writeable: bool) -> Callable[[Any], torch.Tensor]:
    """The function that gives the tensor of an array: one object for each way to convert."""
    if flips:
        return tensor_of_reversed(flips, writeable)
    return torch.from_numpy if writeable else tensor_of_readonly


def array_flags(array: Any) -> int:
    """What a graph depends on of an array's flags."""
    return ALIGNED * array.flags.aligned | WRITEABLE * array.flags.writeable


def scalar_tensor(scalar: Any) -> torch.Tensor:
    """A NumPy scalar as a tensor without dimensions."""
    found: torch.Tensor = torch.from_numpy(np.array(scalar))
    return found


# ---------------------------------------------------------------- results


def to_array(tensor: torch.Tensor) -> Any:
    """The array over a tensor's memory."""
    return tensor.detach().numpy()


def to_scalar(tensor: torch.Tensor) -> Any:
    """A NumPy scalar."""
    return tensor.detach().numpy()[()]


def to_readonly_array(tensor: torch.Tensor) -> Any:
    """An array over a tensor's memory that refuses to be written to."""
    array = tensor.detach().numpy()
    array.flags.writeable = False
    return array


def flipped(array: Any, *axes: int) -> Any:
    """A view with axes reversed."""
    return np.flip(array, axes)


def raise_for_status(status: torch.Tensor, error: str) -> None:
    """NumPy's error, where LAPACK's status of some matrix says that it failed."""
    if status.any():
        raise np.linalg.LinAlgError(error)


# ---------------------------------------------------------------- the arrays of a capture


class Arrays:
    """One stand-in for each array of the program, and for each array made in the frame."""

    array_type: ClassVar[Any]
    """The class of the stand-ins: `array.Array`."""

    def __init__(self, machine: Machine) -> None:
        if any(action in ("raise", "call") for action in np.geterr().values()):
            raise GraphBreak(
                "numpy-unsupported", "np.seterr asks for errors to be raised or reported"
            )
        self.machine = machine
        self._inputs: dict[int, tuple[Any, Any, Source]] = {}  # by id of the real array
        self.device: torch.device = torch.device("cpu")
        """Where arrays are made: on the CPU, but inside `wrap_numpy`, where the tensors are."""
        self._known: dict[int, tuple[Any, Any]] = {}  # by id of the memory
        self._sources: dict[int, tuple[Any, Source]] = {}  # by id of the stand-in

    def new(self, tensor: torch.Tensor, **fields: Any) -> Any:
        """An array (or with `scalar=True`, a NumPy scalar) made in the frame."""
        return self.array_type(self.machine, tensor, **fields)

    # ------------------------------------------------------------ what comes in

    def wrap(self, value: Any, source: Source) -> Any:
        """An object of NumPy's that existed before the call, as the frame may see it."""
        if type(value) is np.ndarray:
            return self._input(value, source)
        if isinstance(value, np.generic):
            return self._scalar(value, source)
        if isinstance(value, np.ndarray):
            raise GraphBreak("unsupported-input", f"{source.text()} is a {type(value).__name__}")
        if isinstance(value, (np.dtype, np.ufunc)) or is_function(value):
            self.machine.guard("IS", source, value)
            return value
        return None

    def _input(self, value: Any, source: Source) -> Any:
        found = self._inputs.get(id(value))
        if found is not None:
            if found[2] is not source:
                self.machine.guard("ALIAS", source, found[2])
            return found[1]
        dtype = value.dtype
        if dtype not in TO_TORCH or not dtype.isnative:
            raise GraphBreak("numpy-dtype", f"{source.text()} is an array of dtype {dtype}")
        if not value.flags.aligned or any(step % dtype.itemsize for step in value.strides):
            raise GraphBreak(
                "unsupported-input",
                f"{source.text()} is an array whose elements are not aligned in memory",
            )
        flips = frozenset(axis for axis, step in enumerate(value.strides) if step < 0)
        writeable = bool(value.flags.writeable)
        convert = converter(flips, writeable)
        self.machine.guard("ARRAY", source, (np.ndarray, array_flags(value)))
        tensor = self._fake(convert, value, source)
        made = self.new(tensor, flips=flips, writeable=writeable)
        self._inputs[id(value)] = (value, made, source)
        self._sources[id(made)] = (made, source)
        return made

    def _scalar(self, value: Any, source: Source) -> Any:
        machine = self.machine
        machine.guard("TYPE", source, type(value))
        if value.dtype in TO_TORCH and machine.dynamic.has_changed(source):
            return self.new(self._fake(scalar_tensor, value, source), scalar=True)
        machine.guard("EQUALS", CallOf(scalar_key, (source,)), scalar_key(value))
        return value

    # ------------------------------------------------------------ constants

    def learn(self, array: Any, contents: Any) -> None:
        """Note what a whole array holds, until it is written to: NumPy's code keeps axes and shapes
        in arrays.
        """
        memory = array.base.storage_record
        self._known[id(memory)] = (memory, contents)

    def forget(self, array: Any) -> None:
        """The memory of an array is about to be written to, or handed to torch."""
        self._known.pop(id(array.base.storage_record), None)

    def contents(self, array: Any) -> Any:
        """What an array is known to hold, as a real array; None where that is not known."""
        found = self._known.get(id(array.base.storage_record))
        whole = found is not None and not array.flips and found[1].shape == array.shape
        if (
            whole
            and found is not None
            and layout.is_in_order(array.base, layout.c_order(array.ndim))
        ):
            return found[1]
        return None

    def held(self, made: Any) -> torch.Tensor:
        """The tensor of an array that the entry keeps; the graph must not write to it."""
        convert = converter(frozenset(), made.flags.writeable)
        return self._fake(convert, made, Constant(made))

    def _fake(self, convert: Any, value: Any, source: Source) -> torch.Tensor:
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            tensor = convert(value)
        return self.machine.tape.fake_input(tensor, MemoryOf(convert, (source,)))

    def reshape(self, array: Any, shape: Any) -> None:
        """`array.shape = shape` of an array that the frame has made."""
        if id(array) in self._sources:
            raise GraphBreak(
                "unsupported-mutation", "the shape of an array that existed before the call is set"
            )
        found = array.reshape(shape)
        if found.base.storage_record is not array.base.storage_record:
            raise AttributeError("Incompatible shape for in-place modification.")
        array.base = found.base

    def tensor_index(self, key: Any) -> Any:
        """A subscript of a tensor with its arrays as tensors."""
        if isinstance(key, self.array_type):
            return key.tensor
        if type(key) is tuple or type(key) is list:
            return type(key)(self.tensor_index(item) for item in key)
        return int(key) if isinstance(key, np.integer) else key

    def tensor_item(self, tensor: torch.Tensor, value: Any) -> Any:
        """The value that is assigned to items of a tensor: NumPy scalars are numbers, arrays are
        refused.
        """
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, self.array_type):
            return value
        if not value.scalar:
            raise TypeError("can't assign a numpy.ndarray to a torch.FloatTensor")
        return self.machine.tape.call_method("to", (value.base, tensor.dtype))

    # ------------------------------------------------------------ what goes out

    def recipe(self, array: Any) -> Recipe:
        """How an array is rebuilt at exit: the program's own as itself, others over the memory of a
        graph output.
        """
        source = self._sources.get(id(array))
        if source is not None:
            return FromSource(source[1])
        found = self.machine.tape.input_of(array.base)
        tensor: Recipe = (
            FromGraph(self.machine.tape.value_of(array.base))
            if found is None
            else FromSource(found[1].source)
        )
        if array.scalar:
            return CallRecipe(to_scalar, (tensor,))
        made: Recipe = CallRecipe(to_array if array.writeable else to_readonly_array, (tensor,))
        if array.flips:
            made = CallRecipe(flipped, (made, *map(Const, sorted(array.flips))))
        return made


def arrays_of(machine: Machine) -> Arrays:
    """The arrays of a capture."""
    return machine.foreign["numpy"]  # type: ignore[no-any-return]


def is_function(value: Any) -> bool:
    """Whether a value is one of NumPy's functions behind `__array_function__`."""
    return type(value) is type(np.sum)
