"""Objects of other libraries in captured frames, NumPy's arrays for one.

A room of this package captures the objects of one library. It registers a `ForeignLibrary`, which
knows the library's types without importing the library. The interpreter imports no room. It asks
this registry which library an object belongs to, and `OpenLibraries` opens the library when a frame
first meets one of its objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from flambeau_capture.interpreter.values.classes import Proxy

if TYPE_CHECKING:
    import torch

    from flambeau_capture.interpreter.protocols import Args, Kwargs
    from flambeau_capture.sources import Source


class ForeignProxy(Proxy):
    """Stands in for an object of a library."""

    __slots__ = ()

    def seen_type(self) -> type:
        """The library's type, which the program sees."""
        raise NotImplementedError


class ForeignObjects(Protocol):
    """The objects of one library in one capture."""

    def wrap(self, value: Any, source: Source) -> Any:
        """The frame's form of an object from before the call; None if it has no special form."""

    def call(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """A call of a class or C function of the library; NotImplemented for an ordinary class."""

    def call_python(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """A call of a Python function of the library; NotImplemented to have it interpreted."""

    def make_tensor(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """A torch function that makes a tensor, called on data of the library."""

    def tensor_index(self, key: Any) -> Any:
        """A subscript of a tensor with the library's objects in it replaced by torch's."""

    def tensor_item(self, tensor: torch.Tensor, value: Any) -> Any:
        """The value that is assigned to items of a tensor."""


class ForeignLibrary(Protocol):
    """A library by its types. None of the methods imports the library."""

    def owns(self, kind: type) -> bool:
        """Whether `ForeignObjects.wrap` decides about objects of a type."""

    def is_value(self, kind: type) -> bool:
        """Whether objects of a type are immutable and read natively."""

    def is_data(self, value: Any) -> bool:
        """Whether torch makes tensors of a value by `ForeignObjects.make_tensor`."""

    def is_callable(self, function: Any) -> bool:
        """Whether a callable is a class of the library, or written in C."""

    def open(self, machine: Any) -> ForeignObjects:
        """The library's objects in one capture."""


_LIBRARIES: dict[str, ForeignLibrary] = {}
"""By top-level module; filled when the rooms are imported."""


def register(module: str, library: ForeignLibrary) -> None:
    """Declare a library; a second one of the same top-level module is an error."""
    if module in _LIBRARIES:
        raise ValueError(f"{module} has two rooms")
    _LIBRARIES[module] = library


def is_value(kind: type) -> bool:
    """Whether objects of a type are immutable values of a library."""
    library = _library_of(kind.__module__)
    return library is not None and library.is_value(kind)


def _library_of(module: Any) -> ForeignLibrary | None:
    return _LIBRARIES.get(module.partition(".")[0]) if type(module) is str else None


class OpenLibraries:
    """The libraries whose objects one capture has met."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self._open: dict[str, ForeignObjects] = {}

    def __getitem__(self, module: str) -> Any:
        """The objects of the library of a top-level module, typed by the room that asks."""
        return self._opened(module)

    def _opened(self, module: str) -> ForeignObjects:
        found = self._open.get(module)
        if found is None:
            found = self._open[module] = _LIBRARIES[module].open(self._machine)
        return found

    def owner(self, kind: type) -> ForeignObjects | None:
        """The library that wraps objects of a type."""
        for module, library in _LIBRARIES.items():
            if library.owns(kind):
                return self._opened(module)
        return None

    def of_callable(self, function: Any) -> ForeignObjects | None:
        """The library whose class or C function this is."""
        for module, library in _LIBRARIES.items():
            if library.is_callable(function):
                return self._opened(module)
        return None

    def of_module(self, name: str) -> ForeignObjects | None:
        """The library of a module."""
        root = name.partition(".")[0]
        return self._opened(root) if root in _LIBRARIES else None

    def of_data(self, value: Any) -> ForeignObjects | None:
        """The library of whose data a tensor is made."""
        for module, library in _LIBRARIES.items():
            if library.is_data(value):
                return self._opened(module)
        return None

    def tensor_index(self, key: Any) -> Any:
        """A subscript of a tensor, in torch's terms."""
        for objects in self._open.values():
            key = objects.tensor_index(key)
        return key

    def tensor_item(self, tensor: torch.Tensor, value: Any) -> Any:
        """A value assigned to items of a tensor, in torch's terms."""
        for objects in self._open.values():
            value = objects.tensor_item(tensor, value)
        return value
