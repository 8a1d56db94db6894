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

Sources are interned (interning.py): equal expressions are one object, compared and hashed by
identity.
"""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeGuard

import torch

from flambeau_capture.interning import COMPARED_BY_VALUE, Interning, interned


@dataclass(frozen=True, slots=True)
class Scope:
    """What sources are evaluated on: one call of `function`, with its arguments bound.

    `arguments` is flat and in the order of the frame's fast locals: positional, keyword-only, the
    tuple of `*args`, the dict of `**kwargs`.
    """

    function: types.FunctionType
    arguments: tuple[Any, ...]


class SourceLost(LookupError):
    """The value of a source is no longer there: a key, attribute or cell is missing, or an object
    has died.
    """


class Source(metaclass=Interning):
    """Base of all sources. Subclasses are frozen dataclasses; constructing one returns the interned
    object.
    """

    __slots__ = ("__weakref__",)

    bases: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that hold sources."""

    def text(self) -> str:
        """This source as an expression in the user's terms."""
        raise NotImplementedError

    def load(self, scope: Scope) -> Any:
        """The value on this call; raises OriginLost where there is none."""
        raise NotImplementedError

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

    def text(self) -> str:
        return f"L[{self.name!r}]"

    def load(self, scope: Scope) -> Any:
        return scope.arguments[self.index]


@interned
class Global(Source):
    """A name in a module's globals (a dict, held strongly: modules outlive the functions made in
    them).
    """

    module_globals: dict[str, Any]
    name: str

    def text(self) -> str:
        return f"G[{self.name!r}]"

    def load(self, scope: Scope) -> Any:
        try:
            return self.module_globals[self.name]
        except KeyError:
            raise SourceLost(self.text()) from None


@interned
class GlobalsDict(Source):
    """A module's globals dict itself (for guards that a name is absent there, so that builtins are
    searched).
    """

    module_globals: dict[str, Any]
    module_name: str

    def text(self) -> str:
        return f"vars({self.module_name})"

    def load(self, scope: Scope) -> Any:
        return self.module_globals


@interned
class Closure(Source):
    """A closure cell (the cell, not its contents) of the captured function. `CellContents` reads
    it.
    """

    name: str
    index: int

    def text(self) -> str:
        return f"cell({self.name})"

    def load(self, scope: Scope) -> Any:
        closure = scope.function.__closure__
        if closure is None:
            raise SourceLost(self.text())
        return closure[self.index]


@interned
class CapturedFunction(Source):
    """The function being captured itself (its defaults and attributes hang below it)."""

    name: str

    def text(self) -> str:
        return self.name

    def load(self, scope: Scope) -> Any:
        return scope.function


@interned
class Constant(Source):
    """An object known when the frame was captured, held strongly: scalars, builtins, types, code,
    torch's own functions.
    """

    value: Any

    def text(self) -> str:
        if isinstance(self.value, (type, types.FunctionType, types.BuiltinFunctionType)):
            return f"{self.value.__module__}.{self.value.__qualname__}"
        if isinstance(self.value, types.ModuleType):
            return self.value.__name__
        return (
            repr(self.value)
            if type(self.value) in COMPARED_BY_VALUE
            else f"<{type(self.value).__name__}>"
        )

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

    @classmethod
    def of(cls, obj: Any, name: str = "") -> WeakrefTo:
        """The source of `obj`; TypeError where its type allows no weak references."""
        return cls(weakref.ref(obj), name or f"<{type(obj).__qualname__}>")

    def text(self) -> str:
        return self.name

    def load(self, scope: Scope) -> Any:
        found = self.reference()
        if found is None:
            raise SourceLost(self.text())
        return found


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
    bases = ("base",)

    def text(self) -> str:
        return f"{self.base.text()}.{self.name}"

    def load(self, scope: Scope) -> Any:
        try:
            return getattr(self.base.load(scope), self.name)
        except AttributeError:
            raise SourceLost(self.text()) from None


@interned
class InstanceDict(Source):
    """`base.__dict__`, an instance's own attributes, past any `__getattribute__` of its class."""

    base: Source
    bases = ("base",)

    def text(self) -> str:
        return f"{self.base.text()}.__dict__"

    def load(self, scope: Scope) -> Any:
        obj = self.base.load(scope)
        if isinstance(obj, type):
            raise SourceLost(f"{self.text()}: a class has no instance dict")
        try:
            return object.__getattribute__(obj, "__dict__")
        except AttributeError:
            raise SourceLost(self.text()) from None


