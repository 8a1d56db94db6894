"""Subscripts and iteration: `obj[key]`, `obj[key] = value`, `del obj[key]`, iterators.

Iterators are made and advanced natively, or by interpreting `__iter__` and `__next__`.
"""

from __future__ import annotations

import collections
import functools
import operator
import sys
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.semantics.attributes import load_attr, load_global_value
from flambeau_capture.interpreter.values.classes import (
    MISSING,
    SYMBOLIC_NUMBERS,
    Proxy,
    accept,
    as_index,
    lookup,
    python_method,
)
from flambeau_capture.interpreter.values.keys import native_key
from flambeau_capture.interpreter.values.objects import DELETED
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import ABSENT, CallOf, DictEntryOf, GlobalsDict
from flambeau_capture.trusted import is_trusted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.protocols import RecipeMaker
    from flambeau_capture.record import Recipe

_READ_AT_ONCE = (
    str, bytes, int, float, tuple, frozenset, types.MappingProxyType, type, types.ModuleType,
)  # fmt: skip
"""What native code may read whole: it does not change in a call, or is guarded in other ways."""
_SEQUENCES = frozenset({list, tuple, str, bytes, bytearray, range, collections.deque, torch.Size})


def load_item(machine: Machine, obj: Any, key: Any) -> Any:
    """`obj[key]`."""
    kind = type(obj)
    if (kind is list or kind is tuple) and type(key) is int:
        return obj[key]
    if isinstance(obj, torch.Tensor):
        key = _tensor_index(machine, machine.foreign.tensor_index(key))
        if machine.positions and _holds_positions(key):
            return _item_at_positions(machine, obj, key)
        return machine.tape.getitem(obj, key)
    if isinstance(obj, type):
        method = python_method(machine, type(obj), "__getitem__")
        if method is not None:
            return machine.call(method, (obj, key), {})
        method = python_method(machine, obj, "__class_getitem__")
        if method is not None and not is_trusted(method.__module__):
            return machine.call(method, (obj, key), {})
        return operator.getitem(obj, key)  # type: ignore[call-overload]
    method = python_method(machine, kind, "__getitem__")
    if method is not None:
        return machine.call(method, (obj, key), {})
    if isinstance(obj, dict):
        return dict_item(machine, obj, key)
    guard_native_read(machine, obj)
    return obj[as_index(machine, key) if kind in _SEQUENCES else key]


def _tensor_index(machine: Machine, key: Any) -> Any:
    """An index of a tensor as graphs hold it: lists instead of ranges, ints of `__index__`."""
    if isinstance(key, range):
        return list(key)
    if isinstance(key, tuple) and any(isinstance(item, range) for item in key):
        return tuple(list(item) if isinstance(item, range) else item for item in key)
    is_sequence = lookup(machine, type(key), "__getitem__") is not MISSING
    return key if is_sequence else as_index(machine, key)


def _holds_positions(key: Any) -> bool:
    """Whether an index is of tensors of ints, ints and whole dims, and holds a tensor."""
    items = key if isinstance(key, tuple) else (key,)
    return any(isinstance(item, torch.Tensor) for item in items) and all(
        type(item) is int
        or (isinstance(item, torch.Tensor) and item.dtype in _POSITIONS)
        or (isinstance(item, slice) and item == slice(None))
        for item in items
    )


def _item_at_positions(machine: Machine, obj: torch.Tensor, key: Any) -> Any:
    """`obj[key]` for positions that are mapped over, which are tensors of no dims: the program's
    operator would read the number.
    """
    items = key if isinstance(key, tuple) else (key,)
    if any(type(item) is int for item in items):
        numbers = tuple(item if type(item) is int else slice(None) for item in items)
        obj = machine.tape.getitem(obj, numbers)
    places = [
        item if isinstance(item, torch.Tensor) else None for item in items if type(item) is not int
    ]
    return machine.tape.call_function(torch.ops.aten.index.Tensor, (obj, places))


_POSITIONS = (torch.int64, torch.int32, torch.int16, torch.int8)


def dict_item(machine: Machine, obj: dict[Any, Any], key: Any) -> Any:
    """`dict.__getitem__(obj, key)`; `__missing__` and factories in Python are interpreted."""
    key = native_key(machine, key, obj)
    if machine.objects.is_known(obj):
        return lazy_dict_item(machine, obj, key)
    found = dict.get(obj, key, ABSENT)  # dict's own lookup of an entry calls `__missing__`
    if found is not ABSENT:
        return found
    missing = python_method(machine, type(obj), "__missing__")
    if missing is not None:
        return machine.call(missing, (obj, key), {})
    if isinstance(obj, collections.defaultdict) and obj.default_factory is not None:
        value = machine.call(obj.default_factory, (), {})
        obj[key] = value
        return value
    return dict.__getitem__(obj, key)  # it raises, or calls a `__missing__` that is native


