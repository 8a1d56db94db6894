"""Objects that existed before the call: their sources, and what the frame has changed about them.

Three side tables are keyed by identity; each holds its object, so ids stay valid:

- known objects are used as they are (instances, modules, functions);
- tracked copies stand on the stack for containers of the program, with fake tensors inside; native
  code may read and change them, and a comparison with the snapshot finds the changes at exit;
- pending writes are attributes written to known objects, read back from here, replayed at exit.

Every value from outside enters through `wrap(value, source)`, which guards what the value is.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import operator
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.code.data_flow import Use
from flambeau_capture.interpreter.values import numbers
from flambeau_capture.interpreter.values.classes import (
    IDENTITY_TYPES,
    SCALARS,
    TORCH_CONSTANTS,
    has_slots,
    lookup,
    slot_values,
)
from flambeau_capture.interpreter.values.deferred_strings import given_text
from flambeau_capture.interpreter.values.keys import known_key
from flambeau_capture.interpreter.values.lazy_values import (
    PARTIAL_READS,
    PARTIAL_TYPES,
    AppendTarget,
    EntryTarget,
    LazyValue,
    expected_use,
)
from flambeau_capture.interpreter.values.numbers import VALUE_TYPES, guard_value
from flambeau_capture.interpreter.values.program_functions import wrap_function
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import (
    ABSENT,
    Argument,
    Attribute,
    CallOf,
    CellContents,
    Constant,
    DictEntry,
    DictEntryOf,
    DictKeyAt,
    InstanceDict,
    Item,
    MethodPart,
    Source,
)

if TYPE_CHECKING:
    from flambeau_capture.interpreter.protocols import ActiveFrame, Args, Kwargs, Recorder

VALUE_BASES: tuple[tuple[type, Any], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (bytes, bytes.__bytes__),
)
"""Immutable types; instances of their subclasses are guarded by type and plain value."""

C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
BOUND_BUILTINS = (types.BuiltinFunctionType, types.MethodWrapperType)

LAZY_DICT_SIZE = 128
"""Longer dicts (sys.modules, globals()) are read entry by entry instead of being copied."""

DELETED = object()
_CONSTANT_TUPLES = (tuple, torch.Size)
_VIEWS: dict[type, type] = {
    types.MappingProxyType: dict,
    **dict.fromkeys((type({}.keys()), type({}.values()), type({}.items())), list),
}
"""Types of views of dicts, with the type that holds what they show."""
_SEALED_TYPES = frozenset({
    operator.itemgetter, operator.attrgetter, operator.methodcaller, super,
    type(functools.cmp_to_key(operator.lt)),
})  # fmt: skip
"""C types whose objects never change, and hold what no source leads to: guarded by the constants
that they hold, or by identity.
"""


class TrackedCopy:
    """The stand-in of a container of the program: real, source, copy, and contents when copied."""

    __slots__ = ("copy", "real", "slots_snapshot", "snapshot", "source", "state_snapshot")

    def __init__(self, real: Any, source: Source, copy: Any, snapshot: Any) -> None:
        self.real, self.source, self.copy, self.snapshot = real, source, copy, snapshot
        self.state_snapshot: dict[str, Any] | None = None
        self.slots_snapshot: dict[str, Any] = {}

    def contents_changed(self) -> bool:
        """Whether the frame has changed what the container holds."""
        copy, snapshot = self.copy, self.snapshot
        if isinstance(copy, list):
            return not _same_items(list(list.__iter__(copy)), snapshot)
        if isinstance(copy, collections.deque):
            return not _same_items(list(copy), snapshot)
        if isinstance(copy, dict):
            entries = dict(dict_items(copy))
            keys_kept = _same_items(list(entries), list(snapshot))
            return not (keys_kept and _same_items(list(entries.values()), list(snapshot.values())))
        return isinstance(copy, set) and copy != snapshot

    def slots_changed(self) -> bool:
        """Whether the frame has changed what the `__slots__` of a container subclass hold."""
        now, then = slot_values(self.copy), self.slots_snapshot
        return now.keys() != then.keys() or any(now[name] is not then[name] for name in now)

    def is_changed(self) -> bool:
        """Whether the frame has changed the container or its attributes."""
        if self.contents_changed() or self.slots_changed():
            return True
        return self.state_snapshot is not None and not _same_items(
            list(self.copy.__dict__.items()), list(self.state_snapshot.items())
        )


class DeferredCalls:
    """Calls that are replayed at exit for their side effects."""

    __slots__ = ("calls", "targets", "tensors")

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self.tensors: list[tuple[torch.Tensor, int]] = []
        """What the calls show, and its version when they were made."""
        self.targets: list[tuple[Any, str]] = []
        """What the calls write to, and how."""

    def add(self, function: Any, args: Args, kwargs: Kwargs) -> None:
        """Replay a call at exit."""
        self.calls.append((function, args, kwargs))


class Objects:
    """The side tables of one capture."""

    def __init__(self, machine: Recorder) -> None:
        self.machine = machine
        self.known: dict[int, tuple[Any, Source]] = {}
        self.pinned: dict[int, tuple[Any, Source]] = {}
        """What is guarded by identity, and where it was read first."""
        self.tracked_copies: dict[int, TrackedCopy] = {}
        self.tracked_copy_of: dict[int, TrackedCopy] = {}
        self.pending_writes: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.values: dict[int, Any] = {}
        """Known objects that are guarded by value: native code may read them."""
        self.set_anew: set[tuple[int, str]] = set()
        """Attributes of known objects that were deleted, and set again."""
        self.classes_written: dict[tuple[type, str], tuple[Any]] = {}
        self.attribute_cache: dict[tuple[int, str], Any] = {}
        self.namespaces: dict[int, dict[str, Any]] = {}
        """Dicts of the frame's own that are the globals of code that it runs."""
        self.globals_written: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}
        self.cells_written: dict[int, tuple[types.CellType, Any]] = {}
        self.append_targets: dict[int, AppendTarget] = {}
        self.read_in_part: list[tuple[Any, Source]] = []
        self.attribute_writes: dict[tuple[int, str], tuple[Any, bool]] = {}
        self.global_cache: dict[tuple[int, str], Any] = {}
        self.deferred = DeferredCalls()
        self.loading: tuple[ActiveFrame, int] | None = None
        """The instruction whose load may be read in part (lazy_values.py)."""
        self.lazy_arguments = False
        """Whether a call may have been given arguments that were not looked at."""

    # ------------------------------------------------------------ sources

    def source_of(self, obj: Any) -> Source | None:
        """Where a pre-existing object can be fetched from; None for what the frame has made."""
        found = self.known.get(id(obj))
        if found is not None:
            return found[1]
        tracked = self.tracked_copies.get(id(obj))
        return None if tracked is None else tracked.source

    def register(self, obj: Any, source: Source) -> None:
        """Note that `obj` existed before the call."""
        self.known.setdefault(id(obj), (obj, source))

    def is_known(self, obj: Any) -> bool:
        """Whether `obj` is used as itself and existed before the call."""
        return id(obj) in self.known

    # ------------------------------------------------------------ wrapping

    def wrap(self, value: Any, source: Source) -> Any:
        """The value as the frame may see it, with a guard on what it is."""
        kind = type(value)
        loading, self.loading = self.loading, None
        if kind in SCALARS:
            return self._wrap_scalar(value, kind, source)
        if isinstance(value, torch.Tensor):
            return self.machine.tape.fake_input(value, source)
        if kind is types.FunctionType:
            return wrap_function(self.machine, value, source)
        if kind in BOUND_BUILTINS and is_method(value):
            return self._wrap_bound_builtin(value, kind, source)
        if kind in IDENTITY_TYPES or isinstance(value, (type, enum.Enum, types.ModuleType)):
            self.machine.guard("IS", source, value)
            self.pinned.setdefault(id(value), (value, source))
            return value
        tracked = self.tracked_copy_of.get(id(value))
        if tracked is not None:
            if tracked.source is not source:
                self.machine.guard("ALIAS", source, tracked.source)
            return tracked.copy
        found = self.known.get(id(value))
        if found is not None:
            if found[1] is not source:
                self.machine.guard("ALIAS", source, found[1])
            return value
        if kind in TORCH_CONSTANTS:
            self.machine.guard("EQUALS", source, value)
            return value
        if kind in PARTIAL_TYPES:
            use = expected_use(self.machine.frame, loading)
            found = None if use is None else self._read_in_part(value, kind, source, use)
            if found is not None:
                return found
        return self._wrap_object(value, kind, source)

    def wrap_for(self, value: Any, source: Source, use: Use | None) -> Any:
        """As `wrap`; a use that does not need all contents may get a stand-in."""
        kind = type(value)
        if kind is str and use is not None and self.machine.dynamic.has_changed(source):
            return self._text(value, source, use)
        if use is None or kind not in PARTIAL_TYPES or self.is_seen(value):
            return self.wrap(value, source)
        found = self._read_in_part(value, kind, source, use)
        return self.wrap(value, source) if found is None else found

    def _text(self, value: str, source: Source, use: Use) -> Any:
        """A stand-in for a text that has changed, where its use does not need its characters."""
        if use in (Use.LOCAL, Use.ARGUMENT, Use.RETURN):
            self.lazy_arguments |= use is Use.ARGUMENT
            return LazyValue(value, source)
        is_text = use is Use.TEXT
        return given_text(self.machine, value, source) if is_text else self.wrap(value, source)

    def is_seen(self, value: Any) -> bool:
        """Whether the frame has met an object from before the call, itself or as a copy."""
        return id(value) in self.tracked_copy_of or id(value) in self.known

    def _read_in_part(self, value: Any, kind: type, source: Source, use: Use) -> Any:
        """A stand-in for a container, or None where its use needs it whole."""
        if use is Use.TEXT:
            return None
        if use in (Use.LOCAL, Use.ARGUMENT, Use.RETURN):
            self.lazy_arguments |= use is Use.ARGUMENT
            return LazyValue(value, source)
        if kind is list and use is not Use.ENTRY:
            return self._append_target(value, source)
        if use is Use.APPEND:
            return None
        self.machine.guard("TYPE", source, kind)
        self.read_in_part.append((value, source))
        return EntryTarget(self.machine, value, source)

    def _wrap_scalar(self, value: Any, kind: type, source: Source) -> Any:
        machine = self.machine
        if (kind is int or kind is float) and numbers.is_symbolic(
            value, machine.dynamic, source, is_of_argument(source)
        ):
            return machine.tape.symbolic_number(value, source)
        by_value = kind in (int, float, complex, str, bytes)
        machine.guard("EQUALS" if by_value else "IS", source, value)
        return value

    def _wrap_bound_builtin(self, value: Any, kind: type, source: Source) -> Any:
        """`obj.method` of a C type, made afresh at each reading: guarded by its parts."""
        self.machine.guard("TYPE", source, kind)
        self.machine.guard("EQUALS", Attribute(source, "__name__"), value.__name__)
        receiver = self.wrap(value.__self__, Attribute(source, "__self__"))
        method = bound_method(value)
        if lookup(self.machine, type(value.__self__), value.__name__) is not method:
            self.machine.guard("IS", CallOf(bound_method, (source,)), method)  # of a base
        if isinstance(receiver, torch.Tensor):
            return self.machine.load(receiver, value.__name__)
        return value if receiver is value.__self__ else method.__get__(receiver, type(receiver))

    def _wrap_object(self, value: Any, kind: type, source: Source) -> Any:
        library = self.machine.foreign.owner(kind)
        if library is not None:
            found = library.wrap(value, source)
            if found is not None:
                return found
        if kind is types.MethodType:
            function = self.wrap(value.__func__, MethodPart(source, "func"))
            return types.MethodType(function, self.wrap(value.__self__, MethodPart(source, "self")))
        if kind in weakref.ProxyTypes:
            raise GraphBreak("unsupported-input", f"a weak proxy is read at {source.text()}")
        if kind is torch.SymInt or kind is torch.SymFloat or kind is torch.SymBool:
            detail = f"a symbolic number of another tracer at {source.text()}"
            raise GraphBreak("unsupported-input", detail)
        if isinstance(value, tuple):
            return self._track_tuple(value, kind, source)
        if isinstance(value, list):
            return self._track_list(value, kind, source)
        if isinstance(value, dict) and (len(value) <= LAZY_DICT_SIZE or kind is not dict):
            return self.track_dict(value, source)
        if isinstance(value, (set, frozenset)):
            return self._track_set(value, kind, source)
        if kind is collections.deque:
            return self._track_deque(value, source)
        for base, convert in VALUE_BASES:
            if isinstance(value, base):
                self.machine.guard("TYPE", source, kind)
                self.machine.guard("EQUALS", CallOf(convert, (source,)), convert(value))
                self.register(value, source)
                return value
        if kind is range or kind is slice:
            self.machine.guard("EQUALS", source, value)
            return value
        if kind in _VIEWS:
            return self._track_view(value, kind, source)
        self.machine.guard("TYPE", source, kind)
        if kind in _SEALED_TYPES:
            held = _held(value)
            if held is not None and _is_constant(held):
                self.machine.guard("EQUALS", CallOf(_held, (source,)), held)
            else:
                self.machine.guard("IS", source, value)
        if kind in VALUE_TYPES and guard_value(self.machine, value, source):
            self.values[id(value)] = value
        self.register(value, source)
        return value

    def _track_view(self, value: Any, kind: type, source: Source) -> Any:
        """A view of a dict from before the call: what it shows is guarded, and used as it is."""
        shown = CallOf(_VIEWS[kind], (source,))
        contents = _VIEWS[kind](value)
        self.machine.guard("TYPE", source, kind)
        self.register(value, source)
        copy = (
            self.track_dict(contents, shown)
            if type(contents) is dict
            else self._track_list(contents, list, shown)
        )
        if not all(map(operator.is_, _flat(copy), _flat(contents))):
            detail = f"a {kind.__name__} of tensors or containers at {source.text()}"
            raise GraphBreak("unsupported-input", detail)
        return value

    def _append_target(self, value: list[Any], source: Source) -> AppendTarget:
        target = self.append_targets.get(id(value))
        if target is None:
            self.machine.guard("TYPE", source, list)
            target = self.append_targets[id(value)] = AppendTarget(value, source)
            self.register(target, source)
        elif target.source is not source:
            self.machine.guard("ALIAS", source, target.source)
        return target

    def whole(self, value: Any) -> Any:
        """A value, to be used in whatever way; what was read in part gets its tracked copy."""
        if type(value) not in PARTIAL_READS:
            return value
        self.loading = None
        return self.wrap(value.value if type(value) is LazyValue else value.real, value.source)

    # ------------------------------------------------------------ cells, globals, attributes

    def load_cell(self, cell: types.CellType, name: str, is_free: bool) -> Any:
        """What a cell holds."""
        written = self.cells_written.get(id(cell))
        if written is not None:
            value = written[1]
        else:
            try:
                value = cell.cell_contents
            except ValueError:
                value = DELETED
            source = self.source_of(cell)
            if source is not None:
                if value is DELETED:
                    self.machine.guard("CELL_EMPTY", source)
                elif not (name == "__class__" and isinstance(value, type)):
                    value = self.wrap(value, CellContents(source))
        if value is DELETED:
            if is_free:
                raise NameError(
                    f"cannot access free variable {name!r} where it is not associated with "
                    f"a value in enclosing scope",
                    name=name,
                )
            raise unbound_local(name)
        return value

    def store_cell(self, cell: types.CellType, value: Any) -> None:
        """Set (or with DELETED, empty) a cell."""
        if self.is_known(cell):
            self.cells_written[id(cell)] = (cell, value)
        elif value is DELETED:
            del cell.cell_contents
        else:
            cell.cell_contents = value

    def write_global(self, module_globals: dict[str, Any], name: str, value: Any) -> None:
        """Set (or with DELETED, delete) a global, replayed at exit."""
        if id(module_globals) in self.namespaces:
            if value is DELETED:
                del module_globals[name]
            else:
                module_globals[name] = value
            return
        key = (id(module_globals), name)
        self.globals_written[key] = (module_globals, value)
        self.global_cache.pop(key, None)
        self.show(module_globals, name, value)

    def written_global(self, module_globals: dict[str, Any], name: Any) -> Any:
        """What the frame has set a global to, DELETED, or ABSENT."""
        found = self.globals_written.get((id(module_globals), name))
        return ABSENT if found is None else found[1]

    def has_written_globals(self, mapping: dict[Any, Any]) -> bool:
        """Whether a dict is that of a module whose globals the frame has written."""
        return any(of == id(mapping) for of, _ in self.globals_written)

    def show(self, real: Any, name: str, value: Any) -> None:
        """Make what was set (or, with DELETED, deleted) visible in a tracked copy of a dict,
        without its counting as the tracked copy's own change.
        """
        tracked = self.tracked_copy_of.get(id(real))
        if tracked is None:
            return
        if value is DELETED:
            tracked.copy.pop(name, None)
            tracked.snapshot.pop(name, None)
        else:
            tracked.copy[name] = tracked.snapshot[name] = value

    def note_attribute_write(self, obj: Any, name: str, *, raw: bool) -> None:
        """Remember that an attribute of a known object is to be written at exit."""
        self.attribute_writes.pop((id(obj), name), None)
        self.attribute_writes[(id(obj), name)] = (obj, raw)

    # ------------------------------------------------------------ tracked copies

    def read_whole(self, value: Any) -> Any:
        """A value as native code may read all of it: a dict that is read entry by entry as its
        `whole_dict`, anything else as it is.
        """
        return self.whole_dict(value) if type(value) is dict else value

    def whole_dict(self, mapping: dict[Any, Any]) -> dict[Any, Any]:
        """A tracked copy of a big dict that existed before the call, guarded whole."""
        if not self.is_known(mapping):
            return mapping
        _, source = self.known.pop(id(mapping))
        return self.track_dict(mapping, source)

    def _add_tracked_copy(self, real: Any, source: Source, copy: Any, snapshot: Any) -> TrackedCopy:
        tracked = TrackedCopy(real, source, copy, snapshot)
        self.tracked_copies[id(copy)] = tracked
        self.tracked_copy_of[id(real)] = tracked
        return tracked

    def _track_tuple(self, value: tuple[Any, ...], kind: type, source: Source) -> Any:
        machine = self.machine
        if (
            kind in _CONSTANT_TUPLES
            and _is_constant(value)
            and not (machine.dynamic.mode is not False and is_of_argument(source))
            and not machine.dynamic.has_changed_within(source)
        ):
            machine.guard("EQUALS", source, value)
            self.register(value, source)
            return value
        machine.guard("TYPE", source, kind)
        machine.guard("LENGTH", source, tuple.__len__(value))
        items = [self.wrap(item, Item(source, at)) for at, item in enumerate(tuple.__iter__(value))]
        if all(new is old for new, old in zip(items, tuple.__iter__(value), strict=True)):
            self.register(value, source)
            return value
        copy = tuple(items) if kind is tuple else tuple.__new__(kind, items)
        self._add_tracked_copy(value, source, copy, None)
        return copy

    def _track_list(self, value: list[Any], kind: type, source: Source) -> Any:
        self.machine.guard("TYPE", source, kind)
        self.machine.guard("LENGTH", source, list.__len__(value))
        copy: list[Any] = [] if kind is list else new_object(kind)
        tracked = self._add_tracked_copy(value, source, copy, None)
        items = enumerate(list.__iter__(value))
        list.extend(copy, [self.wrap(item, Item(source, at)) for at, item in items])
        tracked.snapshot = list(list.__iter__(copy))
        self._track_state(tracked)
        target = self.append_targets.get(id(value))
        if target is not None:
            if target.source is not source:
                self.machine.guard("ALIAS", source, target.source)
            copy.extend(target.items)
            target.items, target.tracked = [], copy
        return copy

    def _track_deque(self, value: collections.deque[Any], source: Source) -> Any:
        """The copy of a deque of the program, whose items are read through a list of them."""
        items = CallOf(list, (source,))
        self.machine.guard("TYPE", source, collections.deque)
        self.wrap(value.maxlen, Attribute(source, "maxlen"))
        self.machine.guard("LENGTH", items, len(value))
        copy: collections.deque[Any] = collections.deque(maxlen=value.maxlen)
        tracked = self._add_tracked_copy(value, source, copy, None)
        copy.extend([self.wrap(item, Item(items, at)) for at, item in enumerate(value)])
        tracked.snapshot = list(copy)
        return copy

    def track_dict(self, value: dict[Any, Any], source: Source) -> Any:
        """The copy that stands for a dict of the program, guarded whole."""
        machine, kind = self.machine, type(value)
        if not isinstance(source, InstanceDict):
            machine.guard("TYPE", source, kind)
        base: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
        keys = tuple(base.keys(value))
        constant = all(type(key) in SCALARS or _is_immutable_key(key) for key in keys)
        if constant:
            machine.guard("KEYS", source, keys)
        copy: Any = {} if kind is dict else new_object(kind)
        tracked = self._add_tracked_copy(value, source, copy, {})
        if constant:
            for key in keys:
                item = self.wrap(dict.__getitem__(value, key), DictEntry(source, key))
                base.__setitem__(copy, key, item)
        else:
            self._fill_keyed_by_objects(copy, value, source)
        if isinstance(value, collections.defaultdict):
            copy.default_factory = value.default_factory
        tracked.snapshot = dict(dict_items(copy))
        self._track_state(tracked)
        for (of, name), (_, written) in self.globals_written.items():
            if of == id(value):
                self.show(value, name, written)
        return copy

    def _fill_keyed_by_objects(
        self, copy: dict[Any, Any], value: dict[Any, Any], source: Source
    ) -> None:
        """Copy a dict with tensors (as their fakes) or objects of the program among its keys."""
        self.machine.guard("LENGTH", source, dict.__len__(value))
        for at, (key, item) in enumerate(dict.items(value)):
            if isinstance(value, collections.OrderedDict) or not _is_key(key):
                detail = f"a dict with keys of type {type(key).__name__} at {source.text()}"
                raise GraphBreak("unsupported-input", detail)
            seen = known_key(self.machine, self.wrap(key, DictKeyAt(source, at)), copy)
            if _hashed_natively(key):
                entry = self.entry_source(source, seen)
            else:  # by its place: a guard calls no method of the program
                entry = CallOf(_value_at, (source, Constant(at)))
            dict.__setitem__(copy, seen, self.wrap(item, entry))

    def entry_source(self, mapping: Source, key: Any) -> Source:
        """Where the entry of a dict under a key, as the frame sees it, can be fetched from."""
        if isinstance(key, torch.Tensor):
            found = self.machine.tape.input_of(key)
            of = None if found is None else found[1].source
        else:
            of = None if type(key) in SCALARS or _is_immutable_key(key) else self.source_of(key)
        return DictEntry(mapping, key) if of is None else DictEntryOf(mapping, of)

    def _track_set(self, value: Any, kind: type, source: Source) -> Any:
        if not all(type(item) in SCALARS or _is_immutable_key(item) for item in value):
            return self._track_set_of_objects(value, kind, source)
        plain = frozenset if isinstance(value, frozenset) else set
        if kind is plain:
            self.machine.guard("EQUALS", source, kind(value))
        else:
            self.machine.guard("TYPE", source, kind)
            self.machine.guard("EQUALS", CallOf(plain, (source,)), plain(value))
        if plain is frozenset:
            self.register(value, source)
            return value
        copy = new_object(kind)
        set.update(copy, value)
        self._track_state(self._add_tracked_copy(value, source, copy, set(value)))
        return copy

    def _track_set_of_objects(self, value: Any, kind: type, source: Source) -> Any:
        """A set with objects of the program in it, by their places in its order."""
        items = CallOf(list, (source,))
        self.machine.guard("TYPE", source, kind)
        self.machine.guard("LENGTH", items, len(value))
        copy: Any = set()
        for at, item in enumerate(value):
            if kind is not set or isinstance(item, (torch.Tensor, tuple)) or not _is_key(item):
                raise GraphBreak(
                    "unsupported-input",
                    f"a {kind.__name__} with items of type {type(item).__name__} at "
                    f"{source.text()}",
                )
            copy.add(known_key(self.machine, self.wrap(item, Item(items, at)), copy))
        if not _same_items(list(copy), list(value)):
            copy = value.copy()
        if not _same_items(list(copy), list(value)):
            detail = f"the set at {source.text()} has an order of its own"
            raise GraphBreak("unsupported-input", detail)
        self._add_tracked_copy(value, source, copy, set(value))
        return copy

    def _track_state(self, tracked: TrackedCopy) -> None:
        """Copy the instance `__dict__` and the slots of a container subclass."""
        if has_slots(type(tracked.real)):
            slots = slot_values(tracked.real)
            self.machine.guard("EQUALS", CallOf(_names_set, (tracked.source,)), tuple(slots))
            for name, value in slots.items():
                kept = self.wrap(value, Attribute(tracked.source, name))
                object.__setattr__(tracked.copy, name, kept)
            tracked.slots_snapshot = slot_values(tracked.copy)
        state = getattr(tracked.real, "__dict__", None)
        if type(state) is not dict or not state:
            tracked.state_snapshot = {} if type(state) is dict else None
            return
        base = InstanceDict(tracked.source)
        self.machine.guard("KEYS", base, tuple(state))
        for name, value in state.items():
            tracked.copy.__dict__[name] = self.wrap(value, DictEntry(base, name))
        tracked.state_snapshot = dict(tracked.copy.__dict__)

    # ------------------------------------------------------------ pending writes

    def read_lazily(self, mapping: dict[Any, Any], source: Source) -> Any:
        """A dict that is read entry by entry; its tracked copy if it has one."""
        tracked = self.tracked_copy_of.get(id(mapping))
        if tracked is not None:
            return tracked.copy
        if id(mapping) in self.machine.strategy.whole_dicts:
            return self.wrap(mapping, source)
        self.register(mapping, source)
        return mapping

    def pending_writes_of(self, obj: Any) -> dict[str, Any] | None:
        """The attributes written to a known object, or None."""
        found = self.pending_writes.get(id(obj))
        return None if found is None else found[1]

    def add_pending_write(self, obj: Any, name: str, value: Any) -> None:
        """Set (or with DELETED, delete) an attribute of a known object."""
        self.pending_writes.setdefault(id(obj), (obj, {}))[1][name] = value
        self.attribute_cache.pop((id(obj), name), None)

    def side_effects_so_far(self) -> list[Any]:
        """What the frame has done to objects from before the call, to compare before and after."""
        found: list[Any] = [len(self.deferred.calls)]
        found += [
            (key, name, value is DELETED or id(value))
            for key, (_, pending) in self.pending_writes.items()
            for name, value in pending.items()
        ]
        for written in (self.globals_written, self.cells_written, self.classes_written):
            found += [(key, id(entry[-1])) for key, entry in written.items()]
        found += [
            (key, [id(item) for item in _contents(tracked.copy)])
            for key, tracked in self.tracked_copies.items()
            if tracked.is_changed()
        ]
        found += [(key, len(target.items)) for key, target in self.append_targets.items()]
        return found


