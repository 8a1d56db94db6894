"""Collectives of torch.distributed as calls of the graph.

    dist.all_reduce(y)  ->  sum = _c10d_functional.all_reduce(y, "sum", "0")
                            y.data.copy_(_c10d_functional.wait_tensor(sum))

Collectives move no version counter, hence the `data`.

torch's functional collectives are Python around such operators, and captured as they are. A process
group is its name there: known during the capture, under guards on which groups there are and on
which one is meant. Not captured, since they hand out what is not there yet or meet no other rank:
asynchronous calls, barriers, messages between two ranks, collectives of Python objects, and those
on tensors that require grad, of which eager records nothing.
"""

from __future__ import annotations

import functools
import operator
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from flambeau_capture.interpreter.substitute_registry import breaking, substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import Substitute

_QUERIES = frozenset(
    {
        "is_available", "is_initialized", "get_rank", "get_world_size", "get_backend",
        "is_nccl_available", "is_gloo_available", "is_mpi_available", "is_ucc_available",
        "is_torchelastic_launched", "get_group_rank", "get_global_rank", "get_node_local_rank",
        "get_process_group_ranks",
    }
)  # fmt: skip


def _break(name: str) -> GraphBreak:
    return GraphBreak("distributed", f"call of torch.distributed.{name}")


# ---------------------------------------------------------------- groups


def _group(machine: Machine, group: Any) -> Any:
    """The process group that is meant, under guards on it; this process is one of its members."""
    group = _known(machine, group)
    if isinstance(group, int):  # GroupMember.NON_GROUP_MEMBER
        raise GraphBreak("distributed", "a collective of a group without this process")
    return group


def _known(machine: Machine, group: Any) -> Any:
    """What stands for a process group, under guards on it."""
    machine.depend_on_state("process_groups")
    if group is None:
        return dist.group.WORLD
    source = machine.objects.source_of(group)
    if source is not None:
        machine.guard("IS", source, group)
    return group


def _name(machine: Machine, group: Any) -> str:
    if isinstance(group, str):
        machine.depend_on_state("process_groups")
        return group
    return str(_group(machine, group).group_name)


def _of_group(read: Callable[[Any], Any]) -> Substitute:
    """What a method of a process group, or a function of one, says."""

    def answer(machine: Machine, args: Any, kwargs: Any) -> Any:
        (group,) = (*args, *kwargs.values()) or (None,)
        return read(_known(machine, group))

    return answer


def _size_by_name(machine: Machine, args: Any, kwargs: Any) -> Any:
    machine.depend_on_state("process_groups")
    return dist.distributed_c10d._get_group_size_by_name(*args, **kwargs)


# ---------------------------------------------------------------- collectives in place


def _operation(op: Any) -> str:
    """A reduction as functional collectives name it; a sum if none is given."""
    if op is None:
        return "sum"
    kind = getattr(op, "op", op)
    for name, each in dist.ReduceOp.RedOpType.__members__.items():
        if kind == each and name != "PREMUL_SUM":
            return name.lower()
    raise GraphBreak("distributed", f"a collective that reduces by {op}")


def _call(machine: Machine, operator: Any, *args: Any) -> Any:
    return machine.call(operator, args, {})


def _wait(machine: Machine, tensor: Any) -> Any:
    return _call(machine, torch.ops._c10d_functional.wait_tensor.default, tensor)


def _all_reduce(machine: Machine, tensor: Any, op: Any = None, group: Any = None) -> None:
    operator = torch.ops._c10d_functional.all_reduce.default
    result = _call(machine, operator, tensor, _operation(op), _name(machine, group))
    _write(machine, tensor, _wait(machine, result))


def _broadcast(
    machine: Machine, tensor: Any, src: Any = None, group: Any = None, *, group_src: Any = None
) -> None:
    group = _group(machine, group)
    if group_src is not None and src is not None:
        raise _break("broadcast with two sources")
    if group_src is None:
        group_src = dist.get_group_rank(group, src)
    operator = torch.ops._c10d_functional.broadcast.default
    result = _call(machine, operator, tensor, group_src, group.group_name)
    _write(machine, tensor, _wait(machine, result))


def _gathered(machine: Machine, tensor: Any, group: Any) -> Any:
    group = _group(machine, group)
    operator = torch.ops._c10d_functional.all_gather_into_tensor.default
    return _wait(machine, _call(machine, operator, tensor, group.size(), group.group_name))


def _all_gather_into_tensor(
    machine: Machine, output_tensor: Any, input_tensor: Any, group: Any = None
) -> None:
    _require_rows("all_gather_into_tensor", output_tensor, input_tensor, _group(machine, group))
    _write(machine, output_tensor, _gathered(machine, input_tensor, group))


def _all_gather(machine: Machine, tensor_list: Any, tensor: Any, group: Any = None) -> None:
    count = _group(machine, group).size()
    regular = all(each.shape == tensor.shape for each in tensor_list) and tensor.dim()
    if not regular or len(tensor_list) != count:
        raise _break("all_gather with tensors of several shapes, or of none")
    parts = machine.call(torch.chunk, (_gathered(machine, tensor, group), count), {})
    for each, part in zip(tensor_list, parts, strict=True):
        _write(machine, each, part)


def _reduce_scatter_tensor(
    machine: Machine, output: Any, input: Any, op: Any = None, group: Any = None
) -> None:
    group = _group(machine, group)
    _require_rows("reduce_scatter_tensor", input, output, group)
    operator = torch.ops._c10d_functional.reduce_scatter_tensor.default
    stacked = machine.call(torch.flatten, (input, 0, input.dim() - output.dim()), {})
    result = _call(machine, operator, stacked, _operation(op), group.size(), group.group_name)
    _write(machine, output, _wait(machine, result))


