"""JSON -> guards, sources and constants, over the objects of this process. `encoding` has the
format.

Each object is found when it is needed, and must be described as the stored one was: anything else
is `Stale`, so that the entry does not serve. What is read imports nothing but this project's own
modules, and runs no code of the program.
"""

from __future__ import annotations

import importlib
import keyword
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture import sources
from flambeau_capture.bytecode.resume_code import resumed_from
from flambeau_capture.core import core
from flambeau_capture.guards.constants import EXTENT, ComputedNumber, Relation
from flambeau_capture.guards.kinds import KINDS, Held, TensorPayload
from flambeau_capture.guards.tensor_layout import configure
from flambeau_capture.record import Guard, Opaque
from flambeau_capture.sources import ABSENT, Source, SourceLost
from flambeau_capture.stored.descriptions import (
    Descriptions,
    globals_held_by,
    module_named,
)
from flambeau_capture.stored.encoding import find_by_name, globals_of, wrapped_functions
from flambeau_capture.stored.generator_states import decode_known_state
from flambeau_capture.stored.reasons import Stale
from flambeau_prims.size_floats import Condition, float_of, named_symbol
from flambeau_prims.size_text import read_size
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.sources import Scope
    from flambeau_capture.torch_state import UsualState

Json = Any

_OWN = ("flambeau_capture.", "flambeau_prims.")


_SOURCES = {
    name: cls
    for name, cls in vars(sources).items()
    if isinstance(cls, type) and issubclass(cls, Source) and cls is not Source
}
"""Every kind of source by its name."""


class Decoder:
    """The tables of one stored entry, on one call."""

    def __init__(self, data: Json, scope: Scope, state: UsualState) -> None:
        self._source_table = data["sources"]
        self._object_table = data["objects"]
        self._spec_table = data["specs"]
        self._places = data["places"]
        env = SizeEnv()
        self.symbols: dict[str, Any] = {
            _name(name): named_symbol(env, name, hint) for name, hint in data["symbols"].items()
        }
        self._scope = scope
        self._state = state
        self._sources: dict[int, Source] = {}
        self._objects: dict[int, Any] = {}
        self._specs: dict[int, Spec] = {}
        self.descriptions = Descriptions()

    def value(self, data: Json) -> Any:
        """What `Encoder.value` wrote; Stale where this process has no such thing."""
        if type(data) is not dict:
            return data
        ((tag, content),) = data.items()
        return _READERS[tag](self, content)

    def values(self, items: list[Json]) -> list[Any]:
        """What `Encoder.value` wrote for each: most are as they are."""
        return [self.value(item) if type(item) is dict else item for item in items]

    def source(self, at: int) -> Source:
        """The source of a number."""
        found = self._sources.get(at)
        if found is None:
            kind, *fields = self._source_table[at]
            cls = _SOURCES[kind]
            found = self._sources[at] = cls(
                *(
                    self.source(field)
                    if type(field) is int and name in cls.bases
                    else self.value(field)
                    for name, field in zip(cls.__match_args__, fields, strict=True)
                )
            )
        return found

    def guard(self, data: Json) -> Guard:
        """A guard, `prepared`."""
        kind, source, payload, place = data
        if kind not in KINDS:
            raise Stale(kind)
        read_from, decoded = self.source(source), self.value(payload)
        if kind == "TENSOR":
            decoded = self._with_words(read_from, decoded)
        return Guard(kind, read_from, decoded, self._places[place])

    def spec(self, at: int) -> Spec:
        """The Spec of a number."""
        found = self._specs.get(at)
        if found is None:
            shape, stride, dtype, device, offset = self._spec_table[at]
            found = self._specs[at] = Spec.of(
                self.values(shape),
                stride=self.values(stride),
                dtype=_named(self, dtype),
                device=device,
                offset=self.value(offset),
            )
        return found

    def _with_words(self, source: Source, payload: TensorPayload) -> TensorPayload:
        """The payload with this process's words for C, which are those of a tensor that fits."""
        try:
            tensor = source.load(self._scope)
        except SourceLost as error:
            raise Stale(str(error)) from None
        if not KINDS["TENSOR"].holds(tensor, payload, self._scope):
            raise Stale(source.text())
        if core is None or not configure():
            return payload
        return replace(payload, words=core.tensor_words(tensor))

    def object(self, at: int) -> Any:
        """The object of a number, as this process has it."""
        if at in self._objects:
            return self._objects[at]
        way, description = self._object_table[at]
        found = self._find(way)
        if found is ABSENT or self.descriptions.of(found) != description:
            raise Stale(f"{way}")
        self._objects[at] = found
        return found

    def check_definition(self, data: Json) -> None:
        """Stale unless a module or class defines the same under a name."""
        holder, name, description = data
        if self.descriptions.of_definition(self.value(holder), self.value(name)) != description:
            raise Stale(str(name))

    def _find(self, way: Json) -> Any:
        match way:
            case ["module", name]:
                return _module(name)
            case ["path", module, name]:
                _module(module)
                return find_by_name(module, name)
            case ["operator", name, overload]:
                namespace, _, packet = name.partition("::")
                return getattr(getattr(getattr(torch.ops, namespace), packet), overload)
            case ["member", owner, name]:
                members = vars(self.object(owner))
                return members.get("_member_map_", members).get(name, ABSENT)
            case ["class", at]:
                return type(self.object(at))
            case ["value", source]:
                return self._load(source)
            case ["type", source]:
                return type(self._load(source))
            case ["code", at, times, constants]:
                return self._code(at, times, constants)
            case ["part", whole, name]:
                return getattr(self.object(whole), name, ABSENT)
        raise Stale(f"{way}")

    def _code(self, at: int | None, times: int, constants: list[int]) -> Any:
        if at is None:
            own = self._scope.function.__code__
            resumed = resumed_from(own)
            code = own if resumed is None else resumed.frame_code.code
        else:
            code = list(wrapped_functions(self.object(at)))[times].__code__
        for constant in constants:
            code = code.co_consts[constant]
        return code

    def _load(self, at: int) -> Any:
        try:
            return self.source(at).load(self._scope)
        except SourceLost as error:
            raise Stale(str(error)) from None

    def own_globals(self) -> dict[str, Any]:
        """The globals of the function that is called."""
        return self._scope.function.__globals__

    def usual_state(self) -> UsualState:
        """This thread's state: the key says that it is the stored one."""
        return self._state


