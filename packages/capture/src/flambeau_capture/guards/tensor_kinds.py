"""Guards on tensors, arrays and sizes: metadata, symbolic numbers, relations between them, and
whose memory is whose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.guards.constants import brief, type_name
from flambeau_capture.guards.kind import GuardKind, guard_kind
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_capture.guards.kind import CheckEmitter
    from flambeau_capture.record import Guard
    from flambeau_capture.sources import Scope
    from flambeau_prims.spec import Spec

# ---------------------------------------------------------------- tensors, sizes and arrays


@dataclass(frozen=True, slots=True, eq=False)
class TensorPayload:
    """What a TENSOR guard compares: exact type, Spec (symbolic sizes and strides are not compared,
    nor is the offset), gradient flag and dispatch keys; `words` are the raw key set and
    dtype-and-device word that C compares, None without C.
    """

    type: type[torch.Tensor]
    spec: Spec
    requires_grad: bool
    keys: int
    words: tuple[int, int] | None = None


@guard_kind
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
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
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
            guard.source,
            payload=(payload.type, *payload.words, payload.requires_grad, sizes, strides),
        )

    @classmethod
    def text(cls, guard: Guard) -> str:
        payload: TensorPayload = guard.payload
        suffix = " requires_grad" if payload.requires_grad else ""
        return f"is {type_name(payload.type)} {payload.spec!r}{suffix}"

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
                return "is a wrapper, conjugated, sparse, or a tensor made in inference mode"
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
    return type_name(value) if isinstance(value, type) else str(value)


@guard_kind
class INT(GuardKind):
    """An int (not a bool), of any value that fits 64 bits: a symbolic int."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return type(value) is int and -(1 << 63) <= value < 1 << 63

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.symbol(guard.source)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return "is an int"


@guard_kind
class FLOAT(GuardKind):
    """A float of any value: a symbolic float."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return type(value) is float

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.check("TYPE", guard.source, payload=float)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return "is a float"


@guard_kind
class RELATION(GuardKind):
    """A condition on sizes and ints (payload: Relation); the source is the first that it reads."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        return guard.payload.holds(scope)

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        builder.relation(guard)

    @classmethod
    def text(cls, guard: Guard) -> str:
        return guard.payload.in_users_terms()

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"does not hold: {guard.payload.in_users_terms()}"


@guard_kind
class ARRAY(GuardKind):
    """A numpy.ndarray, of no subclass, that may be written to or not (payload: the class and
    `numpy.arrays.array_flags`).

    What else matters of it is guarded on the tensor over its memory.
    """

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        kind, flags = guard.payload
        return type(value) is kind and _array_flags(value) == flags

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        kind, flags = guard.payload
        builder.check("ARRAY", guard.source, number=flags, payload=kind)

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


# ---------------------------------------------------------------- memory


@guard_kind
class DISTINCT_RANGES(GuardKind):
    """As DISTINCT_MEMORY, by addresses: tensors made of arrays that overlap have a storage each."""

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        written, others = ([source.load(scope) for source in group] for group in guard.payload)
        return distinct_ranges(written, others)

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
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


@guard_kind
class DISTINCT_MEMORY(GuardKind):
    """Of tensors that the graph reads, those it writes share no storage with any other.

    The payload is (sources written, other sources); the guard's source is the first written.
    """

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        written, others = ([source.load(scope) for source in group] for group in guard.payload)
        return distinct_storages(written, others)

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
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
