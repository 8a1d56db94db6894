"""Tensor subclasses that wrap other tensors: what they consist of, and how they are made again.

    TwoTensor(a, b)   ->   SubclassSpec TwoTensor(a: f32[4, 8], b: f32[4, 8]), leaves [a, b]

A class takes part if it answers operators (`__torch_dispatch__`) and can be taken apart
(`__tensor_flatten__`) and made of other inner tensors (`__tensor_unflatten__`). While a program is
traced, such a tensor is an instance of its real class over fake tensors: a `Tracer` leaves its
operators to the class, and sees what the class computes on the inner tensors. Inner tensors may be
wrappers again; the plain ones at the end are the leaves, in the order of `__tensor_flatten__`.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch._library import opaque_object

from flambeau_prims.fake import FakeTensor, make_fake
from flambeau_prims.sizes import Expr, eq
from flambeau_prims.sizes_node import IntNode, from_symint, to_symint
from flambeau_prims.spec import Spec, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PLAIN_DISPATCH = (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)

AnySpec: TypeAlias = "Spec | SubclassSpec"


def is_wrapper_subclass(cls: type) -> bool:
    """Whether tensors of a class can be taken apart into plain tensors, and made of such."""
    return (
        issubclass(cls, torch.Tensor)
        and cls is not FakeTensor
        and cls.__torch_dispatch__ not in _PLAIN_DISPATCH
        and hasattr(cls, "__tensor_flatten__")
        and hasattr(cls, "__tensor_unflatten__")
    )


_SHARDINGS = (
    ("torch.distributed.device_mesh", "DeviceMesh"),
    ("torch.distributed.tensor.placement_types", "Placement"),
)
"""The classes that say how a DTensor is split: such constants for torch 2.13, too, not for 2.11."""


def is_opaque_type(cls: type) -> bool:
    """Whether torch's compilers take objects of a class as constants (a DTensor's placements and
    its mesh).
    """
    if opaque_object.is_opaque_type(cls):
        return True
    for module, name in _SHARDINGS:
        loaded = sys.modules.get(module)
        if loaded is not None and issubclass(cls, getattr(loaded, name)):
            return True
    return False


class Context(NamedTuple):
    """What `__tensor_flatten__` says besides tensors: its context, and the inner attributes that
    are no tensors (a DTensor's mesh), by name.
    """

    given: Any
    objects: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class SubclassSpec:
    """What is known of a wrapper: its class, what `__tensor_flatten__` says, and its geometry.

    `shape`, `stride` and `context` may hold Exprs and, where the class counts in sizes that are no
    numbers (nested ints), SymInts as they are.
    """

    cls: type[torch.Tensor]
    names: tuple[str, ...]
    context: Context
    inner: tuple[AnySpec, ...]
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{name}: {part!r}" for name, part in zip(self.names, self.inner, strict=True)
        )
        return f"{self.cls.__name__}({parts})"

    @property
    def leaves(self) -> list[Spec]:
        """The Specs of the plain tensors."""
        found: list[Spec] = []
        for part in self.inner:
            if isinstance(part, SubclassSpec):
                found += part.leaves
            else:
                found.append(part)
        return found

    @property
    def sizes(self) -> list[Expr]:
        """The symbolic sizes that the geometry and the context mention."""
        found = [size for size in (*self.shape, *self.stride) if isinstance(size, Expr)]

        def note(size: Expr) -> Expr:
            found.append(size)
            return size

        map_sizes(self.context, note)
        for part in self.inner:
            extents = part.sizes if isinstance(part, SubclassSpec) else (*part.shape, *part.stride)
            found += [size for size in extents if isinstance(size, Expr)]
        return found


def is_built_as(first: AnySpec, second: AnySpec) -> bool:
    """Whether two tensors are of one class, over leaves of the same dtypes and shapes. Sizes that
    are symbolic are guarded.
    """
    if isinstance(first, SubclassSpec):
        return (
            isinstance(second, SubclassSpec)
            and first.cls is second.cls
            and first.names == second.names
            and all(map(is_built_as, first.inner, second.inner))
        )
    return (
        isinstance(second, Spec)
        and first.dtype is second.dtype
        and first.ndim == second.ndim
        and all(map(eq, first.shape, second.shape))
    )


def same_context(first: Context, second: Context) -> bool:
    """Whether two contexts are equal, as far as they can tell."""
    try:
        return bool(first == second)
    except Exception:
        return False


# ---------------------------------------------------------------- taking apart


def parts_of(tensor: torch.Tensor) -> tuple[tuple[str, ...], Context, list[torch.Tensor]]:
    """The names of a wrapper's inner tensors, its context, and these tensors."""
    names, given = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    inner = {name: getattr(tensor, name) for name in names}
    tensors = {name: part for name, part in inner.items() if isinstance(part, torch.Tensor)}
    objects = tuple(item for item in inner.items() if item[0] not in tensors)
    return tuple(tensors), Context(given, objects), list(tensors.values())


def leaves_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a wrapper consists of; of a plain tensor, itself."""
    if not is_wrapper_subclass(type(tensor)):
        yield tensor
        return
    for inner in parts_of(tensor)[2]:
        yield from leaves_of(inner)


def spec_of_wrapper(tensor: torch.Tensor) -> SubclassSpec:
    """What a wrapper over real or fake tensors is."""
    names, context, inner = parts_of(tensor)
    return SubclassSpec(
        type(tensor),
        names,
        map_symints(context, _size_of),
        tuple(map(spec_of_any, inner)),
        tuple(map(_size_of, tensor.shape)),
        tuple(map(_size_of, _strides(tensor))),
        tensor.dtype,
        tensor.device,
    )


def spec_of_any(tensor: torch.Tensor) -> AnySpec:
    """What a tensor is: of a wrapper its SubclassSpec, of another its Spec."""
    if isinstance(tensor, FakeTensor):
        return tensor.spec
    return spec_of_wrapper(tensor) if is_wrapper_subclass(type(tensor)) else spec_of(tensor)


def _strides(tensor: torch.Tensor) -> Sequence[Any]:
    return tensor.stride()


def _size_of(size: Any) -> Any:
    """An int, or the Expr in a SymInt; a nested int is left as it is."""
    if isinstance(size, torch.SymInt):
        return from_symint(size) if isinstance(size.node, IntNode) else size
    return int(size)


# ---------------------------------------------------------------- making again


def rebuilt(
    spec: SubclassSpec,
    leaves: Iterator[torch.Tensor],
    number: Callable[[Expr], Any] = to_symint,
) -> torch.Tensor:
    """A tensor of this spec over other leaves; `number` is the value of a symbolic size."""
    inner: dict[str, Any] = dict(spec.context.objects)
    inner |= {
        name: rebuilt(part, leaves, number) if isinstance(part, SubclassSpec) else next(leaves)
        for name, part in zip(spec.names, spec.inner, strict=True)
    }
    shape, stride = map_sizes(spec.shape, number), map_sizes(spec.stride, number)
    if all(type(size) is int for size in shape):
        shape = torch.Size(shape)
    made: torch.Tensor = spec.cls.__tensor_unflatten__(  # type: ignore[attr-defined]
        inner, map_sizes(spec.context.given, number), shape, stride
    )
    return made


def alias_of_fake(fake: torch.Tensor) -> FakeTensor:
    """Another fake tensor of the same value and memory, without history."""
    assert isinstance(fake, FakeTensor)
    alias = make_fake(fake.spec, fake.storage_record)
    alias.value, alias.literal = fake.value, fake.literal
    return alias


# ---------------------------------------------------------------- sizes in contexts


def map_sizes(value: Any, number: Callable[[Expr], Any]) -> Any:
    """A context with its Exprs replaced."""
    return _mapped(value, Expr, number)


def map_symints(value: Any, size: Callable[[Any], Any]) -> Any:
    """A context with its SymInts replaced."""
    return _mapped(value, torch.SymInt, size)


def holds_tensors(context: Context) -> bool:
    """Whether a context mentions tensors, which are no inner ones."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    _mapped(context.given, torch.Tensor, note)
    return bool(found)


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """A value in whose tuples, lists, dicts and dataclasses items of a kind are replaced; what
    holds none is the same object.
    """
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, (tuple, list)):
        items = [_mapped(item, kind, function) for item in value]
        if all(map(lambda new, old: new is old, items, value)):
            return value
        if isinstance(value, torch.Size):
            return tuple(items)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is dict:
        entries = {key: _mapped(item, kind, function) for key, item in value.items()}
        return value if all(entries[key] is value[key] for key in value) else entries
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: new
            for field in dataclasses.fields(value)
            if field.init
            and hasattr(value, field.name)
            and (new := _mapped(old := getattr(value, field.name), kind, function)) is not old
        }
        return dataclasses.replace(value, **changed) if changed else value
    return value
