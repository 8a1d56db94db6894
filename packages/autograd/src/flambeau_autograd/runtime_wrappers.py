"""The callable that runs compiled graphs as eager code runs: autograd on the outside, plain tensors
inside.

Inference: `graph_call.wrap_inference`.

Training: one `torch.autograd.Function`, applied through the C entry (no functorch look-up), to the
graph's arguments. Inputs and outputs the backward reads are saved through
`save_for_backward`, whose version check then finds in-place changes as in eager; intermediates hang
on the context and go when the backward starts, unless the engine keeps the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import torch
from torch.nn.parallel import DistributedDataParallel

from flambeau_autograd.backward_chain import (
    BackwardChain,
    ConnectedBackward,
    WholeBackward,
    bucket_limits,
)
from flambeau_autograd.double_backward import message, raising_twice
from flambeau_autograd.gated_inputs import GatedBackward, partial_inputs
from flambeau_autograd.graph_call import NO_SIZES, Call, getter, guarded, sizes_reader
from flambeau_autograd.outputs import build_outputs, is_plain
from flambeau_autograd.saved_forms import forms_of, is_lazy, restored
from flambeau_autograd.saved_versions import check_versions, modified, recorded
from flambeau_autograd.tangent_kinds import are_plain, has_batches, has_wrappers
from flambeau_autograd.version_counters import set_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from flambeau_autograd.backwards import Backward
    from flambeau_autograd.cut_backward import Groups
    from flambeau_autograd.double_backward import Dependence
    from flambeau_autograd.gated_inputs import PartialInput
    from flambeau_autograd.graph_call import Compiled, Sizes
    from flambeau_autograd.kept_inputs import Kept, KeptInputs
    from flambeau_autograd.saved_versions import Watched
    from flambeau_prims.spec import Spec

    Gradients: TypeAlias = (
        "Callable[[Kept | None, Sequence[Any]], Sequence[torch.Tensor | None] | None]"
    )
    """Of what a call has kept and the tangents, the gradients as `gradient_graph` computes them."""
    Applied: TypeAlias = "tuple[Compiled, Backwards]"
    """A node recorded for the graph's arguments, and its backwards."""
    Define: TypeAlias = "Callable[[Sequence[Any]], tuple[Any, ...]]"
    GradientsOf: TypeAlias = "Callable[[Any, tuple[Any, ...], bool], tuple[Any, Define]]"
    Fixer: TypeAlias = "Callable[[torch.Tensor | None, dict[str, int]], torch.Tensor]"

_records = torch.is_grad_enabled
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
_default_hooks = torch._C._autograd._top_saved_tensors_default_hooks

_FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


class Backwards(Protocol):
    """The backwards of a graph pair: `specialized_backwards.Backwards`, or stored ones."""

    def without(self, missing: frozenset[int]) -> Backward:
        """The backward for a call in which the results `missing` have no tangent."""

    def batched(self, backward: Backward) -> Callable[..., Sequence[Any]]:
        """One of these backwards, for tangents that are batches."""

    def cut(self, counted: Collection[int], limits: Sequence[int]) -> tuple[Groups, Backwards]:
        """Groups of gradients by their bytes, and backwards in pieces that give one group each."""


@dataclass
class Training:
    """What the generated Function needs besides the graphs, as data but for `gradients`.

    `saved` is where each argument of the backward comes from (`partition.Partition`), and
    `tangent_specs` are those of the tangents among them. `symbolic`: sizes of the backward's
    arguments are symbols. `extras` counts the saved outputs of the forward behind its results,
    `views` are results that are views of memory which the graph does not return otherwise.
    `differentiable`: which of the graph's `arguments` (so many) get gradients, in the order of the
    backward's outputs; `unconnected`: which require grad though no result is connected to them, and
    `forgotten`: those of them where no second derivative can be connected to them either; `hooked`:
    which the program registers hooks on when the graph has run.
    `non_differentiable`: results without. `tangents[k]` is the result that tangent k is of, and
    `results` counts the results that are not saved extras. `connected[i]`: the results that the
    input of gradient i is connected to; `reaching[i]`: those of them that gradient i comes from;
    where none of these has a tangent, it is undefined. `sharing[k]`: the results that
    share kept tensors with result k; a backward of the others leaves its own possible.
    `dependences`: what gradients are computed from, for `double_backward`. `handles`: (position
    among the differentiable ones, among the graph's arguments) of those inputs that they depend on
    and that are no leaves. `watched`: the caller's tensors whose versions are checked besides those
    of the saved ones. `parameters`: which of the differentiable ones are parameters of modules.
    `name`: the program's function; `where`: its line that the graph begins
    at.
    """

    saved: list[tuple[str, Any]]
    tangent_specs: list[Spec]
    symbolic: bool
    extras: int
    views: list[int]
    arguments: int
    differentiable: list[int]
    unconnected: list[int]
    forgotten: list[int]
    hooked: list[int]
    non_differentiable: list[int]
    tangents: list[int]
    results: int
    connected: list[frozenset[int]]
    reaching: list[frozenset[int]]
    sharing: dict[int, frozenset[int]]
    dependences: list[Dependence]
    handles: list[tuple[int, int]]
    watched: list[Watched]
    kept: KeptInputs
    gradients: Gradients
    parameters: frozenset[int] = frozenset()
    name: str = ""
    where: str = ""


