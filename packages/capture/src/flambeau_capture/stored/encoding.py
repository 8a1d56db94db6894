"""Guards, sources and constants -> JSON. `decoding` is the way back.

    IS L['self'].act <function relu>   ->   ["IS", 7, {"held": {"object": 3}}, 0]
    source 7                           ->   ["DictEntry", 6, "act"]    (of source 6)
    object 3                           ->   [["path", "torch.nn.functional", "relu"], "function .."]
    place 0                            ->   "model.py:12"
    spec 2 (in {"spec": 2})            ->   [[8, 4], [4, 1], "float32", "cpu", 0]

An object of the program is a number in a table. The table says how another process finds its own
one, by the first of these ways that leads to it here: the name of a module, a name within a module
or class, or a source that the guards compare it with. It also says how the object must be described
(`descriptions`). Places and Specs are in tables because many guards share one.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
import typing
import weakref
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import torch
from torch.backends import PropModule

from flambeau_capture import sources
from flambeau_capture.bytecode.resume_code import resumed_from
from flambeau_capture.graphs.host_random import KnownState
from flambeau_capture.guards.constants import EXTENT, ComputedNumber, Relation
from flambeau_capture.guards.kinds import Held, TensorPayload
from flambeau_capture.record import Opaque
from flambeau_capture.sources import ABSENT, Absent, Source
from flambeau_capture.stored.descriptions import (
    C_MEMBERS,
    Descriptions,
    is_held_globals,
    is_module_globals,
    module_named,
)
from flambeau_capture.stored.generator_states import encode_known_state
from flambeau_capture.stored.reasons import NotStorable
from flambeau_capture.torch_state import UsualState
from flambeau_prims.size_floats import Condition, FloatExpr
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flambeau_capture.record import Guard

Json = Any

_AS_THEY_ARE = frozenset({bool, str, type(None)})
_EXACT_INT = 53
_MOST_DECORATORS = 8
LRU_CACHE: type = functools._lru_cache_wrapper
PARTS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"), staticmethod: ("__func__",), classmethod: ("__func__",),
    functools.cached_property: ("func",), LRU_CACHE: ("__wrapped__",),
}  # fmt: skip
"""What objects are made of that wrap functions in a class."""
_INTERPRETER_TYPES: dict[Any, str] = {
    value: name for name, value in vars(types).items() if isinstance(value, type)
}
"""Types without a name in builtins."""
_NAMED = (torch.dtype, torch.layout, torch.memory_format)


class Encoder:
    """The tables of one entry, filled by `value` and `guard`, and completed by `tables`."""

    def __init__(
        self,
        function: types.FunctionType,
        definitions: Iterable[tuple[Any, str | type]] = (),
    ) -> None:
        """`function` is the entry's; `definitions` are what its capture read without a guard."""
        self._function = function
        self._definitions = definitions
        self.sources: list[Json] = []
        self._source_at: dict[Source, int] = {}
        self._needed_by_source: list[set[int]] = []
        """For each source, the objects that it, or one that it is read from, holds."""
        self._objects: list[Any] = []
        self._object_at: dict[int, int] = {}
        self.specs: list[Json] = []
        self._spec_at: dict[Spec, int] = {}
        self._place_at: dict[str, int] = {}
        self.symbols: dict[str, int] = {}
        """The symbols of sizes, with what they stood for in the call that was captured."""
        self._held: set[int] | None = None
        self._modules_by_file: dict[str, Sequence[str]] = {}
        self.descriptions = Descriptions()

    # ------------------------------------------------------------ values

    def value(self, value: Any) -> Json:
        """A constant, a source, a payload or an object; NotStorable for what cannot be written."""
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        write = _WRITERS.get(kind)
        if write is None:
            write = _write_source if isinstance(value, Source) else _write_object
        return write(self, value)

    def has_globals(self, mapping: dict[Any, Any]) -> bool:
        """Whether a dict is the globals of the entry's function, which then is no module's."""
        return mapping is self._function.__globals__ and not is_module_globals(mapping)

    def owner_of_globals(self, mapping: dict[Any, Any]) -> Any:
        """A function in the table, or what wraps one in a class, that has these globals: those of
        a named tuple's `__new__` are no module's.
        """
        owners = (obj for obj in self._objects if globals_of(obj) is mapping)
        return next(owners, None)

    def spec(self, spec: Spec) -> int:
        """The number of a Spec, which is interned."""
        found = self._spec_at.get(spec)
        if found is None:
            written = [
                [self.value(size) for size in spec.shape],
                [self.value(size) for size in spec.stride],
                _name_in_torch(spec.dtype),
                str(spec.device),
                self.value(spec.offset),
            ]
            found = self._spec_at[spec] = len(self.specs)
            self.specs.append(written)
        return found

    def source(self, source: Source) -> int:
        """The number of a source."""
        found = self._source_at.get(source)
        if found is not None:
            return found
        outer, self._held = self._held, set()
        kind = type(source)
        written: list[Json] = [kind.__name__]
        for name in kind.__match_args__:
            field = getattr(source, name)
            read_from = name in kind.bases and isinstance(field, Source)
            written.append(self.source(field) if read_from else self.value(field))
        held, self._held = self._held, outer
        for parent in source.parents():
            held |= self._needed_by_source[self._source_at[parent]]
        self._source_at[source] = found = len(self.sources)
        self.sources.append(written)
        self._needed_by_source.append(held)
        return found

    def object(self, obj: Any) -> int:
        """The number of an object."""
        found = self._object_at.get(id(obj))
        if found is None:
            found = self._object_at[id(obj)] = len(self._objects)
            self._objects.append(obj)
        if self._held is not None:
            self._held.add(found)
        return found

    def guard(self, guard: Guard) -> Json:
        """A guard, `prepared`."""
        place = self._place_at.setdefault(guard.where, len(self._place_at))
        return [guard.kind, self.source(guard.source), self.value(guard.payload), place]

    def tables(self, guards: Sequence[Guard]) -> dict[str, Json]:
        """The tables that `value` and `guard` have filled; NotStorable if another process has no
        way to find an object of theirs.
        """
        objects = self._finish(guards)  # which may add sources
        return {
            "sources": self.sources,
            "objects": objects,
            "specs": self.specs,
            "places": list(self._place_at),
            "symbols": self.symbols,
        }

    # ------------------------------------------------------------ objects

    def _finish(self, guards: Sequence[Guard]) -> Json:
        compared = self._compared_with(guards)
        ways: list[Json] = []
        for obj in self._objects:  # which grows while the holders of others are named
            way = self._way_by_name(obj)
            ways.append(way)
        unnamed = {id(self._objects[at]) for at, way in enumerate(ways) if way is None}
        members = self._members(unnamed)
        ways += [None] * (len(self._objects) - len(ways))
        parts = self._parts()
        missing = {at for at, way in enumerate(ways) if way is None}
        while missing:
            known = [
                (at, way)
                for at in sorted(missing)
                if (way := self._way_by_source(compared.get(id(self._objects[at]), ()), missing))
                or (way := self._way_by_part(parts.get(id(self._objects[at]), ()), missing))
                or (way := self._way_by_part(members.get(id(self._objects[at]), ()), missing))
            ]
            if not known:
                texts = sorted(str(type(self._objects[at]).__name__) for at in missing)
                names = [getattr(self._objects[at], "__qualname__", "") for at in missing]
                raise NotStorable("object", ", ".join(map(str, (*texts[:3], *names[:3]))))
            for at, way in known:
                ways[at] = way
                missing.discard(at)
        return [
            [way, self.descriptions.of(obj)] for way, obj in zip(ways, self._objects, strict=True)
        ]

    def _compared_with(self, guards: Iterable[Guard]) -> dict[int, list[tuple[str, Source]]]:
        """The sources that guards compare objects with, by identity or by type."""
        compared: dict[int, list[tuple[str, Source]]] = {}
        for guard in guards:
            if guard.kind in ("IS", "TYPE"):
                way = "value" if guard.kind == "IS" else "type"
                compared.setdefault(id(guard.payload.get()), []).append((way, guard.source))
        return compared

    def _members(self, wanted: set[int]) -> dict[int, list[Json]]:
        """The ways to what classes in the table define, by identity; what wraps a function that is
        `wanted` is added to the table.
        """
        ways: dict[int, list[Json]] = {}
        for at, cls in enumerate(tuple(self._objects)):
            if isinstance(cls, type):
                for name, value in vars(cls).items():
                    ways.setdefault(id(value), []).append(["member", at, name])
                    wrapped = {id(getattr(value, part)) for part in PARTS.get(type(value), ())}
                    if wrapped & wanted:
                        self.object(value)
        return ways

    def _parts(self) -> dict[int, list[Json]]:
        """The ways to what properties and the like are made of, by identity."""
        parts: dict[int, list[Json]] = {}
        for at, obj in enumerate(self._objects):
            for name in PARTS.get(type(obj), ()):
                parts.setdefault(id(getattr(obj, name)), []).append(["part", at, name])
        return parts

    def _way_by_part(self, ways: Iterable[Json], missing: set[int]) -> Json:
        return next((way for way in ways if way[1] not in missing), None)

    def _way_by_source(self, ways: Iterable[tuple[str, Source]], missing: set[int]) -> Json:
        for way, source in ways:
            at = self.source(source)
            if missing.isdisjoint(self._needed_by_source[at]):
                return [way, at]
        return None

    def _way_by_name(self, obj: Any) -> Json:
        """The way to an object by names, or None."""
        if isinstance(obj, types.ModuleType):
            name = str(vars(obj).get("__name__"))
            return ["module", name] if module_named(name) is obj else None
        if isinstance(obj, torch._ops.OpOverload):
            return ["operator", obj._schema.name, obj._overloadname]
        if isinstance(obj, types.CodeType):
            return self._way_to_code(obj)
        if isinstance(obj, enum.Enum):
            return ["member", self.object(type(obj)), obj._name_]
        if isinstance(obj, C_MEMBERS):
            owner: Any = obj.__objclass__
            found = vars(owner).get(obj.__name__)
            return ["member", self.object(owner), obj.__name__] if found is obj else None
        if isinstance(obj, typing._SpecialForm):
            name = str(obj).removeprefix("typing.")
            return ["path", "typing", name] if getattr(typing, name, None) is obj else None
        module = getattr(obj, "__module__", None)
        if isinstance(obj, (type, types.FunctionType, types.BuiltinFunctionType, LRU_CACHE)):
            named: Any = obj
            for name in dict.fromkeys((named.__qualname__, named.__name__)):
                if isinstance(module, str) and find_by_name(module, name) is obj:
                    return ["path", module, name]
            if obj in _INTERPRETER_TYPES:
                return ["path", "types", _INTERPRETER_TYPES[obj]]
            if isinstance(module, str) and type(stands := module_named(module)) is obj:
                return ["class", self.object(stands)]  # of an object that replaces its module
            return self._way_by_definition(obj)
        return None

    def _way_by_definition(self, obj: Any) -> Json:
        """The way to an object that a module holds under a name that is not the object's own."""
        for holder, name in self._definitions:
            if isinstance(holder, dict) and isinstance(name, str) and holder.get(name) is obj:
                module = is_module_globals(holder)
                if module and find_by_name(module, name) is obj:
                    return ["path", module, name]
        return None

    def _modules_of_file(self, file: str) -> Sequence[str]:
        """The names of the imported modules that a file is the source of; "<string>" is none."""
        names = self._modules_by_file.get(file)
        if names is None:
            names = [name for name in likely_modules(file) if _file_of(name) == file]
            if not names and not file.startswith("<"):
                names = [name for name in list(sys.modules) if _file_of(name) == file]
            self._modules_by_file[file] = names
        return names

    def _way_to_code(self, code: types.CodeType) -> Json:
        """The function that runs a code object, or one around it, behind decorators perhaps."""
        resumed = resumed_from(self._function.__code__)
        own = self._function.__code__ if resumed is None else resumed.frame_code.code
        constants = path_to_code(own, code)
        if constants is not None:
            return ["code", None, 0, constants]
        names = self._modules_of_file(code.co_filename)
        named = [find_by_name(name, code.co_qualname) for name in names]
        for found in (*named, *self._objects):
            for times, function in enumerate(wrapped_functions(found)):
                constants = path_to_code(function.__code__, code)
                if constants is not None:
                    return ["code", self.object(found), times, constants]
        return None


