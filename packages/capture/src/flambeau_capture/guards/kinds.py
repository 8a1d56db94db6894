"""Every kind of guard: what it says of its origin's value, and how that is checked, printed and explained.

A kind is a class named as the kind.  Its methods are all there is to know about it:

    holds(value, guard, scope)   the reference check
    emit(builder, guard)         the same as operations of a guard program
    text(guard)                  the statement, after "L['x'] "
    found(value, guard)          what was found instead, for the reason of a recompilation

Payloads that are user objects are held weakly (`Held`), so that an entry keeps no model alive.
"""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture import origins
from flambeau_capture.guards import torch_state
from flambeau_capture.origins import CallOf, OriginLost, Scope
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flambeau_capture.guards.program import ProgramBuilder
    from flambeau_capture.record import Guard
    from flambeau_prims.spec import Spec


class GuardKind:
    """Base of the kinds; only its class methods are used."""

    __slots__ = ()

    @classmethod
    def prepare(cls, payload: Any) -> Any:
        """The payload as it is kept: user objects become `Held`."""
        return payload

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        raise NotImplementedError

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        raise NotImplementedError

    @classmethod
    def text(cls, guard: Guard) -> str:
        raise NotImplementedError

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"is {brief(value)}"


KINDS: dict[str, type[GuardKind]] = {}


def _kind(cls: type[GuardKind]) -> type[GuardKind]:
    if cls.__name__ in KINDS:
        raise ValueError(f"guard kind {cls.__name__} is declared twice")
    KINDS[cls.__name__] = cls
    return cls


class Held:
    """An object a guard compares by identity: weakly held where its type allows that, so that a dead one never matches."""

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

    def get(self) -> Any:
        """The object, or this Held itself when it has died."""
        if not self.is_weak:
            return self.reference
        found = self.reference()
        return self if found is None else found


# ---------------------------------------------------------------- tensors and sizes


@dataclass(frozen=True, slots=True, eq=False)
class TensorPayload:
    """What a TENSOR guard compares: exact type, Spec (symbolic sizes and strides are not compared, nor is the offset), gradient flag and
    dispatch keys; `words` are the raw key set and dtype-and-device word that C compares, None without C."""

    type: type[torch.Tensor]
    spec: Spec
    requires_grad: bool
    keys: int
    words: tuple[int, int] | None = None


@_kind
class TENSOR(GuardKind):
    """A tensor with these metadata."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        payload: TensorPayload = guard.payload
        spec = payload.spec
        return (
            type(value) is payload.type
            and torch._C._dispatch_keys(value).raw_repr() == payload.keys
            and value.dtype == spec.dtype
            and value.device == spec.device
            and value.ndim == len(spec.shape)
            and _extents_match(spec.shape, value.shape)
            and _extents_match(spec.stride, value.stride())
            and value.requires_grad == payload.requires_grad
        )

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        payload: TensorPayload = guard.payload
        if payload.words is None:
            builder.check_in_python(guard, lambda value: cls.holds(value, guard, None))  # type: ignore[arg-type]
            return
        sizes, strides = (
            tuple(None if isinstance(size, Expr) else size for size in sizes)
            for sizes in (payload.spec.shape, payload.spec.stride)
        )
        builder.check(
            "TENSOR",
            guard.origin,
            payload=(payload.type, *payload.words, payload.requires_grad, sizes, strides),
        )

    @classmethod
    def text(cls, guard: Guard) -> str:
        payload: TensorPayload = guard.payload
        return f"is {_type_name(payload.type)} {payload.spec!r}{' requires_grad' if payload.requires_grad else ''}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        payload: TensorPayload = guard.payload
        if not isinstance(value, torch.Tensor):
            return f"is {brief(value)}"
        pairs: dict[str, tuple[Any, Any]] = {
            "type": (payload.type, type(value)),
            "dtype": (payload.spec.dtype, value.dtype),
            "device": (payload.spec.device, value.device),
            "shape": (payload.spec.shape, tuple(value.shape)),
            "stride": (
                payload.spec.stride,
                tuple(value.stride()) if value.layout is torch.strided else None,
            ),
            "requires_grad": (payload.requires_grad, value.requires_grad),
            "dispatch keys": (payload.keys, torch._C._dispatch_keys(value).raw_repr()),
        }
        for name, (then, now) in pairs.items():
            differs = (
                not _extents_match(then, now or ()) if name in ("shape", "stride") else then != now
            )
            if differs and name == "dispatch keys":
                return "is another sort of tensor (a wrapper, conjugated, sparse, or made in inference mode)"
            if differs:
                return f"has {name} {_extents_text(now)}, had {_extents_text(then)}"
        return "changed"


def _extents_match(expected: tuple[Any, ...], found: tuple[Any, ...]) -> bool:
    return len(expected) == len(found) and all(
        isinstance(want, Expr) or want == have for want, have in zip(expected, found, strict=True)
    )


def _extents_text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(str(item) for item in value)}]"
    return _type_name(value) if isinstance(value, type) else str(value)


@_kind
class INT(GuardKind):
    """An int (not a bool), of any value that fits 64 bits: a symbolic int."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return type(value) is int and -(1 << 63) <= value < 1 << 63

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.symbol(guard.origin)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return "is an int"


