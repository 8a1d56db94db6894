"""Second derivatives: the gradients of a graph, compiled as a function that autograd can
differentiate.

    y = c(x);  g, = torch.autograd.grad(y.sum(), x, create_graph=True)

    the backward of c      graph (tangent, saved values) -> g, under no_grad
    with create_graph      graph (x, tangent) -> g, compiled with its own backward; that has
                           one, too, if third derivatives are asked for, and so on

The second graph runs the captured program again, and the eager engine's backward of it, on the
inputs: nothing but the engine knows what the program's own `torch.autograd.Function`s, `detach` and
`no_grad` mean for it. So a call keeps the inputs that its gradients depend on (copies of small ones
that it writes to), and where it draws random numbers, the states of the generators before. The
program's checks of data are not made again: their inputs may not be kept.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx

from flambeau_autograd.aliases import argument_named, written_parameters
from flambeau_autograd.graph_call import sizes_reader
from flambeau_autograd.joint_trace import Step
from flambeau_autograd.kept_inputs import Kept, KeptInputs
from flambeau_autograd.outputs import Data, Result, View, concrete
from flambeau_autograd.tangent_kinds import has_batches, has_wrappers
from flambeau_autograd.traced_modes import TracedModes
from flambeau_prims.fork_safety import fork_safe_lock
from flambeau_prims.graph import Value, values_in
from flambeau_prims.operator_facts import communicates
from flambeau_prims.per_operator import per_operator
from flambeau_prims.unsupported import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from flambeau_autograd.graph_call import Call, Compiled
    from flambeau_autograd.joint_trace import Trace
    from flambeau_autograd.outputs import Output
    from flambeau_prims.graph import Graph

    Compile = Callable[[fx.GraphModule, list[Any]], Compiled]

LIMIT = 16
"""How many forms (sizes, sets of undefined tangents) are compiled; more would fill the memory."""

SMALL = 1 << 16
"""How many elements an input has at most that each call copies before it writes to it."""


class Gradients:
    """The gradients of a training graph as functions of its inputs and tangents, each compiled when
    a backward first asks for it, or run by the eager engine where that cannot be compiled.

    `kept` says what a call keeps for them; the versions of inputs that are `saved` for the
    backward, too, are checked there. `eager` says why the eager engine computes some.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        traced: Trace,
        joint: Graph,
        depends: Container[int],
        call: Call,
        saved: Container[int],
        compile_graph: Compile,
    ) -> None:
        self._gm = gm
        self._compile = compile_graph
        self._modes = TracedModes.current()
        self._passed = list(traced.passed)
        self._others = {
            at: x for at, x in enumerate(example_inputs) if not isinstance(x, torch.Tensor)
        }
        self._specs = traced.tape.inputs[: len(self._passed)]
        self._flags = [
            (x.requires_grad, x.is_leaf) if isinstance(x, torch.Tensor) else (False, True)
            for x in (example_inputs[at] for at in self._passed)
        ]
        """Whether an argument requires grad, and is a leaf."""
        self._count = len(example_inputs)
        self._tangents = tuple(traced.tangents)
        self._constants, self._differentiable = tuple(traced.constants), traced.differentiable
        self._places = {
            out.position: at for at, out in enumerate(traced.plan) if isinstance(out, Result)
        }
        self._outputs = _outputs_of_results(traced.plan)
        apart = bool(gm.meta.get("takes_wrappers_apart"))
        self.kept = _kept_inputs(traced, joint, depends, call, saved, example_inputs, apart)
        targets = {target for target, _ in joint.writes}
        written = (at for at, value in enumerate(joint.inputs) if value in targets)
        self._written = tuple(self._passed[at] for at in written if at < len(self._passed))
        self.eager: list[str] = []
        self._compiled: dict[Any, Compiled | None] = {}
        self._lock = fork_safe_lock()

    def __call__(
        self, kept: Kept | None, tangents: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None] | None:
        """The gradients, connected to the inputs and to the tangents; None where they have no
        derivative that can be compiled.

        `tangents` has one for each result, in the layout that the backward takes; those of results
        without are left out.
        """
        if not torch.is_grad_enabled():
            return self._of_wrappers(kept, tangents)
        if kept is None or self.kept.reason(kept):
            return None
        given = self.kept.by_position(kept.inputs)
        arguments = [self._others.get(at) for at in range(self._count)]
        for at, position in enumerate(self._passed):
            arguments[position] = (
                self._as_traced(at, given[at]) if at in given else self._absent(at, kept.sizes)
            )
        results = tuple(at for at in self._tangents if tangents[at] is not None)
        arguments += [_plain(tangents[at]) for at in results]
        # Eager operators know what to do with batches and wrappers.
        runs = has_batches(tangents) or has_wrappers(tangents)
        if runs and self._gm.meta.get("takes_wrappers_apart"):
            raise RuntimeError("a graph of tensor subclasses was given a gradient of another class")
        compiled = None if runs else self._of(results, arguments, kept.sizes)
        if self.kept.refused:
            return None
        run = compiled or partial(self._run, results)
        with nullcontext() if kept.states is None else kept.states.restored():
            return run(*arguments)

    def _of_wrappers(
        self, kept: Kept | None, tangents: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        with torch.enable_grad():
            gradients = self(kept, tangents)
        if gradients is None:
            kinds = {type(x).__name__ for x in tangents if x is not None}
            raise RuntimeError(
                f"a compiled backward was given gradients of type {', '.join(sorted(kinds))}, for "
                f"which it would have to run the program again: {self.kept.reason(kept)}. Run the "
                "function eagerly, or convert the gradients before the backward"
            )
        return [None if x is None else x.detach() for x in gradients]

    def _run(self, results: Sequence[int], *arguments: Any) -> Sequence[torch.Tensor | None]:
        """The gradients by the eager engine."""
        given = list(arguments[: self._count])
        for position in self._written:
            given[position] = given[position].clone()
        # An input may be computed from another one: each is a separate tensor here.
        own = [x.view_as(x) if isinstance(x, torch.Tensor) else x for x in given]
        with self._modes.restored(), torch.enable_grad():
            outputs = self._gm.forward(*own)
            for step in self._gm.meta.get("steps", ()):
                tangents = own[step.first : step.first + len(step.outputs)]
                leaves = self._leaves(own, step.leaves, step.first)
                outputs = _grad([outputs[at] for at in step.outputs], leaves, tangents)
            return _grad(
                [outputs[self._places[at]] for at in results],
                self._leaves(own, self._differentiable, self._count),
                arguments[self._count :],
            )

    def _leaves(self, own: Sequence[Any], leaves: Sequence[int], count: int) -> list[Any]:
        """The `leaves` among the first `count` arguments and the constants."""
        return [own[at] if at < count else self._constants[at - count] for at in leaves]

    def _absent(self, at: int, sizes: Mapping[str, int]) -> torch.Tensor:
        """Zeros in the place of an input whose elements no gradient depends on."""
        spec = cast("Value", self._specs[at]).spec
        shape, stride = concrete(tuple(spec.shape), sizes), concrete(tuple(spec.stride), sizes)
        zeros = torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device).zero_()
        return self._as_traced(at, zeros)

    def _as_traced(self, at: int, x: Any) -> Any:
        """An argument that requires grad as the program's did: a call has detached some that no
        result is connected to.
        """
        requires_grad, is_leaf = self._flags[at]
        if not requires_grad or x.requires_grad:
            return x
        x = x.detach().requires_grad_()
        return x if is_leaf else x.view_as(x)

    def _of(
        self, results: tuple[int, ...], arguments: list[Any], sizes: Mapping[str, int]
    ) -> Compiled | None:
        flags = tuple(
            (x.requires_grad, x.is_leaf, x.stride(), x.dtype) for x in arguments[self._count :]
        )
        plain = tuple(x for x in arguments[: self._count] if not isinstance(x, torch.Tensor))
        key = results, flags, tuple(sizes.values()), tuple(map(repr, plain))
        if key not in self._compiled:
            with self._lock:
                if key not in self._compiled:
                    if len(self._compiled) >= LIMIT:
                        del self._compiled[next(iter(self._compiled))]
                    self._compiled[key] = self._made(results, arguments)
        return self._compiled.get(key)

    def _made(self, results: tuple[int, ...], arguments: list[Any]) -> Compiled | None:
        outputs = tuple(self._outputs[at] for at in results)
        whole = self._places.keys() >= set(results)
        step = Step(outputs, self._count, tuple(self._differentiable), whole)
        gm = _with_gradients(self._gm, step, self._written)
        try:
            with self._modes.restored():
                return self._compile(gm, arguments)
        except Unsupported as unsupported:
            if all(each.whole for each in gm.meta["steps"]):
                self.eager.append(f"{unsupported.text} [{unsupported.reason}]")
            else:
                self.kept.refused = unsupported.text
            return None


