"""Trace a graph of torch calls, and its backward through the eager autograd engine, onto one tape
of ATen calls.

    gm(x, w): y = torch.nn.functional.linear(x, w)
      ->  t = aten.t(w); y = aten.mm(x, t)                  (forward)
          g = aten.t(tangent); gw = aten.mm(g, x); ...      (backward)

The graph's calls run in order on fake tensors under a `flambeau_prims.tracer.Tracer`, in the grad
mode of the caller, with what the graph itself changes (`torch._C._set_grad_enabled`, autocast)
taking effect. Then the C++ engine differentiates the results with fake tangents. Which tensors are
results is decided by `plan_outputs` in between: an output that views an input or another output is
left to the caller's eager code.
"""

from __future__ import annotations

import operator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from flambeau_autograd.aliases import Alias, AliasMap
from flambeau_autograd.backward_places import ForwardLines, FunctionNodes, marked_places
from flambeau_autograd.functionalize import dense_order
from flambeau_autograd.fused_attention import fused_attention
from flambeau_autograd.masked_writes import set_item
from flambeau_autograd.match_attention import match_attention
from flambeau_autograd.outputs import Constant, Data, Input, Output, Result, View, view_steps
from flambeau_autograd.reachability import reachability
from flambeau_autograd.reasons import (
    AliasedMutation,
    AliasedOutputs,
    BackwardFailed,
    LeafInside,
    RecordedWrite,
    TrainingOnlyMutation,
)
from flambeau_autograd.traced_modes import TracedModes
from flambeau_autograd.version_counters import shared_counters, version_of
from flambeau_autograd.view_histories import has_own_backward
from flambeau_prims.concrete_sizes import with_concrete_sizes
from flambeau_prims.error_texts import SYMBOLIC_SIZES_REFUSED
from flambeau_prims.fake import FakeTensor, StorageRecord, make_fake
from flambeau_prims.function_table import FunctionTable
from flambeau_prims.graph import Graph, Place, Value
from flambeau_prims.operator_facts import is_check
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr
from flambeau_prims.sizes_node import from_symbolic, to_symbolic, to_symint
from flambeau_prims.spec import Spec, spec_of
from flambeau_prims.tracer import MutatingCall, Tracer
from flambeau_prims.unsupported import Unsupported
from flambeau_prims.view_chains import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flambeau_autograd.match_attention import Attention

_creation = torch._C._autograd.CreationMeta
_creation_of = torch._C._autograd._get_creation_meta
_run_backward = torch.autograd.Variable._execution_engine.run_backward


@dataclass
class Trace:
    """A tape, forward then backward, and how it meets the caller.

    `tape.inputs` is the arguments in `passed` (positions in the caller's), the constants, then the
    tangents; `tape.outputs` is the results, then a gradient (or None) for each of `differentiable`
    (positions among arguments and constants), which are the inputs `leaves` that results are
    connected to: `connected[i]`. `reaching[i]` is those that gradient i comes from, `sharing[k]`
    those that share kept tensors with result k; `functions`: whether custom Functions are among
    their nodes (`reachability.py`). `owners[i]` is whose memory result i is
    (see `unalias_outputs`). `copies` lists (argument, result) to be copied under autograd.
    `tangents[k]` is the result that tangent k is of. `split` is the number of forward calls.
    `counts` says how far the forward moves the version counters of `tape.inputs`, `versions` where
    those of results stand that have moved.
    """

    tape: Graph
    aliases: AliasMap
    split: int
    passed: list[int]
    constants: list[torch.Tensor]
    literals: set[Value]
    plan: list[Output]
    owners: list[Any]
    copies: list[tuple[int, int]]
    differentiable: list[int]
    leaves: list[Value]
    non_differentiable: list[int]
    tangents: list[int]
    connected: list[frozenset[int]]
    reaching: list[frozenset[int]]
    sharing: dict[int, frozenset[int]]
    grad_mode: bool | None
    counts: dict[Value, int]
    versions: dict[int, int]
    results: int = 0
    functions: bool = False

    @property
    def trains(self) -> bool:
        """Whether there is a backward."""
        return bool(self.tangents)


