"""What leaves the frame: recipes for its result, and for what is stored where it outlives the
frame.

A value is rebuilt at exit from its source, a graph output, a constant, or a recipe of such; each
object is rebuilt once.
"""

from __future__ import annotations

import _thread
import collections
import enum
import functools
import re
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.graphs.host_random import copied
from flambeau_capture.interpreter import foreign_types
from flambeau_capture.interpreter.exit.rebuild_objects import (
    alias_recipe,
    exception_recipe,
    is_c_iterator,
    iterator_recipe,
    reduced_recipe,
    sequence_iterator_recipe,
    typing_recipe,
)
from flambeau_capture.interpreter.exit.suspended_frame import generator_recipe
from flambeau_capture.interpreter.foreign_types import ForeignProxy
from flambeau_capture.interpreter.generator import InterpretedGenerator
from flambeau_capture.interpreter.semantics.items import InterpretedIterator, SequenceIterator
from flambeau_capture.interpreter.values.classes import (
    IDENTITY_TYPES,
    LRU_CACHE,
    SCALARS,
    TORCH_CONSTANTS,
    Proxy,
    slot_values,
)
from flambeau_capture.interpreter.values.deferred_strings import DeferredString
from flambeau_capture.interpreter.values.lazy_values import PARTIAL_READS
from flambeau_capture.interpreter.values.objects import (
    BOUND_BUILTINS,
    C_METHODS,
    VALUE_BASES,
    bound_method,
    dict_items,
)
from flambeau_capture.interpreter.values.subclasses import as_subclass, with_attributes
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import (
    CallRecipe,
    Const,
    FromGraph,
    FromSource,
    MakeCell,
    MakeDict,
    MakeFunction,
    MakeList,
    MakeObject,
    MakeSet,
    MakeTuple,
    Recipe,
    SizeValue,
)
from flambeau_capture.sources import HEAP_TYPE
from flambeau_prims.size_floats import FloatExpr, is_unbacked
from flambeau_prims.sizes import Expr
from flambeau_prims.sizes_node import from_symbolic

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


class _Referent:
    """What a weak reference referred to that the frame has let go."""


def _dead_reference() -> weakref.ref[Any]:
    return weakref.ref(_Referent())


_LOCK = type(_thread.allocate_lock())
_WRAPPERS = (LRU_CACHE, staticmethod, classmethod)
_DICT_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class CachedCalls(dict[Any, tuple[Any, Any]]):
    """Calls of functions with a cache that the frame has made: function and arguments, result."""