def wrap_training(
    forward: Compiled, backwards: Backwards, call: Call, training: Training, *, lazily: bool = True
) -> Compiled:
    """The callable for a graph with a backward; unless `lazily`, the backward is compiled now."""
    run = guarded(forward, call)
    positions = training.differentiable
    whole: WholeBackward = WholeBackward(positions, training.arguments)
    if training.unconnected:
        whole = ConnectedBackward(positions)
    apply = _recorded(run, backwards, whole, call, training)
    connected, tangents, hooked = training.connected, training.tangents, training.hooked
    if some := partial_inputs(positions, connected, tangents, hooked):
        apply = _recorded_with_gates(apply, some, run, backwards, call, training)
    chains: dict[tuple[int, ...], Applied] = {}

    def chain(limits: tuple[int, ...]) -> Applied:
        known = chains.get(limits)
        if known is None:
            groups, pieces = backwards.cut(training.parameters, limits)
            cut = len(groups) > 1
            nodes = BackwardChain(positions, groups) if cut else whole
            known = chains[limits] = _recorded(run, pieces, nodes, call, training), pieces
        return known

    if not lazily:
        now = bucket_limits()
        (chain(now)[1] if now else backwards).without(frozenset())
    sizes = sizes_reader(call)
    plan, constants, copies, grad_mode = call.outputs, call.constants, call.copies, call.grad_mode
    plain = is_plain(plan) and len(plan) == training.results and not copies and grad_mode is None
    if plain and not constants and call.passed is None:

        def call_plain(*args: Any) -> tuple[Any, ...]:
            if DistributedDataParallel._active_ddp_module is None:
                return apply(*args)
            return chain(bucket_limits())[0](*args)

        return call_plain

    passed = getter(call.passed) if call.passed is not None else tuple

    def call_function(*args: Any) -> tuple[Any, ...]:
        given = (*passed(args), *constants)
        limits = bucket_limits()
        results = (chain(limits)[0] if limits else apply)(*given)
        for target, source, writes in copies:
            version = args[target]._version
            args[target].copy_(results[source])
            set_versions((args[target],), (version + writes,))
        outputs = build_outputs(plan, args, results, sizes(given))
        if grad_mode is not None:
            torch._C._set_grad_enabled(grad_mode)
        return outputs

    return call_function


def _recorded(
    run: Compiled, backwards: Backwards, nodes: WholeBackward, call: Call, training: Training
) -> Compiled:
    function = _make_function(run, backwards, nodes, call, training)
    # The C entry of Function.apply: Function.apply itself looks for functorch transforms first, at
    # twice the cost.
    return nodes.recording(super(torch.autograd.Function, function).apply)  # type: ignore[misc]


def _recorded_with_gates(
    apply: Compiled,
    some: list[PartialInput],
    run: Compiled,
    backwards: Backwards,
    call: Call,
    training: Training,
) -> Compiled:
    """`apply`, but with gates before those of `some` inputs behind which hooks may wait."""
    nodes = GatedBackward(training.differentiable, training.tangents)
    apply_gated = _recorded(run, backwards, nodes, call, training)

    def record(*args: Any) -> tuple[Any, ...]:
        waiting = [each for each in some if each.waits(args)]
        return nodes.record(apply_gated, args, waiting) if waiting else apply(*args)

    return record