MODULE_TABLES = ("_parameters", "_buffers", "_modules")
"""The dicts in which an nn.Module keeps what is not in its own `__dict__`, in the order it looks
them up.
"""


@interned
class DictEntry(Source):
    """`base[key]` of a dict (or a subclass: read as dict reads, past `__getitem__` and
    `__missing__`).

    The key is a constant, held strongly and found by its own hash and equality.
    """

    base: Source
    key: Any
    bases = ("base",)

    def text(self) -> str:
        base = self.base
        if isinstance(base, InstanceDict) and isinstance(self.key, str):
            return f"{base.base.text()}.{self.key}"
        if (
            isinstance(base, DictEntry)
            and isinstance(base.base, InstanceDict)
            and base.key in MODULE_TABLES
            and isinstance(self.key, str)
        ):
            owner = base.base.base.text()
            return f"{owner}.{self.key}" if self.key.isidentifier() else f"{owner}[{self.key}]"
        return f"{base.text()}[{_key_text(self.key)}]"

    def load(self, scope: Scope) -> Any:
        try:
            return dict.__getitem__(self.base.load(scope), self.key)
        except (KeyError, TypeError):
            raise SourceLost(self.text()) from None


@interned
class DictKeyAt(Source):
    """The `index`-th key of a dict (or a subclass but OrderedDict, which keeps an order of its
    own), in its order.
    """

    base: Source
    index: int
    bases = ("base",)

    def text(self) -> str:
        return f"list({self.base.text()})[{self.index}]"

    def load(self, scope: Scope) -> Any:
        table = self.base.load(scope)
        if isinstance(table, dict) and not isinstance(table, OrderedDict):
            for at, key in enumerate(dict.__iter__(table)):
                if at == self.index:
                    return key
        raise SourceLost(self.text())


@interned
class DictEntryOf(Source):
    """`base[key]` of a dict (or a subclass, read as dict reads) for a key that is itself fetched: a
    tensor, a module.
    """

    base: Source
    key: Source
    bases = ("base", "key")

    def text(self) -> str:
        return f"{self.base.text()}[{self.key.text()}]"

    def load(self, scope: Scope) -> Any:
        try:
            return dict.__getitem__(self.base.load(scope), self.key.load(scope))
        except (KeyError, TypeError):
            raise SourceLost(self.text()) from None


@interned
class Item(Source):
    """`base[index]` of a list or a tuple (or a subclass, read as list or tuple reads); `index` is
    not negative.
    """

    base: Source
    index: int
    bases = ("base",)

    def text(self) -> str:
        return f"{self.base.text()}[{self.index}]"

    def load(self, scope: Scope) -> Any:
        obj = self.base.load(scope)
        reader = list if isinstance(obj, list) else tuple
        try:
            return reader.__getitem__(obj, self.index)
        except (IndexError, TypeError):
            raise SourceLost(self.text()) from None


@interned
class TypeOf(Source):
    """`type(base)`."""

    base: Source
    bases = ("base",)

    def text(self) -> str:
        return f"type({self.base.text()})"

    def load(self, scope: Scope) -> Any:
        return type(self.base.load(scope))


@interned
class TypeAttribute(Source):
    """The raw attribute `name` found along the MRO of the class `base`, without binding it
    (`_PyType_Lookup`).
    """

    base: Source
    name: str
    bases = ("base",)

    def text(self) -> str:
        return f"{self.base.text()}.{self.name}"

    def load(self, scope: Scope) -> Any:
        return lookup_in_type(self.base.load(scope), self.name)


@interned
class FunctionField(Source):
    """A part of a Python function: its code, defaults, kwdefaults, closure tuple, globals or own
    `__dict__`.
    """

    base: Source
    field: Literal["code", "defaults", "kwdefaults", "closure", "globals"]
    bases = ("base",)

    def text(self) -> str:
        return f"{self.base.text()}.__{self.field}__"

    def load(self, scope: Scope) -> Any:
        function = self.base.load(scope)
        if type(function) is not types.FunctionType:
            raise SourceLost(self.text())
        return getattr(function, f"__{self.field}__")


