"""What is intercepted above the dispatcher: torch functions whose C++ would take another path on
fakes than on the real device.

To C++, a fake tensor for a GPU lives on `meta` (fake.py), so what C++ decides by device must be
decided here: which attention kernel, fused dropout, whether `.to` copies. `FunctionTable` is a
TorchFunctionMode that is active while a program is traced:

    with FunctionTable(tracer.device), tracer:
        y = model(x)

`replacements(device)` is the table itself, {torch function: replacement}; a replacement takes the
function's arguments, and returns NotImplemented to let the function run as it is. For programs on a
CPU the table is small: `symbolic_matmul` where C++ cannot multiply matrices of symbolic sizes, and
functions of Python that are no torch functions (`torch._check`), which a bytecode interpreter looks
up itself.
"""

from __future__ import annotations

from functools import partial, reduce
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from flambeau_prims import attention_kernels, autocast, symbolic_matmul
from flambeau_prims.fake import FakeTensor
from flambeau_prims.unsupported import Unsupported
from flambeau_prims.wrapper_subclasses import is_wrapper_subclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class FunctionTable(TorchFunctionMode):
    """Applies `replacements(device)` to every torch function called while it is active."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.device = torch.device(device)
        self.table = replacements(self.device)
        self._running: Any = None
        self._is_gpu = self.device.type != "cpu"
        self._needed = self._is_gpu or symbolic_matmul.needed()
        if self._is_gpu:
            autocast.install()

    def __enter__(self) -> FunctionTable:
        if self._needed:
            super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._needed:
            super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(is_wrapper_subclass, types)):
            return func(*args, **kwargs)  # the table then sees what the class computes
        if self._is_gpu and not autocast.is_current():
            with autocast.switched(torch.is_autocast_enabled("cuda")):
                return self._call(func, args, kwargs)
        return self._call(func, args, kwargs)

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        replacement = self.table.get(func)
        if replacement is not None:
            result = replacement(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if (
            type(func) is not FunctionType
            or func is self._running
            or not func.__globals__.get("__name__", "").startswith("torch.")
        ):
            return func(*args, **kwargs)
        # Composed in Python of other torch functions, which the table is to see as well.  Some call
        # C++ by their own name.
        outer, self._running = self._running, func
        try:
            with self:
                return _past_dispatch(func)(*args, **kwargs)
        finally:
            self._running = outer


_PAST_DISPATCH: dict[FunctionType, FunctionType] = {}
_NAMESPACES: dict[int, dict[str, Any]] = {}
"""By id of a torch module's namespace: a copy in which no function finds a mode to dispatch to."""


def _past_dispatch(function: FunctionType) -> FunctionType:
    """A Python torch function without its first step, which hands the call to the active mode."""
    known = _PAST_DISPATCH.get(function)
    if known is None:
        names = function.__globals__
        space = _NAMESPACES.get(id(names))
        if space is None:
            never = {name: _never for name in names if name.startswith("has_torch_function")}
            space = _NAMESPACES.setdefault(id(names), {**names, **never})
        known = FunctionType(
            function.__code__, space, function.__name__, function.__defaults__, function.__closure__
        )
        known.__kwdefaults__ = function.__kwdefaults__
        known = _PAST_DISPATCH.setdefault(function, known)
    return known


def _never(*_: Any) -> bool:
    return False


def replacements(device: torch.device) -> Mapping[Any, Callable[..., Any]]:
    """The table for programs that run on this device."""
    return ANYWHERE if device.type == "cpu" else ON_GPU


# 1. Anywhere: Python functions that import torch's symbolic shapes


def check(condition: Any, message: Any = None, error: type[Exception] = RuntimeError) -> None:
    """torch._check and its kin: raise unless the condition holds; of sizes, guard it."""
    if not bool(condition):
        raise error(message() if callable(message) else message or "Expected cond to be True")


def _check_is_size(size: Any, message: Any = None, *, max: Any = None) -> None:
    check(size >= 0, message)
    if max is not None:
        check(size <= max, message)


ANYWHERE: dict[Any, Callable[..., Any]] = {
    torch._check: check,
    torch._check_index: partial(check, error=IndexError),
    torch._check_value: partial(check, error=ValueError),
    torch._check_type: partial(check, error=TypeError),
    torch._check_not_implemented: partial(check, error=NotImplementedError),
    torch._check_is_size: _check_is_size,
    **(symbolic_matmul.REPLACEMENTS if symbolic_matmul.needed() else {}),
}