@_kind
class FLOAT(GuardKind):
    """A float of any value: a symbolic float."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return type(value) is float

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.check("TYPE", guard.origin, payload=float)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return "is a float"


@_kind
class RELATION(GuardKind):
    """A condition on sizes and ints (payload: Relation); the origin is the first that it reads."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return guard.payload.holds(scope)

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.relation(guard)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return guard.payload.in_users_terms()

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"does not hold: {guard.payload.in_users_terms()}"


@_kind
class ARRAY(GuardKind):
    """A numpy.ndarray, of no subclass, that may be written to or not (payload: the class and `numpy_arrays.array_flags`).

    What else matters of it is guarded on the tensor over its memory.
    """

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        kind, flags = guard.payload
        return type(value) is kind and _array_flags(value) == flags

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        kind, flags = guard.payload
        builder.check("ARRAY", guard.origin, number=flags, payload=kind)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"is an {'' if guard.payload[1] & _WRITEABLE else 'read-only '}ndarray"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        if type(value) is not guard.payload[0]:
            return f"is {brief(value)}"
        return "may be written to" if _array_flags(value) & _WRITEABLE else "is read-only"


_ALIGNED, _WRITEABLE = 0x100, 0x400


def _array_flags(array: Any) -> int:
    """The bits of `PyArrayObject.flags` that the C core compares."""
    return _ALIGNED * array.flags.aligned | _WRITEABLE * array.flags.writeable


@_kind
class DISTINCT_RANGES(GuardKind):
    """As DISTINCT_MEMORY, by addresses: tensors made of arrays that overlap have a storage each."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        written, others = ([origin.load(scope) for origin in group] for group in guard.payload)
        return distinct_ranges(written, others)

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        written, others = guard.payload
        count = len(written)
        builder.check_together(
            (*written, *others), lambda values: distinct_ranges(values[:count], values[count:])
        )

    @classmethod
    def text(cls, guard: Guard) -> str:
        return "and other written inputs lie apart from all others in memory"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return "(written by the graph), or another written input, overlaps an input in memory"


@_kind
class DISTINCT_MEMORY(GuardKind):
    """Of tensors that the graph reads, those it writes share no storage with any other.

    The payload is (origins written, other origins); the guard's origin is the first written.
    """

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        written, others = ([origin.load(scope) for origin in group] for group in guard.payload)
        return distinct_storages(written, others)

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        written, others = guard.payload
        builder.distinct_memory(guard, (*written, *others), len(written))

    @classmethod
    def text(cls, guard: Guard) -> str:
        return (
            "shares no memory with another input"
            if len(guard.payload[0]) == 1
            else "and other written inputs share no memory with any other"
        )

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return "(written by the graph), or another written input, shares memory with an input"


# ---------------------------------------------------------------- identity, type and value


@_kind
class IS(GuardKind):
    """The very object (payload)."""

    @classmethod
    def prepare(cls, payload: Any) -> Held:
        return Held(payload)

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return value is guard.payload.get()

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.check(
            "WEAK_IS" if guard.payload.is_weak else "IS",
            guard.origin,
            payload=guard.payload.reference,
        )

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"is {guard.payload.text}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"is {brief(value)}, was {guard.payload.text}"


@_kind
class IS_NOT(GuardKind):
    """Any object but this one (None, above all)."""

    @classmethod
    def prepare(cls, payload: Any) -> Held:
        held = Held(payload)
        if held.is_weak:
            raise TypeError(
                "IS_NOT is for objects that do not die: None, Ellipsis, NotImplemented, ABSENT"
            )
        return held

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return value is not guard.payload.get()

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.check("IS_NOT", guard.origin, payload=guard.payload.reference)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"is not {guard.payload.text}"


@_kind
class TYPE(GuardKind):
    """Exactly of this type (payload)."""

    @classmethod
    def prepare(cls, payload: Any) -> Held:
        if not isinstance(payload, type):
            raise TypeError(f"TYPE expects a type, not {payload!r}")
        return Held(payload)

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return type(value) is guard.payload.get()

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.check(
            "WEAK_TYPE" if guard.payload.is_weak else "TYPE",
            guard.origin,
            payload=guard.payload.reference,
        )

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"is of type {guard.payload.text}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"is of type {_type_name(type(value))}, was {guard.payload.text}"


_CONSTANT_TYPES: tuple[type, ...] = (
    int, bool, float, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
)  # fmt: skip


@_kind
class EQUALS(GuardKind):
    """Equal to this constant, in type at every level and in the bits of floats.

    The payload is a scalar, a string, a torch dtype, device or layout, or a tuple, slice, range, frozenset or set of such; an object
    of another type within it is compared by identity.
    """

    @classmethod
    def prepare(cls, payload: Any) -> Any:
        if isinstance(payload, (list, dict, torch.Tensor, torch.nn.Module)):
            raise TypeError(f"EQUALS expects a constant, not {type(payload).__name__}")
        return payload

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return constants_equal(value, guard.payload)

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        constant = guard.payload
        if (
            constant is None
            or constant is True
            or constant is False
            or type(constant) in (torch.dtype, torch.layout, torch.memory_format)
        ):
            builder.check("IS", guard.origin, payload=constant)
        elif isinstance(constant, (set, frozenset)):
            builder.check_in_python(guard, lambda value: constants_equal(value, constant))
        else:
            builder.check("EQUALS", guard.origin, payload=constant)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"== {guard.payload!r}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"is {brief(value)}, was {guard.payload!r}"


@_kind
class ALIAS(GuardKind):
    """The same object as another origin holds (payload)."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return value is guard.payload.load(scope)

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.check("ALIAS", guard.origin, number=builder.load(guard.payload))

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"is {guard.payload.text()}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"is no longer the same object as {guard.payload.text()}"


