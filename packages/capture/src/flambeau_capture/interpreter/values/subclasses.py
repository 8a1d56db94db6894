"""Tensor subclasses written in Python: which class the frame sees a tensor as, and calls handed to
`__torch_function__`.

A fake tensor that stands for a subclass is an ordinary fake with its class noted here; the graph
computes on plain tensors. A torch function called with one goes where eager sends it: to the
class's `__torch_function__`, which is interpreted. Which function that method receives (`x + 1`
is `Tensor.add`) is found by making the call once with tensors that only tell.
"""

from __future__ import annotations

import types
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flambeau_capture.interpreter.protocols import Args, Kwargs, Recorder


NOT_DISPATCHED = object()
_NO_HANDLER = torch._C._disabled_torch_function_impl
_PLAIN_DISPATCH = torch.Tensor.__torch_dispatch__
_SIMPLE = frozenset({
    int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.Size, torch.layout,
    torch.memory_format, slice, torch.SymInt, torch.SymFloat, torch.SymBool, type(...), dict, range,
})  # fmt: skip


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a subclass as a plain one of the same data and history."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def as_subclass(tensor: torch.Tensor, cls: type[torch.Tensor]) -> torch.Tensor:
    """What a graph has computed, as the class that the program saw."""
    return tensor.as_subclass(cls)


def with_attributes(tensor: torch.Tensor, attributes: dict[str, Any]) -> torch.Tensor:
    """A tensor with the attributes that the program has set on it."""
    tensor.__dict__.update(attributes)
    return tensor


def is_admitted(cls: type) -> bool:
    """Whether a subclass of torch.Tensor changes torch functions in Python only, if at all."""
    return (
        issubclass(cls, torch.Tensor)
        and not issubclass(cls, (FakeTensor, UninitializedTensorMixin))
        and cls.__torch_dispatch__ in (_PLAIN_DISPATCH, torch._C._disabled_torch_dispatch_impl)
    )


def has_handler(cls: type) -> bool:
    """Whether torch functions are handed to this class."""
    return getattr(cls, "__torch_function__", _NO_HANDLER) is not _NO_HANDLER


class _ProbeMet(BaseException):
    """A probe was met: the function that its class would get, with the arguments."""

    def __init__(self, function: Any, args: Args, kwargs: Kwargs) -> None:
        self.function, self.call_args, self.call_kwargs = function, args, kwargs


