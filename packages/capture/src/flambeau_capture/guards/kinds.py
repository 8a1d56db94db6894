"""Every kind of guard: those of objects, containers and torch's state are here, those of tensors in
`tensor_kinds`.

What a kind says of its source's value, and how that is checked, printed and explained, are methods
of its class (see `kind`).
"""

from __future__ import annotations

import types
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.guards import tensor_kinds, torch_state
from flambeau_capture.guards.constants import brief, constants_equal, type_name
from flambeau_capture.guards.kind import KINDS, GuardKind, Held, guard_kind
from flambeau_capture.sources import CallOf, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flambeau_capture.guards.kind import CheckEmitter
    from flambeau_capture.record import Guard

# ---------------------------------------------------------------- identity, type and value


@guard_kind
class IS(GuardKind):
    """The very object (payload)."""

    @classmethod
    def prepare(cls, payload: Any) -> Held:
        return Held(payload)

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return value is guard.payload.get()

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.check(
            "WEAK_IS" if guard.payload.is_weak else "IS",
            guard.source,
            payload=guard.payload.reference,
        )

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"is {guard.payload.text}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"is {brief(value)}, was {guard.payload.text}"


@guard_kind
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
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("IS_NOT", guard.source, payload=guard.payload.reference)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"is not {guard.payload.text}"


@guard_kind
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
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.check(
            "WEAK_TYPE" if guard.payload.is_weak else "TYPE",
            guard.source,
            payload=guard.payload.reference,
        )

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"is of type {guard.payload.text}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"is of type {type_name(type(value))}, was {guard.payload.text}"


def _shown(constant: Any) -> str:
    """The text of a constant; ints may be too long for `repr`."""
    return brief(constant) if isinstance(constant, int) else repr(constant)


@guard_kind
class EQUALS(GuardKind):
    """Equal to this constant, in type at every level and in the bits of floats.

    The payload is a scalar, a string, a torch dtype, device or layout, or a tuple, slice, range,
    frozenset or set of such; an object of another type within it is compared by identity.
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
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        constant = guard.payload
        if (
            constant is None
            or constant is True
            or constant is False
            or type(constant) in (torch.dtype, torch.layout, torch.memory_format)
        ):
            builder.check("IS", guard.source, payload=constant)
        elif isinstance(constant, (set, frozenset)):
            builder.check_in_python(guard, lambda value: constants_equal(value, constant))
        else:
            builder.check("EQUALS", guard.source, payload=constant)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"== {_shown(guard.payload)}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"is {brief(value)}, was {_shown(guard.payload)}"


@guard_kind
class ALIAS(GuardKind):
    """The same object as another source holds (payload)."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return value is guard.payload.load(scope)

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("ALIAS", guard.source, number=builder.load(guard.payload))

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"is {guard.payload.text()}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"is no longer the same object as {guard.payload.text()}"


@guard_kind
class NOT_ALIAS(GuardKind):
    """Another object than another source holds (payload)."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return value is not guard.payload.load(scope)

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("NOT_ALIAS", guard.source, number=builder.load(guard.payload))

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"is not {guard.payload.text()}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"is now the same object as {guard.payload.text()}"


# ---------------------------------------------------------------- containers, cells and attributes


@guard_kind
class LENGTH(GuardKind):
    """A list, tuple, dict or set (or a subclass) with this many items, counted as the builtin
    counts them.
    """

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        for container in (list, tuple, dict, set, frozenset):
            if isinstance(value, container):
                return bool(container.__len__(value) == guard.payload)  # type: ignore[arg-type]
        return False

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("LENGTH", guard.source, number=guard.payload)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"has length {guard.payload}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        length = len(value) if isinstance(value, (list, tuple, dict, set, frozenset)) else None
        return (
            f"is {brief(value)}" if length is None else f"has length {length}, had {guard.payload}"
        )


@guard_kind
class KEYS(GuardKind):
    """A dict (or subclass) with these keys in this order; the payload is a tuple of constants, or
    other keys compared by identity and equality.
    """

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        if not isinstance(value, dict):
            return False
        keys = list(_keys_in_order(value))
        return len(keys) == len(guard.payload) and all(map(constants_equal, keys, guard.payload))

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("KEYS", guard.source, payload=tuple(guard.payload))

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


@guard_kind
class HAS_KEY(GuardKind):
    """A dict (or subclass) that has this key."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return isinstance(value, dict) and dict.__contains__(value, guard.payload)

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("HAS_KEY", guard.source, payload=guard.payload)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"has the key {guard.payload!r}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"has no key {guard.payload!r} any more"


@guard_kind
class ABSENT(GuardKind):
    """A dict (or subclass) without this key: an attribute that no instance tracked copies, a global
    that is a builtin.
    """

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return isinstance(value, dict) and not dict.__contains__(value, guard.payload)

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("NO_KEY", guard.source, payload=guard.payload)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return f"has no key {guard.payload!r}"

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"has the key {guard.payload!r} now"


@guard_kind
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
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("CELL_EMPTY", guard.source)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return "is empty"


# ---------------------------------------------------------------- torch's state, and anything else


@guard_kind
class TORCH_STATE(GuardKind):
    """The usual states of torch (payload: torch_state.UsualState): grad and inference mode,
    dispatch modes, autocast on, default dtype.
    """

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return not guard.payload.differences()

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
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


@guard_kind
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
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
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


@guard_kind
class PREDICATE(GuardKind):
    """Whatever else: the payload is (function, description), and `function(value)` must be true.
    Slow; it may run Python code.
    """

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return bool(guard.payload[0](value))

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.check_in_python(guard, guard.payload[0])

    @classmethod
    def text(cls, guard: Guard) -> str:
        return guard.payload[1]


# ---------------------------------------------------------------- guards as data and text


def prepared(guard: Guard) -> Guard:
    """The guard with its payload as it is kept; ValueError for a kind that is not declared."""
    if guard.kind not in KINDS:
        raise ValueError(f"no guard kind {guard.kind}; there are {', '.join(KINDS)}")
    return replace(guard, payload=KINDS[guard.kind].prepare(guard.payload))


def guard_text(guard: Guard) -> str:
    """The guard in the user's terms: `L['x'] is Tensor f32[4, 8]`."""
    kind = KINDS[guard.kind]
    statement = kind.text(guard)
    return statement if kind is tensor_kinds.RELATION else f"{guard.source.text()} {statement}"