@_kind
class NOT_ALIAS(GuardKind):
    """Another object than another origin holds (payload)."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return value is not guard.payload.load(scope)

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.check("NOT_ALIAS", guard.origin, number=builder.load(guard.payload))

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"is not {guard.payload.text()}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"is now the same object as {guard.payload.text()}"


# ---------------------------------------------------------------- containers, cells and attributes


@_kind
class LENGTH(GuardKind):
    """A list, tuple, dict or set (or a subclass) with this many items, counted as the builtin counts them."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        for container in (list, tuple, dict, set, frozenset):
            if isinstance(value, container):
                return bool(container.__len__(value) == guard.payload)  # type: ignore[arg-type]
        return False

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.check("LENGTH", guard.origin, number=guard.payload)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"has length {guard.payload}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        length = len(value) if isinstance(value, (list, tuple, dict, set, frozenset)) else None
        return (
            f"is {brief(value)}" if length is None else f"has length {length}, had {guard.payload}"
        )


@_kind
class KEYS(GuardKind):
    """A dict (or subclass) with these keys in this order; the payload is a tuple of constants, or other keys compared by identity and equality."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        if not isinstance(value, dict):
            return False
        keys = list(_keys_in_order(value))
        return len(keys) == len(guard.payload) and all(map(constants_equal, keys, guard.payload))

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.check("KEYS", guard.origin, payload=tuple(guard.payload))

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"has exactly the keys {_keys_text(guard.payload)}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return (
            f"has keys {_keys_text(_keys_in_order(value))}, had {_keys_text(guard.payload)}"
            if isinstance(value, dict)
            else f"is {brief(value)}"
        )


def _keys_text(keys: Iterable[Any]) -> str:
    return f"[{', '.join(map(brief, keys))}]"


def _keys_in_order(value: dict[Any, Any]) -> Iterator[Any]:
    """The keys as the builtin iterates them (an OrderedDict keeps an order of its own)."""
    return OrderedDict.__iter__(value) if isinstance(value, OrderedDict) else dict.__iter__(value)


@_kind
class HAS_KEY(GuardKind):
    """A dict (or subclass) that has this key."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return isinstance(value, dict) and dict.__contains__(value, guard.payload)

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.check("HAS_KEY", guard.origin, payload=guard.payload)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"has the key {guard.payload!r}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"has no key {guard.payload!r} any more"


@_kind
class ABSENT(GuardKind):
    """A dict (or subclass) without this key: an attribute that no instance shadows, a global that is a builtin."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return isinstance(value, dict) and not dict.__contains__(value, guard.payload)

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.check("NO_KEY", guard.origin, payload=guard.payload)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"has no key {guard.payload!r}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"has the key {guard.payload!r} now"


@_kind
class CELL_EMPTY(GuardKind):
    """A closure cell that holds nothing yet."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        if type(value) is not types.CellType:
            return False
        try:
            value.cell_contents  # noqa: B018
        except ValueError:
            return True
        return False

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.check("CELL_EMPTY", guard.origin)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return "is empty"


# ---------------------------------------------------------------- torch's state, and anything else


