"""Calls of nn.Modules: `forward` directly where no hook is set, which is guarded; else
`_call_impl`, interpreted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.modules.module as module_file

from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.values.lazy_values import realize_arguments
from flambeau_capture.sources import DictEntry, Global, InstanceDict

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

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
    if _has_hooks(machine, module):
        if machine.lazy_arguments:
            args, kwargs = realize_arguments(machine, torch.nn.Module._call_impl, args, kwargs)
        return machine.interpret(torch.nn.Module._call_impl, args, kwargs)
    forward = load_attr(machine, module, "forward")
    if machine.lazy_arguments:
        given, kwargs = realize_arguments(machine, forward, args[1:], kwargs)
        args = (module, *given)
    if in_place:
        return machine.call_in_place(forward, args[1:], kwargs)
    return machine.call(forward, args[1:], kwargs)


def _has_hooks(machine: Machine, module: torch.nn.Module) -> bool:
    own = module.__dict__
    objects = machine.objects
    known = objects.is_known(module)
    if known and not machine.hooks_guarded:
        machine.hooks_guarded = True
        for name in GLOBAL_HOOKS:
            machine.guard(
                "LENGTH", Global(vars(module_file), name), len(getattr(module_file, name))
            )
    if any(getattr(module_file, name) for name in GLOBAL_HOOKS):
        return True
    pending = objects.pending_writes_of(module) or ()
    for name in OWN_HOOKS:
        hooks = own.get(name)
        tracked = objects.tracked_copy_of.get(id(hooks))
        if name in pending or (tracked is not None and tracked.copy) or hooks:
            return True
    if known and id(module) not in machine.hookless:
        machine.hookless.add(id(module))
        source = objects.source_of(module)
        assert source is not None
        base = InstanceDict(source)
        for name in OWN_HOOKS:
            machine.guard("LENGTH", DictEntry(base, name), 0)
    return False
