"""Calls of nn.Modules, and what torch and functools wrap around functions.

A module's `forward` is called directly if no hook is set, which is guarded; else `_call_impl` is
interpreted. Also: `Tensor.register_hook` and the node by which modules' full backward hooks see
gradients (torch_calls/hooks.py), what torch.optim wraps around `step()`, and the dispatch and the
caches of functools.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.modules.module as module_file
from torch.autograd.graph import register_multi_grad_hook
from torch.fx.graph_module import _WrappedCall
from torch.jit._script import _CachedForward
from torch.optim.optimizer import Optimizer, _get_value, _use_grad_for_differentiable
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from flambeau_capture.graphs.autograd_calls import register_all
from flambeau_capture.interpreter.exit.rebuild import CachedCalls
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.items import load_item
from flambeau_capture.interpreter.substitute_registry import substitute_for, substitute_for_code
from flambeau_capture.interpreter.torch_calls.hooks import make_node, note
from flambeau_capture.interpreter.torch_calls.script_functions import call_script_module
from flambeau_capture.interpreter.values.classes import lookup
from flambeau_capture.interpreter.values.lazy_values import realize_arguments
from flambeau_capture.interpreter.values.program_functions import function_source
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import CallOf, DictEntry, Global, InstanceDict

if TYPE_CHECKING:
    import types

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import Substitute
    from flambeau_capture.interpreter.torch_calls.hooks import HookHandle


_CALL_IMPL = torch.nn.Module._call_impl
OWN_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)


def call_module(
    machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any], *, in_place: bool = False
) -> Any:
    """`module(*args, **kwargs)`, as `nn.Module._wrapped_call_impl` and `_call_impl` do it."""
    module = args[0]
    if lookup(machine, type(module), "_call_impl") is not _CALL_IMPL:  # the program's
        return machine.call(load_attr(machine, module, "_call_impl"), args[1:], kwargs)
    if _has_hooks(machine, module):
        if machine.objects.lazy_arguments:
            args, kwargs = realize_arguments(machine, torch.nn.Module._call_impl, args, kwargs)
        return machine.interpret(torch.nn.Module._call_impl, args, kwargs)
    if isinstance(lookup(machine, type(module), "forward"), _CachedForward):
        return call_script_module(machine, module, args[1:], kwargs)
    forward = load_attr(machine, module, "forward")
    if machine.objects.lazy_arguments:
        given, kwargs = realize_arguments(machine, forward, args[1:], kwargs)
        args = (module, *given)
    if in_place:
        return machine.call_in_place(forward, args[1:], kwargs)
    return machine.call(forward, args[1:], kwargs)


@dataclass(slots=True)
class HookChecks:
    """What is guarded of the hooks of modules."""

    guarded: bool = False
    """Whether the hooks of all modules are."""
    hookless: set[int] = field(default_factory=set)
    """Ids of modules that are guarded to have none."""


def _has_hooks(machine: Machine, module: torch.nn.Module) -> bool:
    own = module.__dict__
    objects, checks = machine.objects, machine.state_of(HookChecks)
    known = objects.is_known(module)
    if known and not checks.guarded:
        checks.guarded = True
        for name in GLOBAL_HOOKS:
            machine.guard(
                "LENGTH", Global(vars(module_file), name), len(getattr(module_file, name))
            )
    pending = objects.pending_writes_of(module) or ()
    tables = [getattr(module_file, name) for name in GLOBAL_HOOKS]
    for hooks in (*tables, *(own.get(name) for name in OWN_HOOKS)):
        tracked = objects.tracked_copy_of.get(id(hooks))
        if (tracked is not None and tracked.copy) or hooks:
            return True
    if any(name in pending for name in OWN_HOOKS):
        return True
    if known and id(module) not in checks.hookless:
        checks.hookless.add(id(module))
        source = objects.source_of(module)
        assert source is not None
        base = InstanceDict(source)
        for name in OWN_HOOKS:
            machine.guard("LENGTH", DictEntry(base, name), 0)
    return False


def _inner_code(function: Any, name: str) -> types.CodeType:
    """The code of a function that is defined inside another."""
    return next(
        const
        for const in function.__code__.co_consts
        if isinstance(const, types.CodeType) and const.co_name == name
    )


@substitute_for_code(_inner_code(functools.singledispatch, "dispatch"))
def _dispatch(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    """Which implementation a class gets, as long as none is registered."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    registry = cells["registry"].cell_contents
    count = CallOf(_registered, (function_source(machine, function),))
    machine.guard("EQUALS", count, len(registry))
    return function(*args)


@substitute_for(functools.singledispatchmethod.__get__)
def _bind_dispatcher(machine: Machine, args: Any, kwargs: Any) -> Any:
    """Python 3.13 keeps the bound functions by weak references; capture makes each again."""
    return machine.call(_bound_dispatcher, args, kwargs)


def _bound_dispatcher(dispatcher: Any, instance: Any, owner: Any = None) -> Any:
    """Interpreted: what `functools.singledispatchmethod` binds to an instance."""

    def method(*args: Any, **kwargs: Any) -> Any:
        if not args:
            name = getattr(dispatcher.func, "__name__", "singledispatchmethod method")
            raise TypeError(f"{name} requires at least 1 positional argument")
        found = dispatcher.dispatcher.dispatch(args[0].__class__)
        return found.__get__(instance, owner)(*args, **kwargs)

    method.__isabstractmethod__ = dispatcher.__isabstractmethod__  # type: ignore[attr-defined]
    method.register = dispatcher.register  # type: ignore[attr-defined]
    return functools.update_wrapper(method, dispatcher.func)


