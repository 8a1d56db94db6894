"""Sources: where a value that existed before the call can be fetched from, again, on a later call.

    L['self'].layers[0].weight
    =   DictEntry(DictEntry(InstanceDict(Item(...)), '_parameters'), 'weight')

A source is an expression over the arguments of one call, the captured function, and objects that
outlive the call. Its leaves are arguments, globals, closure cells, constants and weak references;
every other source reads one part of its base, and reading it never runs user code (`CallOf` and
`Attribute`, the general fall-backs, are made only where that was checked).

Guards are statements about sources, graph inputs are loaded from them, and side effects write
through them. Each source has `text()`, the expression in the user's terms, and `load(scope)`, the
reference evaluation that the C guard programs agree with.

Sources are interned: equal expressions are one object, compared and hashed by identity. The table
holds them weakly: a source that nobody else holds goes, and its key with it. Threads may share it.
"""

from __future__ import annotations

import inspect
import itertools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeGuard, TypeVar, dataclass_transform

import torch

from flambeau_prims.fork_safety import fork_safe_rlock

T = TypeVar("T")

HEAP_TYPE = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`: types made by class statements (or by a C extension's spec), whose
`__eq__` may be the user's.
"""


@dataclass(frozen=True, slots=True)
class Scope:
    """What sources are evaluated on: one call of `function`, with its arguments bound.

    `arguments` is flat and in the order of the frame's fast locals: positional, keyword-only, the
    tuple of `*args`, the dict of `**kwargs`.
    """

    function: types.FunctionType
    arguments: tuple[Any, ...]


class SourceLost(LookupError):
    """The source has no value: a missing key, attribute or cell, or a dead object."""


# ---------------------------------------------------------------- interning


class Interning(type):
    """Metaclass: a call of the class returns the one object with these fields."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            args += tuple(kwargs[name] for name in cls.__match_args__[len(args) :])  # type: ignore[attr-defined]
        key = (
            cls,
            *[
                arg if type(arg) is str or isinstance(type(arg), Interning) else _interning_key(arg)
                for arg in args
            ],
        )
        reference = _INTERNED.get(key)
        found = None if reference is None else reference()
        if found is None:
            made = super().__call__(*args)
            with _LOCK:
                reference = _INTERNED.get(key)
                found = None if reference is None else reference()
                if found is None:
                    found = made
                    _INTERNED[key] = _Reference(made, key)
        return found


class _Reference(weakref.ref[Any]):
    """A weak reference to an interned value that removes its key when the value dies."""

    __slots__ = ("key",)
    key: tuple[Any, ...]

    def __new__(cls, value: Any, key: tuple[Any, ...]) -> _Reference:
        made = super().__new__(cls, value, _forget)
        made.key = key
        return made

    def __init__(self, value: Any, key: tuple[Any, ...]) -> None:
        super().__init__(value, _forget)  # type: ignore[call-arg]


def _forget(reference: Any) -> None:
    key = reference.key
    with _LOCK:
        if _INTERNED.get(key) is reference:
            del _INTERNED[key]


_INTERNED: dict[tuple[Any, ...], _Reference] = {}
_LOCK = fork_safe_rlock()
"""Re-entrant: the garbage collector may run a finalizer that makes such a value."""

COMPARED_BY_VALUE = (str, int, float, bool, bytes, type(None))
"""Types of the scalars in keys."""


def _interning_key(value: Any) -> Any:
    """The key of a value: objects and containers by identity, plain scalars by type and value. Ids
    are safe because the interned value holds the object.
    """
    if type(value) is float:
        return (float, value.hex())
    if type(value) in COMPARED_BY_VALUE:
        return (type(value), value)
    if type(value) is tuple:
        return (tuple, *(_interning_key(item) for item in value))
    return (object, id(value))


@dataclass_transform(eq_default=False, frozen_default=True)
def interned(cls: type[T]) -> type[T]:
    """Class decorator: a frozen, slotted dataclass, compared by identity."""
    return dataclass(frozen=True, slots=True, eq=False, repr=False)(cls)


# ---------------------------------------------------------------- the base


class Source(metaclass=Interning):
    """Base of all sources. Subclasses are frozen dataclasses; constructing one returns the interned
    object.

    A subclass gives its text as a `template` over its fields. Its `read` gets the values of the
    fields that are sources, in their order.
    """

    __slots__ = ("__weakref__",)

    template: ClassVar[str]
    __match_args__: ClassVar[tuple[str, ...]]
    bases: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that hold sources."""

    def __init_subclass__(cls) -> None:
        fields = inspect.get_annotations(cls)
        held = tuple(name for name, kind in fields.items() if "Source" in kind)
        cls.bases = held or cls.bases

    def text(self) -> str:
        """This source as an expression in the user's terms."""
        return self.template.format(self)

    def read(self, *values: Any) -> Any:
        """The value, from the values of the sources that it is read from."""
        raise NotImplementedError

    def load(self, scope: Scope) -> Any:
        """The value on this call; raises SourceLost if there is none."""
        values = [parent.load(scope) for parent in self.parents()]
        try:
            return self.read(*values)
        except Exception as error:
            raise SourceLost(self.text()) from error

    def parents(self) -> Iterator[Source]:
        """The sources this one reads from."""
        for name in self.bases:
            value = getattr(self, name)
            if isinstance(value, tuple):
                yield from value
            else:
                yield value

    def __repr__(self) -> str:
        return self.text()


# ---------------------------------------------------------------- leaves


@interned
class Argument(Source):
    """A bound argument of the captured function: `index` counts as `Scope.arguments` does."""

    name: str
    index: int
    template = "L[{0.name!r}]"

    def load(self, scope: Scope) -> Any:
        return scope.arguments[self.index]


@interned
class Global(Source):
    """A name in a module's globals, which are held strongly: modules outlive functions."""

    module_globals: dict[str, Any]
    name: str
    template = "G[{0.name!r}]"

    def read(self) -> Any:
        return self.module_globals[self.name]


@interned
class GlobalsDict(Source):
    """A module's globals dict, for guards on absent names that are builtins."""

    module_globals: dict[str, Any]
    module_name: str
    template = "vars({0.module_name})"

    def read(self) -> Any:
        return self.module_globals


@interned
class Closure(Source):
    """A closure cell of the captured function; `CellContents` reads it."""

    name: str
    index: int
    template = "cell({0.name})"

    def load(self, scope: Scope) -> Any:
        closure = scope.function.__closure__
        if closure is None:
            raise SourceLost(self.text())
        return closure[self.index]


@interned
class CapturedFunction(Source):
    """The captured function itself, from which its defaults and attributes are read."""

    name: str
    template = "{0.name}"

    def load(self, scope: Scope) -> Any:
        return scope.function


@interned
class Constant(Source):
    """An object known at capture, held strongly: scalars, builtins, types, code."""

    value: Any

    def text(self) -> str:
        if isinstance(self.value, (type, types.FunctionType, types.BuiltinFunctionType)):
            return f"{self.value.__module__}.{self.value.__qualname__}"
        if isinstance(self.value, types.ModuleType):
            return self.value.__name__
        kind = type(self.value)
        return repr(self.value) if kind in COMPARED_BY_VALUE else f"<{kind.__name__}>"

    def load(self, scope: Scope) -> Any:
        return self.value


@interned
class WeakrefTo(Source):
    """A user's object reachable other than through a source, held weakly; `name` is what the user
    calls it.

    Make it with `WeakrefTo.of`, so that one object has one weak reference and one source.
    """

    reference: weakref.ref[Any]
    name: str
    template = "{0.name}"

    @classmethod
    def of(cls, obj: Any, name: str = "") -> WeakrefTo:
        """The source of `obj`; TypeError where its type allows no weak references."""
        return cls(weakref.ref(obj), name or f"<{type(obj).__qualname__}>")

    def load(self, scope: Scope) -> Any:
        value = self.reference()
        if value is None:
            raise SourceLost(self.text())
        return value


# ---------------------------------------------------------------- parts of a base


@interned
class Attribute(Source):
    """`getattr(base, name)`, where that runs no user code: a slot, a C descriptor, or an attribute
    of a module object.

    Attributes kept in an instance's `__dict__` are `DictEntry(InstanceDict(base), name)`, which is
    cheaper and exact.
    """

    base: Source
    name: str
    template = "{0.base}.{0.name}"

    def read(self, base: Any) -> Any:
        return getattr(base, self.name)


@interned
class InstanceDict(Source):
    """`base.__dict__`, an instance's own attributes, past any `__getattribute__` of its class."""

    base: Source
    template = "{0.base}.__dict__"

    def read(self, base: Any) -> Any:
        if isinstance(base, type):
            raise TypeError("a class has no instance dict")
        return object.__getattribute__(base, "__dict__")


MODULE_TABLES = ("_parameters", "_buffers", "_modules")
"""The dicts of an nn.Module beside its `__dict__`, in the order in which it reads them."""


@interned
class DictEntry(Source):
    """`base[key]` of a dict (or a subclass: read as dict reads, past `__getitem__` and
    `__missing__`).

    The key is a constant, held strongly and looked up by its own hash and equality.
    """

    base: Source
    key: Any

    def text(self) -> str:
        base, key = self.base, self.key
        if isinstance(key, str):
            if isinstance(base, InstanceDict):
                return f"{base.base}.{key}"
            if isinstance(base, DictEntry) and base.key in MODULE_TABLES:
                if isinstance(base.base, InstanceDict):
                    return f"{base.base.base}{f'.{key}' if key.isidentifier() else f'[{key}]'}"
        if type(key) in COMPARED_BY_VALUE:
            return f"{base}[{key!r}]"
        return f"{base}[{getattr(key, '__name__', f'<{type(key).__name__}>')}]"

    def read(self, base: Any) -> Any:
        return dict_entry(base, self.key)


@interned
class DictKeyAt(Source):
    """The `index`-th key of a dict; not of an OrderedDict, which keeps a second order."""

    base: Source
    index: int
    template = "list({0.base})[{0.index}]"

    def read(self, base: Any) -> Any:
        if isinstance(base, OrderedDict):
            raise TypeError("an OrderedDict keeps a second order")
        return next(itertools.islice(dict.__iter__(base), self.index, None))


@interned
class DictEntryOf(Source):
    """`base[key]` of a dict, read as dict reads, for a key that is a source: a tensor, a module."""

    base: Source
    key: Source
    template = "{0.base}[{0.key}]"

    def read(self, base: Any, key: Any) -> Any:
        return dict_entry(base, key)


@interned
class Item(Source):
    """`base[index]` of a list or tuple, read as the builtin reads; `index` is not negative."""

    base: Source
    index: int
    template = "{0.base}[{0.index}]"

    def read(self, base: Any) -> Any:
        reader = list if isinstance(base, list) else tuple
        return reader.__getitem__(base, self.index)


@interned
class TypeOf(Source):
    """`type(base)`."""

    base: Source
    template = "type({0.base})"

    def read(self, base: Any) -> Any:
        return type(base)


@interned
class TypeAttribute(Source):
    """The raw attribute `name` along the MRO of a class, unbound (`_PyType_Lookup`)."""

    base: Source
    name: str
    template = "{0.base}.{0.name}"

    @classmethod
    def of(cls, owner: type, name: str) -> TypeAttribute:
        """The attribute of a class known now; one that a class statement made is held weakly."""
        if owner.__flags__ & HEAP_TYPE:
            return cls(WeakrefTo.of(owner, f"{owner.__module__}.{owner.__qualname__}"), name)
        return cls(Constant(owner), name)

    def read(self, base: Any) -> Any:
        return lookup_in_type(base, self.name)


@interned
class FunctionField(Source):
    """A part of a Python function: its code, defaults, kwdefaults, closure tuple or globals."""

    base: Source
    field: Literal["code", "defaults", "kwdefaults", "closure", "globals"]
    template = "{0.base}.__{0.field}__"

    def read(self, base: Any) -> Any:
        return getattr(types.FunctionType, f"__{self.field}__").__get__(base)


@interned
class MethodPart(Source):
    """The function or the instance of a bound method."""

    base: Source
    part: Literal["func", "self"]
    template = "{0.base}.__{0.part}__"

    def read(self, base: Any) -> Any:
        return getattr(types.MethodType, f"__{self.part}__").__get__(base)


@interned
class CellContents(Source):
    """What a closure cell holds."""

    base: Source

    def text(self) -> str:
        return self.base.name if isinstance(self.base, Closure) else f"{self.base}.cell_contents"

    def read(self, base: Any) -> Any:
        return types.CellType.cell_contents.__get__(base)  # type: ignore[attr-defined]


@interned
class TensorSize(Source):
    """Size of one dimension of a tensor, an int."""

    base: Source
    dim: int
    template = "{0.base}.size({0.dim})"

    def read(self, base: Any) -> Any:
        return torch.Tensor.size(base, self.dim)


@interned
class RootOfSize(Source):
    """The int n of a size scale*n + shift, an export's derived Dim whose root no tensor has."""

    base: Source
    dim: int
    scale: int
    shift: int

    def text(self) -> str:
        size = f"{self.base}.size({self.dim})"
        if self.shift:
            size = f"({size} - {self.shift})" if self.shift > 0 else f"({size} + {-self.shift})"
        return size if self.scale == 1 else f"{size} // {self.scale}"

    def read(self, base: Any) -> Any:
        return (torch.Tensor.size(base, self.dim) - self.shift) // self.scale


@interned
class TensorStride(Source):
    """Stride of one dimension of a tensor, in elements, an int."""

    base: Source
    dim: int
    template = "{0.base}.stride({0.dim})"

    def read(self, base: Any) -> Any:
        return torch.Tensor.stride(base, self.dim)


@interned
class GradOf(Source):
    """`base.grad` of a tensor (a tensor or None)."""

    base: Source
    template = "{0.base}.grad"

    def read(self, base: Any) -> Any:
        return torch.Tensor.grad.__get__(base)  # type: ignore[union-attr]


@interned
class CallOf(Source):
    """`function(*arguments)` for a function that only reads; the slowest source."""

    function: Callable[..., Any]
    arguments: tuple[Source, ...]

    def text(self) -> str:
        name = getattr(self.function, "__name__", repr(self.function))
        return f"{name}({', '.join(map(str, self.arguments))})"

    def read(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@interned
class MemoryOf(CallOf):
    """A tensor over an object's memory, made at each call; such tensors may overlap."""


def scalar_key(scalar: Any) -> tuple[str, bytes]:
    """What tells one NumPy scalar from another, to the last bit."""
    return scalar.dtype.str, scalar.tobytes()


def is_scalar_key(source: Source) -> TypeGuard[CallOf]:
    """Whether a source stands for the value of a NumPy scalar."""
    return isinstance(source, CallOf) and source.function is scalar_key


# ---------------------------------------------------------------- reading


class Absent:
    """The type of ABSENT, which stands for "no such attribute" as the value of a TypeAttribute."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


def dict_entry(mapping: dict[Any, Any], key: Any) -> Any:
    """`mapping[key]` past `__missing__`, which `dict.__getitem__` calls."""
    found = dict.get(mapping, key, ABSENT)
    if found is ABSENT:
        raise KeyError(key)
    return found


def lookup_in_type(cls: Any, name: str) -> Any:
    """The raw attribute along `cls.__mro__`, or ABSENT; runs no descriptor."""
    if not isinstance(cls, type):
        raise SourceLost(f"{cls!r} is not a class")
    for base in type.__dict__["__mro__"].__get__(cls):
        found = type.__dict__["__dict__"].__get__(base).get(name, ABSENT)
        if found is not ABSENT:
            return found
    return ABSENT


def module_table_entry(base: Source, table: str, name: str) -> DictEntry:
    """The source of a module's member; `table` is '_parameters', '_buffers' or '_modules'."""
    return DictEntry(DictEntry(InstanceDict(base), table), name)
