"""`torch.utils.checkpoint.checkpoint`, `torch.cond`, `torch.while_loop` and flex attention.

The function of a checkpoint is followed as any other, and its calls are marked as one region:

    h = checkpoint(block, x)
    ->  the calls of block(x), in region 1: their results are computed again in the backward

A region in a region is part of the outer one. Random numbers are drawn once and kept, so the flags
about generators change nothing. If `context_fn` is what `create_selective_checkpoint_contexts`
makes of a list or of a plain policy, a region keeps what that says.

Each function of a `torch.cond` or `torch.while_loop` on data becomes a graph, and one node chooses
when it runs:

    torch.cond(x.sum() > 0, f, g, (x,))
    ->  (y,) = Conditional cond {true: ..., false: ...}(predicate, *lifted)

If the condition is known during capture, its branch is followed. Branches and bodies must not
change anything, as torch asks.

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._higher_order_ops.associative_scan import generic_associative_scan
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from flambeau_capture.graphs.flex_attention import attend
from flambeau_capture.graphs.graph_module import build_subgraph, values_in
from flambeau_capture.graphs.higher_order import Conditional, Loop
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import Opaque
from flambeau_prims.fake import make_fake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from flambeau_capture.graphs.graph_module import Lifted
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.record import Call
    from flambeau_prims.spec import Spec

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
        result = _region(machine, function, tuple(rest), inner, saves)
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
) -> Any:
    """Call the function, and mark its calls; an outer region ends later, and marks them again."""
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
        if any(value not in made for call in inside for value in call.mutates):
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


# ---------------------------------------------------------------- control flow


def _break(detail: str) -> GraphBreak:
    return GraphBreak("higher-order-operator", detail)


@dataclass(frozen=True, eq=False)
class _Piece:
    """One function as a graph: what it reads from outside; its result's leaves and structure."""

    graph: fx.GraphModule
    lifted: list[Lifted]
    specs: list[Spec]
    structure: pytree.TreeSpec


def _record(
    machine: Machine,
    what: str,
    function: Any,
    args: tuple[Any, ...],
    parameters: Sequence[Any] = (),
) -> _Piece:
    """Interpret `function(*args)` into a graph whose parameters are `parameters`."""
    if machine.transforms:
        raise _break(f"{what} in a function transform")
    tape = machine.tape
    mark = tape.values_made()
    try:
        values = [tape.declare(fake, f"arg_{at}") for at, fake in enumerate(parameters)]
        before = machine.objects.side_effects_so_far()
        with machine.tape.recording() as calls:
            result = machine.call(function, args, {})
        if machine.objects.side_effects_so_far() != before:
            raise _break(f"{what} of a function that changes objects outside it")
        leaves, structure = pytree.tree_flatten(result)
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise _break(f"{what} of a function that returns what is no tensor")
        made = {value for _, value in tape.made_since(mark).values()}
        own = made.difference(values)
        if any(written not in own for call in calls for written in call.mutates):
            raise _break(f"{what} of a function that writes to a tensor outside it")
        results = [tape.value_of(leaf) for leaf in leaves]
        graph, lifted = build_subgraph(values, calls, results)
        return _Piece(graph, lifted, [leaf.spec for leaf in leaves], structure)
    finally:
        tape.mark_inside(mark, what)


def _same_tensors(one: Sequence[Spec], other: Sequence[Spec]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
        for a, b in zip(one, other, strict=True)
    )


def _union(*pieces: _Piece) -> dict[Lifted, int]:
    """The positions of everything that the pieces read."""
    found: dict[Lifted, int] = {}
    for piece in pieces:
        for value in piece.lifted:
            found.setdefault(value, len(found))
    return found


def _condition(machine: Machine, value: Any) -> bool | None:
    """A condition that is known now, else None."""
    if not isinstance(value, torch.Tensor):
        return bool(value)
    contents = value.contents  # type: ignore[attr-defined]
    return None if contents is None else bool(contents)


def _cond(machine: Machine, args: Any, kwargs: Any) -> Any:
    named = dict(zip(("pred", "true_fn", "false_fn", "operands"), args, strict=False)) | kwargs
    predicate, operands = named["pred"], tuple(named.get("operands", ()))
    known = _condition(machine, predicate)
    if known is not None:
        return machine.call(named["true_fn" if known else "false_fn"], operands, {})
    if predicate.dtype is not torch.bool or predicate.numel() != 1:
        raise _break("torch.cond of a predicate that is not one bool")
    yes = _record(machine, "torch.cond", named["true_fn"], operands)
    no = _record(machine, "torch.cond", named["false_fn"], operands)
    if yes.structure != no.structure or not _same_tensors(yes.specs, no.specs):
        raise _break("torch.cond of branches whose results differ in structure, shape or dtype")
    places = _union(yes, no)
    node = Conditional(
        "cond",
        yes.graph,
        no.graph,
        tuple(places[value] for value in yes.lifted),
        tuple(places[value] for value in no.lifted),
    )
    results = machine.tape.call_function(node, (predicate, *machine.tape.fakes_of(places)))
    return pytree.tree_unflatten(list(results), yes.structure)


def _while_loop(machine: Machine, args: Any, kwargs: Any) -> Any:
    named = dict(zip(("cond_fn", "body_fn", "carried_inputs"), args, strict=False)) | kwargs
    carried = tuple(named["carried_inputs"])
    leaves, structure = pytree.tree_flatten(carried)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise _break("torch.while_loop that carries what is no tensor")
    needs_grad = torch.is_grad_enabled()
    parameters = [
        [make_fake(leaf.spec, requires_grad=needs_grad and leaf.requires_grad) for leaf in leaves]
        for _ in range(2)
    ]
    inner = [pytree.tree_unflatten(given, structure) for given in parameters]
    test = _record(machine, "torch.while_loop", named["cond_fn"], inner[0], parameters[0])
    body = _record(machine, "torch.while_loop", named["body_fn"], inner[1], parameters[1])
    if len(test.specs) != 1 or test.specs[0].dtype is not torch.bool or test.specs[0].numel != 1:
        raise _break("torch.while_loop whose condition is not one bool")
    if not _same_tensors(body.specs, [leaf.spec for leaf in leaves]):
        raise _break("torch.while_loop whose body returns other shapes or dtypes than it carries")
    places = _union(test, body)
    node = Loop(
        "while_loop",
        test.graph,
        body.graph,
        len(leaves),
        tuple(places[value] for value in test.lifted),
        tuple(places[value] for value in body.lifted),
    )
    results = machine.tape.call_function(node, (*leaves, *machine.tape.fakes_of(places)))
    return pytree.tree_unflatten(list(results), structure)


substitute_for(torch.cond)(_cond)
substitute_for(torch.while_loop)(_while_loop)


# ---------------------------------------------------------------- operators on functions


@substitute_for(torch.ops.higher_order.flex_attention)
def _flex_attention(machine: Machine, args: Any, kwargs: Any) -> Any:
    machine.positions += 1
    try:
        return machine.call(attend, args, kwargs)
    finally:
        machine.positions -= 1


@substitute_for(torch.ops.higher_order.associative_scan)
def _associative_scan(machine: Machine, args: Any, kwargs: Any) -> Any:
    """By calls of the function on many rows at a time, as where it need not be pointwise."""
    named = dict(zip(("combine_fn", "xs", "additional_inputs"), args, strict=False)) | kwargs
    given = (named["combine_fn"], named["xs"])
    lifted = {"additional_inputs": named["additional_inputs"]}
    return machine.call(generic_associative_scan, given, lifted)
