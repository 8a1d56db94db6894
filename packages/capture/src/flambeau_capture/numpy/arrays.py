"""The arrays of one capture: their stand-ins on the program's stack, where the program's own come
from, and how arrays leave the frame.

A stand-in is a tensor (`base`), some of whose axes may be read backwards (`flips`: torch has no
negative strides). The tape computes with it by torch calls. A NumPy scalar (`np.float64(...)`) is a
tensor without dimensions marked `scalar`.

An entry takes arrays as tensors and returns tensors as arrays. It copies no element in either
direction: a graph that updates its input in place writes the caller's array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from flambeau_capture.guards.kinds import array_flags
from flambeau_capture.interpreter.foreign_types import ForeignProxy
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.numpy import layout
from flambeau_capture.numpy.layout import NUMBERS, TO_NUMPY, TO_TORCH, torch_dtype, unsupported
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, Const, FromGraph, FromSource, Recipe
from flambeau_capture.sources import CallOf, Constant, MemoryOf, Source, scalar_key

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.torch_calls.tape import Tape


class _Memory:
    """An array's memory, offered for reading and writing. Its tensors keep the array alive."""

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
    """A converter of arrays with negative strides along `flips`, to tensors that run forwards."""

    def tensor_of_reversed_array(array: Any) -> torch.Tensor:
        forwards = np.flip(array, tuple(sorted(flips)))
        return torch.from_numpy(forwards) if writeable else tensor_of_readonly(forwards)

    return tensor_of_reversed_array