def store_item(machine: Machine, obj: Any, key: Any, value: Any) -> None:
    """`obj[key] = value`."""
    if isinstance(obj, torch.Tensor):
        key = machine.foreign.tensor_index(key)
        value = machine.foreign.tensor_item(obj, value)
        machine.tape.setitem(obj, _tensor_index(machine, key), value)
        return
    method = python_method(machine, type(obj), "__setitem__")
    if method is not None:
        machine.call(method, (obj, key, value), {})
        return
    if _is_module_dict(machine, obj):
        machine.objects.write_global(obj, key, value)
        return
    _check_native(machine, obj)
    obj[_native_index(machine, obj, key)] = value


def delete_item(machine: Machine, obj: Any, key: Any) -> None:
    """`del obj[key]`."""
    method = python_method(machine, type(obj), "__delitem__")
    if method is not None:
        machine.call(method, (obj, key), {})
        return
    if _is_module_dict(machine, obj):
        load_global_value(machine, obj, key)  # raises where there is none
        machine.objects.write_global(obj, key, DELETED)
        return
    _check_native(machine, obj)
    del obj[_native_index(machine, obj, key)]


def _is_module_dict(machine: Machine, obj: Any) -> bool:
    return machine.objects.is_known(obj) and type(machine.objects.source_of(obj)) is GlobalsDict


def _native_index(machine: Machine, obj: Any, key: Any) -> Any:
    if isinstance(obj, dict):
        return native_key(machine, key, obj)
    return as_index(machine, key) if type(obj) in _SEQUENCES else key


@dataclass(slots=True)
class WrittenDicts:
    """Dicts read entry by entry that the frame writes to: it is interpreted again, with copies."""

    found: list[dict[Any, Any]] = field(default_factory=list)


def _check_native(machine: Machine, obj: Any) -> None:
    if machine.objects.is_known(obj) and not isinstance(obj, (tuple, types.MappingProxyType)):
        if type(obj) is dict:
            machine.state_of(WrittenDicts).found.append(obj)
        detail = f"an item of a {type(obj).__name__} is set or deleted"
        raise GraphBreak("unsupported-mutation", detail)


# ---------------------------------------------------------------- iteration

EXHAUSTED = object()
"""What `advance` returns at the end; `Machine.stop_value` then holds the StopIteration's value."""

_CONTAINERS = frozenset({
    list, tuple, dict, set, frozenset, range, str, bytes, torch.Size, type({}.keys()),
    type({}.values()), type({}.items()),
})  # fmt: skip


class InterpretedIterator(Proxy):
    """Presents an iterator whose `__next__` is written in Python to native code."""

    __slots__ = ("iterator", "machine")

    def __init__(self, machine: Machine, iterator: Any) -> None:
        self.machine, self.iterator = machine, iterator

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        item = advance(self.machine, self.iterator)
        if item is EXHAUSTED:
            value = self.machine.stop_value
            raise StopIteration if value is None else StopIteration(value)
        return item


class SizedIterator(InterpretedIterator):
    """The iterator of an object whose length, or hint of it, is Python: `list` asks for it."""

    __slots__ = ("sized",)

    def __init__(self, machine: Machine, iterator: Any, sized: Any) -> None:
        super().__init__(machine, iterator)
        self.sized = sized

    def __length_hint__(self) -> Any:
        machine, kind = self.machine, type(self.sized)
        length = python_method(machine, kind, "__len__")
        if length is not None:
            try:
                found = accept(len, "__len__", machine.call(length, (self.sized,), {}))
                return found if isinstance(found, int) else NotImplemented
            except TypeError:
                pass  # then the hint is asked, as `operator.length_hint` does
        hint = python_method(machine, kind, "__length_hint__")
        if hint is None:
            return NotImplemented
        found = machine.call(hint, (self.sized,), {})
        return NotImplemented if type(found) in SYMBOLIC_NUMBERS else found


class SequenceIterator(Proxy):
    """Iterates an object that has a `__getitem__` written in Python, and no `__iter__`."""

    __slots__ = ("exhausted", "index", "machine", "sequence")

    def __init__(self, machine: Machine, sequence: Any) -> None:
        self.machine, self.sequence, self.index = machine, sequence, 0
        self.exhausted = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.exhausted:
            raise StopIteration
        try:
            item = load_item(self.machine, self.sequence, self.index)
        except (IndexError, StopIteration):
            self.exhausted = True
            raise StopIteration from None
        self.index += 1
        return item