@dataclass(frozen=True)
class Step:
    """A differentiation: of the outputs `outputs`, or of what these are views of, with the
    arguments from position `first` on as their tangents, to `leaves`: positions among the arguments
    before them and, from `first` on, the constants. `whole`: no output is a view.
    """

    outputs: tuple[int, ...]
    first: int
    leaves: tuple[int, ...]
    whole: bool = True


@dataclass(eq=False)
class _Argument:
    """A tensor argument: as the program sees it, as the engine does, and as it was at first.
    `history` is its grad_fn since the node `written_by`.
    """

    position: int
    value: Value
    fake: FakeTensor
    leaf: FakeTensor
    grad_fn: Any
    requires_grad: bool
    history: Any = None
    written_by: fx.Node | None = None


@dataclass
class _Results:
    """The tensors that the compiled graph returns, found while planning the outputs."""

    values: list[Any] = field(default_factory=list)
    fakes: list[FakeTensor | None] = field(default_factory=list)
    owners: list[Any] = field(default_factory=list)
    found: dict[Any, int] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)

    def add(
        self, key: Any, value: Any, fake: FakeTensor | None, owner: Any, version: int = 0
    ) -> Result:
        """The Result for `key`, appended if it is new."""
        position = self.found.get(key)
        if position is None:
            position = self.found[key] = len(self.values)
            self.values.append(value)
            self.fakes.append(fake)
            self.owners.append(owner)
            if version:
                self.versions[position] = version
        return Result(position)


def trace(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, fuses_attention: bool = False
) -> Trace:
    """Trace `gm` on arguments like these, in the current grad mode."""
    return _JointTracer(gm, example_inputs, fuses_attention).run()


class _WritesNoted(Tracer):
    """Notes in `written` the memories that calls write to."""

    written: list[StorageRecord]

    def _mutate(self, call: MutatingCall) -> Any:
        written = call.facts.written(call.args, call.kwargs)
        self.written += [fake.storage_record for fake in written if isinstance(fake, FakeTensor)]
        return super()._mutate(call)


class _Interior(torch.autograd.Function):
    """The identity: gives a fake argument the grad_fn that its real tensor has."""

    @staticmethod
    def forward(ctx: Any, leaf: FakeTensor) -> FakeTensor:
        ctx.set_materialize_grads(False)
        result = make_fake(leaf.spec, leaf.storage_record)
        result.value = leaf.value
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> torch.Tensor | None:
        return grad