def unbound_local(name: str) -> UnboundLocalError:
    """The error of reading a local variable that holds nothing."""
    where = "where it is not associated with a value"
    return UnboundLocalError(f"cannot access local variable {name!r} {where}")


def _contents(container: Any) -> list[Any]:
    """What a container holds, past any method of its class."""
    if isinstance(container, dict):
        return [*dict.keys(container), *dict.values(container)]
    if isinstance(container, list):
        return list.copy(container)
    return list(container) if isinstance(container, (tuple, set, collections.deque)) else []


def _held(value: Any) -> tuple[Any, ...] | None:
    """What a getter of `operator` was made with; None for other types."""
    if type(value) not in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
        return None
    made, held = value.__reduce__()
    if type(made) is functools.partial:
        return tuple(held), made.args, tuple(made.keywords.items())
    return tuple(held)


def _flat(contents: Any) -> list[Any]:
    """The values that a view shows; of pairs, each one's two."""
    items = list(contents.values()) if type(contents) is dict else contents
    return [part for item in items for part in (item if type(item) is tuple else (item,))]


def dict_items(mapping: dict[Any, Any]) -> Any:
    """The entries in their order, past an overridden `items`; OrderedDicts have their own."""
    kind = collections.OrderedDict if isinstance(mapping, collections.OrderedDict) else dict
    return kind.items(mapping)


