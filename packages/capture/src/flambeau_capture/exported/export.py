"""Graph export: capture one call whole and hand it over as a value.

    exported = export(model, (x,), {"mask": m}, dynamic_shapes={"x": {0: Dim("batch")}})
    exported(y, mask=m2)              the same program, without the model
    exported.print_readable()
    exported.save(path)               and load(path), where the model's source is not

A call that cannot be captured whole, a size that the program fixes although `dynamic_shapes` says
that it varies, and a side effect that a graph cannot have are CaptureErrors that name the user's
line.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flambeau_capture.entries.entry import all_guards, current_state
from flambeau_capture.exported.contents import Ambient
from flambeau_capture.exported.dims import check_promises
from flambeau_capture.exported.graph import ExportedGraph
from flambeau_capture.exported.lift import Lifter
from flambeau_capture.exported.signature import bind_call, frame_sources, local_indices
from flambeau_capture.guards.kinds import guard_text
from flambeau_capture.interpreter.capture import capture_frame
from flambeau_capture.interpreter.semantics.modules import GLOBAL_HOOKS, OWN_HOOKS
from flambeau_capture.options import CaptureOptions
from flambeau_capture.record import Break, CaptureError, DynamicDims, Guard
from flambeau_capture.sources import Scope


def export(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> ExportedGraph:
    """The graph of `fn(*args, **kwargs)`; CaptureError, with the user's line, where the call cannot
    be captured whole.

    `fn` is a function, a method, a functools.partial or an nn.Module. `dynamic_shapes` says which
    sizes may vary: a dict by parameter or a tuple by position, nested as the arguments are, with
    {dimension: Dim} or a tuple of Dims for each tensor, a Dim for an int that may vary, and None
    for what is static; `Dim.AUTO` alone lets every size vary that the program allows to.
    """
    if not isinstance(args, tuple):
        raise TypeError(
            f"args is the tuple of positional arguments, not a {type(args).__name__}: "
            f"export(fn, (x,))"
        )
    target = _target(fn)
    given, named = target.args + args, target.kwargs | (kwargs or {})
    sources = frame_sources(target.function, given, named, len(target.args))
    call = bind_call(target.signature, args, kwargs or {}, sources, dynamic_shapes)
    state, ambient = current_state(), Ambient.now()
    varies = any(True for _ in call.dims.declarations())
    dims: DynamicDims = call.dims if varies else DynamicDims(False)
    scope = _scope(target.function, given, named)
    captured = capture_frame(scope, CaptureOptions(fullgraph=True, exporting=True), dims)
    if isinstance(captured, Break):
        raise CaptureError(captured)
    symbols = next((made for made in call.dims.made if made.env is captured.size_env), None)
    if symbols is not None:
        check_promises(symbols)
    own = (*target.args, *target.kwargs.values())
    lifter = Lifter(captured, target.owner, own, call, symbols)
    guards = [_guard_text(guard) for guard in all_guards(captured, state)]
    return lifter.exported(_name(fn), guards, ambient)


def _guard_text(guard: Guard) -> str:
    """A guard in the user's terms, symbols by their names: `batch >= 2`."""
    if guard.kind != "RELATION":
        return guard_text(guard)
    value = guard.payload.names.get("value")
    text: str = guard.payload.text
    return text if value is None else text.replace("value", value.text(), 1)


@dataclass(frozen=True, slots=True)
class _Target:
    """What is really captured: a Python function, the arguments in front of the caller's, and the
    signature that the caller sees.
    """

    function: types.FunctionType
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    signature: inspect.Signature
    owner: torch.nn.Module | None


def _target(fn: Any) -> _Target:
    if isinstance(fn, functools.partial):
        inner = _target(fn.func)
        return _Target(
            inner.function,
            inner.args + fn.args,
            inner.kwargs | fn.keywords,
            inspect.signature(fn),
            inner.owner,
        )
    if isinstance(fn, torch.nn.Module):
        method: Any = fn.forward if _only_forward(fn) else types.MethodType(type(fn).__call__, fn)
        return _Target(method.__func__, (fn,), {}, inspect.signature(fn.forward), fn)
    if isinstance(fn, types.MethodType) and isinstance(fn.__func__, types.FunctionType):
        owner = fn.__self__ if isinstance(fn.__self__, torch.nn.Module) else None
        return _Target(fn.__func__, (fn.__self__,), {}, inspect.signature(fn), owner)
    if isinstance(fn, types.FunctionType):
        return _Target(fn, (), {}, inspect.signature(fn), None)
    called = inspect.getattr_static(type(fn), "__call__", None)
    if not isinstance(called, types.FunctionType):
        raise TypeError(f"export takes a Python function, a method or an nn.Module, not {fn!r}")
    return _Target(called, (fn,), {}, inspect.signature(fn), None)


def _only_forward(module: torch.nn.Module) -> bool:
    """Whether calling the module is calling its class's forward and nothing else."""
    return (
        type(module).__call__ is torch.nn.Module.__call__
        and module._compiled_call_impl is None
        and isinstance(module.forward, types.MethodType)
        and isinstance(module.forward.__func__, types.FunctionType)
        and module.forward.__self__ is module
        and not any(getattr(module, name) for name in OWN_HOOKS)
        and not any(getattr(torch.nn.modules.module, name) for name in GLOBAL_HOOKS)
    )


def _scope(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scope:
    """The call, with arguments bound in the order of the frame's fast locals."""
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    order = local_indices(bound.signature)
    return Scope(function, tuple(bound.arguments[name] for name in order))


def _name(fn: Any) -> str:
    if isinstance(fn, functools.partial):
        return _name(fn.func)
    if isinstance(fn, torch.nn.Module):
        return type(fn).__name__
    return getattr(fn, "__qualname__", type(fn).__qualname__).rpartition("<locals>.")[2]
