"""NumPy as the interpreter sees it: which objects are NumPy's, `wrap_numpy`, and tensors made of
arrays. This module does not import NumPy, which may not be installed.

    @flambeau.compile(fullgraph=True)
    @wrap_numpy
    def distance(x, y):
        return np.linalg.norm(x - y)

    distance(tensor, other)     a tensor

`wrap_numpy` makes a function of tensors of a function of arrays. Compiled, the function's NumPy
calls become torch calls on the tensors, which run on their device and let gradients flow through.
Not compiled, the arrays share the tensors' memory, so the tensors must be on the CPU and must not
require gradients.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter import foreign_types
from flambeau_capture.interpreter.foreign_types import ForeignProxy
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

_VALUE_TYPES = frozenset({"ufunc", "_ArrayFunctionDispatcher"})


def _is_numpy(module: Any) -> bool:
    """Whether a name is that of NumPy or of one of its modules."""
    return type(module) is str and (module == "numpy" or module.startswith("numpy."))


class NumPy:
    """NumPy by its types: a `ForeignLibrary`."""

    def owns(self, kind: type) -> bool:
        """Whether a type is NumPy's, or derives from ndarray."""
        if _is_numpy(kind.__module__):
            return True
        ndarray = getattr(sys.modules.get("numpy"), "ndarray", None)
        return ndarray is not None and issubclass(kind, ndarray)

    def is_value(self, kind: type) -> bool:
        """Whether a type is that of scalars, dtypes, ufuncs or dispatching functions."""
        return _is_numpy(kind.__module__) and (
            kind.__name__ in _VALUE_TYPES
            or any(base.__name__ in ("generic", "dtype") for base in kind.__mro__)
        )

    def is_data(self, value: Any) -> bool:
        """Whether a value is an array or a scalar."""
        if isinstance(value, ForeignProxy):
            return self.owns(value.seen_type())
        return self.is_value(type(value))

    def is_callable(self, function: Any) -> bool:
        """Whether a callable is a ufunc, dispatcher, builtin, method or class of NumPy."""
        kind = type(function)
        if _is_numpy(kind.__module__):
            return True
        if isinstance(function, type):
            return _is_numpy(function.__module__)
        if kind is types.BuiltinFunctionType or kind.__name__ == "cython_function_or_method":
            receiver = getattr(function, "__self__", None)
            module = getattr(function, "__module__", None)
            return _is_numpy(module) or _is_numpy(type(receiver).__module__)
        return False

    def open(self, machine: Machine) -> foreign_types.ForeignObjects:
        """The arrays of one capture."""
        numpy: Any = sys.modules["numpy"]
        if int(numpy.__version__.partition(".")[0]) < 2:
            raise GraphBreak(
                "numpy-unsupported", f"NumPy {numpy.__version__}, which is older than 2.0"
            )
        from flambeau_capture.numpy.functions import NumPyObjects  # imports NumPy

        return NumPyObjects(machine)


_NUMPY = NumPy()
foreign_types.register("numpy", _NUMPY)


# ---------------------------------------------------------------- wrap_numpy


def wrap_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors made of one of arrays: nested tensors in, tensors for arrays out."""

    @functools.wraps(fn)
    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        arguments = arrays_of((args, kwargs))
        return tensors_of(fn(*arguments[0], **arguments[1]))

    return on_tensors


def arrays_of(value: Any) -> Any:
    """The value with each tensor as an array over its memory."""
    return mapped(value, lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf)


def tensors_of(value: Any) -> Any:
    """The value with arrays as tensors over their memory, and NumPy scalars as 0-dim tensors."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return value
    kinds = (numpy.ndarray, numpy.generic)
    return mapped(value, lambda leaf: torch.as_tensor(leaf) if isinstance(leaf, kinds) else leaf)


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """`function` of each leaf of nested tuples (named ones, too), lists and dicts."""
    if isinstance(value, tuple):
        items = [mapped(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if type(value) is list:
        return [mapped(item, function) for item in value]
    if type(value) is dict:
        return {key: mapped(item, function) for key, item in value.items()}
    return function(value)


@substitute_for(arrays_of)
def _arrays_of(machine: Machine, args: Any, kwargs: Any) -> Any:
    arrays = machine.foreign["numpy"]

    def as_array(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.device.type != "cpu":
            arrays.device = leaf.device
        return arrays.new(leaf)

    return mapped(args[0], as_array)


@substitute_for(tensors_of)
def _tensors_of(machine: Machine, args: Any, kwargs: Any) -> Any:
    arrays = machine.foreign["numpy"]

    def as_tensor(leaf: Any) -> Any:
        if isinstance(leaf, ForeignProxy):
            return leaf.tensor  # type: ignore[attr-defined]
        return arrays.make_tensor(torch.tensor, (leaf,), {}) if _NUMPY.is_data(leaf) else leaf

    found = mapped(args[0], as_tensor)
    arrays.device = torch.device("cpu")
    return found


# ---------------------------------------------------------------- tensors of arrays, and back


@substitute_for(torch.from_numpy)
def _from_numpy(machine: Machine, args: Any, kwargs: Any) -> Any:
    (array,) = args
    if _NUMPY.is_data(array):
        return machine.foreign["numpy"].shared_tensor(array)
    return machine.tape.call_function(torch.from_numpy, args, kwargs)


@substitute_for(torch.asarray)
def _asarray(machine: Machine, args: Any, kwargs: Any) -> Any:
    if args and _NUMPY.is_data(args[0]) and not kwargs:
        return machine.foreign["numpy"].make_tensor(torch.asarray, args, kwargs)
    return machine.tape.call_function(torch.asarray, args, kwargs)


@substitute_for(torch.Tensor.numpy)
def _numpy(machine: Machine, args: Any, kwargs: Any) -> Any:
    (tensor,) = args
    if kwargs.get("force"):
        tensor = machine.tape.call_method("detach", (tensor,))
        tensor = machine.tape.call_method("cpu", (tensor,))
    return machine.foreign["numpy"].array_of(tensor)


@substitute_for(torch.Tensor.__array__)
def _array(machine: Machine, args: Any, kwargs: Any) -> Any:
    array = _numpy(machine, args[:1], {})
    dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
    return array if dtype is None else array.astype(dtype, copy=False)
