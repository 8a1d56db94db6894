"""AOT autograd from end to end: the order of the passes, and `aot`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from flambeau_autograd.backward_chain import bucket_limits
from flambeau_autograd.begun_compiles import begin
from flambeau_autograd.check import check_graph
from flambeau_autograd.compare_operands import compare_operands
from flambeau_autograd.cse import merge_common_subexpressions
from flambeau_autograd.dce import drop_dead_calls
from flambeau_autograd.double_backward import dependences
from flambeau_autograd.extend_partition import LayerInputs, extend_partition
from flambeau_autograd.fold_casts import fold_casts
from flambeau_autograd.fold_identities import fold_identities
from flambeau_autograd.follow_memory_order import follow_memory_order
from flambeau_autograd.freezing import compile_frozen, is_frozen
from flambeau_autograd.functionalize import dense_order, functionalize
from flambeau_autograd.gradient_graph import Gradients, is_draw, needed_inputs
from flambeau_autograd.graph_call import Call, wrap_inference
from flambeau_autograd.joint_trace import trace
from flambeau_autograd.keep_lstm_gates import keep_lstm_gates
from flambeau_autograd.multiply_integers import multiply_integers
from flambeau_autograd.narrow_masks import narrow_masks
from flambeau_autograd.operators import memory_of
from flambeau_autograd.options import AutogradOptions
from flambeau_autograd.outputs import Constant, Result
from flambeau_autograd.pad_products import pad_products
from flambeau_autograd.partition import partition, summarize
from flambeau_autograd.prefer_channels_last import prefer_channels_last
from flambeau_autograd.reasons import UnbackedNumbers, UntracedCalls
from flambeau_autograd.repeated_layers import NotRepeated, shorten_module
from flambeau_autograd.runtime_wrappers import Training, wrap_training
from flambeau_autograd.saved_versions import Watched
from flambeau_autograd.specialized_backwards import Backwards
from flambeau_autograd.subclasses import compile_plain_graph, holds_subclasses
from flambeau_autograd.unalias_outputs import unalias_outputs
from flambeau_autograd.watched_tensors import (
    reads_of_backward,
    reads_of_partition,
    watched_tensors,
)
from flambeau_prims.check import SoundCalls
from flambeau_prims.collector import collector_paused
from flambeau_prims.convolution_bias import unfuse_convolution_biases
from flambeau_prims.decompose import decompose
from flambeau_prims.gpu_draws import reserve_random
from flambeau_prims.graph import Value, discard
from flambeau_prims.unsupported import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from flambeau_autograd.aliases import Alias
    from flambeau_autograd.begun_compiles import Compiler
    from flambeau_autograd.double_backward import Dependence
    from flambeau_autograd.graph_call import Compiled
    from flambeau_autograd.joint_trace import Trace
    from flambeau_autograd.partition import Partition
    from flambeau_autograd.repeated_layers import RepeatedLayers
    from flambeau_prims.graph import Graph

PASSES: list[tuple[str, Callable[[Graph], Graph]]] = [
    # Autograd saves detached results; without those calls gone, equal subexpressions do not look
    # equal.
    ("fold_identities", fold_identities),
    # Before decomposition, while a merged call is one call and not twenty.
    ("merge_common_subexpressions", merge_common_subexpressions),
    # What is dead need not be decomposed.
    ("drop_dead_calls", drop_dead_calls),
]
"""On the functional graph, forward and backward in one."""

PRIMITIVE_PASSES: list[tuple[str, Callable[[Graph], Graph]]] = [
    # A cast back is an identity then.
    ("fold_casts", fold_casts),
    # Decomposition casts and expands in full, also to what the operand is already.
    ("fold_identities", fold_identities),
    # Before equal calls are merged: more are equal once copies between them are gone.
    ("follow_memory_order", follow_memory_order),
    # A copy of a copy that was left out may copy to the order that its operand has.
    ("fold_identities", fold_identities),
    # Forward and backward formulas share subexpressions that appear only now (the normalised input
    # of a layer norm).
    ("merge_common_subexpressions", merge_common_subexpressions),
    ("drop_dead_calls", drop_dead_calls),
]
"""After PASSES and `decompose`, if `options.decompose`; the partition then saves or recomputes
parts.
"""


TRAINING_PASSES: list[tuple[str, Callable[[Graph], Graph]]] = [
    # Of equal subexpressions, forward and backward share one.
    ("compare_operands", compare_operands),
    # The backward keeps the convolution's result then, not the sum beside it.
    ("unfuse_convolution_biases", unfuse_convolution_biases),
    # Only worth its casts when something is saved.
    ("narrow_masks", narrow_masks),
]
"""After PRIMITIVE_PASSES, if there is a backward."""


def aot(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    compiler: Callable[[Graph, str], Compiled],
    *,
    options: AutogradOptions | None = None,
) -> Compiled:
    """Compile `gm`, ahead of time and through autograd, with `compiler`.

    `compiler(graph, kind)` gets functional graphs of kind "inference", "forward" or "backward" and
    returns for each a callable on tensors (and ints, where the graph has int inputs) that returns a
    tuple and performs `graph.writes`; it may begin compiles (`begun_compiles`). The result takes
    what `gm` takes and returns the flat tuple of `gm`'s outputs. It serves the grad mode,
    requires_grad flags and sizes (or symbolic sizes, under `gm.meta["size_env"]`'s guards) that it
    was compiled for; guarding is the caller's part.

    Raises `flambeau_prims.unsupported.Unsupported` (see `reasons.py`) for what must run eagerly,
    and the program's own errors.
    """
    options = options or AutogradOptions()
    with collector_paused():
        if holds_subclasses(gm, example_inputs):
            plain = partial(_compile, compiler=compiler, options=options)
            return compile_plain_graph(gm, example_inputs, plain)
        return _compile(gm, example_inputs, compiler, options)


def _compile(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    compiler: Compiler,
    options: AutogradOptions,
) -> Compiled:
    autocast = any(torch.is_autocast_enabled(name) for name in ("cpu", "cuda"))
    env = gm.meta.get("size_env")
    if env is not None and env.unbacked_atoms:
        raise UnbackedNumbers("the graph computes sizes or numbers that are known only as it runs")
    if any(node.meta.get("untraced") for node in gm.graph.nodes):
        raise UntracedCalls("the graph makes a call that cannot be traced through")
    derived = derive(gm, example_inputs, options)
    traced, joint, part = derived.traced, derived.joint, derived.part
    constants = len(traced.constants)
    gm.meta["draws"] = any(node.op is reserve_random for node in joint.nodes)
    gm.meta["aligned_inputs"] = _aligned_inputs(joint, traced)
    inputs = len(traced.tape.inputs) - len(traced.tangents)
    counts = _counts_of_arguments(traced, joint)
    grad_inputs = any(
        isinstance(x, torch.Tensor) and x.requires_grad
        for x in (*example_inputs, *traced.constants)
    )
    call = Call(
        inputs=joint.inputs[: inputs - constants],
        passed=None if len(traced.passed) == len(example_inputs) else traced.passed,
        outputs=traced.plan,
        constants=tuple(traced.constants),
        copies=[(*copy, counts[copy[0]]) for copy in traced.copies],
        versions=traced.versions,
        grad_mode=traced.grad_mode,
        no_autocast=autocast,
        no_grad=not traced.trains and torch.is_grad_enabled() and grad_inputs,
        inference=frozenset(
            index for index, x in enumerate(example_inputs[position] for position in traced.passed)
            if isinstance(x, torch.Tensor) and x.is_inference()
        ),
    )  # fmt: skip
    if not traced.trains:
        if options.freezing and options.decompose:
            frozen = _frozen(gm, example_inputs, traced.passed)
            packs = not (options.max_autotune or options.max_autotune_gemm)
            return wrap_inference(
                compile_frozen(joint, frozen, compiler, packs=packs, folds=not options.strict), call
            )
        gm.meta["call"] = call
        discard(traced.tape.nodes, joint)
        return wrap_inference(compiler(joint, "inference"), call)
    assert part is not None
    gm.meta["partition"] = summarize(part)
    if options.check:
        check_graph(part.forward, "partition")
        check_graph(part.backward, "partition")
    part.forward.stored_as = "forward" if gm.meta.get("has_key") else ""
    begun = begin(compiler, part.forward, "forward")
    again = partial(aot, compiler=compiler, options=replace(options, fuse_attention=False))
    backwards = Backwards(part, compiler, traced.tangents, traced.reaching, options, again)
    gradients = Gradients(
        gm,
        example_inputs,
        traced,
        joint,
        derived.depends,
        call,
        {at for kind, at in part.saved if kind == "input"},
        again,
    )
    gm.meta["eager_derivatives"] = gradients.eager
    gm.meta["separate_tangents"] = backwards.separate_tangents
    gm.meta["has_draws"] = any(map(is_draw, traced.tape.nodes))
    watched = watched_tensors(part, derived.reads, traced.results, traced.tangents, call.inference)
    training = _training_of(part, joint, traced, gradients, watched, example_inputs)
    training.name = gm.meta.get("name", "")
    training.hooked = _hooked(gm, traced.passed)
    gm.meta.update(call=call, training=training, backwards=backwards)
    if not options.compile_backward_lazily and not bucket_limits():
        backwards.expect()
    forward = begun()
    part.forward.short = None  # refers to the whole graph, as that does to it
    discard((*traced.tape.nodes, *joint.nodes), part.forward, part.backward)
    lazily = options.compile_backward_lazily or backwards.several
    return wrap_training(forward, backwards, call, training, lazily=lazily)


@dataclass
class Derived:
    """What a captured graph becomes before it is compiled.

    `joint` is its functional graph; of a graph of many equal layers it has the calls of the short
    graph, as the tape has, and all inputs. `part` is the partition if there is a backward. Eager
    would read `reads` of the caller's tensors for that; gradients of gradients depend on the tape's
    inputs at the positions `depends`.
    """

    traced: Trace
    joint: Graph
    part: Partition | None = None
    reads: list[Watched] = field(default_factory=list)
    depends: frozenset[int] = frozenset()


def derive(gm: fx.GraphModule, example_inputs: Sequence[Any], options: AutogradOptions) -> Derived:
    """Trace, transform and part a captured graph; of many equal layers a few only."""
    trains = torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs
    )
    layers = shorten_module(gm, example_inputs) if trains else None
    if layers is not None:
        few = [example_inputs[at] for at in layers.inputs]
        # What is refused, is refused for the whole graph, whose nodes the error then names.
        with suppress(NotRepeated, Unsupported):
            return extend_derived(_derive_whole(layers.short, few, options), layers, gm)
    return _derive_whole(gm, example_inputs, options)


def _derive_whole(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: AutogradOptions
) -> Derived:
    fuses = options.decompose and options.fuse_attention
    traced = trace(gm, example_inputs, fuses_attention=fuses)
    joint = prepare(traced, options)
    if not traced.trains:
        return Derived(traced, joint)
    counts = _counts_of_arguments(traced, joint)
    inputs = len(traced.tape.inputs) - len(traced.tangents)
    reads = _reads_of_eager(traced, inputs, {at: counts[at] for at, _ in traced.copies})
    given = [*(example_inputs[at] for at in traced.passed), *traced.constants]
    parameters = {("input", at) for at, x in enumerate(given) if isinstance(x, torch.nn.Parameter)}
    part = _partition(joint, traced, options, reads, parameters)
    return Derived(traced, joint, part, reads, needed_inputs(traced))


def extend_derived(short: Derived, layers: RepeatedLayers, gm: fx.GraphModule) -> Derived:
    """What the whole graph becomes, from what the short graph became. Raises NotRepeated where that
    does not repeat; then `short` is used up.
    """
    traced, joint, part = short.traced, short.joint, short.part
    if (
        part is None
        or traced.constants
        or traced.copies
        or traced.versions
        or joint.writes
        or any(traced.counts.values())
        or any(joint.aligned.values())
        or not all(isinstance(out, (Result, Constant)) for out in traced.plan)
    ):
        raise NotRepeated
    tangents = joint.inputs[len(traced.passed) :]
    inputs = layers.inputs_of(gm, dict(zip(traced.passed, joint.inputs, strict=False)))
    passed = sorted(inputs)
    place = {whole: at for at, whole in enumerate(passed)}
    values = [inputs[whole] for whole in passed]
    reached = zip(traced.connected, traced.reaching, strict=True)
    reaching = layers.spread(dict(zip(traced.differentiable, reached, strict=True)))
    differentiable = sorted(reaching)
    reads = {
        traced.passed[each.position]: replace(each, position=0)
        for each in short.reads
        if each.side == "input"
    }
    needed = layers.spread({traced.passed[at]: True for at in short.depends})
    # Of what may have no result to come from, the number in the short graph.
    number = {layers.inputs[at]: index for index, at in enumerate(traced.differentiable)}
    part = extend_partition(
        part,
        LayerInputs(
            values,
            {
                value: address
                for at, value in zip(traced.passed, joint.inputs, strict=False)
                if isinstance(value, Value) and (address := layers.short_address(at)) is not None
            },
            {address: place[whole] for whole, address in layers.addresses.items()},
        ),
        [layers.short_address(at) for at in traced.differentiable],
        [layers.addresses.get(at, number.get(at, 0)) for at in differentiable],
        traced.results,
        layers.dropped,
    )
    whole = replace(
        traced,
        tape=replace(traced.tape, inputs=[*values, *tangents]),
        passed=passed,
        differentiable=list(differentiable),
        leaves=[inputs[at] for at in differentiable],
        connected=[reaching[at][0] for at in differentiable],
        reaching=[reaching[at][1] for at in differentiable],
        counts={},
        literals=set(),
    )
    return Derived(
        whole,
        replace(joint, inputs=[*values, *tangents], write_counts={}, aligned={}),
        part,
        [each for each in short.reads if each.side == "output"]
        + [replace(each, position=place[at]) for at, each in sorted(layers.spread(reads).items())],
        frozenset(place[at] for at in needed),
    )


def _counts_of_arguments(traced: Trace, joint: Graph) -> dict[int, int]:
    """How far the version counter of each argument moves that the graph takes."""
    return {
        at: traced.counts.get(cast("Value", value), 0)
        for at, value in zip(traced.passed, joint.inputs, strict=False)
    }


def _training_of(
    part: Partition,
    joint: Graph,
    traced: Trace,
    gradients: Gradients,
    watched: list[Watched],
    example_inputs: Sequence[Any],
) -> Training:
    """What the generated Function needs besides the graphs."""
    tangents = [
        cast("Value", value).spec
        for (kind, _), value in zip(part.saved, part.backward.inputs, strict=True)
        if kind == "tangent"
    ]
    result = dependences(
        part.forward, part.backward, part.saved, traced.leaves, len(traced.tangents)
    )
    arguments = joint.inputs[: len(joint.inputs) - len(traced.tangents)]
    place = {value: at for at, value in enumerate(arguments) if isinstance(value, Value)}
    differentiable = {place[value]: None for value in traced.leaves}
    given = [*(example_inputs[at] for at in traced.passed), *traced.constants]
    unconnected = [
        at
        for at, x in enumerate(given)
        if isinstance(x, torch.Tensor) and x.requires_grad and at not in differentiable
    ]
    return Training(
        saved=[(kind, at if isinstance(at, int) else str(at)) for kind, at in part.saved],
        tangent_specs=tangents,
        symbolic=any(kind == "size" for kind, _ in part.saved)
        or any(spec.env is not None for spec in tangents),
        extras=len(part.forward.outputs) - traced.results,
        views=[
            at
            for at, out in enumerate(part.forward.outputs[: traced.results])
            if isinstance(out, Value) and memory_of(out) is not out
        ],
        arguments=len(arguments),
        differentiable=list(differentiable),
        unconnected=unconnected,
        # The backward of a custom Function may read them, recorded under create_graph.
        forgotten=[] if traced.functions else unconnected,
        hooked=[],
        non_differentiable=traced.non_differentiable,
        tangents=traced.tangents,
        results=traced.results,
        connected=traced.connected,
        reaching=traced.reaching,
        sharing=traced.sharing,
        dependences=result,
        handles=_handles(result, joint, traced, example_inputs),
        watched=watched,
        kept=gradients.kept,
        gradients=gradients,
        parameters=_parameters(traced, [*example_inputs, *traced.constants]),
        where=next((str(node.where) for node in joint.nodes if node.where), ""),
    )


def _parameters(traced: Trace, given: Sequence[Any]) -> frozenset[int]:
    """The numbers of the differentiable arguments that are parameters."""
    return frozenset(
        number
        for number, at in enumerate(traced.differentiable)
        if isinstance(given[at], torch.nn.Parameter)
    )


def _hooked(gm: fx.GraphModule, passed: Sequence[int]) -> list[int]:
    """The positions among the graph's inputs of those that the program registers hooks on."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return [at for at, number in enumerate(passed) if placeholders[number].meta.get("hooked")]


def _frozen(gm: fx.GraphModule, example_inputs: Sequence[Any], passed: Sequence[int]) -> list[int]:
    """The positions among the graph's inputs of parameters and buffers."""
    sources = [
        str(node.meta.get("source", "")) for node in gm.graph.nodes if node.op == "placeholder"
    ]
    return [
        position for position, at in enumerate(passed) if is_frozen(example_inputs[at], sources[at])
    ]


def _handles(
    found: list[Dependence], joint: Graph, traced: Trace, example_inputs: Sequence[Any]
) -> list[tuple[int, int]]:
    """The non-leaf inputs that gradients depend on and the call does not overwrite."""
    wanted = {index for each in found for index in each.inputs}
    copied = _copied_inputs(joint, traced)
    place = {value: index for index, value in enumerate(joint.inputs)}
    interior = {
        value
        for position, value in zip(traced.passed, joint.inputs, strict=False)
        if isinstance(value, Value) and not example_inputs[position].is_leaf
    }
    return [
        (number, place[value])
        for number, value in enumerate(traced.leaves)
        if number in wanted and value in interior and value not in copied
    ]


def _reads_of_eager(traced: Trace, inputs: int, counts: dict[int, int]) -> list[Watched]:
    """The caller's tensors that eager's backward reads; `counts`: later writes to arguments."""
    tape, aliases = traced.tape, traced.aliases
    reads = reads_of_backward(
        tape.nodes[traced.split :], aliases, cast("list[Value]", tape.inputs[inputs:])
    )
    roots: dict[Alias, Watched] = {}
    for index, value in enumerate(tape.outputs[: traced.results]):
        if isinstance(value, Value):
            roots.setdefault(aliases[value].root, Watched("output", index, frozenset()))
    for index, value in enumerate(tape.inputs[:inputs]):
        if isinstance(value, Value) and value not in traced.literals:
            argument = traced.passed[index] if index < len(traced.passed) else -1
            roots[aliases[value].root] = Watched(
                "input", index, frozenset(), pending=counts.get(argument, 0)
            )
    return [
        replace(
            roots[root],
            results=frozenset(index for k, index in enumerate(traced.tangents) if numbers >> k & 1),
        )
        for root, numbers in reads.items()
        if root in roots
    ]


def _partition(
    joint: Graph,
    traced: Trace,
    options: AutogradOptions,
    reads: list[Watched],
    parameters: set[tuple[str, int]],
) -> Partition:
    """The partition. Its backward reads a copy of what it reads for the gradients of more results
    than eager's does, but of no parameter.
    """
    inputs = len(joint.inputs) - len(traced.tangents)
    writable = _copied_inputs(joint, traced) | _unread_by_eager(joint, traced, reads, parameters)
    eager: dict[tuple[str, int], frozenset[int]] = {
        (each.side, each.position): each.results for each in reads
    }
    places: dict[str, list[Any]] = {"input": joint.inputs, "output": joint.outputs}
    while True:
        part = partition(joint, inputs, traced.results, options, writable)
        more = {
            (side, at)
            for (side, at), results in reads_of_partition(part, traced.tangents).items()
            if (side, at) in eager and not results <= eager[side, at]
        }
        found = [places[side][at] for side, at in more - parameters]
        copied = {value for value in found if dense_order(value.spec) is not None} - writable
        if not copied:
            return part
        writable |= copied


def _unread_by_eager(
    joint: Graph, traced: Trace, reads: list[Watched], parameters: set[tuple[str, int]]
) -> set[Value]:
    """The caller's tensors that eager's backward does not read: the caller may write to them.

    Parameters are left out: to save what is computed from them (a cast to a smaller dtype) costs as
    much memory as they take. So is memory with gaps, of which the backward could read no copy.
    """
    read = {(each.side, each.position) for each in reads} | parameters
    inputs = len(joint.inputs) - len(traced.tangents)
    given = [("input", at, value) for at, value in enumerate(joint.inputs[:inputs])]
    returned = [("output", at, out) for at, out in enumerate(joint.outputs[: traced.results])]
    return {
        value
        for side, at, value in (*given, *returned)
        if (side, at) not in read
        and isinstance(value, Value)
        and value not in traced.literals
        and dense_order(value.spec) is not None
    }


def prepare(traced: Trace, options: AutogradOptions) -> Graph:
    """The functional graph of a trace, after all passes on forward and backward together."""
    graph = functionalize(traced.tape, traced.aliases, traced.split, traced.results)
    copied = _copied_inputs(graph, traced)
    graph.writes = [
        (target, new)
        for target, new in graph.writes
        # Nobody sees a literal, and the glue copies the rest under autograd's eyes.
        if target not in traced.literals and target not in copied
    ]
    graph.write_counts = {
        target: count for target, count in traced.counts.items() if target not in copied
    }
    given = graph.inputs[: len(traced.passed)]
    graph.aligned = {value: False for value in given if isinstance(value, Value)}
    passes = list(PASSES)
    integers = bool(options.integer_products) and not traced.trains and not options.strict
    if options.decompose and options.channels_last and not options.strict:
        # Before decomposition: it speaks of convolutions, and of what eager's operators do to
        # strides.
        preferred = partial(prefer_channels_last, integer_products=integers)
        passes.append(("prefer_channels_last", preferred))
    if options.decompose:
        passes.append(("decompose", partial(decompose, strict=options.strict)))
        if not options.strict:
            # Before equal calls are merged, and dead ones dropped: it makes both.
            passes.append(("keep_lstm_gates", keep_lstm_gates))
        passes += PRIMITIVE_PASSES
        passes += TRAINING_PASSES if traced.trains else []
        if integers:
            passes.append(("multiply_integers", multiply_integers))
    if options.decompose and options.shape_padding:
        # Once dead calls are gone, which would read the matrices; masks are none.
        passes.append(("pad_products", pad_products))
    sound = SoundCalls()
    for name, step in passes:
        calls = list(graph.nodes)
        graph = step(graph)
        if len(graph.nodes) != len(calls):
            discard(calls, graph)
        if options.check:
            check_graph(graph, name, sound)
    # Last, since merging and folding are what makes outputs share memory.
    offsets = [out.spec.offset if isinstance(out, Value) else 0 for out in traced.tape.outputs]
    return unalias_outputs(graph, traced.owners, offsets, primitive=options.decompose)


def _aligned_inputs(joint: Graph, traced: Trace) -> tuple[int, ...]:
    """The arguments that must be aligned to 16 bytes, by position. What is written to may be what
    eager draws for, though the functional graph draws for a fresh tensor.
    """
    if not any(joint.aligned.values()):
        return ()
    written = {target for target, _ in joint.writes}
    return tuple(
        position
        for position, value in zip(traced.passed, joint.inputs, strict=False)
        if isinstance(value, Value) and (joint.aligned.get(value) or value in written)
    )


def _copied_inputs(graph: Graph, traced: Trace) -> set[Value]:
    """The graph's inputs that the glue overwrites once the forward has run."""
    targets = {argument for argument, _ in traced.copies}
    given = zip(traced.passed, graph.inputs, strict=False)
    return {value for index, value in given if isinstance(value, Value) and index in targets}