def _grad(
    outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], tangents: Sequence[Any]
) -> tuple[torch.Tensor | None, ...]:
    return torch.autograd.grad(outputs, leaves, tangents, create_graph=True, allow_unused=True)


def _kept_inputs(
    traced: Trace,
    joint: Graph,
    depends: Container[int],
    call: Call,
    saved: Container[int],
    example_inputs: Sequence[Any],
    takes_wrappers_apart: bool,
) -> KeptInputs:
    """What a call keeps: the inputs that gradients depend on, and those that are no tensors."""
    inputs = traced.tape.inputs[: len(traced.passed) + len(traced.constants)]
    needed = [
        at for at, value in enumerate(inputs) if not isinstance(value, Value) or at in depends
    ]
    targets = {target for target, _ in joint.writes}
    written = {at for at, value in enumerate(joint.inputs) if value in targets}
    tensors = [
        at
        for at in needed
        if isinstance(inputs[at], Value) and at not in written and at not in call.inference
    ]
    given = [*(example_inputs[at] for at in traced.passed), *traced.constants]
    overwritten = {joint.inputs.index(x): x for x in _overwritten(joint, traced.results)}
    large = [value for at, value in overwritten.items() if given[at].numel() > SMALL]
    refused = _refusal(traced, large)
    if takes_wrappers_apart:
        refused = refused or "autograd does not know what its tensor subclasses are made of"
    return KeptInputs(
        needed=needed,
        tensors=frozenset(tensors),
        checked=[at for at in tensors if at not in saved],
        copied=[needed.index(at) for at in overwritten],
        draws=[] if refused else _devices_of_draws(traced.tape.nodes),
        sizes=sizes_reader(call),
        refused=refused,
    )