def _names_set(obj: Any) -> tuple[str, ...]:
    """The names of an object's slots that are set."""
    return tuple(slot_values(obj))


def new_object(cls: Any) -> Any:
    """A bare instance of a class."""
    return cls.__new__(cls)


def _same_items(now: list[Any], then: list[Any]) -> bool:
    return len(now) == len(then) and all(map(_same, now, then))


def _same(a: Any, b: Any) -> bool:
    if type(a) is tuple and type(b) is tuple:
        return _same_items(list(a), list(b))
    return a is b or (type(a) is type(b) and type(a) in SCALARS and a == b)


def is_of_argument(source: Source) -> bool:
    """Whether the source is an argument of the call, or an item of (containers in) one."""
    while isinstance(source, (Item, DictEntry)):
        source = source.base
    return isinstance(source, Argument)


def _is_constant(value: Any) -> bool:
    """Whether a tuple holds nothing but scalars (and tuples of them): guarded by one comparison."""
    return all(
        type(item) in SCALARS or (type(item) is tuple and _is_constant(item))
        for item in tuple.__iter__(value)
    )


def is_method(builtin: Any) -> bool:
    """Whether a builtin is a method of the object that it is bound to.

    Functions of modules and classes are not; nor are those of extensions, which keep data of their
    own there (pybind11's a record).
    """
    return bound_method(builtin) is not None


