"""Operators made by `torch.library.triton_op` as functions that can be followed.

@triton_op("mylib::double", mutates_args={})
def double(x): ...
double.register_autograd(backward, setup_context=setup_context)
->  class double(torch.autograd.Function): forward is `double`, and so on
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._library.triton import triton_ops_to_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._library.custom_ops import CustomOpDef


def definition_of(operator: Any) -> CustomOpDef | None:
    """The definition of a triton_op, by its overload or packet; None for other operators."""
    if not triton_ops_to_kernels:
        return None
    name = getattr(operator, "_qualified_op_name", None) or operator._schema.name
    return OPDEFS.get(name) if name in triton_ops_to_kernels else None


def function_for(definition: CustomOpDef, device: str) -> Callable[..., Any] | None:
    """The program's function that computes an operator on a type of device."""
    registered = definition._backend_fns.get(device)
    if registered is not None and device not in definition._disabled_kernel:
        return _wrapped(registered)
    return _wrapped(definition._init_fn)


def _wrapped(function: Any) -> Callable[..., Any] | None:
    """The program's function that one of torch's wrappers calls: its variable `fn`."""
    while hasattr(function, "_torchdynamo_orig_callable"):
        function = function._torchdynamo_orig_callable
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return cells["fn"].cell_contents if "fn" in cells else None


@cache
def autograd_function(
    name: str, function: Callable[..., Any], setup: Callable[..., Any] | None, gradient: Any
) -> Any:
    """The autograd.Function of a function and its formula for gradients."""

    def forward(*args: Any) -> Any:
        return function(*args)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        if setup is not None:
            setup(ctx=ctx, inputs=inputs, output=output)

    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradient(ctx, *gradients)

    members = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(backward),
    }
    return type(name, (torch.autograd.Function,), members)
