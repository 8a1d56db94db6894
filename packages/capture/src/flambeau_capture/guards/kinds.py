"""Every kind of guard: a class named as the kind, and one instance of it in the table `KINDS`.

A class says all there is to know about its kind, for a guard of some payload:

    holds(value, payload, scope)   the reference check
    emit(builder, guard)           the same as operations of a guard program; by default one
                                   operation of the kind's name
    statement, text(payload)       what holds, after "L['x'] "
    difference(value, payload)     what is the case instead, for the reason of a recompilation

Payloads that are user objects are held weakly (`Held`), so that an entry keeps no model alive.
"""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from flambeau_capture import torch_state
from flambeau_capture.guards.constants import brief, constants_equal, type_name
from flambeau_capture.sources import CallOf, Scope, Source
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flambeau_capture.record import Guard
    from flambeau_prims.spec import Spec


class CheckEmitter(Protocol):
    """What the kinds ask of the program that is being built: `program.ProgramBuilder`."""

    def check(
        self, name: str, source: Source | None, *, number: int = 0, payload: Any = None
    ) -> None: ...
    def check_in_python(self, guard: Guard, holds: Callable[[Any], bool]) -> None: ...
    def check_together(
        self, sources: tuple[Source, ...], holds: Callable[[tuple[Any, ...]], bool]
    ) -> None: ...
    def distinct_memory(self, guard: Guard, tensors: tuple[Source, ...], written: int) -> None: ...
    def load(self, source: Source) -> int: ...
    def relation(self, guard: Guard) -> None: ...
    def symbol(self, source: Source) -> int: ...


class Held:
    """An object that a guard compares by identity, held weakly if possible."""

    __slots__ = ("is_weak", "reference", "text")

    def __init__(self, obj: Any) -> None:
        self.text = brief(obj)
        self.reference: Any
        """A weak reference to the object when `is_weak`, else the object."""
        try:
            self.reference = weakref.ref(obj)
            self.is_weak = True
        except TypeError:
            self.reference = obj
            self.is_weak = False

    def __str__(self) -> str:
        return self.text

    def get(self) -> Any:
        """The object, or this Held itself when it has died."""
        if not self.is_weak:
            return self.reference
        value = self.reference()
        return self if value is None else value


class GuardKind:
    """Base of the kinds. Every subclass is a kind of the class's name."""

    operation: ClassVar[str] = ""
    """The operation of guard programs that takes the payload; the kind's name if empty."""
    statement: ClassVar[str] = ""
    """The text with `{0}` for the payload."""

    def __init_subclass__(cls) -> None:
        if cls.__name__ in KINDS:
            raise ValueError(f"guard kind {cls.__name__} is declared twice")
        KINDS[cls.__name__] = cls()

    def prepare(self, payload: Any) -> Any:
        """The payload as it is kept: user objects become `Held`."""
        return payload

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        """Whether a guard of this payload holds for the value of its source."""
        raise NotImplementedError

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        """Add the check to a guard program."""
        name = self.operation or type(self).__name__
        builder.check(name, guard.source, payload=guard.payload)

    def text(self, payload: Any) -> str:
        """The statement of a guard, in the user's terms."""
        return self.statement.format(payload)

    def difference(self, value: Any, payload: Any) -> str:
        """What is the case where the guard does not hold."""
        return f"is {brief(value)}"


KINDS: dict[str, GuardKind] = {}
"""Every kind by its name."""

# ---------------------------------------------------------------- identity, type and value


class IS(GuardKind):
    """The very object (payload)."""

    statement = "is {0}"

    def prepare(self, payload: Any) -> Held:
        return Held(payload)

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return value is payload.get()

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        name = "WEAK_IS" if guard.payload.is_weak else "IS"
        builder.check(name, guard.source, payload=guard.payload.reference)

    def difference(self, value: Any, payload: Any) -> str:
        return f"is {brief(value)}, was {payload}"


class IS_NOT(GuardKind):
    """Any object but this one (None, above all)."""

    statement = "is not {0}"

    def prepare(self, payload: Any) -> Held:
        held = Held(payload)
        if held.is_weak:
            raise TypeError(
                "IS_NOT is for objects that do not die: None, Ellipsis, NotImplemented, ABSENT"
            )
        return held

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return value is not payload.get()

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("IS_NOT", guard.source, payload=guard.payload.reference)


class TYPE(GuardKind):
    """Exactly of this type (payload)."""

    statement = "is of type {0}"

    def prepare(self, payload: Any) -> Held:
        if not isinstance(payload, type):
            raise TypeError(f"TYPE expects a type, not {payload!r}")
        return Held(payload)

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return type(value) is payload.get()

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        name = "WEAK_TYPE" if guard.payload.is_weak else "TYPE"
        builder.check(name, guard.source, payload=guard.payload.reference)

    def difference(self, value: Any, payload: Any) -> str:
        return f"is of type {type_name(type(value))}, was {payload}"