def _name(name: str) -> str:
    """The name of a symbol, which stands in generated code."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise Stale(name)
    return name


def _module(name: str) -> Any:
    found = module_named(name)
    if found is ABSENT and name.startswith(_OWN):
        return importlib.import_module(name)
    if found is ABSENT:
        raise Stale(f"the module {name} is not imported")
    return found


def _globals(decoder: Decoder, name: str | None) -> dict[str, Any]:
    return decoder.own_globals() if name is None else vars(_module(name))


def _held_globals(decoder: Decoder, name: str) -> dict[str, Any]:
    held = globals_held_by(_module(name))
    if held is None:
        raise Stale(f"{name} holds no module")
    return held


def _globals_of(decoder: Decoder, at: int) -> dict[str, Any]:
    found = globals_of(decoder.object(at))
    if found is None:
        raise Stale("it is no function")
    return found


def _named(decoder: Decoder, name: str) -> Any:
    value = getattr(torch, name)
    if not isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        raise Stale(name)
    return value


def _tensor(decoder: Decoder, parts: Json) -> TensorPayload:
    cls, spec, requires_grad, keys = parts
    return TensorPayload(
        decoder.object(cls), decoder.spec(spec), requires_grad, decoder.value(keys)
    )


def _relation(decoder: Decoder, parts: Json) -> Relation:
    condition, names = parts
    return Relation(
        decoder.value(condition), {name: decoder.source(source) for name, source in names}
    )


def _container(cls: Callable[..., Any]) -> Callable[[Decoder, Json], Any]:
    return lambda decoder, items: cls(decoder.values(items))


_READERS: dict[str, Callable[[Decoder, Json], Any]] = {
    "int": lambda decoder, text: int(text, 16),
    "float": lambda decoder, text: float.fromhex(text),
    "complex": lambda decoder, parts: complex(*map(float.fromhex, parts)),
    "bytes": lambda decoder, text: bytes.fromhex(text),
    "absent": lambda decoder, _: ABSENT,
    "tuple": _container(tuple),
    "list": _container(list),
    "Size": _container(torch.Size),
    "set": _container(set),
    "frozenset": _container(frozenset),
    "slice": lambda decoder, parts: slice(*map(decoder.value, parts)),
    "range": lambda decoder, parts: range(*parts),
    "torch": _named,
    "device": lambda decoder, text: torch.device(text),
    "singleton": lambda decoder, name: {"Ellipsis": ..., "NotImplemented": NotImplemented}[name],
    "source": Decoder.source,
    "held": lambda decoder, data: Held(decoder.value(data)),
    "weak": lambda decoder, at: weakref.ref(decoder.object(at)),
    "globals": _globals,
    "held_globals": _held_globals,
    "globals_of": _globals_of,
    "spec": Decoder.spec,
    "state": lambda decoder, _: decoder.usual_state(),
    "tensor": _tensor,
    "object": Decoder.object,
    "size": lambda decoder, text: read_size(text, decoder.symbols),
    "extent": lambda decoder, _: EXTENT,
    "condition": lambda decoder, parts: Condition(parts[0], *map(decoder.value, parts[1:])),
    "relation": _relation,
    "computed": lambda decoder, data: ComputedNumber(decoder.value(data)),
    "float_symbol": lambda decoder, name: decoder.symbols[name],
    "float_of": lambda decoder, parts: float_of(parts[0], *map(decoder.value, parts[1:])),
    "known_state": lambda decoder, data: decode_known_state(data),
    "opaque": lambda decoder, at: Opaque(decoder.object(at)),
}