class _JointTracer:
    def __init__(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], fuses_attention: bool
    ) -> None:
        self._gm = gm
        self._examples = example_inputs
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        if len(placeholders) != len(example_inputs):
            raise ValueError(
                f"the graph takes {len(placeholders)} inputs, but {len(example_inputs)} "
                f"examples were given"
            )
        self._env = gm.meta.get("size_env")
        devices = [
            x.device
            for x in example_inputs
            if isinstance(x, torch.Tensor) and x.device.type != "cpu"
        ]
        self._tracer = _WritesNoted(self._env, device=devices[0] if devices else "cpu")
        self._tracer.written = []
        self._tracer.observed_is_compiling = gm.meta.get("observed_is_compiling", False)
        self._grad = torch.is_grad_enabled()
        self._arguments: list[_Argument] = []
        self._memory: dict[int, _Argument] = {}
        """By the id of the storage record."""
        self._passed: list[int] = []
        self._inputs: list[Any] = []
        self._bound: dict[fx.Node, Any] = {}
        self._lines = ForwardLines()
        self._attributes: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        found = match_attention(gm) if fuses_attention else []
        self._attention = {attention.nodes[-1]: attention for attention in found}
        self._deferred = {node for attention in found for node in attention.nodes[:-1]}
        for position, (node, example) in enumerate(zip(placeholders, example_inputs, strict=True)):
            self._bound[node] = self._argument(position, node, example)

    def run(self) -> Trace:
        tracer = self._tracer
        with _modes_restored():
            with FunctionTable(tracer.device), tracer:
                self._copy_inputs()
                flat, grad_after = self._forward()
                _resolve_lazy_bits(flat)
            for step in self._gm.meta.get("steps", ()):
                flat, grad_after = self._gradients(flat, step), self._grad
            split = len(tracer.nodes)
            aliases = AliasMap([value for value in self._inputs if isinstance(value, Value)])
            aliases.extend_inputs(tracer.constants)
            aliases.extend(tracer.nodes)
            self._refuse_aliased_writes(tracer.nodes, aliases)
            counts = self._counts()
            results = _Results()
            plan = self._plan_outputs(flat, aliases, results)
            copies = self._plan_copies(results)
            self._refuse_reads_of_written(results)
            differentiable = self._differentiable()
            leaves = [leaf for _, leaf in differentiable]
            tangents, gradients, tangent_values, functions = self._backward(results, leaves)
            outputs = [fake for index in tangents if (fake := results.fakes[index]) is not None]
            reached = reachability(outputs, leaves, functions)
            # The others are no inputs of the node: their hooks would be called without gradient.
            differentiable = list(compress(differentiable, reached.connected))
            gradients = list(compress(gradients, reached.connected))
        aliases.extend_inputs(tracer.constants)
        aliases.extend_inputs(tangent_values)
        aliases.extend(tracer.nodes[split:])
        constants = list(tracer.constants.items())
        tape = Graph(
            [*self._inputs, *(value for value, _ in constants), *tangent_values],
            tracer.nodes,
            [*results.values, *gradients],
            env=self._env,
            name="joint" if tangents else "inference",
        )
        lifted = {fake.value for _, fake in self._attributes.values()}
        sets = {*reached.connected, *reached.reaching, *reached.sharing}
        results_of = {
            numbers: frozenset([tangents[number] for number in numbers]) for numbers in sets
        }
        connected = [each for each in reached.connected if each]
        reaching = compress(reached.reaching, reached.connected)
        return Trace(
            tape=tape,
            aliases=aliases,
            split=split,
            passed=self._passed,
            constants=[real for _, real in constants],
            literals={value for value, _ in constants if value not in lifted},
            plan=plan,
            owners=results.owners,
            copies=copies,
            differentiable=self._positions(differentiable, [value for value, _ in constants]),
            leaves=[value for value, _ in differentiable],
            non_differentiable=[
                index
                for index, fake in enumerate(results.fakes)
                if isinstance(results.values[index], Value) and index not in tangents
            ],
            tangents=tangents,
            connected=[results_of[numbers] for numbers in connected],
            reaching=[results_of[numbers] for numbers in reaching],
            sharing={
                index: results_of[numbers]
                for index, numbers in zip(tangents, reached.sharing, strict=True)
            },
            functions=reached.functions,
            grad_mode=None if grad_after == self._grad else grad_after,
            counts=counts,
            versions=results.versions,
            results=len(results.values),
        )

    # Arguments

    def _argument(self, position: int, node: fx.Node, example: Any) -> Any:
        spec = node.meta.get("spec")
        if isinstance(example, torch.Tensor):
            if example.layout is not torch.strided:
                raise Unsupported(f"input {node.name} has layout {example.layout}")
            return self._tensor(
                position, node, example, spec if isinstance(spec, Spec) else spec_of(example)
            )
        if isinstance(spec, Expr):
            self._passed.append(position)
            self._inputs.append(spec)
            return to_symint(spec)
        if isinstance(spec, FloatExpr):
            # In the graph, the int symbol that stands for the bits of the float.
            self._passed.append(position)
            self._inputs.append(spec.args[0])
            return to_symbolic(spec)
        return example

    def _tensor(
        self, position: int, node: fx.Node, example: torch.Tensor, spec: Spec
    ) -> FakeTensor:
        leaf = make_fake(
            spec,
            StorageRecord(given=True),
            requires_grad=example.requires_grad,
            inference=example.is_inference(),
        )
        self._tracer.adopt(leaf, node.name)
        fake = leaf
        if example.requires_grad and not example.is_leaf:
            with torch._C._InferenceMode(leaf.is_inference()), torch.enable_grad():
                fake = _Interior.apply(leaf)  # type: ignore[assignment]
        self._passed.append(position)
        value = leaf.value
        assert value is not None
        self._inputs.append(value)
        argument = _Argument(
            position, value, fake, leaf, fake.grad_fn, example.requires_grad, fake.grad_fn
        )
        self._arguments.append(argument)
        self._memory[id(leaf.storage_record)] = argument
        return fake

    # Forward

    def _copy_inputs(self) -> None:
        """Put copies in the place of inputs whose writes are not to be seen."""
        placeholders = [node for node in self._gm.graph.nodes if node.op == "placeholder"]
        for position in self._gm.meta.get("copied_inputs", ()):
            node = placeholders[position]
            self._bound[node] = self._bound[node].clone()

    def _forward(self) -> tuple[list[Any], bool]:
        """Run the graph; gives its flat outputs, and the grad mode it leaves behind."""
        bound = self._bound
        for node in self._gm.graph.nodes:
            if node.op == "placeholder" or node in self._deferred:
                continue
            if node.op == "output":
                flat = fx.node.map_arg(node.args[0], bound.__getitem__)
                return list(flat) if isinstance(flat, (tuple, list)) else [
                    flat
                ], torch.is_grad_enabled()
            attention = self._attention.get(node)
            if attention is None:
                self._run(node)
            else:
                self._attend(attention)
        raise ValueError("the graph has no output node")

    def _run(self, node: fx.Node) -> None:
        """Make the call of a node."""
        bound = self._bound
        args, kwargs = (fx.node.map_arg(arg, bound.__getitem__) for arg in (node.args, node.kwargs))
        self._enter(node)
        first, saves = len(self._tracer.nodes), node.meta.get("region_saves")
        result = self._call(node, args, kwargs)
        if self._tracer.written:
            self._note_writes(node)
        if type(result) is FakeTensor and not any(result is arg for arg in args):
            result = shortened(result)
        bound[node] = result
        if saves is not None:
            for made in self._tracer.nodes[first:]:
                if saves(made.op):
                    made.where = node.meta.get("where", "")

    def _enter(self, node: fx.Node) -> None:
        where, region = node.meta.get("where", ""), node.meta.get("region", 0)
        self._tracer.where = Place(where, region) if region else where
        self._lines.note(where)

    def _attend(self, attention: Attention) -> None:
        """Make one call of a fused kernel instead of several, or these in order."""
        last = attention.nodes[-1]
        self._enter(last)
        result = fused_attention(attention, self._bound.__getitem__)
        if result is not None:
            self._bound[last] = result
            return
        for node in attention.nodes:
            self._run(node)

    def _note_writes(self, node: fx.Node) -> None:
        """Note the arguments whose histories a node of the graph has changed."""
        for record in self._tracer.written:
            argument = self._memory.get(id(record))
            if argument is not None and argument.fake.grad_fn is not argument.history:
                argument.history, argument.written_by = argument.fake.grad_fn, node
        self._tracer.written = []

    def _call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        try:
            return self._result(node, args, kwargs)
        except RuntimeError as error:
            if not SYMBOLIC_SIZES_REFUSED.matches(error):
                raise
            return self._result(node, *with_concrete_sizes(args, kwargs))

    def _result(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "call_function":
            if node.target is operator.setitem:
                return set_item(*args)
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if node.op == "call_method":
            subject, *rest = args
            return getattr(subject, str(node.target))(*rest, **kwargs)
        if node.op == "get_attr":
            return self._attribute(operator.attrgetter(str(node.target))(self._gm))
        raise Unsupported(
            f"a graph node of kind {node.op}; calls of modules must be traced through"
        )

    def _attribute(self, value: Any) -> Any:
        """A tensor that hangs on the graph module: an argument that is always the same."""
        if not isinstance(value, torch.Tensor):
            return value
        fake = self._tracer.constant(value)
        self._attributes[id(value)] = (value, fake)
        return fake

    def _refuse_aliased_writes(self, nodes: Sequence[Any], aliases: AliasMap) -> None:
        written = aliases.written_roots(nodes)
        if not written:
            return
        memory: dict[int, list[Value]] = {}
        for position, value in zip(self._passed, self._inputs, strict=True):
            example = self._examples[position]
            if isinstance(example, torch.Tensor) and example.numel():
                memory.setdefault(example.untyped_storage().data_ptr(), []).append(value)
        for sharers in memory.values():
            if len(sharers) > 1 and any(aliases[value] in written for value in sharers):
                names = ", ".join(value.name for value in sharers)
                raise AliasedMutation(f"inputs {names} share memory, and the program writes to it")

    def _counts(self) -> dict[Value, int]:
        """How far the version counter of each input and lifted tensor has moved."""
        fakes: list[tuple[Any, FakeTensor]] = [
            (argument.value, argument.fake) for argument in self._arguments
        ]
        fakes += [(fake.value, fake) for _, fake in self._attributes.values()]
        return {value: version_of(fake) for value, fake in fakes}

    # Outputs

    def _plan_outputs(self, flat: list[Any], aliases: AliasMap, results: _Results) -> list[Output]:
        inputs = {
            aliases[value]: position
            for position, value in zip(self._passed, self._inputs, strict=True)
            if isinstance(value, Value)
        }
        groups: dict[Alias, list[FakeTensor]] = {}
        for out in flat:
            if isinstance(out, FakeTensor):
                groups.setdefault(aliases[out.value].root, []).append(out)  # type: ignore[index]
        roots = {
            root: self._root_of(root, outs, aliases)
            for root, outs in groups.items()
            if root not in inputs
        }
        arguments = {argument.position: argument.fake for argument in self._arguments}
        sources = [root for root in roots.values() if isinstance(root, FakeTensor)]
        counters = shared_counters(
            [*arguments.values(), *sources, *(out for outs in groups.values() for out in outs)]
        )
        plan: list[Output] = []
        for out in flat:
            if not isinstance(out, FakeTensor):
                plan.append(self._plan_other(out, results))
                continue
            alias = aliases[out.value]  # type: ignore[index]
            root = alias.root
            base: Input | Result | Data
            if root in inputs:
                base = Input(inputs[root])
                counted: FakeTensor | None = arguments[inputs[root]]
            elif roots[root] is None:
                plan.append(results.add(alias, out.value, out, root, version_of(out)))
                continue
            else:
                source = roots[root]
                fake = source if source is not root else None
                counted = fake
                version = 0 if fake is None else version_of(fake)
                base = results.add(root, root.value, fake, root, version)
            if alias is root:
                plan.append(base)
                continue
            if has_own_backward(out, counted):
                raise AliasedOutputs("a custom autograd Function returns a view, an output")
            # A view taken under no_grad has no grad_fn, though it says that it requires grad.
            recorded, steps = out.grad_fn is not None, view_steps(alias)
            detached = any(step.op is torch.ops.aten.detach.default for step in steps)
            apart: int | None = None
            if counted is None or counters[id(out)] != counters[id(counted)]:
                apart = version_of(out)
                if not recorded and detached:
                    base = Data(base, counters[id(out)])
            # Of what requires grad it is recorded, where no step detaches it.
            free = detached or counted is None or not counted.requires_grad
            tracked = recorded or (free and _taken_in_grad_mode(out))
            plan.append(View(base, steps, tracked, apart))
        return plan

    def _root_of(self, root: Alias, outs: list[FakeTensor], aliases: AliasMap) -> Any:
        """What outputs that share the memory `root` are views of: a fake tensor, or `root` itself
        if autograd does not care.

        None if they are one and the same tensor, which can be returned as it is.
        """
        lazy = outs[0].is_conj() or outs[0].is_neg()  # no Value is: taken as a view by the caller
        if not lazy and all(aliases[out.value] is aliases[outs[0].value] for out in outs):  # type: ignore[index]
            return None
        candidates = [out if aliases[out.value] is root else out._base for out in outs]  # type: ignore[index]
        for fake in candidates:
            if (
                isinstance(fake, FakeTensor)
                and fake.value is not None
                and aliases[fake.value] is root
            ):
                return fake
        if any(out.grad_fn is not None for out in outs):
            raise AliasedOutputs("outputs share memory in a way that autograd does not see")
        return root

    def _plan_other(self, out: Any, results: _Results) -> Output:
        if isinstance(out, torch.Tensor):
            fake = self._tracer.constant(out)
            return results.add(fake.value, fake.value, fake, out)
        if isinstance(out, torch.SymInt):
            size = from_symbolic(out)
            if isinstance(size, int):
                return Constant(size)
            return results.add(size, size, None, None)
        if isinstance(out, (torch.SymFloat, torch.SymBool)):
            raise Unsupported(f"a symbolic {type(out).__name__} as an output")
        return Constant(out)

    def _plan_copies(self, results: _Results) -> list[tuple[int, int]]:
        """Arguments whose new contents autograd must know of."""
        copies = []
        for argument in self._arguments:
            fake = argument.fake
            if fake.requires_grad and fake.grad_fn is not argument.grad_fn:
                result = results.add(argument, fake.value, fake, argument)
                copies.append((argument.position, result.position))
            elif fake.requires_grad != argument.requires_grad:
                raise TrainingOnlyMutation(
                    "the program calls requires_grad_() or detach_() on an input"
                )
        return copies

    def _refuse_reads_of_written(self, results: _Results) -> None:
        """A result that was computed from a written argument must have it as an input."""
        written: dict[Any, _Argument] = {
            argument.fake.grad_fn: argument
            for argument in self._arguments
            if argument.written_by is not None and argument in results.found
        }
        if not written:
            return
        own = {results.found[argument] for argument in written.values()}
        pending = [
            fake.grad_fn
            for at, fake in enumerate(results.fakes)
            if fake is not None and at not in own
        ]
        pending += [child for node in written for child, _ in node.next_functions]
        seen = set()
        while pending:
            node = pending.pop()
            if node is not None and node not in seen:
                seen.add(node)
                pending += [child for child, _ in node.next_functions]
        read = [argument.written_by for node, argument in written.items() if node in seen]
        if not read:
            return
        calls = [node for node in self._gm.graph.nodes if node.op != "output"]
        cuts = [node for node in read if node is not None and node is not calls[-1]]
        if not cuts:
            raise TrainingOnlyMutation("one call writes to an input and reads it again")
        raise RecordedWrite("the program reads an input that it has written to", cuts)

    # Backward

    def _gradients(self, flat: list[Any], step: Step) -> list[Any]:
        """The gradients of outputs to the leaves of a step, differentiable themselves."""
        aliases = AliasMap([value for value in self._inputs if isinstance(value, Value)])
        aliases.extend_inputs(self._tracer.constants)
        aliases.extend(self._tracer.nodes)
        results = _Results()
        plan = self._plan_outputs(flat, aliases, results)
        outputs = [_differentiated(plan[index], results) for index in step.outputs]
        given = {argument.position: argument for argument in self._arguments}
        tangents = [given[step.first + number].fake for number in range(len(outputs))]
        attributes = {fake.value: fake for _, fake in self._attributes.values()}
        constants = [attributes.get(value) for value in self._tracer.constants]
        leaves = [
            given[at].leaf if at < step.first else constants[at - step.first] for at in step.leaves
        ]
        # What was checked once holds, and is not computed again.
        self._tracer.nodes[:] = [node for node in self._tracer.nodes if not is_check(node.op)]
        self._lines.note("")  # nodes that follow belong to no line of the forward
        with torch.enable_grad():
            gradients = list(self._run_engine(outputs, tangents, leaves, creates_graph=True))
        with self._tracer:
            _resolve_lazy_bits(gradients)
        return gradients

    def _run_engine(
        self, outputs: Sequence[Any], tangents: Sequence[Any], leaves: Sequence[Any],
        creates_graph: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        # The function table is for backwards that the program wrote itself.
        with FunctionTable(self._tracer.device), torch._C._DisableAutocast(), self._tracer:
            try:
                return _run_backward(  # type: ignore[no-any-return]
                    tuple(outputs),
                    tuple(tangents),
                    creates_graph,
                    creates_graph,
                    tuple(leaves),
                    allow_unreachable=True,
                    accumulate_grad=False,
                )
            except Unsupported:
                raise
            except RuntimeError as error:
                raise BackwardFailed(str(error)) from error

    def _differentiable(self) -> list[tuple[Value, FakeTensor]]:
        found: list[tuple[Any, FakeTensor]] = [
            (argument.value, argument.leaf)
            for argument in self._arguments
            if argument.requires_grad
        ]
        found += [(fake.value, fake) for _, fake in self._attributes.values() if fake.requires_grad]
        return found

    def _positions(
        self, differentiable: list[tuple[Value, FakeTensor]], constants: list[Value]
    ) -> list[int]:
        place = {value: position for position, value in zip(self._passed, self._inputs, strict=True)
                 if isinstance(value, Value)}  # fmt: skip
        place.update((value, len(self._examples) + index) for index, value in enumerate(constants))
        return [place[value] for value, _ in differentiable]

    def _backward(
        self, results: _Results, leaves: list[FakeTensor]
    ) -> tuple[list[int], list[Any], list[Value], FunctionNodes]:
        """Differentiate the results: those with a tangent, the gradients, the tangents' Values, and
        what is noted of custom Functions.
        """
        tracer = self._tracer
        for fake in results.fakes:
            if fake is not None and fake.requires_grad and fake.is_leaf and not fake._is_view():
                raise LeafInside("an output is a leaf that requires grad and was made inside")
        positions = [
            index
            for index, fake in enumerate(results.fakes)
            if fake is not None and fake.grad_fn is not None
        ]
        if not positions:
            return [], [], [], FunctionNodes()
        if not leaves:
            raise LeafInside("an output requires grad though no input does")
        outputs = [results.fakes[index] for index in positions]
        tangents = [
            tracer.fake(_tangent_spec(out.spec), name=f"tangent_{k}")  # type: ignore[union-attr]
            for k, out in enumerate(outputs)
        ]
        tracer.where = Place("", in_backward=True)
        with marked_places(outputs, self._lines, tracer) as functions:
            gradients = self._run_engine(outputs, tangents, leaves)
        values = [None if grad is None else grad.value for grad in gradients]  # type: ignore[attr-defined]
        given: list[Any] = [tangent.value for tangent in tangents]
        return positions, values, given, functions


def _differentiated(out: Output, results: _Results) -> FakeTensor | None:
    """The result that an output is, or is a view of."""
    base = out.base if isinstance(out, View) else out
    base = base.base if isinstance(base, Data) else base
    if not isinstance(base, Result):
        raise BackwardFailed("an output is an input itself")
    return results.fakes[base.position]


def _tangent_spec(spec: Spec) -> Spec:
    """The layout that a result's tangent must have: its own, or row-major if that has gaps."""
    stride = spec.stride if dense_order(spec) is not None else None
    return Spec.of(spec.shape, stride=stride, dtype=spec.dtype, device=spec.device)


@contextmanager
def _modes_restored() -> Iterator[None]:
    """Leave the modes of this thread as they were, whatever the traced program did or raised."""
    grad, modes = torch.is_grad_enabled(), TracedModes.current()
    try:
        yield
    finally:
        torch._C._set_grad_enabled(grad)
        modes.enter()


def _resolve_lazy_bits(flat: Sequence[Any]) -> None:
    """Have autograd find the histories of outputs now: a view of a written base is rebuilt."""
    for value in flat:
        if isinstance(value, torch.Tensor) and value.requires_grad:
            _ = value.grad_fn


def _taken_in_grad_mode(out: FakeTensor) -> bool:
    """Whether a tensor is a view that autograd lets be written to from what requires grad: a view
    of no gradient itself is one, too, unless it was taken under no_grad.
    """
    return out._is_view() and _creation_of(out) != _creation.NO_GRAD_MODE