class EQUALS(GuardKind):
    """Equal to this constant, in type at every level and in the bits of floats.

    The payload is a scalar, a string, a torch dtype, device or layout, or a tuple, slice, range,
    frozenset or set of such; an object of another type within it is compared by identity.
    """

    def prepare(self, payload: Any) -> Any:
        if isinstance(payload, (list, dict, torch.Tensor, torch.nn.Module)):
            raise TypeError(f"EQUALS expects a constant, not {type(payload).__name__}")
        return payload

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return constants_equal(value, payload)

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        constant = guard.payload
        if isinstance(constant, (set, frozenset)):
            builder.check_in_python(guard, lambda value: constants_equal(value, constant))
            return
        singletons = (type(None), bool, torch.dtype, torch.layout, torch.memory_format)
        name = "IS" if type(constant) in singletons else "EQUALS"
        builder.check(name, guard.source, payload=constant)

    def text(self, payload: Any) -> str:
        # `repr` refuses ints of many digits.
        return f"== {brief(payload) if isinstance(payload, int) else repr(payload)}"

    def difference(self, value: Any, payload: Any) -> str:
        return f"is {brief(value)}, was {self.text(payload).removeprefix('== ')}"


class ALIAS(GuardKind):
    """The same object as another source holds (payload)."""

    statement = "is {0}"

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return value is payload.load(scope)

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("ALIAS", guard.source, number=builder.load(guard.payload))

    def difference(self, value: Any, payload: Any) -> str:
        return f"is no longer the same object as {payload}"


class NOT_ALIAS(GuardKind):
    """Another object than another source holds (payload)."""

    statement = "is not {0}"

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return value is not payload.load(scope)

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("NOT_ALIAS", guard.source, number=builder.load(guard.payload))

    def difference(self, value: Any, payload: Any) -> str:
        return f"is now the same object as {payload}"


# ---------------------------------------------------------------- containers and cells

_CONTAINERS: tuple[Any, ...] = (list, tuple, dict, set, frozenset)


class LENGTH(GuardKind):
    """A list, tuple, dict or set (or a subclass) of this length, as the builtin counts it."""

    statement = "has length {0}"

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        container = next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)
        return container is not None and bool(container.__len__(value) == payload)

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("LENGTH", guard.source, number=guard.payload)

    def difference(self, value: Any, payload: Any) -> str:
        if isinstance(value, _CONTAINERS):
            return f"has length {len(value)}, had {payload}"
        return f"is {brief(value)}"


class KEYS(GuardKind):
    """A dict (or subclass) with these keys in this order; the payload is a tuple of constants, or
    other keys compared by identity and equality.
    """

    def prepare(self, payload: Any) -> Any:
        return tuple(payload)

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        if not isinstance(value, dict):
            return False
        keys = list(_keys_in_order(value))
        return len(keys) == len(payload) and all(map(constants_equal, keys, payload))

    def text(self, payload: Any) -> str:
        return f"has exactly the keys {_keys_text(payload)}"

    def difference(self, value: Any, payload: Any) -> str:
        if isinstance(value, dict):
            return f"has keys {_keys_text(_keys_in_order(value))}, had {_keys_text(payload)}"
        return f"is {brief(value)}"


def _keys_text(keys: Iterable[Any]) -> str:
    return f"[{', '.join(map(brief, keys))}]"


def _keys_in_order(value: dict[Any, Any]) -> Iterator[Any]:
    """The keys as the builtin iterates them; an OrderedDict keeps a second order."""
    return OrderedDict.__iter__(value) if isinstance(value, OrderedDict) else dict.__iter__(value)


class HAS_KEY(GuardKind):
    """A dict (or subclass) that has this key."""

    statement = "has the key {0!r}"

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return isinstance(value, dict) and dict.__contains__(value, payload)

    def difference(self, value: Any, payload: Any) -> str:
        return f"has no key {payload!r} any more"


class ABSENT(GuardKind):
    """A dict (or subclass) without this key: an unset attribute, or a global that is a builtin."""

    operation = "NO_KEY"
    statement = "has no key {0!r}"

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return isinstance(value, dict) and not dict.__contains__(value, payload)

    def difference(self, value: Any, payload: Any) -> str:
        return f"has the key {payload!r} now"


class CELL_EMPTY(GuardKind):
    """A closure cell that holds nothing yet."""

    statement = "is empty"

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return type(value) is types.CellType and value == types.CellType()


# ---------------------------------------------------------------- torch's state, and anything else