def bound_method(builtin: Any) -> Any:
    """The method of a C type that a builtin binds; None where it is no method of its object."""
    receiver = builtin.__self__
    if isinstance(receiver, (types.NoneType, types.ModuleType, type)):
        return None
    for base in type(receiver).__mro__:
        found: Any = base.__dict__.get(builtin.__name__)
        if type(found) in C_METHODS and found.__get__(receiver, type(receiver)) == builtin:
            return found
    return None


def _hashed_natively(key: Any) -> bool:
    """Whether hashing and comparing a key runs no code of the program."""
    if type(key) is tuple:
        return all(map(_hashed_natively, key))
    if type(key) in SCALARS or _is_immutable_key(key) or isinstance(key, torch.Tensor):
        return True
    kind = type(key)
    return kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__


def _is_key(key: Any) -> bool:
    """Whether a copy can hold a key: hashed natively, or by methods that are interpreted first."""
    return _hashed_natively(key) or not isinstance(key, (tuple, frozenset))


def _value_at(mapping: dict[Any, Any], index: int) -> Any:
    """The `index`-th value of a dict, in its order."""
    return next(itertools.islice(dict.values(mapping), index, None))


def _is_immutable_key(key: Any) -> bool:
    if type(key) is tuple:
        return all(type(item) in SCALARS or _is_immutable_key(item) for item in key)
    return (
        type(key) in IDENTITY_TYPES
        or type(key) in TORCH_CONSTANTS
        or isinstance(key, (type, enum.Enum))
        or type(key).__module__ == "typing"
    )