class Rebuilder:
    """Makes recipes; objects that occur twice, or in a cycle, share one."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._made: dict[int, tuple[Any, Recipe]] = {}
        self._open: set[int] = set()
        """Values whose parts are being looked at, and that have no recipe yet."""
        self.numbers: set[int] = set()
        """The ints that outlive the frame."""

    def recipe(self, value: Any) -> Recipe:
        """How to rebuild a value at exit."""
        kind = type(value)
        if kind in SCALARS or kind in TORCH_CONSTANTS:
            if kind is int:
                self.numbers.add(value)
            return Const(value)
        if kind in PARTIAL_READS:
            return FromSource(value.source)
        found = self._made.get(id(value))
        if found is not None:
            return found[1]
        if id(value) in self._open:
            raise GraphBreak("unsupported-result", f"a {kind.__qualname__} that holds itself")
        self._open.add(id(value))
        made = self._recipe(value, kind)
        self._open.discard(id(value))
        if id(value) in self.machine.addresses_read and not isinstance(made, (Const, FromSource)):
            detail = f"a {kind.__qualname__} outlives the frame, which has read its id"
            raise GraphBreak("unsupported-result", detail)
        self._made.setdefault(id(value), (value, made))
        return made

    def _recipe(self, value: Any, kind: type) -> Recipe:
        if isinstance(value, torch.Tensor):
            found = self.machine.tape.input_of(value)
            return self._computed(value) if found is None else FromSource(found[1].source)
        if kind in (torch.SymInt, torch.SymFloat, torch.SymBool):
            inner = from_symbolic(value)
            if isinstance(inner, FloatExpr):
                return SizeValue(inner, float)
            if kind is torch.SymBool and is_unbacked(inner):
                return SizeValue(inner, bool)
            if not isinstance(inner, Expr):
                # A condition: its value of this call, with a guard.
                return Const(bool(value) if kind is torch.SymBool else inner)
            return SizeValue(inner, int)
        if kind is DeferredString or issubclass(kind, ForeignProxy):
            return value.recipe(self)  # type: ignore[no-any-return]
        if foreign_types.is_value(kind):
            return Const(value)
        objects = self.machine.objects
        source = objects.source_of(value)
        if source is not None:
            return FromSource(source)
        if id(value) in self.machine.functions.made:
            return self._function(value)
        made_classes = self.machine.classes.made
        if made_classes and (
            kind in made_classes or (isinstance(value, type) and value in made_classes)
        ):
            name = (value if isinstance(value, type) else kind).__qualname__
            raise GraphBreak("unsupported-result", f"class {name}, made in the frame, outlives it")
        if kind in BOUND_BUILTINS and (method := bound_method(value)) is not None:
            receiver = self.recipe(value.__self__)
            if not isinstance(receiver, Const):
                return CallRecipe(method.__get__, (receiver, Const(type(value.__self__))))
        if kind in _WRAPPERS and id(value.__wrapped__) in self.machine.functions.made:
            return self._wrapper(value, kind)
        if kind is types.GenericAlias:
            return alias_recipe(self, value)
        if kind.__module__ == "typing":
            named = typing_recipe(self, value)
            if named is not None:
                return named
        if kind in IDENTITY_TYPES or isinstance(
            value, (type, enum.Enum, types.ModuleType, types.UnionType, re.Match)
        ):
            return Const(value)
        if self.machine.tape.is_opaque(value):
            return FromGraph(self.machine.tape.opaque(value))
        seeded = self.machine.tape.seeded.get(id(value))
        if seeded is not None:
            return CallRecipe(copied, (Const(seeded),))
        builder = _BUILDERS.get(kind)
        if builder is not None:
            return builder(self, value)
        return self._object(value, kind)

    def _computed(self, tensor: torch.Tensor) -> Recipe:
        """A tensor that the graph computes, with the program's class and attributes."""
        tape = self.machine.tape
        made: Recipe = FromGraph(tape.value_of(tensor))
        subclass = tape.subclasses.of(tensor)
        if subclass is not None:
            made = CallRecipe(as_subclass, (made, Const(subclass)))
        attributes = self.machine.objects.pending_writes_of(tensor)
        if attributes:
            items: list[tuple[Recipe, Recipe]] = [
                (Const(name), self.recipe(value)) for name, value in attributes.items()
            ]
            made = CallRecipe(with_attributes, (made, MakeDict(items)))
        return made

    def _keep(self, value: Any, made: Any) -> Any:
        """Enter a recipe before its parts are made, so that cycles end."""
        self._made[id(value)] = (value, made)
        return made

    def _many(self, values: Any) -> list[Recipe]:
        return [self.recipe(item) for item in values]

    def _state(self, value: Any) -> dict[str, Recipe] | None:
        state = getattr(value, "__dict__", None)
        if not isinstance(state, dict) or not state:
            return None
        return {name: self.recipe(item) for name, item in state.items()}

    def _slots(self, value: Any) -> dict[str, Recipe]:
        return {name: self.recipe(item) for name, item in slot_values(value).items()}

    def _with_attributes(self, value: Any, made: Recipe) -> Recipe:
        """`made`, an instance of a subclass of a C type, with its instance dict and slots."""
        state, slots = self._state(value) or {}, self._slots(value)
        if not state and not slots:
            return made
        parts: list[Recipe] = [
            MakeDict([(Const(name), item) for name, item in part.items()])
            for part in (state, slots)
        ]
        return CallRecipe(_with_attributes, (made, *parts))

    # ------------------------------------------------------------ kinds of object

    def _tuple(self, value: tuple[Any, ...]) -> Recipe:
        return MakeTuple(tuple(self._many(tuple.__iter__(value))), type(value))

    def _list(self, value: list[Any]) -> Recipe:
        made = self._keep(value, MakeList(cls=type(value)))
        made.items.extend(self._many(list.__iter__(value)))
        if type(value) is not list:
            made.state = self._state(value)
            made.slots = self._slots(value)
        return made

    def _dict(self, value: dict[Any, Any]) -> Recipe:
        kind = type(value)
        made = self._keep(value, MakeDict(cls=kind))
        made.items.extend((self.recipe(key), self.recipe(item)) for key, item in dict_items(value))
        if isinstance(value, collections.defaultdict):
            made.factory = self.recipe(value.default_factory)
        if kind not in (dict, collections.OrderedDict, collections.defaultdict):
            made.state = self._state(value)
            made.slots = self._slots(value)
        return made

    def _set(self, value: Any) -> Recipe:
        return MakeSet(self._many(value), type(value))

    def _slice(self, value: slice) -> Recipe:
        return CallRecipe(type(value), tuple(self._many((value.start, value.stop, value.step))))

    def _method(self, value: types.MethodType) -> Recipe:
        receiver = value.__self__
        if isinstance(receiver, Proxy):  # its function is none of the object that it becomes
            name = Const(value.__func__.__name__)
            return CallRecipe(getattr, (self.recipe(receiver), name))
        bind = _bound if type(value.__func__) in C_METHODS else types.MethodType
        return CallRecipe(bind, tuple(self._many((value.__func__, value.__self__))))

    def _partial(self, value: functools.partial[Any]) -> Recipe:
        named = {name: self.recipe(item) for name, item in value.keywords.items()}
        return CallRecipe(functools.partial, tuple(self._many((value.func, *value.args))), named)

    def _cell(self, value: types.CellType) -> Recipe:
        made = self._keep(value, MakeCell())
        try:
            contents = value.cell_contents
        except ValueError:
            return made
        made.contents = self.recipe(contents)
        return made

    def _function(self, value: types.FunctionType) -> Recipe:
        if id(value.__globals__) in self.machine.objects.namespaces:
            detail = f"{value.__qualname__}, of source run in the frame, outlives it"
            raise GraphBreak("unsupported-result", detail)
        code, namespace = value.__code__, value.__globals__
        made = MakeFunction(code, namespace, value.__name__, value.__qualname__)
        made = self._keep(value, made)
        made.defaults = None if value.__defaults__ is None else self.recipe(value.__defaults__)
        named = value.__kwdefaults__
        made.kwdefaults = None if named is None else self.recipe(named)
        made.closure = None if value.__closure__ is None else tuple(self._many(value.__closure__))
        made.annotations = self.recipe(value.__annotations__) if value.__annotations__ else None
        plain = types.FunctionType(code, namespace, closure=value.__closure__ or None)
        for name in ("doc", "module", "type_params"):
            part = getattr(value, f"__{name}__", None)
            if part != getattr(plain, f"__{name}__", None):
                setattr(made, name, self.recipe(part))
        made.state = self._state(value)
        return made

    def _wrapper(self, value: Any, kind: type) -> Recipe:
        """`lru_cache`, `staticmethod` or `classmethod` of a function that the frame has made."""
        function = self.recipe(value.__wrapped__)
        if kind is not LRU_CACHE:
            return CallRecipe(kind, (function,))
        if any(
            called is value for (called, _, _), _ in self.machine.state_of(CachedCalls).values()
        ):
            detail = f"the cache of {value.__qualname__}, made and called in the frame, outlives it"
            raise GraphBreak("unsupported-result", detail)
        parameters = value.cache_parameters()
        make = functools.lru_cache(parameters["maxsize"], parameters["typed"])
        return CallRecipe(make, (function,))

    def _deque(self, value: collections.deque[Any]) -> Recipe:
        return CallRecipe(collections.deque, (MakeList(self._many(value)), Const(value.maxlen)))

    def _namespace(self, value: types.SimpleNamespace) -> Recipe:
        return CallRecipe(types.SimpleNamespace, (), self._state(value) or {})

    def _lock(self, value: Any) -> Recipe:
        is_plain = isinstance(value, _LOCK)
        if value.locked() if is_plain else value._is_owned():
            raise GraphBreak("unsupported-result", "a lock that the frame holds outlives it")
        return CallRecipe(_thread.allocate_lock if is_plain else _thread.RLock, ())

    def _weak_reference(self, value: Any) -> Recipe:
        """A weak reference to what is rebuilt, which lives if something else holds it."""
        referent = value()
        if referent is None:
            return CallRecipe(_dead_reference, ())
        return CallRecipe(weakref.ref, (self.recipe(referent),))

    def _view(self, value: Any) -> Recipe:
        raise GraphBreak(
            "unsupported-result",
            f"a {type(value).__name__} is returned",
            hint="return list(...) of it",
        )

    def _object(self, value: Any, kind: type) -> Recipe:
        if is_c_iterator(kind):
            return iterator_recipe(self, value)
        if kind is SequenceIterator:
            if value.exhausted:
                return CallRecipe(iter, (Const(()),))
            return sequence_iterator_recipe(self, value.sequence, value.index)
        if issubclass(kind, InterpretedIterator):
            return self.recipe(value.iterator)
        if isinstance(value, InterpretedGenerator):
            return generator_recipe(self, value)
        if issubclass(kind, Proxy):
            native: Recipe | None = value.recipe(self)
            if native is not None:
                return native
            raise GraphBreak("generator-escapes", "a generator or iterator is returned or stored")
        if kind is types.TracebackType:
            raise GraphBreak("traceback", "a traceback is stored")
        if isinstance(value, BaseException):
            return exception_recipe(self, value)
        if isinstance(value, tuple):
            if kind.__module__ == "torch.return_types":
                return CallRecipe(kind, (MakeTuple(tuple(self._many(value))),))
            return self._with_attributes(value, self._tuple(value))
        for base, convert in VALUE_BASES:
            if isinstance(value, base):
                plain = CallRecipe(base.__new__, (Const(kind), Const(convert(value))))
                return self._with_attributes(value, plain)
        if isinstance(value, dict):
            return self._dict(value)
        if isinstance(value, list):
            return self._list(value)
        if isinstance(value, (set, frozenset)):
            if kind.__new__ not in (set.__new__, frozenset.__new__):
                detail = f"a {kind.__qualname__} is returned or stored"
                raise GraphBreak("unsupported-result", detail)
            items = MakeList(self._many(value))
            return self._with_attributes(value, CallRecipe(_new_set, (Const(kind), items)))
        return self._instance(value, kind)

    def _instance(self, value: Any, kind: type) -> Recipe:
        """An object of a class written in Python."""
        is_stand_in = kind.__module__.partition(".")[0] == "flambeau_capture"
        bases = [base for base in kind.__mro__ if base is not object]
        if (
            is_stand_in
            or not all(base.__flags__ & HEAP_TYPE for base in bases)
            or any(
                type(base.__dict__.get("__new__")) is types.BuiltinFunctionType for base in bases
            )
        ):
            made_again = None if is_stand_in else reduced_recipe(self, value)
            if made_again is not None:
                return self._with_attributes(value, made_again)
            detail = f"a {kind.__module__}.{kind.__qualname__} is returned or stored"
            raise GraphBreak("unsupported-result", detail)
        made = self._keep(value, MakeObject(kind))
        for name, item in (getattr(value, "__dict__", None) or {}).items():
            made.state[name] = self.recipe(item)
        made.slots.update(self._slots(value))
        return made