def _make_function(
    run: Compiled, backwards: Backwards, nodes: WholeBackward, call: Call, training: Training
) -> type[torch.autograd.Function]:
    saved = _Saved.of(training, call)
    inputs, outputs, intermediates = saved.inputs, saved.outputs, saved.intermediates
    sizes, results, views = saved.sizes, training.results, training.views
    watched, handles, kept_inputs = training.watched, training.handles, training.kept
    exact, takes_tuple, forgotten = not training.extras, nodes.takes_tuple, training.forgotten
    marked = training.non_differentiable
    non_differentiable = getter(marked) if marked else None
    gradients_of = _gradients_function(backwards, nodes, saved, training)
    spend = _spending(training)

    class CompiledFunction(torch.autograd.Function):
        """The compiled graph pair in autograd's eyes."""

        @staticmethod
        def forward(ctx: Any, *node_inputs: Any) -> tuple[Any, ...]:
            given = args = node_inputs[0] if takes_tuple else node_inputs
            if forgotten:
                args = _without_histories(given, forgotten)
            ctx.given = kept_inputs.keep(args)
            returned = run(*args)
            if views:
                returned = _detached(returned, views)
            ctx.set_materialize_grads(False)
            ctx.kept = None
            if handles and ctx.given is None:
                ctx.handles = {index: args[position] for index, position in handles}
            ctx.owned = _default_hooks(True) is None
            if ctx.owned:
                ctx.save_for_backward(*(inputs(args) + outputs(returned)))
                ctx.rest = intermediates(returned)
                ctx.versions = recorded(watched, given, returned) if watched else ()
            else:
                _save_for_hooks(ctx, saved, kept_inputs, args, returned)
            if sizes is not None:
                ctx.sizes = sizes(args)
            if not exact:
                returned = returned[:results]
            if non_differentiable is not None:
                ctx.mark_non_differentiable(*non_differentiable(returned))
            return returned

        @staticmethod
        def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
            return nodes.handed(ctx, *gradients_of(ctx, tangents, _keeps_graph()))

        @staticmethod
        def computed(ctx: Any, tangents: Mapping[int, torch.Tensor | None]) -> Sequence[Any]:
            """The gradients for some tangents, by result; those of others may be asked for yet."""
            given = tuple([tangents.get(index) for index in range(results)])
            gradients, define = gradients_of(ctx, given, True)
            return define(gradients)

        @staticmethod
        def release(ctx: Any, results: frozenset[int]) -> None:
            """Forget what only the gradients of these results need, which nobody asks for again."""
            spend(ctx, ctx.saved_tensors if ctx.kept is None else ctx.kept.tensors, results)

    return CompiledFunction


def _spending(training: Training) -> Callable[[Any, tuple[Any, ...], frozenset[int]], None]:
    """A function that has a call's context forget, after a backward of some results, what none of
    the others can be differentiated with. Its second argument are the context's saved tensors.
    """
    results, sharing, watched = training.tangents, training.sharing, training.watched
    apart_at_all = any(len(sharing[index]) < len(results) for index in results)

    def spend(ctx: Any, tensors: tuple[Any, ...], spent: frozenset[int]) -> None:
        later = apart_at_all and any(spent.isdisjoint(sharing[index]) for index in results)
        ctx.kept = _Kept.after(ctx.kept, tensors, spent) if later else None
        if not later:
            ctx.rest = ctx.given = ctx.handles = None
            if watched:
                ctx.versions = ()

    return spend


def _gradients_function(
    backwards: Backwards, nodes: WholeBackward, saved: _Saved, training: Training
) -> GradientsOf:
    """A function that gives the gradients of a recorded call, and what replaces those that are
    undefined by None. It takes the call's context, the tangents, and whether the call keeps what it
    has saved.
    """
    sizes, fixers, reaching = saved.sizes, saved.fixers, training.reaching
    with_tangents, sharing, watched = training.tangents, training.sharing, training.watched
    all_results, nothing = frozenset(with_tangents), frozenset[int]()
    spend = _spending(training)
    depends, handles, kept_inputs = training.dependences, training.handles, training.kept

    def gradients_of(
        ctx: Any, tangents: tuple[torch.Tensor | None, ...], keeps: bool
    ) -> tuple[Any, Define]:
        rest = ctx.rest
        if rest is None:
            raise RuntimeError(_FREED)
        plain, missing = are_plain(tangents), nothing
        if not plain:
            missing = frozenset([index for index in with_tangents if tangents[index] is None])
        spent = all_results - missing if missing else all_results
        if watched:
            check_versions(ctx.versions, spent)
        checked = ctx.saved_tensors if ctx.kept is None else ctx.kept.taken(spent, sharing)
        given, inputs_kept = ctx.given, ctx.handles if handles and ctx.given is None else {}
        if not keeps:
            spend(ctx, checked, spent)
        if not ctx.owned:
            checked = restored(checked, ctx.forms)
            given, checked = kept_inputs.unpacked(given, checked), checked[: ctx.own]
        records = _records()
        if records or (not plain and has_wrappers(tangents)):
            differentiable = training.gradients(given, tangents)
            if differentiable is not None:
                return differentiable, tuple
            reason = kept_inputs.reason(given)
            if handles and given is not None:
                inputs_kept = kept_inputs.handles(given, handles)
        values = NO_SIZES if sizes is None else ctx.sizes
        backward = backwards.without(missing)
        # Otherwise another backward, or a hook, may read the saved tensors again.
        spends = ctx.rest is None and ctx.owned
        run: Callable[[list[Any]], Any] = backward.spend if spends else backward.keep
        arguments = [*checked, *rest]
        del checked, rest, given
        if plain or not has_batches(tangents):
            _add_tangents(arguments, backward, tangents, values, fixers)
        else:
            run = _add_batches(arguments, backwards, backward, nodes, tangents, values, fixers)
        define = partial(_defined, reaching, missing) if missing else tuple
        if not records:
            return run(arguments), define
        with torch.no_grad():
            grads = nodes.all(run(arguments))
        sources = [tangents[index] for index in with_tangents]
        text = message(training.name, training.where, reason)
        guarded = raising_twice(grads, depends, nodes.edges(ctx), inputs_kept, sources, text)
        return guarded, define

    return gradients_of