class TORCH_STATE(GuardKind):
    """Torch's usual states (payload: UsualState): grad, inference and dispatch modes, autocast."""

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return not payload.differences()

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        if guard.payload.words:
            builder.check("TORCH_STATE", None, payload=guard.payload.words)
        else:
            builder.check_in_python(guard, lambda _: not guard.payload.differences())

    def text(self, payload: Any) -> str:
        return f"is {', '.join(f'{name}={value}' for name, value in payload.values.items())}"

    def difference(self, value: Any, payload: Any) -> str:
        changed = [f"{name} is {now}, was {then}" for name, then, now in payload.differences()]
        return "has " + (", ".join(changed) or "changed")


class STATE(GuardKind):
    """One further state of torch (payload: (name in torch_state.EXTRA, value))."""

    statement = "{0[0]} is {0[1]}"

    def prepare(self, payload: Any) -> Any:
        torch_state.EXTRA[payload[0]]
        return payload

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        name, then = payload
        return torch_state.EXTRA[name]() == then

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        name, then = guard.payload
        builder.check("EQUALS", CallOf(torch_state.EXTRA[name], ()), payload=then)

    def difference(self, value: Any, payload: Any) -> str:
        name, then = payload
        return f"has {name} {torch_state.EXTRA[name]()}, had {then}"


class PREDICATE(GuardKind):
    """A slow check in Python: the payload is (function, description), with a bool function."""

    statement = "{0[1]}"

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return bool(payload[0](value))

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        builder.check_in_python(guard, guard.payload[0])


# ---------------------------------------------------------------- tensors, sizes and arrays


@dataclass(frozen=True, slots=True, eq=False)
class TensorPayload:
    """What a TENSOR guard compares: type, Spec (without its offset and symbolic extents), gradient
    flag and dispatch keys; `words` are the key set and dtype-and-device word for C.
    """

    type: type[torch.Tensor]
    spec: Spec
    requires_grad: bool
    keys: int
    words: tuple[int, int] | None = None

    def differences(self, value: torch.Tensor) -> Iterator[str]:
        """What differs in a tensor, one statement for each property."""
        spec = self.spec
        if type(value) is not self.type:
            yield f"has type {type_name(type(value))}, had {type_name(self.type)}"
        for name in ("dtype", "device"):
            then, now = getattr(spec, name), getattr(value, name)
            if now != then:
                yield f"has {name} {now}, had {then}"
        strides = tuple(value.stride()) if value.layout is torch.strided else None
        for name, expected, extents in (
            ("shape", spec.shape, tuple(value.shape)),
            ("stride", spec.stride, strides),
        ):
            if not _extents_match(expected, extents or ()):
                yield f"has {name} {_extents_text(extents)}, had {_extents_text(expected)}"
        if value.requires_grad != self.requires_grad:
            yield f"has requires_grad {value.requires_grad}, had {self.requires_grad}"
        if torch._C._dispatch_keys(value).raw_repr() != self.keys:
            yield "is a wrapper, conjugated, sparse, or a tensor made in inference mode"


def _extents_match(expected: tuple[Any, ...], extents: tuple[Any, ...]) -> bool:
    return len(expected) == len(extents) and all(
        isinstance(want, Expr) or want == have for want, have in zip(expected, extents, strict=True)
    )


def _extents_text(extents: tuple[Any, ...] | None) -> str:
    return "None" if extents is None else f"[{', '.join(map(str, extents))}]"


class TENSOR(GuardKind):
    """A tensor with these metadata (payload: TensorPayload)."""

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        # Keys first: tensors of other kinds may have no shape or strides.
        return (
            type(value) is payload.type
            and torch._C._dispatch_keys(value).raw_repr() == payload.keys
            and not any(payload.differences(value))
        )

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        payload: TensorPayload = guard.payload
        if payload.words is None:
            builder.check_in_python(guard, lambda value: self.holds(value, payload, None))
            return
        sizes, strides = (
            tuple(None if isinstance(size, Expr) else size for size in sizes)
            for sizes in (payload.spec.shape, payload.spec.stride)
        )
        words = (payload.type, *payload.words, payload.requires_grad, sizes, strides)
        builder.check("TENSOR", guard.source, payload=words)

    def text(self, payload: Any) -> str:
        suffix = " requires_grad" if payload.requires_grad else ""
        return f"is {type_name(payload.type)} {payload.spec!r}{suffix}"

    def difference(self, value: Any, payload: Any) -> str:
        if not isinstance(value, torch.Tensor):
            return f"is {brief(value)}"
        return next(payload.differences(value), "changed")


class INT(GuardKind):
    """An int (not a bool), of any value that fits 64 bits: a symbolic int."""

    statement = "is an int"

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return type(value) is int and -(1 << 63) <= value < 1 << 63

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        builder.symbol(guard.source)


