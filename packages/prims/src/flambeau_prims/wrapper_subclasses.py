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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_prims.fake import FakeTensor, make_fake
from flambeau_prims.sizes import Expr
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


@dataclass(frozen=True, eq=False)
class SubclassSpec:
    """What is known of a wrapper: its class, what `__tensor_flatten__` says, and its geometry.

    `shape`, `stride` and `context` may hold Exprs and, where the class counts in sizes that are no
    numbers (nested ints), SymInts as they are.
    """

    cls: type[torch.Tensor]
    names: tuple[str, ...]
    context: Any
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

    def is_built_as(self, other: AnySpec) -> bool:
        """Whether both are of one class, over leaves of the same shapes and dtypes."""
        return (
            isinstance(other, SubclassSpec)
            and self.cls is other.cls
            and self.names == other.names
            and all(map(_same_build, self.inner, other.inner))
        )

    def has_context_of(self, other: SubclassSpec) -> bool:
        """Whether the contexts are equal, too; of specs that are built alike."""
        return same_context(self.context, other.context) and all(
            part.has_context_of(others)  # type: ignore[arg-type]
            for part, others in zip(self.inner, other.inner, strict=True)
            if isinstance(part, SubclassSpec)
        )


def _same_build(first: AnySpec, second: AnySpec) -> bool:
    if isinstance(first, SubclassSpec):
        return first.is_built_as(second)
    return isinstance(second, Spec) and first.shape == second.shape and first.dtype is second.dtype


def same_context(first: Any, second: Any) -> bool:
    """Whether two contexts of `__tensor_flatten__` are equal, as far as they can tell."""
    try:
        return bool(first == second)
    except Exception:
        return False


# ---------------------------------------------------------------- taking apart


def parts_of(tensor: torch.Tensor) -> tuple[tuple[str, ...], Any, list[torch.Tensor]]:
    """The names of a wrapper's inner tensors, its context, and these tensors."""
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return tuple(names), context, [getattr(tensor, name) for name in names]


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
    inner = {
        name: rebuilt(part, leaves, number) if isinstance(part, SubclassSpec) else next(leaves)
        for name, part in zip(spec.names, spec.inner, strict=True)
    }
    shape, stride = map_sizes(spec.shape, number), map_sizes(spec.stride, number)
    if all(type(size) is int for size in shape):
        shape = torch.Size(shape)
    made: torch.Tensor = spec.cls.__tensor_unflatten__(  # type: ignore[attr-defined]
        inner, map_sizes(spec.context, number), shape, stride
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
