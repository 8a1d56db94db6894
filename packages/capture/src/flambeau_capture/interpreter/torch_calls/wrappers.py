"""Wrapper subclasses in a frame: tensors of their real class over fake inner tensors.

    x = TwoTensor(a, b) at L['x']   ->   Inputs L['x'], L['x'].a, L['x'].b; the frame sees
                                         TwoTensor(fake a, fake b)

A torch call with one is recorded as it is, and made on the fakes: the class's `__torch_dispatch__`
(and `__torch_function__`) computes what comes out. Both run natively, when the call is captured and
when a compiler traces the graph, not when the graph runs: what else they do is not replayed. What
the class says of itself (`__tensor_flatten__`) is guarded, and each inner tensor as any input.
"""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any, Protocol

import torch

from flambeau_capture.interpreter.values.classes import MISSING
from flambeau_capture.interpreter.values.subclasses import own_class_attribute
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import GraphValue, Input
from flambeau_capture.sources import Attribute
from flambeau_prims.fake import symbolic_spec
from flambeau_prims.size_floats import evaluate_number
from flambeau_prims.sizes import Expr
from flambeau_prims.wrapper_subclasses import (
    Context,
    SubclassSpec,
    holds_tensors,
    is_wrapper_subclass,
    leaves_of,
    parts_of,
    rebuilt,
    same_context,
    spec_of_any,
    spec_of_wrapper,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from flambeau_capture.interpreter.protocols import Recorder
    from flambeau_capture.sources import Source
    from flambeau_prims.sizes import Size


class InputsOfWrappers(Protocol):
    """The inputs of a capture, as a wrapper sees them."""

    machine: Recorder

    def sizes_within(
        self, wrapper: torch.Tensor, source: Source
    ) -> AbstractContextManager[None]: ...
    def fake_input(self, real: torch.Tensor, source: Source) -> torch.Tensor: ...


# ---------------------------------------------------------------- inputs


def wrapper_input(
    inputs: InputsOfWrappers, real: torch.Tensor, source: Source, name: str
) -> tuple[torch.Tensor, Input]:
    """The wrapper over fakes for a real one, and its Input; its inner tensors are inputs, too."""
    names, context, inner = parts_of(real)
    context = Context(_copied(context.given), context.objects)
    if holds_tensors(context):
        detail = f"{source.text()} is a {type(real).__name__} whose context holds tensors"
        raise GraphBreak("tensor-subclass", detail)
    guard = SameWrapper(real, names, context)
    if not guard(real):
        detail = f"{source.text()} is a {type(real).__name__} whose context cannot be compared"
        raise GraphBreak("tensor-subclass", detail)
    inputs.machine.guard("PREDICATE", source, (guard, guard.text))
    with inputs.sizes_within(real, source):
        fakes = [
            inputs.fake_input(part, Attribute(source, at))
            for at, part in zip(names, inner, strict=True)
        ]
    shape, stride = _geometry(real, fakes)
    guard.expect(shape, stride, fakes)
    context = Context(_with_geometry(context.given, real, shape, stride), context.objects)
    specs = tuple(map(spec_of_any, fakes))
    spec = SubclassSpec(type(real), names, context, specs, shape, stride, real.dtype, real.device)
    made = rebuilt(spec, (leaf for fake in fakes for leaf in leaves_of(fake)))
    if real.requires_grad:
        made = made.detach() if made.requires_grad else made
        made.requires_grad_()
        if not real.is_leaf:
            with torch.enable_grad():
                made = _Interior.apply(made)
    if isinstance(real, torch.nn.Parameter):
        made._is_param = True  # type: ignore[attr-defined]
    return made, Input(source, real, spec, GraphValue(spec, name, real.requires_grad))


def _geometry(real: torch.Tensor, fakes: list[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The sizes and strides of a wrapper, in symbols that its inner tensors define.

    Sizes that are no numbers (nested ints) stand as they are.
    """
    shape, stride = tuple(real.shape), tuple(real.stride())
    if not all(type(size) is int for size in (*shape, *stride)):
        return shape, stride
    known: dict[Any, Size] = {}
    for size, (_, at) in _symbols(fakes).items():
        known.setdefault((at, size.hint), size)
        known.setdefault(size.hint, size)
    for leaf in (leaf for fake in fakes for leaf in leaves_of(fake)):
        for dim, size in enumerate(leaf.spec.shape):  # type: ignore[attr-defined]
            known.setdefault((dim, size), size)  # a constant in the same dim
    sizes = {
        dim: known.get((dim, size), known.get(size, _multiple(fakes, dim, size)))
        for dim, size in enumerate(shape)
    }
    dims = {dim: size for dim, size in sizes.items() if isinstance(size, Expr)}
    if not dims:
        return shape, stride
    spec = symbolic_spec(real, dims)
    return spec.shape, spec.stride


def _multiple(fakes: list[Any], dim: int, size: int) -> Size | None:
    """A size that is split evenly, by the size of a part."""
    for leaf in (leaf for fake in fakes for leaf in leaves_of(fake)):
        if dim < leaf.dim():
            part = leaf.spec.shape[dim]  # type: ignore[attr-defined]
            if isinstance(part, Expr) and part.hint and size % part.hint == 0:
                return part * (size // part.hint)
    return None


def _symbols(fakes: list[Any]) -> dict[Expr, tuple[int, int]]:
    """The symbols among the sizes of fakes, each with its leaf and dim."""
    found: dict[Expr, tuple[int, int]] = {}
    leaves = [leaf for fake in fakes for leaf in leaves_of(fake)]
    for number, leaf in enumerate(leaves):
        for dim, size in enumerate(leaf.spec.shape):  # type: ignore[attr-defined]
            if isinstance(size, Expr) and size.symbol is not None:
                found.setdefault(size, (number, dim))
    return found


def _with_geometry(context: Any, tensor: torch.Tensor, shape: Any, stride: Any) -> Any:
    """A context whose tuples that are the tensor's own shape or strides say these instead.

    TensorMeta(shape=(4, 6), stride=(6, 1))   ->   TensorMeta(shape=(s0, 6), stride=(6, 1))
    """
    if isinstance(context, torch.Size) and context and context == tensor.shape:
        return shape
    if isinstance(context, (tuple, list)):
        if type(context) is tuple and context and context == tensor.stride():
            return stride
        items = [_with_geometry(item, tensor, shape, stride) for item in context]
        if isinstance(context, torch.Size) or all(map(operator.is_, items, context)):
            return context
        return type(context)(*items) if hasattr(context, "_fields") else type(context)(items)
    if type(context) is dict:
        return {key: _with_geometry(item, tensor, shape, stride) for key, item in context.items()}
    return context


_SHAPE, _STRIDE = -(2**61), -(2**62)
"""Not the sizes, and not the strides, of any tensor."""


def _without_geometry(context: Any, tensor: torch.Tensor) -> Any:
    """A context that says the same of tensors of other sizes: these are compared as sizes."""
    dims = tensor.dim()
    return _with_geometry(context, tensor, torch.Size((_SHAPE,) * dims), (_STRIDE,) * dims)


class _Interior(torch.autograd.Function):
    """The identity, to give a wrapper over fakes the history that the real one has."""

    @staticmethod
    def forward(ctx: Any, wrapper: torch.Tensor) -> torch.Tensor:
        return rebuilt(spec_of_wrapper(wrapper), leaves_of(wrapper))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _copied(context: Any) -> Any:
    """A context whose containers the program cannot change."""
    if type(context) is dict:
        return {key: _copied(item) for key, item in context.items()}
    if type(context) in (list, tuple):
        return type(context)(map(_copied, context))
    return context


class SameWrapper:
    """Whether a tensor is a wrapper of the class, with the context and geometry, of another."""

    def __init__(self, real: torch.Tensor, names: tuple[str, ...], context: Context) -> None:
        self.cls: Any = type(real)
        self.names = names
        self.context = Context(_without_geometry(context.given, real), context.objects)
        self.fields = _fields(real)
        self.extents: tuple[Any, ...] = ()
        self.symbols: dict[str, tuple[int, int]] = {}
        self.text = f"is a {self.cls.__name__} of the same geometry, context {context.given!r}"

    def expect(
        self, shape: tuple[Any, ...], stride: tuple[Any, ...], fakes: list[torch.Tensor]
    ) -> None:
        """Compare sizes and strides, too: with ints, or with what the inner tensors' sizes give."""
        self.extents = (*shape, *stride)
        wanted: set[str] = set()
        for extent in self.extents:
            if isinstance(extent, Expr):
                wanted |= extent.symbols()
        self.symbols = {
            str(size): place for size, place in _symbols(fakes).items() if str(size) in wanted
        }

    def __call__(self, value: Any) -> bool:
        if type(value) is not self.cls:
            return False
        names, context, _ = parts_of(value)
        return (
            names == self.names
            and self._has_context(value, context)
            and _fields(value) == self.fields
            and self._has_extents(value)
        )

    def _has_extents(self, value: torch.Tensor) -> bool:
        if not self.extents:
            return True
        sizes: dict[str, int] = {}
        if self.symbols:
            leaves = list(leaves_of(value))
            sizes = {name: leaves[at].shape[dim] for name, (at, dim) in self.symbols.items()}
        return all(
            evaluate_number(expected, sizes) == extent
            for expected, extent in zip(self.extents, (*value.shape, *value.stride()), strict=True)
            if not isinstance(expected, torch.SymInt)
        )

    def _has_context(self, value: torch.Tensor, context: Context) -> bool:
        compare = getattr(self.cls, "__metadata_guard__", None)
        given = _without_geometry(context.given, value)
        if compare is None:
            return same_context(self.context, Context(given, context.objects))
        return self.context.objects == context.objects and bool(compare(self.context.given, given))


def _fields(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What is compared of a wrapper itself; its number of dimensions keeps extents in step."""
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    return tensor.dtype, tensor.device, tensor.requires_grad, tensor.dim(), keys


# ---------------------------------------------------------------- torch's own classes


class MethodOfTorch:
    """A function that torch defines in a wrapper class: one call of the graph, as torch's operators
    are. It runs natively when the graph is traced.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__module__ = __name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MethodOfTorch) and other.function is self.function

    def __hash__(self) -> int:
        return hash(self.function)


def is_of_wrapper_class(function: types.FunctionType) -> bool:
    """Whether a function stands in the body of a wrapper class."""
    owner, _, name = function.__qualname__.rpartition(".")
    cls = function.__globals__.get(owner)
    return (
        isinstance(cls, type)
        and is_wrapper_subclass(cls)
        and name not in ("__init__", "__new__")
        and getattr(cls.__dict__.get(name), "__func__", cls.__dict__.get(name)) is function
    )


# ---------------------------------------------------------------- attributes


def wrapper_attribute(machine: Recorder, wrapper: torch.Tensor, name: str) -> Any:
    """An attribute of a wrapper that its class or its instance defines; else MISSING."""
    cls = type(wrapper)
    raw = own_class_attribute(cls, name)
    if type(raw) is property:
        return machine.call(raw.fget, (wrapper,), {})
    if type(raw) is types.FunctionType:
        return types.MethodType(raw, wrapper)
    if raw is not None and not hasattr(type(raw), "__set__"):
        return machine.load(cls, name)
    if type(raw) is types.MemberDescriptorType:
        value = raw.__get__(wrapper)
    elif name in wrapper.__dict__:
        value = wrapper.__dict__[name]
    else:
        return MISSING
    if isinstance(value, torch.Tensor) and not machine.tape.is_value(value):
        return machine.tape.call_function(getattr, (wrapper, name))
    if type(value) in (dict, list, set):
        # The program may change it, and the real tensor has another one.
        raise GraphBreak("tensor-attribute", f"container {name!r} of a wrapper is read")
    return value