@interned
class MethodPart(Source):
    """The function or the instance of a bound method."""

    base: Source
    part: Literal["func", "self"]
    bases = ("base",)

    def text(self) -> str:
        return f"{self.base.text()}.__{self.part}__"

    def load(self, scope: Scope) -> Any:
        method = self.base.load(scope)
        if type(method) is not types.MethodType:
            raise SourceLost(self.text())
        return method.__func__ if self.part == "func" else method.__self__


@interned
class CellContents(Source):
    """What a closure cell holds."""

    base: Source
    bases = ("base",)

    def text(self) -> str:
        return (
            self.base.name
            if isinstance(self.base, Closure)
            else f"{self.base.text()}.cell_contents"
        )

    def load(self, scope: Scope) -> Any:
        cell = self.base.load(scope)
        if type(cell) is not types.CellType:
            raise SourceLost(self.text())
        try:
            return cell.cell_contents
        except ValueError:
            raise SourceLost(self.text()) from None


@interned
class TensorSize(Source):
    """Size of one dimension of a tensor, an int."""

    base: Source
    dim: int
    bases = ("base",)

    def text(self) -> str:
        return f"{self.base.text()}.size({self.dim})"

    def load(self, scope: Scope) -> Any:
        tensor = self.base.load(scope)
        if not isinstance(tensor, torch.Tensor) or not 0 <= self.dim < tensor.ndim:
            raise SourceLost(self.text())
        return tensor.size(self.dim)


@interned
class RootOfSize(Source):
    """The int n of which a size is scale*n + shift: of a derived dimension (an export's `2*batch`)
    whose root no tensor has.
    """

    base: Source
    dim: int
    scale: int
    shift: int
    bases = ("base",)

    def text(self) -> str:
        size = f"{self.base.text()}.size({self.dim})"
        if self.shift:
            size = f"({size} - {self.shift})" if self.shift > 0 else f"({size} + {-self.shift})"
        return size if self.scale == 1 else f"{size} // {self.scale}"

    def load(self, scope: Scope) -> Any:
        return (TensorSize(self.base, self.dim).load(scope) - self.shift) // self.scale


@interned
class TensorStride(Source):
    """Stride of one dimension of a tensor, in elements, an int."""

    base: Source
    dim: int
    bases = ("base",)

    def text(self) -> str:
        return f"{self.base.text()}.stride({self.dim})"

    def load(self, scope: Scope) -> Any:
        tensor = self.base.load(scope)
        if not isinstance(tensor, torch.Tensor) or not 0 <= self.dim < tensor.ndim:
            raise SourceLost(self.text())
        return tensor.stride(self.dim)


@interned
class GradOf(Source):
    """`base.grad` of a tensor (a tensor or None)."""

    base: Source
    bases = ("base",)

    def text(self) -> str:
        return f"{self.base.text()}.grad"

    def load(self, scope: Scope) -> Any:
        tensor = self.base.load(scope)
        if not isinstance(tensor, torch.Tensor):
            raise SourceLost(self.text())
        return tensor.grad


@interned
class CallOf(Source):
    """`function(*arguments)` for a function that only reads: the general fall-back, and the
    slowest.
    """

    function: Callable[..., Any]
    arguments: tuple[Source, ...]
    bases = ("arguments",)

    def text(self) -> str:
        name = getattr(self.function, "__name__", repr(self.function))
        return f"{name}({', '.join(argument.text() for argument in self.arguments)})"

    def load(self, scope: Scope) -> Any:
        values = [argument.load(scope) for argument in self.arguments]
        try:
            return self.function(*values)
        except Exception as error:
            raise SourceLost(self.text()) from error


@interned
class MemoryOf(CallOf):
    """A tensor over the memory of an object, made at each call: such tensors may overlap, although
    each has a storage of its own.
    """


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
    """The source of a parameter, buffer or submodule of an nn.Module: `table` is '_parameters',
    '_buffers' or '_modules'.
    """
    return DictEntry(DictEntry(InstanceDict(base), table), name)


def _key_text(key: Any) -> str:
    return (
        repr(key)
        if type(key) in COMPARED_BY_VALUE
        else getattr(key, "__name__", f"<{type(key).__name__}>")
    )