# ---------------------------------------------------------------- values by their types


def _items(encoder: Encoder, value: Iterable[Any]) -> Json:
    return {type(value).__name__: [encoder.value(item) for item in value]}


def _name_in_torch(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _int(encoder: Encoder, value: int) -> Json:
    return value if value.bit_length() <= _EXACT_INT else {"int": hex(value)}


def _dict(encoder: Encoder, value: dict[Any, Any]) -> Json:
    if encoder.has_globals(value):
        return {"globals": None}
    if module := is_module_globals(value):
        return {"globals": module}
    if module := is_held_globals(value):
        return {"held_globals": module}
    owner = encoder.owner_of_globals(value)
    if owner is not None:
        return {"globals_of": encoder.object(owner)}
    if "__builtins__" in value:  # globals of a function, which a guard compares
        return {"object": encoder.object(value)}
    raise NotStorable("dict", str(value.get("__name__", "")))


def _size(encoder: Encoder, size: Expr) -> Json:
    """The text of a symbolic size, whose symbols are listed with their hints."""
    if size is EXTENT:
        return {"extent": 0}
    for name in size.symbols():
        encoder.symbols[name] = size.env.symbols[name].hint
    return {"size": str(size)}


def _symbolic_float(encoder: Encoder, value: FloatExpr) -> Json:
    """A float that the program is given, or an operation and its operands."""
    if value.symbol is not None:
        encoder.symbols[value.symbol] = value.env.symbols[value.symbol].hint
        return {"float_symbol": value.symbol}
    return {"float_of": [value.op, *map(encoder.value, value.args)]}


def _relation(encoder: Encoder, value: Relation) -> Json:
    names = [[name, encoder.source(source)] for name, source in value.names.items()]
    return {"relation": [encoder.value(value.condition), names]}


def _tensor(encoder: Encoder, value: TensorPayload) -> Json:
    cls, spec = encoder.object(value.type), encoder.spec(value.spec)
    return {"tensor": [cls, spec, value.requires_grad, encoder.value(value.keys)]}


def _write_source(encoder: Encoder, value: Source) -> Json:
    return {"source": encoder.source(value)}


def _write_object(encoder: Encoder, value: Any) -> Json:
    return {"object": encoder.object(value)}


_WRITERS: dict[type, Callable[[Encoder, Any], Json]] = {
    int: _int,
    float: lambda _, value: {"float": value.hex()},
    complex: lambda _, value: {"complex": [value.real.hex(), value.imag.hex()]},
    bytes: lambda _, value: {"bytes": value.hex()},
    Absent: lambda *_: {"absent": 0},
    **dict.fromkeys((tuple, list, torch.Size, set, frozenset), _items),
    slice: lambda encoder, value: {
        "slice": [encoder.value(item) for item in (value.start, value.stop, value.step)]
    },
    range: lambda _, value: {"range": [value.start, value.stop, value.step]},
    **dict.fromkeys(_NAMED, lambda _, value: {"torch": _name_in_torch(value)}),
    torch.device: lambda _, value: {"device": str(value)},
    **dict.fromkeys(
        (type(Ellipsis), type(NotImplemented)), lambda _, value: {"singleton": str(value)}
    ),
    Held: lambda encoder, value: {"held": encoder.value(value.get())},
    weakref.ref: lambda encoder, value: {"weak": encoder.object(value())},
    dict: _dict,
    Spec: lambda encoder, value: {"spec": encoder.spec(value)},
    Expr: _size,
    FloatExpr: _symbolic_float,
    Condition: lambda encoder, value: {
        "condition": [value.op, *(encoder.value(argument) for argument in value.args)]
    },
    Relation: _relation,
    ComputedNumber: lambda encoder, value: {"computed": encoder.value(value.expr)},
    KnownState: lambda _, value: {"known_state": encode_known_state(value)},
    Opaque: lambda encoder, value: {"opaque": encoder.object(value.kind)},
    UsualState: lambda *_: {"state": 0},
    TensorPayload: _tensor,
}
"""How a value is written, by its exact type. Objects of other types, which sources may be, are
numbers in tables.
"""


# ---------------------------------------------------------------- names


def _file_of(module: str) -> Any:
    found = sys.modules.get(module)
    return vars(found).get("__file__") if isinstance(found, types.ModuleType) else None


def likely_modules(file: str) -> Iterator[str]:
    """The names that the module of a source file may have: "c", "b.c", "a.b.c" of /a/b/c.py, or the
    main module.
    """
    path = PurePath(file).with_suffix("") if file.endswith(".py") else PurePath(file)
    parts = path.parts[:-1] if path.name == "__init__" else path.parts
    for first in range(len(parts) - 1, 0, -1):
        yield ".".join(parts[first:])
    yield "__main__"


def wrapped_functions(found: Any) -> Iterator[types.FunctionType]:
    """A function, and what decorators of functools.wraps are around."""
    for _ in range(_MOST_DECORATORS):
        if type(found) is not types.FunctionType:
            return
        yield found
        found = found.__dict__.get("__wrapped__")


def globals_of(obj: Any) -> dict[str, Any] | None:
    """The globals of a function, perhaps within a static or class method; None of anything else."""
    function = obj.__func__ if type(obj) in (staticmethod, classmethod) else obj
    return function.__globals__ if type(function) is types.FunctionType else None


def path_to_code(outer: types.CodeType, code: types.CodeType) -> list[int] | None:
    """The constants that lead from one code object to another within it; None where none do."""
    if outer is code:
        return []
    for at, item in enumerate(outer.co_consts):
        if isinstance(item, types.CodeType):
            path = path_to_code(item, code)
            if path is not None:
                return [at, *path]
    return None


def find_by_name(module: str, qualname: str) -> Any:
    """The object under a dotted name in a module that is imported, or ABSENT; runs no descriptor
    of the program.
    """
    found: Any = sys.modules.get(module, ABSENT)
    for name in qualname.split("."):
        if isinstance(found, type):
            found = sources.lookup_in_type(found, name)
            found = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
        elif isinstance(found, types.ModuleType):
            members = vars(found)
            if isinstance(found, PropModule):  # which stands for the module that it holds
                members = {**vars(members["m"]), **members}
            found = members.get(name, ABSENT)
        else:
            return ABSENT
    return found