def _save_for_hooks(
    ctx: Any,
    saved: _Saved,
    kept_inputs: KeptInputs,
    args: tuple[Any, ...],
    returned: tuple[Any, ...],
) -> None:
    """Leave all that a call keeps to hooks on saved tensors, which may pack it."""
    ctx.versions = ()  # eager checks no version of what hooks have packed
    own = (*saved.hooked(args), *saved.outputs(returned), *saved.intermediates(returned))
    ctx.given, added = kept_inputs.packed(ctx.given, saved.places, len(own))
    ctx.save_for_backward(*own, *added)
    ctx.own, ctx.rest, ctx.forms = len(own), (), forms_of((*own, *added))


def _add_tangents(
    arguments: list[Any],
    backward: Backward,
    tangents: Sequence[torch.Tensor | None],
    sizes: dict[str, int],
    fixers: list[tuple[int, Fixer]],
) -> None:
    """Add the sizes and tangents that a backward takes to its arguments."""
    for name in backward.sizes:
        arguments.append(sizes[name])
    for index, fix in fixers:
        if index in backward.tangents:
            arguments.append(fix(tangents[index], sizes))


def _add_batches(
    arguments: list[Any],
    backwards: Backwards,
    backward: Backward,
    nodes: WholeBackward,
    tangents: Sequence[torch.Tensor | None],
    sizes: dict[str, int],
    fixers: list[tuple[int, Fixer]],
) -> Callable[[list[Any]], Any]:
    """As `_add_tangents`, where some are batches; gives what is called with a list of arguments."""
    arguments += [sizes[name] for name in backward.sizes]
    own = [(index, fix) for index, fix in fixers if index in backward.tangents]

    def fixed(args: Sequence[Any]) -> list[Any]:
        first = len(args) - len(own)
        pairs = zip(args[first:], own, strict=True)
        return [*args[:first], *(fix(tangent, sizes) for tangent, (_, fix) in pairs)]

    for index, fix in own:
        tangent = tangents[index]
        arguments.append(fix(None, sizes) if tangent is None else tangent)
    whole: Callable[..., Sequence[Any]] = lambda *args: nodes.all(backward.run(*args))  # noqa: E731
    return partial(backwards.batched(backward), fix=fixed, one=whole)


@dataclass(frozen=True)
class _Kept:
    """What a backward of some results leaves for one of the others: eager has kept nothing that
    both need.

    The engine forgets what `save_for_backward` was given when the first has run; `versions` replace
    its check.
    """

    tensors: tuple[Any, ...]
    versions: list[int]
    spent: frozenset[int]

    @classmethod
    def after(cls, before: _Kept | None, tensors: tuple[Any, ...], spent: frozenset[int]) -> _Kept:
        """What is left when the results `spent` have been gone back through, too."""
        versions = [tensor._version for tensor in tensors] if before is None else before.versions
        return cls(tensors, versions, spent if before is None else before.spent | spent)

    def taken(self, wanted: frozenset[int], sharing: dict[int, frozenset[int]]) -> tuple[Any, ...]:
        """The tensors for a backward of these results."""
        if any(not self.spent.isdisjoint(sharing[index]) for index in wanted):
            raise RuntimeError(_FREED)
        for tensor, version in zip(self.tensors, self.versions, strict=True):
            if tensor._version != version:
                raise modified(tensor, version)
        return self.tensors