def _registered(dispatch: Any) -> int:
    """How many implementations a single-dispatch function has."""
    where = dispatch.__code__.co_freevars.index("registry")
    return len(dispatch.__closure__[where].cell_contents)


# ---------------------------------------------------------------- caches


def call_cached(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    """A function behind functools.lru_cache: called past the cache, once per frame for equal
    arguments, and only without side effects. What is called for its side effect is replayed at
    exit: loggers' `warning_once`, functions that are annotated to return None.
    """
    wrapped = function.__wrapped__
    if (getattr(wrapped, "__module__", None) or "").rpartition(".")[
        2
    ] == "logging" and wrapped.__name__.endswith("_once"):
        machine.objects.deferred.add(function, args, kwargs)
        return None
    if getattr(wrapped, "__annotations__", {}).get("return", "") in (None, "None"):
        machine.objects.deferred.add(function, args, kwargs)
        return None
    key = _cache_key(function, args, kwargs)
    found = machine.state_of(CachedCalls).get(key) if key is not None else None
    if found is not None:
        return found[1]
    before = machine.objects.side_effects_so_far()
    value = machine.call(wrapped, args, kwargs)
    if machine.objects.side_effects_so_far() != before:
        raise GraphBreak(
            "side-effect",
            f"{wrapped.__qualname__}, whose results are cached, changes what existed "
            f"before the call",
        )
    if key is not None:
        machine.state_of(CachedCalls)[key] = ((function, args, kwargs), value)
    return value


def _cache_key(function: Any, args: Any, kwargs: Any) -> Any:
    """The cache's key of a call: scalars by type and value, other objects by identity."""
    parts = [(name, value) for name, value in enumerate(args)] + list(kwargs.items())
    return (
        id(function),
        *(
            (name, type(value), value)
            if type(value) in (int, float, str, bool, bytes, type(None))
            else (name, id(value))
            for name, value in parts
        ),
    )


# ---------------------------------------------------------------- optimizers


def _cell(function: types.FunctionType, name: str) -> Any:
    """What a function made by a decorator of torch wraps."""
    assert function.__closure__ is not None
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


@substitute_for_code(_use_grad_for_differentiable(lambda: None).__code__)  # type: ignore[attr-defined]
def _use_grad(
    machine: Machine, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`step()` without gradients, or with them where the optimizer is differentiable."""
    before = torch.is_grad_enabled()
    wanted = load_item(machine, load_attr(machine, args[0], "defaults"), "differentiable")
    machine.call(torch._C._set_grad_enabled, (wanted,), {})
    try:
        return machine.call(_cell(function, "func"), args, kwargs)
    finally:
        machine.call(torch._C._set_grad_enabled, (before,), {})


@substitute_for_code(torch._disable_dynamo(lambda: None).__code__)
def _disabled(
    machine: Machine, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A function that torch hides from its own compiler: captured like any other."""
    return machine.call(_cell(function, "fn"), args, kwargs)


@substitute_for(Optimizer._optimizer_step_code)
def _step_code(machine: Machine, args: Any, kwargs: Any) -> None:
    """A place for profilers to stop at."""


@substitute_for(_get_value, unpacked=True)
def _value(machine: Machine, number: Any) -> Any:
    """A number kept in a tensor, which eager computes with as a Python float: in that precision."""
    is_tensor = isinstance(number, torch.Tensor) and number.is_floating_point()
    return machine.tape.call_method("double", (number,)) if is_tensor else number


@substitute_for(_group_tensors_by_device_and_dtype)
def _group_tensors(machine: Machine, args: Any, kwargs: Any) -> dict[Any, Any]:
    """Lists of tensors grouped by (device, dtype) of the first list, with their positions."""
    lists: list[list[Any]] = args[0] if args else kwargs["tensorlistlist"]
    groups: dict[Any, tuple[list[list[Any]], list[int]]] = {}
    for at, first in enumerate(lists[0]):
        found = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for group, tensors in zip(found[0], lists, strict=True):
            if tensors:
                group.append(tensors[at])
        found[1].append(at)
    return groups


# ---------------------------------------------------------------- hooks


def _registering(method: Any) -> Substitute:
    def register(machine: Machine, args: Any, kwargs: Any) -> HookHandle:
        given: list[Any] = [*args, *kwargs.values()]
        tensor, hook = given
        method(tensor, hook).remove()  # for its errors: fake tensors have no backward
        return note(machine, method, (tensor, hook))

    return register


for _method in (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook):
    substitute_for(_method)(_registering(_method))


@substitute_for(_WrappedCall.__call__)
def _call_graph_module(machine: Machine, args: Any, kwargs: Any) -> Any:
    """Past the handler, which raises every exception again: it only prints where one is from."""
    wrapped, module, *given = args
    function = wrapped.cls_call or super(wrapped.cls, module).__call__.__func__
    return machine.call(function, (module, *given), kwargs)


@substitute_for(register_multi_grad_hook)
def _register_multi_grad_hook(machine: Machine, args: Any, kwargs: Any) -> HookHandle:
    named = dict(zip(("tensors", "fn", "mode"), args, strict=False)) | kwargs
    tensors, mode = tuple(named["tensors"]), named.get("mode", "all")
    register_multi_grad_hook(tensors, named["fn"], mode=mode).remove()  # for its errors
    for tensor in tensors:  # it asks which of their nodes run
        make_node(machine, tensor)
    return note(machine, register_all, (tensors, named["fn"], mode))


@substitute_for(torch.Tensor.retain_grad, unpacked=True)
def _retain_grad(machine: Machine, tensor: Any) -> None:
    torch.Tensor.retain_grad(tensor)
    if not tensor.is_leaf:
        note(machine, torch.Tensor.retain_grad, (tensor,))
