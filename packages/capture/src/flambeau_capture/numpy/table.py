"""The arrays of one capture: stand-ins of the program's own, one for each real array, and how
arrays leave the frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.numpy import layout
from flambeau_capture.numpy.array import Array
from flambeau_capture.numpy.layout import TO_TORCH
from flambeau_capture.numpy_functions import (
    array_flags,
    converter,
    flipped,
    scalar_tensor,
    to_array,
    to_readonly_array,
    to_scalar,
)
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, Const, FromGraph, FromSource, Recipe
from flambeau_capture.sources import CallOf, Constant, Source, scalar_key

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


class Arrays:
    """Made when the frame first meets NumPy."""

    def __init__(self, machine: Machine) -> None:
        if any(action in ("raise", "call") for action in np.geterr().values()):
            raise GraphBreak(
                "numpy-unsupported", "np.seterr asks for errors to be raised or reported"
            )
        self.machine = machine
        self._inputs: dict[int, tuple[Any, Array, Source]] = {}  # by id of the real array
        self.device: torch.device = torch.device("cpu")
        """Where arrays are made: on the CPU, but inside `wrap_numpy`, where the tensors are."""
        self._known: dict[int, tuple[Any, Any]] = {}  # by id of the memory
        self._sources: dict[int, tuple[Array, Source]] = {}  # by id of the stand-in

    def new(self, tensor: torch.Tensor, **fields: Any) -> Array:
        """An array (or with `scalar=True`, a NumPy scalar) made in the frame."""
        return Array(self.machine, tensor, **fields)

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

    def _input(self, value: Any, source: Source) -> Array:
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
        return self.machine.tape.fake_input(tensor, CallOf(convert, (source,)))

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

    def tensor_key(self, key: Any) -> Any:
        """A subscript of a tensor, or what is assigned to one: arrays in it as tensors."""
        if isinstance(key, Array):
            return key.tensor
        if type(key) is tuple or type(key) is list:
            return type(key)(self.tensor_key(item) for item in key)
        return int(key) if isinstance(key, np.integer) else key

    def assigned_to_tensor(self, tensor: torch.Tensor, value: Any) -> Any:
        """What is assigned to items of a tensor: NumPy scalars are numbers, arrays are refused."""
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, Array):
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


def is_function(value: Any) -> bool:
    """Whether a value is one of NumPy's functions behind `__array_function__`."""
    return type(value) is type(np.sum)
