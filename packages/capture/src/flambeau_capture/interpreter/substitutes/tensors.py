"""Functions that make tensors, questions about tensors, and the machinery of tensor subclasses.

Tensors made by their type are calls of the functions that say the same:

    torch.IntTensor([4, 5])   ->   torch.tensor([4, 5], dtype=torch.int32)
    torch.Tensor(2, 3)        ->   torch.empty((2, 3))
    x.new(x.shape)            ->   x.new_empty(x.shape)

Eager `torch.tensor` reads the values of 0-dim tensors in nested lists; a graph stacks the tensors:

    torch.tensor([x.sum(), 1.0])
    ->  torch.stack([x.sum().detach().to("cpu", float32), torch.tensor(1.0)])

The dtype is that to which all elements are promoted, a tensor by its own dtype, a number by the
default one of its type. If eager may raise for a value (the dtype does not hold every value of a
tensor's), the call is left to eager.

Also: what torch and libraries on it ask about compiling, tracing and symbolic sizes; the default
`__torch_function__`, and how tensors become ones of a subclass.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.substitute_registry import (
    answering,
    compiling,
    natively,
    substitute_for,
    substitute_if_new,
)
from flambeau_capture.interpreter.substitutes.modules import call_module
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.interpreter.values.subclasses import TorchFunctionOff, is_admitted
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import Substitute

_TYPES: tuple[Any, ...] = (
    torch.FloatTensor, torch.DoubleTensor, torch.HalfTensor, torch.BFloat16Tensor, torch.LongTensor,
    torch.IntTensor, torch.ShortTensor, torch.CharTensor, torch.ByteTensor, torch.BoolTensor,
)  # fmt: skip
_SIZES = (int, torch.SymInt)


def _maker(cls: Any) -> Substitute:
    def make(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtype = torch.get_default_dtype() if cls is torch.Tensor else cls.dtype
        given = {"dtype": dtype, "device": torch.device("cpu")}
        if not kwargs and len(args) == 1 and type(args[0]) is torch.Size:
            args = tuple(args[0])
            return machine.tape.call_function(torch.empty, (args,), given)
        if not kwargs and all(type(arg) in _SIZES for arg in args):
            return machine.tape.call_function(torch.empty, (args or (0,),), given)
        if not kwargs and len(args) == 1 and type(args[0]) in (list, tuple):
            if _is_plain(args[0]):
                with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
                    cls(*args)  # for its errors
            return machine.call(torch.tensor, args, given)
        kinds = ", ".join(type(arg).__name__ for arg in (*args, *kwargs.values()))
        raise GraphBreak("unknown-c-function", f"a torch.{cls.__name__} is made of {kinds}")

    return make


def _is_plain(data: Any) -> bool:
    """Whether data are numbers in lists."""
    if type(data) in (list, tuple):
        return all(map(_is_plain, data))
    return type(data) in (int, float, bool)


for _type in (torch.Tensor, *_TYPES):
    substitute_for(_type)(_maker(_type))


# ---------------------------------------------------------------- torch queries

substitute_for(torch.nn.Module.__call__, torch.nn.Module._call_impl)(call_module)


substitute_for(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)(compiling)
for _module, _name, _answer in (
    (torch.jit, "is_scripting", answering(False)),
    (torch._jit_internal, "is_scripting", answering(False)),
    (torch._utils, "is_compiling", compiling),
):
    substitute_if_new(getattr(_module, _name, None), _answer)
for _name in (
    "sym_int",
    "sym_float",
    "sym_max",
    "sym_min",
    "sym_not",
    "sym_ite",
    "sym_sum",
    "sym_sqrt",
):
    _function = getattr(torch, _name, None)
    substitute_if_new(_function, natively(_function))

# Questions about the machine, whose answers last as long as the process.
for _module, _names in (
    (torch.cuda, (
        "is_available", "current_device", "device_count", "get_device_properties",
        "get_device_capability", "get_device_name", "is_initialized", "is_bf16_supported",
        "is_built", "is_current_stream_capturing",
    )),
    (torch.cuda.amp.common, ("amp_definitely_not_available",)),
    (torch.accelerator, (
        "is_available", "current_accelerator", "device_count", "current_device_index",
    )),
    (torch.backends.mps, ("is_available", "is_built")),
    (torch.backends.cuda, ("is_built",)),
):  # fmt: skip
    for _name in _names:
        _function = getattr(_module, _name, None)
        substitute_if_new(_function, natively(_function))

substitute_for(torch.autograd.profiler.record_function.__enter__)(
    lambda machine, args, kwargs: args[0]
)
substitute_for(torch.autograd.profiler.record_function.__exit__)(answering(None))


# ---------------------------------------------------------------- tensor lists

_LISTS = (list, tuple)
_OPTIONS = frozenset({"dtype", "device", "requires_grad"})
_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool,
    torch.SymBool: torch.bool,
    int: torch.int64,
    torch.SymInt: torch.int64,
}


def tensor_of(machine: Machine, data: Any, options: dict[str, Any]) -> torch.Tensor | None:
    """The tensor that `torch.tensor` makes of such lists; None if not, or if eager may raise."""
    shape = _shape(data) if type(data) in _LISTS else None
    if shape is None or not options.keys() <= _OPTIONS:
        return None
    leaves = _leaves(data)
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return None
    dtypes = [_dtype(leaf) for leaf in leaves]
    dtype = options.get("dtype") or functools.reduce(torch.promote_types, dtypes)
    for leaf, own in zip(leaves, dtypes, strict=True):
        if isinstance(leaf, torch.Tensor) and not _holds(dtype, own):
            return None
    devices = machine.tape.devices
    default = devices.given(torch.tensor, {}) if devices.inside else {}
    given = {"dtype": dtype, "device": options.get("device") or default.get("device", "cpu")}
    made = [_element(machine, leaf, given) for leaf in leaves]
    result = machine.tape.call_function(torch.stack, (made,))
    if len(shape) > 1:
        result = machine.tape.call_method("reshape", (result, shape))
    if options.get("requires_grad"):
        result = machine.tape.call_method("requires_grad_", (result,))
    return result


def with_dtype(
    machine: Machine, function: Any, data: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """The options of `torch.tensor(data)`, with the dtype that scalars of a library in its lists
    give it: a graph holds them as plain numbers.
    """
    if type(data) not in _LISTS or options.get("dtype") is not None:
        return options
    plain = (*_DTYPES, float)
    others = [leaf for leaf in _leaves(data) if type(leaf) not in plain]
    if not others or any(isinstance(leaf, (torch.Tensor, Proxy)) for leaf in others):
        return options
    if not any(machine.foreign.of_data(leaf) for leaf in others):
        return options
    with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
        return {**options, "dtype": function(data).dtype}


def _element(machine: Machine, leaf: Any, given: dict[str, Any]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return machine.call(torch.tensor, (leaf,), given)
    detached = machine.tape.call_method("detach", (leaf,))
    return machine.tape.call_method("to", (detached,), given)


def _shape(data: Any) -> tuple[int, ...] | None:
    """The shape of nested lists of numbers and 0-dim tensors; None if ragged, empty or other."""
    if type(data) not in _LISTS:
        number = type(data) in _DTYPES or type(data) in (float, complex, torch.SymFloat)
        return () if number or (isinstance(data, torch.Tensor) and data.ndim == 0) else None
    shapes = {_shape(item) for item in data}
    inner = shapes.pop() if len(shapes) == 1 else None
    return None if inner is None else (len(data), *inner)


def _leaves(data: Any) -> list[Any]:
    if type(data) not in _LISTS:
        return [data]
    return [leaf for item in data for leaf in _leaves(item)]


def _dtype(leaf: Any) -> torch.dtype:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype
    if type(leaf) is complex:
        return torch.promote_types(torch.get_default_dtype(), torch.complex32)
    return _DTYPES.get(type(leaf), torch.get_default_dtype())


def _holds(dtype: torch.dtype, own: torch.dtype) -> bool:
    """Whether eager converts every value of a dtype to this one."""
    if dtype.is_complex:
        return True
    if dtype.is_floating_point:
        return not own.is_complex
    if own.is_floating_point or own.is_complex:
        return False
    return dtype is torch.bool or torch.promote_types(dtype, own) is dtype


@substitute_for(torch.Tensor.new_tensor)
def _new_tensor(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 2 and isinstance(args[0], torch.Tensor):
        defaults = {"dtype": args[0].dtype, "device": args[0].device}
        made = tensor_of(machine, args[1], defaults | kwargs)
        if made is not None:
            return made
    return machine.tape.call_method("new_tensor", args, kwargs)


@substitute_for(torch.Tensor.new)
def _new(machine: Machine, args: Any, kwargs: Any) -> Any:
    """`x.new(size)`: a graph's arguments do not tell sizes from a tuple, of whose numbers eager
    makes a tensor.
    """
    if len(args) == 2 and type(args[1]) is torch.Size and not kwargs:
        return machine.tape.call_method("new_empty", args)
    return machine.tape.call_method("new", args, kwargs)


@substitute_for(torch.Tensor.__reversed__)
def _reversed(machine: Machine, args: Any, kwargs: Any) -> Any:
    return args[0] if args[0].ndim == 0 else machine.tape.call_method("flip", (args[0], 0))


# ---------------------------------------------------------------- subclassing


@substitute_for(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]
def _default_handler(machine: Machine, args: Any, kwargs: Any) -> Any:
    return _handle(machine, *args, **kwargs)


def _handle(
    machine: Machine, cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """`super().__torch_function__(...)`."""
    if not all(issubclass(cls, kind) for kind in types):
        return NotImplemented
    return machine.tape.subclasses.default(cls, func, tuple(args), dict(kwargs or {}))


@substitute_for(torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction)
def _disable(machine: Machine, args: Any, kwargs: Any) -> TorchFunctionOff:
    return TorchFunctionOff(machine.tape.subclasses)


@substitute_for(torch.Tensor.as_subclass, unpacked=True)
def _as_subclass(machine: Machine, tensor: Any, cls: Any) -> Any:
    if not is_admitted(cls):
        raise GraphBreak("tensor-subclass", f"a tensor is made a {cls.__name__}")
    return machine.tape.subclasses.convert(tensor, cls)


@substitute_for(torch.Tensor._make_subclass)
def _make_subclass(machine: Machine, args: Any, kwargs: Any) -> Any:
    cls, data, *rest = args
    if not is_admitted(cls) or issubclass(cls, torch.nn.Parameter) or any(rest) or kwargs:
        raise GraphBreak("tensor-subclass", f"a {cls.__name__} is made")
    with machine.tape.subclasses.off():
        detached = machine.tape.call_method("detach", (data,))
    return machine.tape.subclasses.note(detached, cls)
