"""Modules under `fully_shard`: the hooks that gather and free their parameters, as calls of the
graph (graphs/unshard.py).

    pre-forward hook    ->  all_gather_into_tensor; the module reads what it gives
    forward hook        ->  the module has its shards again
    post-backward hook  ->  reduce_scatter_tensor, the backward of the gather

The hooks stay eager, and break the graph, where they do more: parameters on several meshes, on the
host or of other subclasses, gradients that are not reduced yet (`set_requires_gradient_sync`),
collectives of the program's (`set_custom_all_gather`), a root that runs eagerly around the module.
What they would do is guarded. With torch 2.11, whose states are others, they stay eager.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.compiler_functions import disabled_reason
from flambeau_capture.graphs.unshard import Plan, free_behind, gather_before, unshard
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import Guard

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import CodeSubstitute

_REDUCED = (torch.float32, torch.bfloat16, torch.float64)
"""Dtypes in which eager sums gradients before it divides them."""


def hooks_of_fully_shard() -> dict[int, CodeSubstitute]:
    """Substitutes for torch's hooks, by id."""
    file = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    if file is None:
        return {}
    state: Any = file.FSDPState  # type: ignore[attr-defined]
    if not hasattr(state, "_cast_forward_inputs"):
        return {}
    return {
        id(state._pre_forward): _before,
        id(state._post_forward): _behind,
        id(unshard): _gather,
    }


@dataclass(slots=True)
class _Asked:
    """The plans, and the guards on them, by the id of what the states of a root share."""

    plans: dict[int, Any] = field(default_factory=dict)
    guards: dict[int, Guard] = field(default_factory=dict)


def _before(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    plans = _plans(machine, function, args[0])
    return machine.interpret(gather_before, (plans, *args), kwargs)


def _behind(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    _plans(machine, function, args[0])
    return machine.interpret(free_behind, args, kwargs)


def _gather(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    """One node, which compilers trace: gradients that are not defined are seen there only."""
    result = machine.tape.call_function(function, args, kwargs)
    if args[0].frees:
        machine.tape.calls[-1].region = -len(machine.tape.calls)
    return result


def _plans(machine: Machine, function: Any, state: Any) -> tuple[Plan, ...]:
    """The plans of a state's groups, guarded; breaks where its hooks stay eager."""
    if state._is_root is None:
        state._lazy_init()  # as the hook does first
    asked = machine.state_of(_Asked)
    key = id(state._state_ctx)
    if key not in asked.plans:
        source = machine.objects.source_of(state)
        if source is not None:
            asked.plans[key] = plans = plans_of_all(state)
            payload = SamePlans(plans), "shards its parameters alike"
            machine.guard("PREDICATE", source, payload)
            asked.guards[key] = Guard("PREDICATE", source, payload, machine.where)
    plans = asked.plans.get(key)
    if plans is None:
        conditions = [asked.guards[key]] if key in asked.guards else ()
        reason = disabled_reason(function) or ("compiler-disable", "a hook")
        raise GraphBreak(*reason, conditions=conditions)
    mine: tuple[Plan, ...] = plans[state._state_ctx.all_states.index(state)]
    return mine


class SamePlans:
    """Whether the hooks of a state and its relatives would do the same."""

    def __init__(self, plans: Any) -> None:
        self.plans = plans

    def __call__(self, state: Any) -> bool:
        return bool(plans_of_all(state) == self.plans)


def plans_of_all(state: Any) -> tuple[tuple[Plan, ...], ...] | None:
    """The plans of all states of a root; None if any does what graphs cannot."""
    shared = state._state_ctx
    if shared.iter_forward_root is not None or state._is_root is None:
        return None
    found = []
    for each in shared.all_states:
        plans = tuple(_plan(group) for group in each._fsdp_param_groups)
        idle = each._training_state.name == "IDLE" and len(each._modules) == 1
        if not idle or None in plans:
            return None
        found.append(plans)
    return tuple(found)  # type: ignore[arg-type]


def _plan(group: Any) -> Plan | None:
    items = group.fsdp_params
    usual = (
        type(group.mesh_info).__name__ == "FSDPMeshInfo"
        and group._training_state.name == "IDLE"
        and not group._use_post_forward_mesh
        and group.reduce_grads
        and group.unshard_in_backward
        and group.gradient_divide_factor is None
        and not group.force_sum_reduction_for_comms
        and group._all_reduce_hook is None
        and group._all_gather_result is None
        and type(group._all_gather_comm).__name__ == "DefaultAllGather"
        and type(group._reduce_scatter_comm).__name__ == "DefaultReduceScatter"
        and group.reshard_after_backward
        and not getattr(group, "reduce_scatter_unused_params", False)  # since torch 2.13
        and items
        and all(map(_is_plain, items))
    )
    if not usual:
        return None
    dtypes = {(item.orig_dtype, item.param_dtype or item.orig_dtype) for item in items}
    if len(dtypes) > 1 or len({item.sharded_param.requires_grad for item in items}) > 1:
        return None
    ((_, dtype),) = dtypes
    if (group._reduce_dtype or dtype) not in _REDUCED:
        return None
    gathering = group._all_gather_process_group
    return Plan(
        gathering.group_name,
        group._reduce_scatter_process_group.group_name,
        gathering.size(),
        dtype,
        group._reduce_dtype,
        tuple(tuple(item._orig_size) for item in items),
        tuple(tuple(item.sharded_size) for item in items),
        tuple(item._sharded_param_data.numel() for item in items),
        group._reshard_after_forward,
    )


def _is_plain(item: Any) -> bool:
    """Whether a parameter is a plain tensor in equal rows on the ranks, with nothing pending."""
    local = item.sharded_param._local_tensor
    whole = getattr(item, "_unsharded_param", None)
    return (
        not item.is_dtensor
        and not item.offload_to_cpu
        and item.fsdp_placement.dim == 0
        and item.sharded_state.name == "SHARDED"
        and type(local) is torch.Tensor
        and item.unsharded_accumulated_grad is None
        and (whole is None or whole.grad is None)
    )