@_kind
class TORCH_STATE(GuardKind):
    """The usual states of torch (payload: torch_state.UsualState): grad and inference mode, dispatch modes, autocast on, default dtype."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return not guard.payload.differences()

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        if guard.payload.words:
            builder.check("TORCH_STATE", None, payload=guard.payload.words)
        else:
            builder.check_in_python(guard, lambda _: cls.holds(None, guard, None))  # type: ignore[arg-type]

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"is {', '.join(f'{name}={value}' for name, value in guard.payload.values.items())}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        changed = [
            f"{name} is {now}, was {then}" for name, then, now in guard.payload.differences()
        ]
        return "has " + (", ".join(changed) or "changed")


@_kind
class STATE(GuardKind):
    """One further state of torch (payload: (name in torch_state.EXTRA, value))."""

    @classmethod
    def prepare(cls, payload: Any) -> Any:
        torch_state.EXTRA[payload[0]]
        return payload

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        name, then = guard.payload
        return torch_state.EXTRA[name]() == then

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        name, then = guard.payload
        read = CallOf(torch_state.EXTRA[name], ())
        builder.check("EQUALS", read, payload=then)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return "{} is {}".format(*guard.payload)

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        name, then = guard.payload
        return f"has {name} {torch_state.EXTRA[name]()}, had {then}"


@_kind
class PREDICATE(GuardKind):
    """Whatever else: the payload is (function, description), and `function(value)` must be true.  Slow; it may run Python code."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return bool(guard.payload[0](value))

    @classmethod
    def emit(cls, builder: ProgramBuilder, guard: Guard) -> None:
        builder.check_in_python(guard, guard.payload[0])

    @classmethod
    def text(cls, guard: Guard) -> str:
        return guard.payload[1]


# ---------------------------------------------------------------- memory, constants and text


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
    for at, tensor in enumerate((*written, *others)):
        memory = tensor.untyped_storage()
        start, size = memory.data_ptr(), memory.nbytes()
        if size:
            ranges.append((start, start + size, at < len(written)))
    ranges.sort()
    end = written_end = 0
    for start, stop, is_written in ranges:
        if start < (end if is_written else written_end):
            return False
        end = max(end, stop)
        written_end = max(written_end, stop) if is_written else written_end
    return True


def is_constant(value: Any) -> bool:
    """Whether `repr(value)` runs no user code and says all there is to know."""
    if type(value) in (tuple, frozenset, set):
        return all(is_constant(item) for item in value)
    return type(value) in _CONSTANT_TYPES


_HEAP_TYPE = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`: types made by Python code, whose `__eq__` may be the user's."""


def constants_equal(a: Any, b: Any) -> bool:
    """Equality exact in type at every level and in the bits of floats (so 1 is not True, 0.0 is not -0.0, nan is nan).

    It runs no user code: objects of heap types are equal only to themselves.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return tuple.__len__(a) == tuple.__len__(b) and all(
            map(constants_equal, tuple.__iter__(a), tuple.__iter__(b))
        )
    if type(a).__flags__ & _HEAP_TYPE:
        return False
    if isinstance(a, float):
        return a.hex() == b.hex()
    if isinstance(a, complex):
        return constants_equal(a.real, b.real) and constants_equal(a.imag, b.imag)
    if isinstance(a, slice):
        return constants_equal((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if isinstance(a, (set, frozenset)):
        return {(type(item), item) for item in a} == {(type(item), item) for item in b}
    return bool(a == b)


def prepared(guard: Guard) -> Guard:
    """The guard with its payload as it is kept; ValueError for a kind that is not declared."""
    if guard.kind not in KINDS:
        raise ValueError(f"no guard kind {guard.kind}; there are {', '.join(KINDS)}")
    return replace(guard, payload=KINDS[guard.kind].prepare(guard.payload))


def guard_text(guard: Guard) -> str:
    """The guard in the user's terms: `L['x'] is Tensor f32[4, 8]`."""
    kind = KINDS[guard.kind]
    statement = kind.text(guard)
    return statement if kind is RELATION else f"{guard.origin.text()} {statement}"


def failure_text(guard: Guard, scope: Scope) -> str:
    """Why the guard does not hold on this call, in the user's terms: `L['x'] has shape [5, 8], had [4, 8]`."""
    try:
        value = guard.origin.load(scope)
    except OriginLost:
        return f"{guard.origin.text()} is no longer there"
    return f"{guard.origin.text()} {KINDS[guard.kind].found(value, guard)}"


def brief(value: Any) -> str:
    """A short text of a value that runs no user code."""
    if value is origins.ABSENT:
        return "absent"
    if is_constant(value):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    if isinstance(value, type):
        return _type_name(value)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return f"<function {value.__qualname__}>"
    if isinstance(value, torch.Tensor):
        return f"a {_type_name(type(value))}"
    return f"<{_type_name(type(value))} at {id(value):#x}>"


def _type_name(cls: type) -> str:
    return (
        cls.__qualname__
        if cls.__module__ in ("builtins", "torch", "__main__", "torch.nn.parameter")
        else f"{cls.__module__}.{cls.__qualname__}"
    )
