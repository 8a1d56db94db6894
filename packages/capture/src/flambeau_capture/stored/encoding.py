"""Guards, sources and constants -> JSON. `decoding` is the way back.

    IS L['self'].act <function relu>   ->   ["IS", 7, {"held": {"object": 3}}, "model.py:12"]
    source 7                           ->   ["DictEntry", {"source": 6}, "act"]
    object 3                           ->   [["path", "torch.nn.functional", "relu"], "function .."]

An object of the program is a number in a table. The table says how another process finds its own
one, by the first of these ways that leads to it here: the name of a module, a name within a module
or class, or a source that the guards compare it with. It also says how the object must be described
(`descriptions`).
"""

from __future__ import annotations

import enum
import functools
import sys
import types
import typing
import weakref
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch.backends import PropModule

from flambeau_capture import sources
from flambeau_capture.bytecode.resume_code import resumed_from
from flambeau_capture.guards.constants import EXTENT, Relation
from flambeau_capture.guards.kinds import Held, TensorPayload
from flambeau_capture.sources import ABSENT, Source
from flambeau_capture.stored.descriptions import (
    C_MEMBERS,
    Descriptions,
    is_module_globals,
    module_named,
)
from flambeau_capture.stored.reasons import NotStorable
from flambeau_capture.torch_state import UsualState
from flambeau_prims.size_floats import Condition, FloatExpr
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flambeau_capture.record import Guard

Json = Any

_AS_THEY_ARE = (bool, str, type(None))
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
_SINGLETONS = {Ellipsis: "Ellipsis", NotImplemented: "NotImplemented"}


class Encoder:
    """The tables of one entry, filled by `value` and `guard`, and completed by `finish`."""

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
        self.symbols: dict[str, int] = {}
        """The symbols of sizes, with what they stood for in the call that was captured."""
        self._held: set[int] | None = None
        self._by_file: dict[str, list[str]] | None = None
        self.descriptions = Descriptions()

    # ------------------------------------------------------------ values

    def value(self, value: Any) -> Json:
        """A constant, a source, a payload or an object; NotStorable for what cannot be written."""
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        if kind is int:
            return value if value.bit_length() <= _EXACT_INT else {"int": hex(value)}
        if kind is float:
            return {"float": value.hex()}
        if kind is complex:
            return {"complex": [value.real.hex(), value.imag.hex()]}
        if kind is bytes:
            return {"bytes": value.hex()}
        if value is ABSENT:
            return {"absent": 0}
        if kind in (tuple, list, torch.Size):
            return {kind.__name__: [self.value(item) for item in value]}
        if kind in (set, frozenset):
            return {kind.__name__: [self.value(item) for item in value]}
        if kind is slice:
            return {"slice": [self.value(item) for item in (value.start, value.stop, value.step)]}
        if kind is range:
            return {"range": [value.start, value.stop, value.step]}
        if kind in _NAMED:
            return {"torch": str(value).removeprefix("torch.")}
        if kind is torch.device:
            return {"device": str(value)}
        if value is Ellipsis or value is NotImplemented:
            return {"singleton": _SINGLETONS[value]}
        if isinstance(value, Source):
            return {"source": self.source(value)}
        if kind is Held:
            return {"held": self.value(value.get())}
        if kind is weakref.ref:
            return {"weak": self.object(value())}
        if kind is dict:
            return self._dict(value)
        if kind is Spec:
            return self._spec(value)
        if value is EXTENT:
            return {"extent": 0}
        if isinstance(value, Expr):
            return self._size(value)
        if isinstance(value, FloatExpr):
            raise NotStorable("symbolic-float")
        if kind is Condition:
            return self._condition(value)
        if kind is Relation:
            names = [[name, self.source(source)] for name, source in value.names.items()]
            return {"relation": [self.value(value.condition), names]}
        if kind is UsualState:
            return {"state": 0}
        if kind is TensorPayload:
            described = (value.type, value.spec, value.requires_grad, value.keys)
            return {"tensor": [self.value(item) for item in described]}
        return {"object": self.object(value)}

    def _dict(self, value: dict[Any, Any]) -> Json:
        module = is_module_globals(value)
        if not module:
            raise NotStorable("dict", str(value.get("__name__", "")))
        return {"globals": module}

    def _spec(self, spec: Spec) -> Json:
        parts = (spec.shape, spec.stride, spec.dtype, spec.device, spec.offset)
        return {"spec": [self.value(part) for part in parts]}

    def _size(self, size: Expr) -> Json:
        """The text of a symbolic size, whose symbols are listed with their hints."""
        for name in size.symbols():
            self.symbols[name] = size.env.symbols[name].hint
        return {"size": str(size)}

    def _condition(self, condition: Condition) -> Json:
        return {"condition": [condition.op, *(self.value(arg) for arg in condition.args)]}

    def source(self, source: Source) -> int:
        """The number of a source."""
        found = self._source_at.get(source)
        if found is not None:
            return found
        outer, self._held = self._held, set()
        arguments = [
            self.value(getattr(source, field.name))
            for field in fields(source)  # type: ignore[arg-type]
        ]
        held, self._held = self._held, outer
        for parent in source.parents():
            held |= self._needed_by_source[self._source_at[parent]]
        self._source_at[source] = found = len(self.sources)
        self.sources.append([type(source).__name__, *arguments])
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
        return [guard.kind, self.source(guard.source), self.value(guard.payload), guard.where]

    # ------------------------------------------------------------ objects

    def finish(self, guards: Sequence[Guard]) -> Json:
        """The table of objects; NotStorable if another process has no way to find one."""
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

    def _modules_by_file(self) -> dict[str, list[str]]:
        """The names of imported modules by their files."""
        if self._by_file is None:
            self._by_file = {}
            for name, module in list(sys.modules.items()):
                if isinstance(module, types.ModuleType):
                    file = vars(module).get("__file__")
                    if isinstance(file, str):
                        self._by_file.setdefault(file, []).append(name)
        return self._by_file

    def _way_to_code(self, code: types.CodeType) -> Json:
        """The function that runs a code object, or one around it, behind decorators perhaps."""
        resumed = resumed_from(self._function.__code__)
        own = self._function.__code__ if resumed is None else resumed.frame_code.code
        constants = path_to_code(own, code)
        if constants is not None:
            return ["code", None, 0, constants]
        names = self._modules_by_file().get(code.co_filename, ())
        named = [find_by_name(name, code.co_qualname) for name in names]
        for found in (*named, *self._objects):
            for times, function in enumerate(wrapped_functions(found)):
                constants = path_to_code(function.__code__, code)
                if constants is not None:
                    return ["code", self.object(found), times, constants]
        return None


def wrapped_functions(found: Any) -> Iterator[types.FunctionType]:
    """A function, and what decorators of functools.wraps are around."""
    for _ in range(_MOST_DECORATORS):
        if type(found) is not types.FunctionType:
            return
        yield found
        found = found.__dict__.get("__wrapped__")


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
