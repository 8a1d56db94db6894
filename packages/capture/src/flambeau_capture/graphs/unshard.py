"""Parameters of `fully_shard` inside graphs: gathered from the shards of all ranks by one
collective, their gradients reduced and scattered by another.

    shards -> cast, padded, one after the other -> all_gather -> a view for each parameter
    gradients -> cast, padded, by rank -> reduce_scatter -> divided, cast -> a shard for each

As torch's eager hooks do it, and in the place of these (interpreter/substitutes/fully_shard.py):
capture follows the functions of this file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import functional

_collectives = torch.ops._c10d_functional


class Plan(NamedTuple):
    """How the parameters of one group are gathered. `numels`: of the padded shards, `sizes`: of the
    whole parameters. `reduced`: the dtype of reductions; None for that of the gradients. `frees`:
    the backward gathers them again.
    """

    group: str
    reducing: str
    ranks: int
    dtype: torch.dtype
    reduced: torch.dtype | None
    sizes: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    numels: tuple[int, ...]
    frees: bool


def _product(sizes: tuple[int, ...]) -> int:
    result = 1
    for size in sizes:
        result = result * size
    return result


def _padded(tensor: torch.Tensor, numel: int) -> torch.Tensor:
    return functional.pad(tensor.reshape(-1), (0, numel - tensor.numel()))


def unshard(plan: Plan, *shards: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The parameters that consist of these shards, which are DTensors: one call of a graph."""
    # Printed graphs hold a plain tuple.
    wholes: tuple[torch.Tensor, ...] = _Unshard.apply(Plan(*plan), *shards)  # type: ignore[no-untyped-call]
    return wholes


class _Unshard(torch.autograd.Function):
    """Shards in, parameters out; gradients of those that have any."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *shards: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.plan = plan
        ctx.dtype = shards[0].dtype
        ctx.made = [(type(shard), shard._spec) for shard in shards]  # type: ignore[attr-defined]
        local = [shard._local_tensor for shard in shards]  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        flat = torch.cat(
            [
                _padded(shard.to(plan.dtype), numel)
                for shard, numel in zip(local, plan.numels, strict=True)
            ]
        )
        gathered = _collectives.all_gather_into_tensor.default(flat, plan.ranks, plan.group)
        rows = _collectives.wait_tensor.default(gathered).view(plan.ranks, -1)
        return tuple(
            [
                part.reshape(-1)[: _product(size)].view(size).clone()
                for part, size in zip(rows.split(plan.numels, 1), plan.sizes, strict=True)
            ]
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        plan = ctx.plan
        rows = [
            _padded(gradient.to(plan.reduced or gradient.dtype), plan.ranks * numel).view(
                plan.ranks, numel
            )
            for gradient, numel in zip(gradients, plan.numels, strict=True)
            if gradient is not None
        ]
        if not rows:
            return None, *gradients
        flat = torch.cat(rows, 1).reshape(-1)
        reduced = _collectives.wait_tensor.default(
            _collectives.reduce_scatter_tensor.default(flat, "sum", plan.ranks, plan.reducing)
        )
        reduced = (reduced / plan.ranks).to(ctx.dtype)
        results: list[torch.Tensor | None] = [None]
        begin = 0
        for gradient, made, shape, numel in zip(
            gradients, ctx.made, plan.shapes, plan.numels, strict=True
        ):
            if gradient is None:
                results.append(None)
            else:
                cls, spec = made
                shard = reduced[begin : begin + _product(shape)].view(shape).clone()
                results.append(cls(shard, spec, requires_grad=False))
                begin = begin + numel
        return tuple(results)


def gather_before(plans: tuple[Plan, ...], state: Any, module: Any, args: Any, kwargs: Any) -> Any:
    """What a module's pre-forward hook does."""
    args, kwargs = state._cast_forward_inputs(args, kwargs)
    for plan, group in zip(plans, state._fsdp_param_groups, strict=True):
        shards = [item.sharded_param for item in group.fsdp_params]
        for item, whole in zip(group.fsdp_params, unshard(plan, *shards), strict=True):
            _place(item, whole)
    return args, kwargs


def free_behind(state: Any, module: Any, args: Any, output: Any) -> Any:
    """What a module's forward hook does."""
    for group in state._fsdp_param_groups:
        for item in group.fsdp_params:
            _place(item, item.sharded_param)
    return state._cast_output_dtype(output)


def _place(item: Any, tensor: torch.Tensor) -> None:
    info = item._module_info
    info.module._parameters[info.param_name] = tensor
    for shared, name in zip(info.shared_modules, info.shared_param_names, strict=True):
        shared._parameters[name] = tensor
