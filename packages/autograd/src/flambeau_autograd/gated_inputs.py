"""Inputs that only some results are connected to: a backward of the others must not come to them.

    y, z = compiled(x, w)          w: z alone is computed from it
    y.sum().backward()             eager's engine does not visit w: no hook of w is called

One node has edges to all its inputs, and where it has no gradient, the engine hands None on, to
hooks as well. So an input behind which hooks may wait hangs on a node apart, its gate, to which the
results lead that are connected to it:

    y -> front -> compiled backward -> x
    z -> front -> compiled backward
               -> gate -> w

Of the nodes that are ready the engine runs the latest first. A gate is older than the compiled
backward, which so has left the gradients with it. Where that has not run (nobody asks for a
gradient behind it, or it waits for a tangent from another device), the gate has those computed
that it needs: all tangents that they come from are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_autograd.backward_chain import WholeBackward
from flambeau_autograd.saved_versions import handed_on

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    Applied: TypeAlias = "Callable[..., tuple[Any, ...]]"

_task = torch._C._current_graph_task_id
_will_run = torch._C._will_engine_execute_node
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph


@dataclass(frozen=True)
class PartialInput:
    """An argument at `position` whose gradient has this `number`; `results` are connected to it.
    `hooked`: the program registers hooks on it when the graph has run.
    """

    number: int
    position: int
    results: frozenset[int]
    hooked: bool

    def waits(self, args: Sequence[Any]) -> bool:
        """Whether hooks may wait behind it: its own, or those of what it was computed from."""
        x = args[self.position]
        own = self.hooked or x._backward_hooks or x._post_accumulate_grad_hooks
        return bool(own) or not x.is_leaf


def partial_inputs(
    positions: Sequence[int],
    connected: Sequence[frozenset[int]],
    tangents: Sequence[int],
    hooked: Collection[int],
) -> list[PartialInput]:
    """The inputs at some `positions` that not all results with tangents are connected to;
    `connected[i]` are those that input i is connected to. The program hooks those `hooked`.
    """
    every = frozenset(tangents)
    return [
        PartialInput(number, position, results, position in hooked)
        for number, (position, results) in enumerate(zip(positions, connected, strict=True))
        if results != every
    ]


@dataclass
class _Task:
    """One run of the engine over the nodes of a call: the tangents that have come by result, the
    node of the compiled backward, the gradients if it has run, the gates that will run, and the
    results whose gradients these have had computed.
    """

    node: Any
    tangents: dict[int, Any] = field(default_factory=dict)
    gradients: Sequence[Any] | None = None
    waiting: set[Any] = field(default_factory=set)
    spent: set[int] = field(default_factory=set)


class GatedBackward(WholeBackward):
    """The node of a backward some of whose inputs hang on gates. Its inputs are the arguments as a
    tuple, the differentiable ones without those, and a tensor that makes autograd record it.
    """

    takes_tuple = True

    def __init__(self, positions: list[int], tangents: Sequence[int]) -> None:
        self._positions = positions
        self._results = list(tangents)

    def recording(self, apply: Applied) -> Applied:
        """`apply`, which `record` calls."""
        return apply

    def record(
        self, apply: Applied, args: tuple[Any, ...], partial: Sequence[PartialInput]
    ) -> tuple[Any, ...]:
        """The results of a call whose inputs `partial` hang on gates."""
        tasks: dict[int, _Task] = {}
        groups: dict[frozenset[int], list[PartialInput]] = {}
        for each in partial:
            groups.setdefault(each.results, []).append(each)
        gates = {}
        for connected, group in groups.items():
            numbers = [each.number for each in group]
            inputs = [args[each.position] for each in group]
            gates[connected] = _gate(tasks, numbers, connected, *inputs)
        gated = {each.number for each in partial}
        tensors = [
            None if number in gated else args[at] for number, at in enumerate(self._positions)
        ]
        anchor = torch.empty(0, requires_grad=True)
        results = list(apply(args, *tensors, anchor))
        node = results[self._results[0]].grad_fn
        node.tasks, node.gated = tasks, gated
        node.gates = [
            (gates[connected].grad_fn, [each.number for each in group])
            for connected, group in groups.items()
        ]
        fronts = list(results)
        for at in self._results:
            own = [gate for connected, gate in gates.items() if at in connected]
            fronts[at] = _front(tasks, at, results[at], *own)
        node.versions = handed_on(node.versions, list(zip(results, fronts, strict=True)))
        return tuple(fronts)

    def edges(self, ctx: Any) -> Sequence[tuple[Any, int]]:
        found: dict[int, Any] = {}
        for gate, numbers in ctx.gates:
            found.update(zip(numbers, gate.next_functions, strict=True))
        numbers = [at for at in range(len(self._positions)) if at not in ctx.gated]
        found.update(zip(numbers, ctx.next_functions, strict=False))
        return [found[number] for number in range(len(found))]

    def handed(
        self, ctx: Any, gradients: Any, define: Callable[[Sequence[Any]], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        own = define(gradients)
        task = ctx.tasks.get(_task())
        if task is not None:
            task.gradients = own
        gated = ctx.gated
        given = [None if number in gated else grad for number, grad in enumerate(own)]
        return (None, *given, None)


class _Front(torch.autograd.Function):
    """A result on its way to the caller: notes its tangent for the gates."""

    @staticmethod
    def forward(
        ctx: Any, tasks: dict[int, _Task], result: int, tensor: torch.Tensor, *gates: torch.Tensor
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.tasks, ctx.result = tasks, result
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor | None) -> tuple[Any, ...]:
        (node, _), *gates = ctx.next_functions
        waiting = {gate for gate, _ in gates if _will_run(gate)}
        if waiting:
            task = ctx.tasks.setdefault(_task(), _Task(node))
            task.waiting |= waiting
        else:
            task = ctx.tasks.get(_task())
        if task is not None:
            task.tangents[ctx.result] = tangent
        return None, None, tangent, *[None] * len(gates)


class _Gate(torch.autograd.Function):
    """The way to inputs that the same results are connected to."""

    @staticmethod
    def forward(
        ctx: Any,
        tasks: dict[int, _Task],
        numbers: list[int],
        results: frozenset[int],
        *inputs: torch.Tensor,
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.tasks, ctx.numbers, ctx.results = tasks, numbers, results
        return inputs[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, _: None) -> tuple[Any, ...]:
        task = ctx.tasks[_task()]
        gradients, node = task.gradients, task.node
        if gradients is None:
            tangents = {at: x for at, x in task.tangents.items() if at in ctx.results}
            gradients = node._forward_cls.computed(node, tangents)
            task.spent |= tangents.keys()
        task.waiting.discard(ctx)
        if not task.waiting:
            del ctx.tasks[_task()]
            if task.spent and not _keeps_graph() and not _will_run(node):
                node._forward_cls.release(node, frozenset(task.spent))
        return None, None, None, *[gradients[number] for number in ctx.numbers]


# As in `runtime_wrappers`: the C entry, without the look for functorch's transforms.
_front: Callable[..., torch.Tensor] = super(torch.autograd.Function, _Front).apply  # type: ignore[misc, assignment]
_gate: Callable[..., torch.Tensor] = super(torch.autograd.Function, _Gate).apply  # type: ignore[misc, assignment]