def _outputs_of_results(plan: Sequence[Output]) -> dict[int, int]:
    """For each result an output of the program that it is, or else one that is a view of it."""
    found: dict[int, int] = {}
    for at, out in enumerate(plan):
        base = out.base if isinstance(out, View) else out
        base = base.base if isinstance(base, Data) else base
        if isinstance(base, Result) and (out is base or base.position not in found):
            found[base.position] = at
    return found


def _plain(tangent: torch.Tensor | None) -> torch.Tensor | None:
    """Without bits that say how memory is to be read."""
    return None if tangent is None else tangent.resolve_conj().resolve_neg()


def _with_gradients(gm: fx.GraphModule, step: Step, written: Sequence[int]) -> fx.GraphModule:
    """`gm` with a placeholder for each tangent, to be traced with its results differentiated."""
    graph = fx.Graph()
    output = graph.graph_copy(gm.graph, {})
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node in placeholders:
        node.meta.pop("spec", None)  # the sizes are those of the arguments
    following = placeholders[-1].next if placeholders else next(iter(graph.nodes))
    with graph.inserting_before(following):
        for at in step.outputs:
            graph.placeholder(f"tangent_{at}_of_{step.first}")
    graph.output(output)
    result = fx.GraphModule(gm, graph)
    names = ("name", "observed_is_compiling")
    result.meta.update((name, gm.meta[name]) for name in names if name in gm.meta)
    result.meta["steps"] = (*gm.meta.get("steps", ()), step)
    result.meta["copied_inputs"] = frozenset((*gm.meta.get("copied_inputs", ()), *written))
    return result


def needed_inputs(traced: Trace) -> frozenset[int]:
    """The positions of the arguments and constants of a tape that its gradients depend on, by the
    memories that calls read.
    """
    aliases, tape = traced.aliases, traced.tape
    needed = {aliases[out].root for out in tape.outputs[traced.results :] if isinstance(out, Value)}
    for node in reversed(tape.nodes):
        changed = [out for out in node.outputs if out is not None]
        for name in written_parameters(node):
            changed += values_in(argument_named(node, name))
        # What a call writes to may keep some of its elements, so it is needed before, too.
        if not needed.isdisjoint([aliases[value].root for value in changed]):
            needed.update([aliases[value].root for value in node.operands()])
    return frozenset(
        at
        for at, x in enumerate(tape.inputs[: len(traced.passed) + len(traced.constants)])
        if isinstance(x, Value) and aliases[x].root in needed
    )


def is_draw(node: Any) -> bool:
    """Whether a call of a tape draws random numbers."""
    return _draws(node.op)


@per_operator
def _draws(op: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def _devices_of_draws(nodes: Sequence[Any]) -> list[str]:
    """The devices whose generators the calls of a tape draw from."""
    return sorted({str(device) for node in nodes if is_draw(node) for device in _devices(node)})


def _devices(draw: Any) -> set[torch.device]:
    """Those of a draw's tensors: eager draws for them there."""
    return {out.spec.device for out in draw.outputs if out is not None}


def _overwritten(joint: Graph, results: int) -> list[Value]:
    """The inputs that the program writes to and gradients depend on."""
    if not joint.writes:
        return []
    found: set[Any] = {out for out in joint.outputs[results:] if isinstance(out, Value)}
    for node in reversed(joint.nodes):
        if not found.isdisjoint(node.outputs):
            found.update(node.operands())
    return [target for target, _ in joint.writes if target in found]


def _refusal(traced: Trace, written: Sequence[Value]) -> str:
    """Why there are no derivatives of the gradients, or nothing; `written`: inputs that gradients
    depend on and the program writes to.
    """
    if written:
        names = ", ".join(value.name for value in written)
        return f"it writes to inputs ({names}) that its gradients depend on"
    if traced.copies:
        return "it writes to inputs that require grad"
    for number, node in enumerate(traced.tape.nodes):
        if communicates(node.op):
            return f"it communicates with other processes ({node.op})"
        if not is_draw(node):
            continue
        kinds = {device.type for device in _devices(node)}
        known = bool(kinds) and kinds <= {"cpu", "cuda"}
        if number >= traced.split or not known or node.kwargs.get("generator") is not None:
            return f"it draws random numbers by {node.op}"
    return ""