def _all_to_all_single(
    machine: Machine,
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
) -> None:
    group = _group(machine, group)
    sizes = [
        [tensor.shape[0] // group.size()] * group.size() if given is None else list(given)
        for tensor, given in ((output, output_split_sizes), (input, input_split_sizes))
    ]
    operator = torch.ops._c10d_functional.all_to_all_single.default
    result = _call(machine, operator, input, *sizes, group.group_name)
    _write(machine, output, _wait(machine, result))


def _write(machine: Machine, target: Any, value: Any) -> None:
    if value.shape != target.shape:
        value = machine.call(torch.reshape, (value, target.shape), {})
    data = machine.call(getattr, (target, "data"), {})
    machine.call(torch.Tensor.copy_, (data, value), {})


def _require_rows(name: str, whole: Any, part: Any, group: Any) -> None:
    """Break unless `whole` is the parts of all processes one after the other; other backends than
    gloo also stack them.
    """
    count = group.size()
    if part.dim() and whole.shape == (part.shape[0] * count, *part.shape[1:]):
        return
    if whole.shape == (count, *part.shape) and "gloo" not in dist.get_backend(group):
        return
    raise _break(f"{name} with tensors of shapes {tuple(whole.shape)} and {tuple(part.shape)}")


_IN_PLACE: dict[str, Callable[..., None]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather_single": _all_gather_into_tensor,
    "all_gather": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter_single": _reduce_scatter_tensor,
    "all_to_all_single": _all_to_all_single,
}


def _in_place(name: str) -> Substitute:
    collective = _IN_PLACE[name]

    def record(machine: Machine, args: Any, kwargs: Any) -> None:
        asynchronous = kwargs.pop("async_op", False)
        tensors = [x for x in _leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if asynchronous or not dist.is_initialized():
            raise _break(name)
        if any(x.is_complex() or not x.is_contiguous() for x in tensors):
            raise _break(f"{name} with tensors that are complex or not contiguous")
        if len({x.dtype for x in tensors}) > 1:
            raise _break(f"{name} with tensors of several dtypes")
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            raise _break(f"{name} with tensors that require grad")
        try:
            collective(machine, *args, **kwargs)
        except TypeError as error:  # async_op by position, options of newer versions
            raise _break(f"{name}: {error}") from error

    return record


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _declare() -> None:
    module: Any = dist.distributed_c10d
    for name in module.__all__:
        function = getattr(module, name)
        if name in _IN_PLACE:
            substitute_for(function)(_in_place(name))
        elif type(function) is FunctionType and name not in _QUERIES:
            substitute_for(function)(breaking("distributed", f"call of torch.distributed.{name}"))
    for function in (module.get_rank, module.get_world_size, module.get_process_group_ranks):
        substitute_for(function)(_of_group(function))
    substitute_for(module._get_group_size_by_name)(_size_by_name)
    group: Any = dist.ProcessGroup
    substitute_for(vars(group)["group_name"].fget)(_of_group(lambda group: group.group_name))
    substitute_for(group.size)(_of_group(lambda group: group.size()))
    substitute_for(group.rank)(_of_group(lambda group: group.rank()))
    parallel = torch.nn.parallel.DistributedDataParallel
    substitute_for(parallel.forward)(breaking("distributed", "call of DistributedDataParallel"))


def _declare_placements() -> None:
    """Placements of DTensors are constant: what they are asked for is a constant, too."""
    placements: Any = torch._C._distributed
    for name in ("Placement", "Shard", "StridedShard", "Replicate", "Partial"):
        members = vars(getattr(placements, name, object))
        for query in ("is_shard", "is_replicate", "is_partial"):
            if query in members:
                function = members[query].__func__
                substitute_for(function)(_of_constant(function))
        for field in ("dim", "split_factor", "reduce_op"):
            if type(members.get(field)) is property:
                function = members[field].fget
                substitute_for(function.__func__)(_of_constant(function))


def _of_constant(function: Any) -> Substitute:
    """The method of a constant, under a guard that an object is equal to it."""

    def answer(machine: Machine, args: Any, kwargs: Any) -> Any:
        source = machine.objects.source_of(args[0])
        if source is not None:
            equals = functools.partial(operator.eq, args[0]), f"equals {args[0]!r}"
            machine.guard("PREDICATE", source, equals)
        return function(*args, **kwargs)

    return answer


def _declare_meshes() -> None:
    """A part of a mesh is a constant, too; taking it computes on tensors that no program sees."""
    mesh: Any = dist.device_mesh.DeviceMesh
    part = _of_constant(mesh.__getitem__)

    def answer(machine: Machine, args: Any, kwargs: Any) -> Any:
        machine.depend_on_state("process_groups")
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return part(machine, args, kwargs)

    substitute_for(mesh.__getitem__)(answer)


def breaking_contexts() -> dict[int, Callable[..., Any]]:
    """By id, functions that change how DTensors dispatch: tracers must see that changed."""
    loss: Any = sys.modules.get("torch.distributed.tensor.parallel.loss")
    names = "_enable_custom_loss_ops", "_disable_custom_loss_ops"
    found = [getattr(loss, name, None) for name in names]
    return {id(each): _leave_eager for each in found if each is not None}


def _leave_eager(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    raise GraphBreak("distributed", "loss_parallel is entered or left")


if dist.is_available():
    _declare()
    _declare_meshes()
    if hasattr(torch._C, "_distributed"):
        _declare_placements()