_BUILDERS: dict[type, Any] = {
    tuple: Rebuilder._tuple,
    torch.Size: Rebuilder._tuple,
    list: Rebuilder._list,
    dict: Rebuilder._dict,
    collections.OrderedDict: Rebuilder._dict,
    collections.defaultdict: Rebuilder._dict,
    set: Rebuilder._set,
    frozenset: Rebuilder._set,
    slice: Rebuilder._slice,
    range: Rebuilder._slice,
    types.MethodType: Rebuilder._method,
    functools.partial: Rebuilder._partial,
    types.CellType: Rebuilder._cell,
    collections.deque: Rebuilder._deque,
    types.SimpleNamespace: Rebuilder._namespace,
    _LOCK: Rebuilder._lock,
    _thread.RLock: Rebuilder._lock,
    weakref.ref: Rebuilder._weak_reference,
    **dict.fromkeys(_DICT_VIEWS, Rebuilder._view),
}


def _bound(function: Any, receiver: Any) -> Any:
    """`receiver.function`, of a method that is written in C."""
    return function.__get__(receiver)


def _with_attributes(made: Any, state: dict[str, Any], slots: dict[str, Any]) -> Any:
    if state:
        object.__getattribute__(made, "__dict__").update(state)
    for name, value in slots.items():
        object.__setattr__(made, name, value)
    return made


def _new_set(cls: Any, items: list[Any]) -> Any:
    """An instance of a subclass of set or frozenset."""
    if issubclass(cls, frozenset):
        return frozenset.__new__(cls, items)
    made = set.__new__(cls)
    set.update(made, items)
    return made