class ReversibleSequence(Proxy):
    """Presents a sequence with `__len__` or `__getitem__` in Python to `reversed`."""

    __slots__ = ("machine", "sequence")

    def __init__(self, machine: Machine, sequence: Any) -> None:
        self.machine, self.sequence = machine, sequence

    def __len__(self) -> Any:
        return self.machine.call(len, (self.sequence,), {})

    def __getitem__(self, index: int) -> Any:
        return load_item(self.machine, self.sequence, index)

    def recipe(self, rebuild: RecipeMaker) -> Recipe | None:
        """The recipe of the sequence itself."""
        return rebuild.recipe(self.sequence)


def note_order(machine: Machine, obj: Any) -> None:
    """Note that the frame may see the order of a set, which is that of hashes, and so of the
    process.
    """
    if isinstance(obj, (set, frozenset)) and len(obj) > 1:
        if any(type(item) is not int for item in obj):
            machine.of_the_process = machine.of_the_process or "the order of a set"


def iterate(machine: Machine, obj: Any) -> Any:
    """`iter(obj)`."""
    kind = type(obj)
    note_order(machine, obj)
    if kind in _CONTAINERS:
        return iter(machine.objects.read_whole(obj))
    if isinstance(obj, torch.Tensor):
        if obj.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return iter(machine.tape.call_method("unbind", (obj, 0)))
    if issubclass(kind, Proxy):
        return iter(obj)
    if issubclass(kind, type):
        method = python_method(machine, kind, "__iter__")
        return (
            iter(obj)
            if method is None or isinstance(obj, type)
            else machine.call(method, (obj,), {})
        )
    method = python_method(machine, kind, "__iter__")
    if method is not None:
        iterator = machine.call(method, (obj,), {})
        if python_method(machine, type(iterator), "__next__") is None:
            accept(iter, "__iter__", iterator)
        return iterator
    if lookup(machine, kind, "__iter__") is MISSING:
        if python_method(machine, kind, "__getitem__") is not None:
            return SequenceIterator(machine, obj)
        raise TypeError(f"{kind.__name__!r} object is not iterable")
    if machine.objects.is_known(obj):
        if isinstance(obj, dict):
            return iter(machine.objects.whole_dict(obj))
        if not isinstance(obj, (tuple, frozenset, types.MappingProxyType)):
            detail = f"a {kind.__name__} made outside the function is iterated"
            raise GraphBreak("unstable-iteration", detail)
    return iter(obj)


_FUNCTION_NUMBERS = torch.autograd.function.AUTOGRAD_FUNCTION_COUNTER
"""Numbers the classes of custom autograd functions. Only that they differ matters, so capture takes
one for each class that it makes.
"""


def advance(machine: Machine, iterator: Any) -> Any:
    """The next item, or EXHAUSTED."""
    kind = type(iterator)
    method = python_method(machine, kind, "__next__")
    if method is None:
        if machine.objects.is_known(iterator) and iterator is not _FUNCTION_NUMBERS:
            detail = f"a {kind.__name__} made outside the function is advanced"
            raise GraphBreak("unstable-iteration", detail)
        try:
            return next(iterator)
        except StopIteration as stop:
            machine.stop_value = stop.value
            return EXHAUSTED
    try:
        return machine.call(method, (iterator,), {})
    except StopIteration as stop:
        machine.stop_value = stop.value
        return EXHAUSTED


def native_iterable(machine: Machine, obj: Any) -> Any:
    """Something that native code may iterate and that gives what iterating `obj` gives."""
    kind = type(obj)
    note_order(machine, obj)
    if kind in _CONTAINERS or issubclass(kind, Proxy):
        return machine.objects.read_whole(obj)
    iterator = iterate(machine, obj)
    if python_method(machine, kind, "__len__") or python_method(machine, kind, "__length_hint__"):
        return SizedIterator(machine, iterator, obj)
    if python_method(machine, type(iterator), "__next__") is not None:
        return InterpretedIterator(machine, iterator)
    return iterator


def starred(machine: Machine, obj: Any) -> Any:
    """What `*obj` gives in a call or a list, as `native_iterable`; None if it is not iterable."""
    try:
        items = native_iterable(machine, obj)
    except TypeError:
        if hasattr(type(obj), "__iter__"):
            raise
        return None
    return items if hasattr(type(items), "__iter__") else None


def _has_key(mapping: dict[Any, Any], key: Any) -> bool:
    return dict.__contains__(mapping, key)


