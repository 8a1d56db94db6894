"""`torch.utils.checkpoint.checkpoint` and flex attention.

The function of a checkpoint is followed as any other, and its calls are marked as one region:

    h = checkpoint(block, x)
    ->  the calls of block(x), in region 1: their results are computed again in the backward

A region that writes to tensors outside it, as BatchNorm does, is a node that holds a graph and
calls torch's checkpoint.

A region in a region is part of the outer one. Random numbers are drawn once and kept, so the flags
about generators change nothing. If `context_fn` is what `create_selective_checkpoint_contexts`
makes of a list or of a plain policy, a region keeps what that says.

Flex attention is followed through `graphs.flex_attention.attend`, in which the positions that the
program's functions index with are tensors.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from flambeau_capture.graphs.control_flow import Checkpoint
from flambeau_capture.graphs.flex_attention import attend
from flambeau_capture.graphs.graph_module import build_subgraph, sizes_in, values_in
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import Opaque

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.record import Call, GraphValue

Saves: TypeAlias = Callable[[Any], bool]
"""Whether a region keeps the results of an ATen operator."""

_CHECKPOINT = "torch.utils.checkpoint.checkpoint"
_OPTIONS = frozenset(
    parameter.name
    for parameter in inspect.signature(checkpoint).parameters.values()
    if parameter.kind is parameter.KEYWORD_ONLY
) | {"preserve_rng_state", "use_reentrant"}


@substitute_for(checkpoint)
def _checkpoint(machine: Machine, args: Any, kwargs: Any) -> Any:
    function, *rest = args
    saves = _saves(machine, kwargs.get("context_fn", noop_context_fn))
    inner = {name: value for name, value in kwargs.items() if name not in _OPTIONS}
    reentrant = kwargs.get("use_reentrant")
    if reentrant is None:
        raise _break(f"{_CHECKPOINT} without use_reentrant")
    if reentrant and saves is not None:
        raise _break(f"{_CHECKPOINT}(use_reentrant=True) with context_fn")
    first = len(machine.tape.calls)
    if reentrant and torch.is_grad_enabled():
        result = _reentrant(machine, function, tuple(rest), inner)
    else:
        preserves = bool(kwargs.get("preserve_rng_state", True))
        result = _region(machine, function, tuple(rest), inner, saves, preserves=preserves)
    if not kwargs.get("preserve_rng_state", True):
        _refuse_draws(machine, first)
    return result


# ---------------------------------------------------------------- which results a region keeps


class SelectiveContext(Proxy):
    """The frame's form of a selective checkpoint context: which operators' results are kept."""

    __slots__ = ("saves",)

    def __init__(self, saves: Saves) -> None:
        self.saves = saves


@substitute_for(create_selective_checkpoint_contexts)
def _selective(machine: Machine, args: Any, kwargs: Any) -> Any:
    (policy,) = args if not kwargs else (None,)
    if isinstance(policy, list):
        create_selective_checkpoint_contexts(policy)  # for its errors
        saves: Saves = frozenset(policy).__contains__
    elif type(policy) is types.FunctionType and _decides_by_operator(policy):
        machine.call(
            policy, (_FORWARD, torch.ops.aten.mm.default), {}
        )  # which guards what it reads
        saves = functools.partial(_is_kept, policy)
    else:
        raise _break("a policy of a checkpoint that does more than look at the operator")
    return SelectiveContext(saves), SelectiveContext(saves)


_FORWARD = SelectiveCheckpointContext(is_recompute=False)
_KEEPING = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def _is_kept(policy: Any, operator: Any) -> bool:
    return policy(_FORWARD, operator) in _KEEPING


_PLAIN_STEPS = (
    "LOAD_", "COPY_FREE_VARS", "RESUME", "CACHE", "CONTAINS_OP", "COMPARE_OP", "IS_OP", "RETURN_",
    "POP_", "JUMP_", "NOP", "BUILD_", "UNARY_", "TO_BOOL", "NOT_TAKEN", "COPY", "SWAP", "PUSH_NULL",
    "EXTENDED_ARG",
)  # fmt: skip


def _decides_by_operator(policy: types.FunctionType) -> bool:
    """Whether a policy calls and changes nothing, and reads none of the operator's arguments."""
    code = policy.__code__
    arguments = set(code.co_varnames) - set(code.co_varnames[: code.co_argcount])
    for step in dis.get_instructions(code):
        named = (
            step.argval if isinstance(step.argval, tuple) else (step.argval,)
        )  # 3.13 loads two at once
        if not step.opname.startswith(_PLAIN_STEPS) or any(name in arguments for name in named):
            return False
    return True


def _saves(machine: Machine, context_fn: Any) -> Saves | None:
    """Which results a region keeps, as its `context_fn` says; None for none."""
    if context_fn is noop_context_fn:
        return None
    contexts = machine.call(context_fn, (), {})
    if type(contexts) is tuple and len(contexts) == 2:
        forward, again = contexts
        if type(forward) is SelectiveContext and type(again) is SelectiveContext:
            return forward.saves
        if type(forward) is type(again) is contextlib.nullcontext:
            return None
    raise _break("a context_fn that gives contexts of the program's own")