class FLOAT(GuardKind):
    """A float of any value: a symbolic float."""

    statement = "is a float"

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return type(value) is float

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("TYPE", guard.source, payload=float)


class RELATION(GuardKind):
    """A condition on sizes and ints (payload: Relation); the source is the first that it reads."""

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        assert scope is not None
        return bool(payload.holds(scope))

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        builder.relation(guard)

    def text(self, payload: Any) -> str:
        return payload.in_users_terms()  # type: ignore[no-any-return]

    def difference(self, value: Any, payload: Any) -> str:
        return f"does not hold: {payload.in_users_terms()}"


ALIGNED, WRITEABLE = 0x100, 0x400
"""Bits of `PyArrayObject.flags` (NumPy's C API)."""


def array_flags(array: Any) -> int:
    """The flags of a NumPy array that a graph depends on, and that the C core compares."""
    return ALIGNED * array.flags.aligned | WRITEABLE * array.flags.writeable


class ARRAY(GuardKind):
    """A numpy.ndarray, of no subclass, that may be written to or not (payload: the class and its
    `array_flags`).

    Its other properties are guarded on the tensor over its memory.
    """

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        kind, flags = payload
        return type(value) is kind and array_flags(value) == flags

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        kind, flags = guard.payload
        builder.check("ARRAY", guard.source, number=flags, payload=kind)

    def text(self, payload: Any) -> str:
        return f"is an {'' if payload[1] & WRITEABLE else 'read-only '}ndarray"

    def difference(self, value: Any, payload: Any) -> str:
        if type(value) is not payload[0]:
            return f"is {brief(value)}"
        return "may be written to" if array_flags(value) & WRITEABLE else "is read-only"


# ---------------------------------------------------------------- memory


class DISTINCT_RANGES(GuardKind):
    """As DISTINCT_MEMORY, by addresses: tensors made of arrays that overlap have a storage each."""

    statement = "and other written inputs lie apart from all others in memory"

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return distinct_ranges(*_loaded(payload, scope))

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        written, others = guard.payload
        count = len(written)
        builder.check_together(
            (*written, *others), lambda values: distinct_ranges(values[:count], values[count:])
        )

    def difference(self, value: Any, payload: Any) -> str:
        return "(written by the graph), or another written input, overlaps an input in memory"


class DISTINCT_MEMORY(GuardKind):
    """Of tensors that the graph reads, those it writes share no storage with any other.

    The payload is (sources written, other sources); the guard's source is the first written.
    """

    def holds(self, value: Any, payload: Any, scope: Scope | None) -> bool:
        return distinct_storages(*_loaded(payload, scope))

    def emit(self, builder: CheckEmitter, guard: Guard) -> None:
        written, others = guard.payload
        builder.distinct_memory(guard, (*written, *others), len(written))

    def text(self, payload: Any) -> str:
        if len(payload[0]) == 1:
            return "shares no memory with another input"
        return "and other written inputs share no memory with any other"

    def difference(self, value: Any, payload: Any) -> str:
        return "(written by the graph), or another written input, shares memory with an input"


def _loaded(groups: tuple[Sequence[Source], Sequence[Source]], scope: Any) -> list[list[Any]]:
    return [[source.load(scope) for source in group] for group in groups]


def distinct_storages(written: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether all are tensors and none that is written shares its storage with another of them."""
    if not all(isinstance(tensor, torch.Tensor) for tensor in (*written, *others)):
        return False
    storages = {tensor.untyped_storage()._cdata for tensor in written}
    return len(storages) == len(written) and not any(
        tensor.untyped_storage()._cdata in storages for tensor in others
    )


def distinct_ranges(written: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether no tensor that is written lies, in memory, where another of them does."""
    ranges = []
    for position, tensor in enumerate((*written, *others)):
        memory = tensor.untyped_storage()
        start, size = memory.data_ptr(), memory.nbytes()
        if size:
            ranges.append((start, start + size, position < len(written)))
    ranges.sort()
    end = written_end = 0
    for start, stop, is_written in ranges:
        if start < (end if is_written else written_end):
            return False
        end = max(end, stop)
        written_end = max(written_end, stop) if is_written else written_end
    return True


# ---------------------------------------------------------------- guards as data and text


def prepared(guard: Guard) -> Guard:
    """The guard with its payload as it is kept; ValueError for a kind that is not declared."""
    if guard.kind not in KINDS:
        raise ValueError(f"no guard kind {guard.kind}; there are {', '.join(KINDS)}")
    return replace(guard, payload=KINDS[guard.kind].prepare(guard.payload))


def guard_text(guard: Guard) -> str:
    """The guard in the user's terms: `L['x'] is Tensor f32[4, 8]`."""
    statement = KINDS[guard.kind].text(guard.payload)
    return statement if guard.kind == "RELATION" else f"{guard.source} {statement}"
