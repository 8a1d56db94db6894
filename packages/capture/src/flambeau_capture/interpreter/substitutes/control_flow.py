"""`torch.cond` and `torch.while_loop` on what tensors hold: each function becomes a graph, and one node chooses when it runs.

    torch.cond(x.sum() > 0, f, g, (x,))      ->      (y,) = Conditional cond {true: ..., false: ...}(predicate, *lifted)

A condition that is known while capturing takes its branch there and then.  Branches and bodies must not change anything, as torch asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from flambeau_capture.graph_module import build_subgraph
from flambeau_capture.higher_order import Conditional, Loop
from flambeau_capture.interpreter.enclosed import effects_so_far, recording, stand_in
from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from flambeau_capture.graph_module import Lifted
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_prims.spec import Spec


def _break(detail: str) -> GraphBreak:
    return GraphBreak("higher-order-operator", detail)


@dataclass(frozen=True, eq=False)
class _Piece:
    """One function as a graph: what it reads from outside, and its result's leaves and structure."""

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
        before = effects_so_far(machine)
        with recording(machine) as calls:
            result = machine.call(function, args, {})
        if effects_so_far(machine) != before:
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
        tape.enclose(mark, what)


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
        [stand_in(leaf.spec, requires_grad=needs_grad and leaf.requires_grad) for leaf in leaves]
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
