"""The door to `arrays`: which objects are NumPy's, without importing NumPy (it may not be
installed).
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.numpy.table import Arrays
    from flambeau_capture.sources import Source

_KINDS = frozenset({"ndarray", "ufunc", "_ArrayFunctionDispatcher"})


def is_numpy(module: Any) -> bool:
    """Whether a module's name is NumPy's or of its parts."""
    return type(module) is str and (module == "numpy" or module.startswith("numpy."))


def is_of_numpy(kind: type) -> bool:
    """Whether a type is NumPy's, or derives from ndarray."""
    if is_numpy(kind.__module__):
        return True
    ndarray = getattr(sys.modules.get("numpy"), "ndarray", None)
    return ndarray is not None and issubclass(kind, ndarray)


def is_value(kind: type) -> bool:
    """Whether a type is one of NumPy's whose objects are immutable: scalars, dtypes, and functions."""
    return (
        is_numpy(kind.__module__)
        and kind.__name__ != "ndarray"
        and (
            kind.__name__ in _KINDS
            or any(base.__name__ in ("generic", "dtype") for base in kind.__mro__)
        )
    )


def is_callable(function: Any) -> bool:
    """Whether a callable is NumPy's and written in C: a ufunc, a dispatching function, a builtin, a
    method of one, or a class.
    """
    kind = type(function)
    if is_numpy(kind.__module__):
        return True
    if isinstance(function, type):
        return is_numpy(function.__module__)
    if kind is types.BuiltinFunctionType:
        receiver = function.__self__
        return is_numpy(function.__module__) or is_numpy(type(receiver).__module__)
    return kind.__name__ == "cython_function_or_method" and _is_random(function)


def _is_random(function: Any) -> bool:
    receiver = getattr(function, "__self__", None)
    return is_numpy(getattr(function, "__module__", None)) or is_numpy(type(receiver).__module__)


def table_of(machine: Machine) -> Arrays:
    """The capture's table of arrays, made at first need."""
    found: Any = machine.arrays
    if found is None:
        numpy: Any = sys.modules["numpy"]
        if int(numpy.__version__.partition(".")[0]) < 2:
            raise GraphBreak(
                "numpy-unsupported", f"NumPy {numpy.__version__}, which is older than 2.0"
            )
        _part("").load_all()
        found = machine.arrays = _part(".table").Arrays(machine)
    return found  # type: ignore[no-any-return]


def _part(name: str) -> Any:
    """A module of `arrays`, which imports NumPy, and of the interpreter what imports this file."""
    return importlib.import_module(f"flambeau_capture.numpy{name}")


def wrap(machine: Machine, value: Any, source: Source) -> Any:
    """An object of NumPy's as the frame may see it, or None for one without a special form."""
    return table_of(machine).wrap(value, source)


def call(machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call for which `is_callable` holds."""
    table_of(machine)
    return _part(".functions").call_numpy(machine, function, args, kwargs)


def call_python(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call of one of NumPy's functions written in Python, or NotImplemented where it is to be
    interpreted.
    """
    table_of(machine)
    return _part(".functions").call_python(machine, function, args, kwargs)


def array_of(machine: Machine, tensor: Any) -> Any:
    """`tensor.numpy()`."""
    table_of(machine)
    return _part(".base").from_tensor(machine, tensor)