@dataclass
class _Saved:
    """How the backward's arguments are gathered, in their order: inputs, outputs, intermediates,
    sizes, tangents.

    `inputs` picks from the arguments, `hooked` what hooks on saved tensors are given (`places`:
    where those stand that are saved as they are), `outputs` and `intermediates` from what the
    forward returns.
    `sizes` reads all symbols from the arguments (None: the backward needs none). `fixers` are
    (result, function that brings its tangent into the traced form).
    """

    inputs: Callable[[Sequence[Any]], tuple[Any, ...]]
    hooked: Callable[[Sequence[Any]], tuple[Any, ...]]
    outputs: Callable[[Sequence[Any]], tuple[Any, ...]]
    intermediates: Callable[[Sequence[Any]], tuple[Any, ...]]
    sizes: Sizes | None
    fixers: list[tuple[int, Fixer]]
    places: dict[int, int]

    @classmethod
    def of(cls, training: Training, call: Call) -> _Saved:
        saved, results = training.saved, training.results
        kinds = [kind for kind, _ in saved]
        assert kinds == sorted(kinds, key=("input", "output", "size", "tangent").index)
        tangents = [index for kind, index in saved if kind == "tangent"]
        apart = {(each.side, each.position) for each in training.watched if each.saved}
        inputs = [index for kind, index in saved if kind == "input"]
        unchecked = {index for side, index in apart if side == "input"}
        return cls(
            inputs=_picker(inputs, call.inference, unchecked),
            hooked=_picker(inputs, call.inference, set()),
            outputs=_picker(
                [index for kind, index in saved if kind == "output" and index < results],
                frozenset(),
                {index for side, index in apart if side == "output"},
            ),
            intermediates=getter(
                [index for kind, index in saved if kind == "output" and index >= results]
            ),
            sizes=sizes_reader(call) if training.symbolic else None,
            fixers=[
                (training.tangents[index], _tangent_fixer(spec))
                for index, spec in zip(tangents, training.tangent_specs, strict=True)
            ],
            places={
                index: place
                for place, (kind, index) in enumerate(saved)
                if kind == "input" and index not in call.inference
            },
        )


def _without_histories(args: Sequence[Any], positions: list[int]) -> list[Any]:
    """The arguments, those at `positions` detached from what they were computed from: a call keeps
    that alive only where a result is connected to it.
    """
    inputs = list(args)
    for position in positions:
        if not inputs[position].is_leaf:
            inputs[position] = inputs[position].detach()
    return inputs


def _detached(returned: Sequence[Any], views: list[int]) -> tuple[Any, ...]:
    """Detached views: autograd lets nobody write in place to a view from a custom Function."""
    results = list(returned)
    for index in views:
        results[index] = results[index].detach()
    return tuple(results)


def _defined(
    reaching: list[frozenset[int]], missing: frozenset[int], grads: Sequence[Any]
) -> tuple[Any, ...]:
    """The gradients, None for those reached by undefined tangents only: eager leaves `.grad`."""
    return tuple(
        [
            None if roots and roots <= missing else grad
            for grad, roots in zip(grads, reaching, strict=True)
        ]
    )


# Pieces


def _picker(
    positions: list[int], inference: frozenset[int], apart: set[int]
) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """The arguments or results that the backward reads; of an inference tensor, which autograd
    refuses to keep, a copy, as the program has made one. Those of `apart` are not checked.
    """
    if inference.isdisjoint(positions) and not apart:
        return getter(positions)

    def pick(args: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            args[index].clone()
            if index in inference
            else (args[index].data if index in apart else args[index])
            for index in positions
        )

    return pick


def _tangent_fixer(spec: Spec) -> Fixer:
    """A function that gives a tangent as traced: zeros for None, its strides, no lazy bits."""
    env, dtype, device = spec.env, spec.dtype, spec.device
    shape, stride = cast("tuple[int, ...]", spec.shape), cast("tuple[int, ...]", spec.stride)

    def fix(tangent: torch.Tensor | None, sizes: dict[str, int]) -> torch.Tensor:
        if tangent is not None and tangent.stride() == stride and not is_lazy(tangent):
            return tangent
        result = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        return result.zero_() if tangent is None else result.copy_(tangent.detach())

    def fix_symbolic(tangent: torch.Tensor | None, sizes: dict[str, int]) -> torch.Tensor:
        assert env is not None
        wanted = tuple(env.evaluate(step, sizes) for step in spec.stride)
        if tangent is not None and tangent.stride() == wanted and not is_lazy(tangent):
            return tangent
        extents = tuple(env.evaluate(size, sizes) for size in spec.shape)
        result = torch.empty_strided(extents, wanted, dtype=dtype, device=device)
        return result.zero_() if tangent is None else result.copy_(tangent.detach())

    return fix if env is None else fix_symbolic
