"""A graph that raises for what its tensors hold: the call is replayed eagerly from its start, in
the interpreter.

    program:  log.append("one"); y = x[i]; log.append("two")

    def entry(x, i):
        try:
            out0, = graph(x, i)      IndexError: nothing is appended yet, so the original function
        except ...:                  runs: it appends "one" and raises the program's own IndexError
            raise GraphFailed(...)   at its own line, inside the program's own handlers
        log.extend(["one", "two"])

Python side effects come after the graph, so a call whose graph has raised has changed nothing of
the program's but these, which are restored: switches of torch that the graph had set, random
generators that it had drawn from, and inputs that it had written to. Generators and inputs are
saved before graphs of which something may still raise when they have been used; writes of backends
that make them last (`writes_last` in the graph module's meta) need not be.

Where what fails is the check of an assumption about data (interpreter/branches/speculation.py), the
call uses another entry, or is captured again.

Errors of a graph in which nothing may raise (`flambeau_prims.raising`) are the backend's, and reach
the caller as they are; so do those of a graph with collectives, which other processes do not join
a second time; interrupts, errors that say that memory has run out, and what a
saved-tensors hook raises: it is no operator's error, and the hook has counted its tensors
(torch.utils.checkpoint ends a recomputation so).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.entries.graph_failure import OnError
from flambeau_capture.entries.state_snapshot import may_raise
from flambeau_capture.graphs.graph_module import values_in
from flambeau_capture.graphs.higher_order import HigherOrder
from flambeau_capture.graphs.unshard import unshard
from flambeau_capture.record import Call, GraphValue
from flambeau_capture.torch_state import Switches
from flambeau_prims.operator_facts import communicates
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.events import Event
    from flambeau_capture.record import Capture


# ---------------------------------------------------------------- what must be computed


def unused_that_raise(capture: Capture, outputs: list[GraphValue]) -> list[GraphValue]:
    """Unused results of calls that may raise: as outputs, every backend computes them."""
    used = set(outputs)
    storages = {item.value.storage for item in capture.inputs} | {None}
    storages.update(value.storage for value in outputs)
    unused: list[GraphValue] = []
    for call in reversed(capture.calls):
        results = list(values_in(call.result))
        if (
            (call.pure or call.mutates)
            and used.isdisjoint(results)
            and storages.isdisjoint(value.storage for value in call.mutates)
        ):
            if not call.can_raise:
                continue
            unused += [
                value
                for value in dict.fromkeys(results or call.mutates)
                if not _has_unbacked_sizes(value, capture)
            ]
        for value in values_in((call.args, call.kwargs)):
            used.add(value)
            storages.add(value.storage)
    return unused


def without_history(capture: Capture, value: GraphValue) -> GraphValue:
    """An unused result as an output that no gradient comes from: a backward would compute one, and
    communicate with processes that compute none.
    """
    if not value.requires_grad:
        return value
    result = GraphValue(value.spec, f"{value.name}_data", storage=value.storage)
    capture.calls.append(Call("method", "detach", (value,), {}, result))
    return result


def _has_unbacked_sizes(value: GraphValue, capture: Capture) -> bool:
    return not isinstance(value.spec, Spec) or any(
        isinstance(size, Expr) and not size.symbols().isdisjoint(capture.unbacked)
        for size in (*value.spec.shape, *value.spec.stride)
    )


# ---------------------------------------------------------------- when a graph has raised


def on_error_of(capture: Capture, note: Callable[[Event], None]) -> OnError | None:
    """What the entry of a capture does when its graph raises; None where errors need no treatment.

    Made in the state of torch that the call began in.
    """
    collectives = any(_communicates(call.target) for call in capture.calls)
    runs_again = any(map(may_raise, capture.calls))
    runs_again = runs_again and bool(capture.assumptions or not collectives)
    switches = Switches().set_by([call.target for call in capture.calls])
    if not runs_again and not switches:
        return None
    name = getattr(capture.scope.function, "__qualname__", "function")
    return OnError(
        name,
        note,
        runs_again=runs_again,
        switches=switches,
        assumptions=capture.assumptions,
        communicates=collectives,
    )


def _communicates(target: Any) -> bool:
    """Whether a call of the graph, or one in a graph that it holds, is a collective."""
    if target is unshard:
        return True
    if isinstance(target, torch._ops.OpOverload):
        return communicates(target)
    if isinstance(target, HigherOrder):
        graphs = [held.graph for held in target.graphs().values()]
        return any(_communicates(node.target) for graph in graphs for node in graph.nodes)
    return False
