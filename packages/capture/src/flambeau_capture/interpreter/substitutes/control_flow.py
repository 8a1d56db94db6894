"""`torch.cond`, `torch.while_loop`, `scan`, `map` and `associative_scan`.

Each of their functions becomes a graph, and one node runs it (`graphs.control_flow`):

    torch.cond(x.sum() > 0, f, g, (x,))
    ->  (y,) = Conditional cond {true: ..., false: ...}(predicate, *lifted)

If the condition of a `torch.cond` is known during capture, its branch is followed. The functions
must not change anything, as torch asks. torch's own code checks the arguments of `scan` and `map`
and calls the operators that are replaced here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._higher_order_ops.associative_scan import generic_associative_scan
from torch.utils import _pytree as pytree

from flambeau_capture.graphs.control_flow import Conditional, Loop, Scan
from flambeau_capture.graphs.graph_module import build_subgraph
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.reasons import GraphBreak
from flambeau_prims import sizes
from flambeau_prims.fake import make_fake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from flambeau_capture.graphs.graph_module import Lifted
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_prims.spec import Spec


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
        len(a.shape) == len(b.shape)
        and all(map(sizes.eq, a.shape, b.shape))
        and a.dtype == b.dtype
        and a.device == b.device
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


def _stand_ins(tensors: Sequence[Any], *, always: bool = False) -> list[torch.Tensor]:
    """What a function sees in the place of tensors; `always`: as if each required grad."""
    grad = torch.is_grad_enabled()
    return [
        make_fake(
            one.spec,
            requires_grad=grad
            and (one.requires_grad or (always and one.spec.dtype.is_floating_point)),
        )
        for one in tensors
    ]


def _followed(machine: Machine, test: Any, body: Any, carried: Any) -> Any:
    """A loop that counts in Python: unrolled, if all its conditions are known."""
    while True:
        goes_on = _condition(machine, machine.call(test, tuple(carried), {}))
        if goes_on is None:
            raise _break("torch.while_loop that carries an int and ends by what a tensor holds")
        if not goes_on:
            return carried
        carried = machine.call(body, tuple(carried), {})


def _while_loop(machine: Machine, args: Any, kwargs: Any) -> Any:
    named = dict(zip(("cond_fn", "body_fn", "carried_inputs"), args, strict=False)) | kwargs
    carried = tuple(named["carried_inputs"])
    leaves, structure = pytree.tree_flatten(carried)
    if any(type(leaf) is int for leaf in leaves):
        return _followed(machine, named["cond_fn"], named["body_fn"], carried)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise _break("torch.while_loop that carries what is no tensor")
    always = any(leaf.requires_grad for leaf in leaves)
    parameters = [_stand_ins(leaves, always=always) for _ in range(2)]
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


# ---------------------------------------------------------------- scan, map


def _scanned(
    machine: Machine,
    what: str,
    function: Any,
    carried: Sequence[Any],
    mapped: Sequence[Any],
    lifted: Sequence[Any],
) -> tuple[tuple[Any, ...], pytree.TreeSpec]:
    """Record a function of one step, and the node that runs it for all rows; the node's results,
    and the structure of what the function returns.
    """
    with torch.no_grad():
        firsts = [one.select(0, 0) for one in mapped]
    rows = [
        make_fake(first.spec, requires_grad=torch.is_grad_enabled() and one.requires_grad)
        for first, one in zip(firsts, mapped, strict=True)
    ]
    differentiated = any(one.requires_grad for one in (*carried, *mapped))
    parameters = [*_stand_ins(carried, always=differentiated), *rows]
    step = _record(machine, what, function, (*parameters, *lifted), parameters)
    if not _same_tensors(step.specs[: len(carried)], [one.spec for one in carried]):
        raise _break(f"{what} whose function returns other shapes or dtypes than it carries")
    node = Scan(what, step.graph, len(carried), len(mapped))
    arguments = (*carried, *mapped, *machine.tape.fakes_of(step.lifted))
    return machine.tape.call_function(node, arguments), step.structure


@substitute_for(torch.ops.higher_order.scan)
def _scan(machine: Machine, args: Any, kwargs: Any) -> Any:
    named = dict(zip(("combine_fn", "init", "xs", "additional_inputs"), args, strict=False))
    named |= kwargs
    init, lifted = list(named["init"]), list(named.get("additional_inputs", ()))
    function = named["combine_fn"]
    results, structure = _scanned(machine, "scan", function, init, list(named["xs"]), lifted)
    result = pytree.tree_unflatten(list(results), structure)
    pair = type(result) in (tuple, list) and len(result) == 2
    if pair and len(pytree.tree_leaves(result[0])) == len(init):
        return result
    return list(results[: len(init)]), list(results[len(init) :])


@substitute_for(torch.ops.higher_order.map_impl)
def _map(machine: Machine, args: Any, kwargs: Any) -> Any:
    named = dict(zip(("f", "xs", "pos_args"), args, strict=False)) | kwargs
    lifted = list(named["pos_args"])
    results, structure = _scanned(machine, "map", named["f"], (), list(named["xs"]), lifted)
    return pytree.tree_unflatten(list(results), structure)


@substitute_for(torch.ops.higher_order.associative_scan)
def _associative_scan(machine: Machine, args: Any, kwargs: Any) -> Any:
    """By calls of the function on many rows at a time, as where it need not be pointwise."""
    named = dict(zip(("combine_fn", "xs", "additional_inputs"), args, strict=False)) | kwargs
    given = (named["combine_fn"], named["xs"])
    lifted = {"additional_inputs": named["additional_inputs"]}
    return machine.call(generic_associative_scan, given, lifted)