def lazy_dict_item(machine: Machine, mapping: dict[Any, Any], key: Any) -> Any:
    """One entry of a big dict that existed before the call."""
    source = machine.objects.source_of(mapping)
    assert source is not None
    if isinstance(source, GlobalsDict):
        return load_global_value(machine, mapping, key)
    if not lazy_dict_has(machine, mapping, key):
        raise KeyError(key)
    written = machine.objects.written_global(mapping, key)
    if written is not MISSING:
        return written
    value = mapping[_real_key(machine, key)]
    return machine.objects.wrap(value, machine.objects.entry_source(source, key))


def lazy_dict_has(machine: Machine, mapping: dict[Any, Any], key: Any) -> bool:
    """Whether a big dict that existed before the call has a key."""
    source = machine.objects.source_of(mapping)
    assert source is not None
    written = machine.objects.written_global(mapping, key)
    if written is not MISSING:
        return written is not DELETED
    found = _real_key(machine, key) in mapping
    entry = machine.objects.entry_source(source, key)
    if isinstance(entry, DictEntryOf):
        if not found:
            has_key = CallOf(_has_key, (source, entry.key))
            machine.guard("PREDICATE", has_key, (operator.not_, "False"))
    elif not isinstance(key, torch.Tensor) and not _is_import_of_library(machine, mapping):
        machine.guard("HAS_KEY" if found else "ABSENT", source, key)
    return found


def _is_import_of_library(machine: Machine, mapping: Any) -> bool:
    """Whether a library asks what is imported, by which it only spares itself work."""
    frame = machine.frame
    return (
        mapping is sys.modules and frame is not None and machine.functions.is_library(frame.globals)
    )


def _real_key(machine: Machine, key: Any) -> Any:
    """What the program's own dicts hold for a key that the frame sees."""
    if isinstance(key, torch.Tensor):
        found = machine.tape.input_of(key)
        return key if found is None else found[0]
    tracked = machine.objects.tracked_copies.get(id(key))
    return key if tracked is None else tracked.real


def mapping_items(machine: Machine, mapping: Any) -> Any:
    """The entries of a mapping written in Python, as pairs."""
    keys = machine.call(load_attr(machine, mapping, "keys"), (), {})
    return [(key, load_item(machine, mapping, key)) for key in native_iterable(machine, keys)]


# ---------------------------------------------------------------- native reads


def guard_native_read(machine: Machine, obj: Any) -> None:
    """Native code is about to read a whole object that existed before the call."""
    found = machine.objects.known.get(id(obj))
    if found is None or isinstance(obj, _READ_AT_ONCE) or id(obj) in machine.objects.values:
        return
    if isinstance(obj, dict) and not machine.objects.has_written_globals(obj):
        machine.guard("LENGTH", found[1], len(obj))
        return
    detail = f"contents of a {type(obj).__module__}.{type(obj).__qualname__} are read"
    raise GraphBreak("unsupported-input", detail)


def guard_operands(machine: Machine, name: str, *operands: Any) -> None:
    """Native code of the operands' types is about to read those that have the method `name`."""
    for operand in operands:
        if machine.objects.is_known(operand):
            raw = lookup(machine, type(operand), name)
            if type(raw) is not types.WrapperDescriptorType:
                guard_value(machine, operand, raw)
            elif raw.__objclass__ is not object:
                guard_native_read(machine, operand)


def is_instance_method(obj: Any) -> bool:
    """Whether an object is a function that an extension (pybind11) has made a method of a class."""
    return type(obj).__name__ == "instancemethod" and hasattr(obj, "__func__")


def guard_value(machine: Machine, obj: Any, method: Any) -> None:
    """A method that an extension has defined (pybind11) is about to read an object that existed
    before the call. Those of torch are constants, such as a DTensor's placements.
    """
    if not is_instance_method(method):
        return
    if (type(obj).__module__ or "").partition(".")[0] != "torch":
        detail = f"contents of a {type(obj).__module__}.{type(obj).__qualname__} are read"
        raise GraphBreak("unsupported-input", detail)
    source = machine.objects.source_of(obj)
    if source is not None:
        equals = functools.partial(operator.eq, obj), f"equals {obj!r}"
        machine.guard("PREDICATE", source, equals)


def check_receiver(machine: Machine, receiver: Any) -> None:
    """GraphBreak if a method of a C type may change or advance an object from before the call."""
    if not machine.objects.is_known(receiver) or id(receiver) in machine.objects.values:
        return
    if isinstance(receiver, (*_READ_AT_ONCE, types.FunctionType)):
        return
    if type(receiver).__module__ in ("re", "enum", "torch") or isinstance(receiver, dict):
        return
    detail = f"a method of a {type(receiver).__name__} that existed before the call"
    raise GraphBreak("unknown-c-function", detail)