def converter(flips: frozenset[int], writeable: bool) -> Callable[[Any], torch.Tensor]:
    """The function that gives the tensor of an array: one object for each way to convert."""
    if flips:
        return tensor_of_reversed(flips, writeable)
    return torch.from_numpy if writeable else tensor_of_readonly


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
            raise unsupported("np.seterr asks for errors to be raised or reported")
        self.machine = machine
        self._inputs: dict[int, tuple[Any, Any, Source]] = {}  # by id of the real array
        self.device: torch.device = torch.device("cpu")
        """Where arrays are made: on the CPU, but inside `wrap_numpy`, where the tensors are."""
        self._known: dict[int, tuple[Any, Any]] = {}  # by id of the memory
        self._sources: dict[int, tuple[Any, Source]] = {}  # by id of the stand-in

    def new(self, tensor: torch.Tensor, **fields: Any) -> Any:
        """An array (or with `scalar=True`, a NumPy scalar) made in the frame."""
        return self.array_type(self, tensor, **fields)

    @property
    def tape(self) -> Tape:
        """Where calls are recorded."""
        return self.machine.tape

    def record(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A torch function, or by its name a method of the first argument, on the tape."""
        if isinstance(function, str):
            return self.tape.call_method(function, args, kwargs)
        return self.tape.call_function(function, args, kwargs)

    def full(self, value: Any, dtype: torch.dtype, shape: tuple[int, ...] = ()) -> torch.Tensor:
        """A tensor filled with a number."""
        found: torch.Tensor = self.record(torch.full, shape, value, dtype=dtype, device=self.device)
        return found

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
        """Remember an array's contents until it is written: NumPy's code keeps shapes in arrays."""
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
        """A value assigned to items of a tensor: NumPy scalars are numbers, arrays are refused."""
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, self.array_type):
            return value
        if not value.scalar:
            raise TypeError("can't assign a numpy.ndarray to a torch.FloatTensor")
        return self.record("to", value.base, tensor.dtype)

    # ------------------------------------------------------------ what goes out

    def recipe(self, array: Any) -> Recipe:
        """The recipe of an array: a source, or an array over a graph output's memory."""
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


def is_array(value: Any) -> bool:
    """Whether a value is an array or NumPy scalar of the capture."""
    return issubclass(type(value), ArrayBase)


def is_function(value: Any) -> bool:
    """Whether a value is one of NumPy's functions behind `__array_function__`."""
    return type(value) is type(np.sum)


# ---------------------------------------------------------------- stand-ins

_LISTED = 256
"""Arrays of constants up to this size stand as literals in the graph, larger ones are inputs of it.
"""
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class ArrayBase(ForeignProxy):
    """Fields of a stand-in, and its tensor."""

    __slots__ = ("__weakref__", "arrays", "base", "flips", "scalar", "writeable")

    def __init__(
        self,
        arrays: Arrays,
        base: torch.Tensor,
        *,
        flips: frozenset[int] = frozenset(),
        scalar: bool = False,
        writeable: bool = True,
    ) -> None:
        self.arrays = arrays
        self.base = base
        self.flips = flips
        self.scalar = scalar
        self.writeable = writeable

    @property
    def tape(self) -> Tape:
        """Where calls are recorded."""
        return self.arrays.tape

    @property
    def tensor(self) -> torch.Tensor:
        """The elements in their order: the tensor itself, or a copy where an axis is reversed."""
        if not self.flips:
            return self.base
        found: torch.Tensor = self.call(torch.flip, self.base, sorted(self.flips))
        return found

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A torch function, or by its name a method of the first argument, on the tape."""
        return self.arrays.record(function, *args, **kwargs)

    def new(self, tensor: torch.Tensor, **fields: Any) -> Any:
        """Another array (or with `scalar=True`, scalar)."""
        return type(self)(self.arrays, tensor, **fields)

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
        self.arrays.forget(self)
        if self.flips:
            if value.ndim < self.base.ndim or value.shape != self.base.shape:
                value = self.call(torch.broadcast_to, value, tuple(self.base.shape))
            value = self.call(torch.flip, value, sorted(self.flips))
        if value.dtype.is_complex and not self.base.dtype.is_complex:
            value = self.call(torch.real, value)
        self.call("copy_", self.base, value)

    def apart(self, value: torch.Tensor) -> torch.Tensor:
        """A value to be written here; a copy of one that is read from the same memory."""
        same = value.storage_record is self.base.storage_record  # type: ignore[attr-defined]
        return self.call("clone", value) if same else value

    def unflipped(self, what: str) -> torch.Tensor:
        """The tensor, for what gives a view of it."""
        if self.flips:
            raise unsupported(f"{what} of an array with a negative stride")
        return self.base

    # ------------------------------------------------------------ what it is

    def seen_type(self) -> type:
        """The type that the program sees."""
        return self.dtype.type if self.scalar else np.ndarray  # type: ignore[no-any-return]

    def recipe(self, rebuild: Any) -> Recipe:
        """How the array is rebuilt at exit."""
        return self.arrays.recipe(self)

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


def cast(arrays: Arrays, tensor: torch.Tensor, dtype: Any) -> torch.Tensor:
    """The tensor in another NumPy dtype, as `astype` casts."""
    wanted = torch_dtype(dtype)
    if tensor.dtype == wanted:
        return tensor
    if tensor.dtype.is_complex and not wanted.is_complex:
        tensor = (
            arrays.record(torch.ne, tensor, 0)
            if wanted is torch.bool
            else arrays.record(torch.real, tensor)
        )
    return arrays.record("to", tensor, wanted)


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


def plain(arrays: Arrays, value: Any) -> Any:
    """A shape, axis or place as plain integers, where its contents are known."""
    if is_array(value):
        known = arrays.contents(value)
        return (
            value.item()
            if known is None and value.ndim == 0
            else known.tolist()
            if known is not None
            else value
        )
    if isinstance(value, (tuple, list)):
        return type(value)(plain(arrays, item) for item in value)
    return int(value) if isinstance(value, np.integer) else value


def as_array(arrays: Arrays, value: Any, dtype: Any = None) -> Any:
    """`np.asarray(value)` of arrays, tensors, and nested lists of numbers and arrays."""
    if isinstance(value, torch.Tensor):
        value = from_tensor(arrays, value)
    if is_array(value):
        if dtype is None or np.dtype(dtype) == value.dtype:
            return value.new(value.base) if value.scalar else value
        return value.new(cast(arrays, value.tensor, dtype))
    if is_constant(value):
        return constant(arrays, np.asarray(value, dtype))
    if type(value) in SYMBOLIC:
        kind = np.asarray(_hint(value)).dtype if dtype is None else np.dtype(dtype)
        return arrays.new(arrays.full(value, torch_dtype(kind)))
    if type(value) in (list, tuple, torch.Size):
        parts = [as_array(arrays, item) for item in value]
        kind = np.result_type(*[_kind(item, part) for item, part in zip(value, parts, strict=True)])
        if any(part.ndim != parts[0].ndim for part in parts):
            raise ValueError(
                "setting an array element with a sequence. The requested array has an "
                "inhomogeneous shape"
            )
        tensors = [cast(arrays, part.tensor, dtype or kind) for part in parts]
        return arrays.new(arrays.record(torch.stack, tensors))
    raise unsupported(f"an array is made of a {type(value).__name__}")


def _kind(item: Any, part: Any) -> Any:
    return np.asarray(_hint(item)).dtype if type(item) in SYMBOLIC else part.dtype


def _hint(value: Any) -> Any:
    """A number of the type that a symbolic number has."""
    return {torch.SymInt: 0, torch.SymFloat: 0.0, torch.SymBool: False}[type(value)]


def constant(arrays: Arrays, made: Any) -> Any:
    """A fresh array with the contents of a real one."""
    dtype = torch_dtype(made.dtype)
    if made.size <= _LISTED and made.flags.c_contiguous:
        tensor = arrays.record(torch.tensor, made.tolist(), dtype=dtype, device=arrays.device)
        if 0 in made.shape:  # a list does not say the sizes behind one of 0
            tensor = arrays.record(torch.empty, made.shape, dtype=dtype, device=arrays.device)
        array = arrays.new(tensor)
        arrays.learn(array, made)
        return array
    held = arrays.held(made)
    if arrays.device.type != "cpu":
        return arrays.new(arrays.record("to", held, arrays.device))
    return arrays.new(layout.copy_in_order(arrays.tape, held, layout.k_order([held], made.ndim)))


def made_anew(arrays: Arrays, found: Any) -> Any:
    """The result that NumPy computed from constants, with a fresh array for each of its arrays."""
    if isinstance(found, np.ndarray):
        return constant(arrays, found)
    if isinstance(found, (tuple, list)):
        items = [made_anew(arrays, item) for item in found]
        return type(found)(items) if type(found) in (list, tuple) else type(found)(*items)
    return found


def from_tensor(arrays: Arrays, tensor: torch.Tensor) -> Any:
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
    return arrays.new(arrays.record("detach", tensor))


# ---------------------------------------------------------------- flags


class Flags(Proxy):
    """`array.flags`."""

    __slots__ = ("aligned", "array", "writeable")

    def __init__(self, array: ArrayBase) -> None:
        self.array, self.writeable, self.aligned = array, array.writeable, True

    def seen_attribute(self, name: str) -> Any:
        """One flag."""
        if name not in _FLAGS:
            raise unsupported(f"ndarray.flags.{name}")
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