# 2. On a GPU: moving tensors


def _to(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Tensor.to: the tensor itself when nothing changes, which C++ cannot see."""
    if not isinstance(self, FakeTensor):
        return NotImplemented
    device, dtype, copy, memory_format = _parse_to(args, kwargs)
    if device is None or device.type != "cuda":
        return NotImplemented
    device = _indexed(with_index(device, self.device))
    keeps_layout = memory_format in (None, torch.preserve_format)
    if device == self.device and dtype in (None, self.dtype) and not copy and keeps_layout:
        return self
    return self.to(device, dtype or self.dtype, False, copy, memory_format=memory_format)


def _parse_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, bool, Any]:
    """(device, dtype, copy, memory_format) of a call of Tensor.to in any of its forms."""
    device, dtype, copy = kwargs.get("device"), kwargs.get("dtype"), bool(kwargs.get("copy", False))
    flags = 0
    for arg in args:
        if isinstance(arg, torch.dtype):
            dtype = arg
        elif isinstance(arg, torch.Tensor):
            device, dtype = arg.device, arg.dtype
        elif isinstance(arg, bool):
            # The flags are non_blocking, copy, in this order.
            flags += 1
            copy = copy or (flags == 2 and arg)
        elif arg is not None:
            device = arg
    other = kwargs.get("other")
    if other is not None:
        device, dtype = other.device, other.dtype
    return (
        (None if device is None else torch.device(device)),
        dtype,
        copy,
        kwargs.get("memory_format"),
    )


def with_index(device: torch.device, like: torch.device) -> torch.device:
    """ "cuda" as the cuda device that `like` is; other devices as they are."""
    return like if device.index is None and device.type == like.type else device


def _cuda(
    self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None
) -> Any:
    if not isinstance(self, FakeTensor):
        return NotImplemented
    return _to(
        self, torch.device("cuda" if device is None else device), memory_format=memory_format
    )


def _tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **rest: Any
) -> Any:
    """torch.tensor on a GPU: a literal on the CPU, then a copy."""
    if device is None or torch.device(device).type != "cuda":
        return NotImplemented
    result = torch.tensor(data, dtype=dtype, device="cpu").to(_indexed(device))
    return result.requires_grad_() if requires_grad else result


def _as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
    if device is None or torch.device(device).type != "cuda":
        return NotImplemented
    if isinstance(data, torch.Tensor):
        target = with_index(torch.device(device), data.device)
        return data.to(device=target, dtype=data.dtype if dtype is None else dtype)
    return _tensor(data, dtype=dtype, device=device)


def _new_tensor(
    self: Any, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Any:
    if not isinstance(self, FakeTensor) or isinstance(data, torch.Tensor):
        return NotImplemented
    target = self.device if device is None else torch.device(device)
    result = torch.tensor(data, dtype=dtype or self.dtype, device="cpu")
    result = result if target.type == "cpu" else result.to(_indexed(target))
    return result.requires_grad_() if requires_grad else result


def _getitem(self: Any, key: Any) -> Any:
    if not isinstance(self, FakeTensor) or not self.is_cuda:
        return NotImplemented
    ready = _on_device(key, self.device)
    return NotImplemented if ready is key else self[ready]


def _setitem(self: Any, key: Any, value: Any) -> Any:
    if not isinstance(self, FakeTensor) or not self.is_cuda:
        return NotImplemented
    ready = _on_device(key, self.device)
    if ready is key:
        return NotImplemented
    self[ready] = value
    return None


_SEQUENCES = (list, tuple, range)


def _on_device(key: Any, device: torch.device) -> Any:
    """An index with its Python sequences of numbers as tensors on `device`: C++ would make them on
    meta.

    Returns `key` itself if it has none.  A list is one index, or like a tuple if it holds other
    than numbers, as in torch/csrc/autograd/python_variable_indexing.cpp.
    """
    if isinstance(key, (list, range)) and all(isinstance(item, _NUMBERS) for item in key):
        return _tensor(
            key if isinstance(key, list) else [*key], dtype=_index_dtype(key), device=device
        )
    if not isinstance(key, (list, tuple)) or not any(isinstance(item, _SEQUENCES) for item in key):
        return key
    return type(key)(
        _tensor([*item], dtype=_index_dtype(item), device=device)
        if isinstance(item, _SEQUENCES)
        else item
        for item in key
    )


_NUMBERS = (int, torch.SymInt)


def _index_dtype(items: Sequence[Any]) -> torch.dtype | None:
    """int64 for an empty sequence, of which torch.tensor makes floats; else its items' dtype."""
    return None if len(items) else torch.int64


def _indexed(device: Any) -> torch.device:
    device = torch.device(device)
    return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device


_FACTORIES = (
    torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.logspace, torch.normal,
    torch.ones, torch.rand, torch.randint, torch.randn, torch.randperm, torch.range, torch.zeros,
)  # fmt: skip


def _factory(function: Callable[..., Any]) -> Callable[..., Any]:
    """A factory that writes to an out= argument on the device that the call names, which C++
    compares with the fake's.
    """

    def write(*args: Any, out: Any = None, device: Any = None, **kwargs: Any) -> Any:
        if device is None or not isinstance(out, FakeTensor) or not out.is_cuda:
            return NotImplemented
        if with_index(torch.device(device), out.device) != out.device:
            raise RuntimeError(
                f"device type {torch.device(device).type} does not match device type of out "
                f"parameter ({out.device.type})"
            )
        return function(*args, out=out, **kwargs)

    return write


# 3. On a GPU: dropout in one kernel


def _functional_dropout(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    if inplace or not isinstance(input, FakeTensor):
        return NotImplemented
    return _dropout(input, p, training)


def _dropout(input: Any, p: float, train: bool) -> Any:
    """As eager on a GPU: native_dropout if there is anything to drop."""
    if not train or p <= 0 or p >= 1 or not isinstance(input, FakeTensor) or not input.is_cuda:
        return NotImplemented
    return torch.native_dropout(input, p, True)[0]


# 4. On a GPU: what C++ composes of views there


def _channel_shuffle(self: Any, groups: int) -> Any:
    """As C++ composes it for a GPU: the result may be the input's memory."""
    if not isinstance(self, FakeTensor) or not self.is_cuda or self.dim() < 3:
        return NotImplemented
    batch, channels, *rest = self.shape
    if groups <= 0 or channels % groups:
        return NotImplemented
    count = reduce(lambda total, size: total * size, rest)
    grouped = self.view(batch, groups, channels // groups, count)
    return grouped.permute(0, 2, 1, 3).contiguous().reshape(self.shape)


# 5. On a GPU: attention, by the kernel that eager would choose for what autocast makes of it


def _attention(*args: Any, **kwargs: Any) -> Any:
    if torch.is_autocast_enabled("cuda"):
        operator = torch.ops.aten.scaled_dot_product_attention.default
        _, args, kwargs = autocast.as_cast(operator, args, kwargs)
    return attention_kernels.attention(*args, **kwargs)


# 6. On a GPU: recurrent networks, which cuDNN computes there as a whole


def _recurrent(function: Callable[..., Any]) -> Callable[..., Any]:
    """A recurrent network as steps of cells, which C++ composes for a fake.

    Unsupported under autocast: eager casts cuDNN's operands, so that all is in the lower dtype.
    """

    def compute(*args: Any, **kwargs: Any) -> Any:
        given = any(isinstance(x, FakeTensor) and x.is_cuda for x in (*args, *kwargs.values()))
        if given and torch.is_autocast_enabled("cuda"):
            name = function.__name__
            raise Unsupported(f"{name} under autocast, of which cuDNN computes the whole", name)
        return NotImplemented

    return compute


_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)

ON_GPU: dict[Any, Callable[..., Any]] = {
    **ANYWHERE,
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.new_tensor: _new_tensor,
    torch.Tensor.__getitem__: _getitem,
    torch.Tensor.__setitem__: _setitem,
    **{function: _factory(function) for function in _FACTORIES},
    torch.tensor: _tensor,
    torch.as_tensor: _as_tensor,
    torch.channel_shuffle: _channel_shuffle,
    torch.dropout: _dropout,
    F.dropout: _functional_dropout,
    F.scaled_dot_product_attention: _attention,
    **{function: _recurrent(function) for function in _RECURRENT},
}