class _Probe(torch.Tensor):
    """A tensor that tells which function it is given to."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _ProbeMet(func, args, kwargs or {})


_PROBES = [torch.Tensor._make_subclass(_Probe, torch.empty(0)) for _ in range(64)]
"""Made here, outside any tracer. They hold nothing, so captures in several threads share them."""


class Subclasses:
    """The classes of one capture's tensors."""

    def __init__(self, machine: Recorder) -> None:
        self.machine = machine
        self._of: dict[int, tuple[FakeTensor, type]] = {}
        self.disabled = 0
        """How many `DisableTorchFunctionSubclass` blocks are entered."""

    def note(self, fake: Any, cls: type) -> Any:
        """Let the frame see a fake tensor as one of `cls`."""
        self._of[id(fake)] = (fake, cls)
        return fake

    def of(self, fake: Any) -> type | None:
        """The subclass of a tensor; None for torch.Tensor and nn.Parameter."""
        found = self._of.get(id(fake))
        return None if found is None else found[1]

    @contextmanager
    def off(self) -> Iterator[None]:
        """Without handing anything to subclasses."""
        self.disabled += 1
        try:
            yield
        finally:
            self.disabled -= 1

    # ------------------------------------------------------------ dispatch

    def overloads(self, args: Args, kwargs: Kwargs) -> list[type]:
        """The classes that a call is passed to, in order: subclasses first, then left to right."""
        found: list[type] = []
        if self.disabled:
            return found
        for arg in (*args, *kwargs.values()) if kwargs else args:
            kind = type(arg)
            if kind is FakeTensor:
                if self._of:
                    self._add(found, arg)
            elif kind is list or kind is tuple:
                for item in arg:
                    self._add(found, item)
            elif kind not in _SIMPLE:
                self._add(found, arg)
        return found

    def _add(self, found: list[type], arg: Any) -> None:
        cls = self._class_of(arg)
        if cls is not None and cls not in found:
            at = next((i for i, other in enumerate(found) if issubclass(cls, other)), len(found))
            found.insert(at, cls)

    def _class_of(self, arg: Any) -> type | None:
        """The class that has a say in calls with this argument, or None."""
        kind = type(arg)
        if kind is FakeTensor:
            noted = self.of(arg)
            return noted if noted is not None and has_handler(noted) else None
        if kind in _SIMPLE or issubclass(kind, (torch.Tensor, Proxy)) or not has_handler(kind):
            return None
        return kind

    def dispatch(
        self, overloads: list[type], function: Callable[..., Any], args: Args, kwargs: Kwargs
    ) -> Any:
        """The call by the classes' `__torch_function__`; NOT_DISPATCHED if torch does not ask."""
        met = self._met_by_probe(function, args, kwargs)
        if met is None:
            return NOT_DISPATCHED
        machine = self.machine
        for cls in overloads:
            handler = machine.load(cls, "__torch_function__")
            given = (met.function, tuple(overloads), met.call_args, met.call_kwargs)
            result = machine.call(handler, given, {})
            if result is not NotImplemented:
                return result
        name = torch.overrides.resolve_name(met.function) or met.function
        raise TypeError(
            f"Multiple dispatch failed for '{name}'; all __torch_function__ handlers "
            f"returned NotImplemented: {overloads}"
        )

    def _met_by_probe(
        self, function: Callable[..., Any], args: Args, kwargs: Kwargs
    ) -> _ProbeMet | None:
        probes: dict[int, Any] = {}
        by_probe: dict[int, Any] = {}

        def probe(value: Any) -> Any:
            if type(value) is list or type(value) is tuple:
                return type(value)(map(probe, value))
            if self._class_of(value) is None:
                return value
            if id(value) not in probes:
                if len(probes) == len(_PROBES):
                    detail = f"{len(probes)} subclass tensors in one call"
                    raise GraphBreak("tensor-subclass", detail)
                probes[id(value)] = _PROBES[len(probes)]
                by_probe[id(probes[id(value)])] = value
            return probes[id(value)]

        def back(value: Any) -> Any:
            if type(value) is list or type(value) is tuple:
                return type(value)(map(back, value))
            return by_probe.get(id(value), value)

        try:
            function(*map(probe, args), **{name: probe(value) for name, value in kwargs.items()})
        except _ProbeMet as met:
            named = {name: back(value) for name, value in met.call_kwargs.items()}
            return _ProbeMet(met.function, tuple(map(back, met.call_args)), named)
        return None

    # ------------------------------------------------------------ the default

    def default(self, cls: type, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """`torch.Tensor.__torch_function__`: calls the function; its results become `cls`."""
        tape = self.machine.tape
        mark = tape.values_made()
        with self.off():
            result = self.machine.call(function, args, kwargs)
        if function in torch.overrides.get_default_nowrap_functions():
            return result
        return self._converted(result, cls, tape.made_since(mark))

    def _converted(self, result: Any, cls: type, made: dict[int, Any]) -> Any:
        if isinstance(result, FakeTensor):
            if issubclass(self.machine.tape.real_type(result), cls):
                return result
            return self.note(result, cls) if id(result) in made else self.convert(result, cls)
        if isinstance(result, (tuple, list)):
            return type(result)(self._converted(item, cls, made) for item in result)  # type: ignore[call-arg]
        return result

    def convert(self, tensor: Any, cls: type) -> Any:
        """`tensor.as_subclass(cls)`: another tensor of the same data."""
        with self.off():
            alias = self.machine.tape.call_function(torch.ops.aten.alias.default, (tensor,))
        return alias if cls is torch.Tensor else self.note(alias, cls)


class TorchFunctionOff(Proxy):
    """What stands for `torch._C.DisableTorchFunctionSubclass()`."""

    __slots__ = ("subclasses",)

    def __init__(self, subclasses: Subclasses) -> None:
        self.subclasses = subclasses

    def __enter__(self) -> None:
        self.subclasses.disabled += 1

    def __exit__(self, *error: Any) -> None:
        self.subclasses.disabled -= 1


def own_class_attribute(cls: type, name: str) -> Any:
    """The raw attribute that a subclass defines itself, before torch.Tensor in its MRO, or None."""
    for base in cls.__mro__:
        if base is torch.Tensor or base is torch.nn.Parameter:
            return None
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def is_getter(function: Any) -> bool:
    """Whether a callable is `Tensor.shape.__get__` or the like, as `__torch_function__` gets it."""
    return (
        type(function) is types.MethodWrapperType
        and function.__name__ == "__get__"
        and type(function.__self__) is types.GetSetDescriptorType
    )