def _region(
    machine: Machine,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    saves: Saves | None = None,
    *,
    preserves: bool | None = None,
) -> Any:
    """Call the function, and mark its calls; an outer region ends later, and marks them again.
    Without `preserves` (whether it keeps the generators' state), it may not write to tensors
    outside it.
    """
    calls = machine.tape.calls
    first = len(calls)
    mark = machine.tape.values_made()
    before = machine.objects.side_effects_so_far()
    result = machine.call(function, args, kwargs)
    inside = calls[first:]
    made = {value for _, value in machine.tape.made_since(mark).values()}
    if any(value.requires_grad for value in made):  # else nothing is computed again
        if machine.objects.side_effects_so_far() != before:
            raise _checkpoint_break("a function that changes objects outside it")
        written = {value: None for call in inside for value in call.mutates if value not in made}
        if written and saves is None and preserves is not None and _can_hold(inside):
            given = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
            made_by = (first, mark)
            return _held(machine, result, made_by, tuple(written), given, preserves=preserves)
        if written:
            raise _checkpoint_break("a function that writes to tensors outside it")
        if saves is not None and any(call.mutates for call in inside):
            raise _checkpoint_break(
                "a function that writes to tensors which its context_fn may keep"
            )
        if any(_hands_on(call) for call in inside):
            raise _checkpoint_break("a function that uses a generator of the program")
    for call in inside:
        call.region = first + 1
        call.saves = saves
    return result


def _can_hold(calls: Sequence[Call]) -> bool:
    """Whether the graph of a node can hold these calls."""
    return not any(
        call.untraced or _hands_on(call) or any(True for _ in sizes_in(_numbers(call.result)))
        for call in calls
    )


def _numbers(result: Any) -> Any:
    return [value.spec for value in values_in(result)]


def _held(
    machine: Machine,
    result: Any,
    made_by: tuple[int, int],
    written: tuple[GraphValue, ...],
    arguments: Sequence[torch.Tensor],
    *,
    preserves: bool,
) -> Any:
    """Put the calls since the first of these marks into a node that calls torch's checkpoint; the
    values since the second are theirs.
    """
    tape = machine.tape
    first, mark = made_by
    inside = tape.calls[first:]
    made = {value for _, value in tape.made_since(mark).values()}
    tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    results = [v for v in dict.fromkeys(map(tape.value_of, tensors)) if v in made]
    graph, lifted = build_subgraph([], inside, results)
    among = {tape.value_of(tensor) for tensor in arguments}
    given = tuple(at for at, value in enumerate(lifted) if value in among)
    node = Checkpoint("checkpoint", graph, given, _writes_early(inside, made), preserves)
    del tape.calls[first:]
    tape.mark_inside(mark, _CHECKPOINT, frozenset(results))
    tape.record(
        node,
        tuple(lifted),
        None,
        tuple(results),
        pure=False,
        mutates=written,
        random=any(call.random for call in inside),
        can_raise=any(call.can_raise for call in inside),
    )
    return result


_SAVING = frozenset({
    "linear", "conv1d", "conv2d", "conv3d", "batch_norm", "layer_norm", "group_norm", "relu",
    "gelu", "silu", "tanh", "sigmoid", "sin", "cos", "exp", "matmul", "bmm", "mm", "mul", "softmax",
})  # fmt: skip
"""Functions that save a tensor when they are done, if their result requires grad."""


def _writes_early(calls: Sequence[Call], made: Collection[GraphValue]) -> bool:
    """Whether a call that saves for the backward comes last, after all writes to outside."""
    last = max(
        at for at, call in enumerate(calls) if any(value not in made for value in call.mutates)
    )
    return any(
        getattr(call.target, "__name__", call.target) in _SAVING
        and any(value.requires_grad for value in values_in(call.result))
        for call in calls[last:]
    )


def _refuse_draws(machine: Machine, first: int) -> None:
    """Graphs keep what a region draws; without the generators' state, its backward draws again."""
    inside = machine.tape.calls[first:]
    if torch.is_grad_enabled() and any(call.random for call in inside):
        raise _checkpoint_break("a function that draws with preserve_rng_state=False")


def _hands_on(call: Call) -> bool:
    """Whether a call takes an object such as a generator, whose state the backward lacks."""
    return any(isinstance(value.spec, Opaque) for value in values_in((call.args, call.kwargs)))


def _checkpoint_break(what: str) -> GraphBreak:
    return _break(f"{_CHECKPOINT} of {what}, which it does again in the backward")


def _reentrant(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The older variant: runs under no_grad; results require grad if an argument does."""
    if not any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
        raise _break(f"{_CHECKPOINT}(use_reentrant=True) of arguments that require no grad")
    result = _region(machine, function, args, kwargs)
    for item in result if isinstance(result, tuple) else (result,):
        if isinstance(item, torch.Tensor) and item.is_floating_point() and not item.requires_grad:
            raise _break(
                f"{_CHECKPOINT}(use_reentrant=True) of a function with a result that requires no "
                "grad"
            )
    return result


def _break(detail: str) -> GraphBreak:
    return GraphBreak("higher-order-operator", detail)


# ---------------------------------------------------------------- operators on functions


@substitute_for(torch.ops.higher_order.flex_attention)
def _flex_attention(machine: Machine, args: Any, kwargs: Any) -> Any:
    machine.positions += 1
    try:
        return machine.call(attend, args, kwargs)
    finally:
        machine.positions -= 1
