"""A capture record -> an entry: the graph given to the backend, the guards as a program, and what
the entry calls.

An entry whose result is the graph's and that has no side effects calls the backend's callable
directly, with the tensors that the guard program loaded: no Python frame of ours runs. Any other
calls a function made by `entry_code`.

Entries of frames that take locks: the locks are held from before the guards are checked until the
side effects are done. No other thread changes what the program reads and writes under its lock.

    with self.lock:                    take self.lock
        self.calls += 1       ->       check the guards again: self.calls may have changed
        return x * self.scale          run the entry: graph, side effects
                                       release self.lock
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from flambeau_capture import torch_state
from flambeau_capture.core import core
from flambeau_capture.entries.continuations import Changes, Continuations, frame_functions
from flambeau_capture.entries.eager_replay import (
    on_error_of,
    unused_that_raise,
    without_history,
)
from flambeau_capture.entries.entry_code import EntryCode, recipes_in
from flambeau_capture.entries.entry_parts import EntryParts
from flambeau_capture.entries.new_entry import new_entry
from flambeau_capture.entries.state_snapshot import StateSnapshot, state_snapshot
from flambeau_capture.events import EntryInfo, Event
from flambeau_capture.frame_hook import flat_function
from flambeau_capture.graphs.autograd_calls import (
    ENTERING,
    leaving_after_errors,
    leaving_inference_modes,
)
from flambeau_capture.graphs.graph_module import build_graph_module
from flambeau_capture.graphs.size_nodes import symbol_sources
from flambeau_capture.guards import kinds, program
from flambeau_capture.guards.constants import EXTENT, Relation
from flambeau_capture.guards.filtering import GuardFilter, filtered
from flambeau_capture.guards.kinds import TensorPayload
from flambeau_capture.guards.tensor_layout import configure
from flambeau_capture.python_core import PythonEntry
from flambeau_capture.record import (
    Assumption,
    Break,
    Capture,
    CaptureError,
    FromGraph,
    GraphValue,
    Guard,
    Input,
    MakeTuple,
    Opaque,
    SizeValue,
)
from flambeau_capture.sources import (
    Argument,
    CapturedFunction,
    Constant,
    MemoryOf,
    Scope,
    Source,
    TensorSize,
    TensorStride,
)
from flambeau_prims.size_expressions import SizeGuard
from flambeau_prims.size_floats import Condition, FloatExpr, condition_of
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec
from flambeau_prims.symbols import symbol_name
from flambeau_prims.wrapper_subclasses import SubclassSpec

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
"""`backend(gm, example_inputs)` returns a callable: placeholders' values to a tuple of outputs."""

_NOTHING: Mapping[str, frozenset[int]] = types.MappingProxyType({})
WHOLE_RESULT = -1
RESULT_AS_TUPLE = -2


@dataclass(eq=False, slots=True)
class Parts:
    """A capture taken apart: its graph, what the graph reads and returns, and its guards."""

    graph_module: fx.GraphModule
    inputs: list[Input]
    outputs: list[GraphValue]
    cyclic: frozenset[int]


def graph_of(capture: Capture, *, keep_raising: bool = False) -> Parts:
    """The graph of a capture, with the values that its result and side effects need as outputs.

    With `keep_raising`, calls that may raise are in it though nobody needs their results, which
    then are outputs, too.
    """
    recipes, cyclic = recipes_in(capture)
    source_of = {item.value: item.source for item in capture.inputs}
    outputs = list(
        dict.fromkeys(
            item.value
            for item in recipes
            if isinstance(item, FromGraph) and item.value not in source_of
        )
    )
    outputs += dict.fromkeys(
        capture.unbacked[name]
        for item in recipes
        if isinstance(item, SizeValue) and not isinstance(item.expr, (int, float))
        for name in sorted(item.expr.symbols())
        if name in capture.unbacked and capture.unbacked[name] not in outputs
    )
    if keep_raising:
        unused = unused_that_raise(capture, outputs)
        outputs += [without_history(capture, value) for value in unused]
    graph_module, inputs = build_graph_module(capture, outputs)
    return Parts(graph_module, inputs, outputs, cyclic)


@dataclass(eq=False, slots=True)
class PreparedEntry:
    """A capture before a backend compiles its graph: all that is read of the program's objects.

    `taken` are the SizeEnv's conditions that `guards` hold, `fixed` names the numbers that they
    fix; a backend may add some, and a condition that it adds replaces those that it implies.
    """

    capture: Capture
    parts: Parts
    guards: tuple[Guard, ...]
    examples: list[Any]
    enables_grad: bool
    taken: tuple[SizeGuard, ...]
    fixed: frozenset[str]


def prepare_entry(
    capture: Capture, state: torch_state.UsualState, guard_filter: GuardFilter | None = None
) -> PreparedEntry:
    """The graph of a capture, and the guards that `guard_filter` keeps."""
    parts = graph_of(capture, keep_raising=True)
    env = capture.size_env
    return PreparedEntry(
        capture=capture,
        parts=parts,
        guards=filtered(all_guards(capture, state), guard_filter, capture.scope),
        examples=[item.example for item in parts.inputs],
        enables_grad=capture.enables_grad or torch.is_grad_enabled(),
        taken=() if env is None else tuple(env.guards),
        fixed=frozenset(() if env is None else env.fixed_floats),
    )


def finish_entry(
    prepared: PreparedEntry,
    backend: Backend,
    continuations: Continuations | None = None,
    *,
    to_end: bool = True,
    handler: Any = None,
    note: Callable[[Event], None] = lambda event: None,
    violated: Callable[[EntryInfo, Assumption], None] | None = None,
    changed: Mapping[str, frozenset[int]] = _NOTHING,
    keep: Callable[[EntryParts], None] = lambda parts: None,
) -> Any:
    """The entry (of the C core, or its Python twin) that serves calls like the captured one; runs
    the backend, and reads nothing of the program.

    A capture with suspended frames needs `continuations`; without `to_end` its entry returns the
    Tail of the outermost frame. `handler` (a FrameHandler) is in force while the entry runs. `note`
    receives calls that run again, `violated` of an assumption about data that did not hold, with
    the entry's info. `changed` are the dims that have changed from call to call, by the text of a
    source. `keep` receives the entry taken apart.
    """
    capture, parts = prepared.capture, prepared.parts
    runs = any(node.op not in ("placeholder", "output") for node in parts.graph_module.graph.nodes)
    with torch.set_grad_enabled(prepared.enables_grad), leaving_inference_modes():
        graph = _quiet(backend(parts.graph_module, prepared.examples)) if runs else None
    if graph is not None and any(call.target in ENTERING for call in capture.calls):
        graph = leaving_after_errors(graph)
    changes = Changes(capture.suspended, capture.unbacked.keys(), changed)
    frames = (
        frame_functions(capture.suspended, continuations, changes)
        if continuations is not None
        else []
    )
    on_error = on_error_of(capture, note) if graph is not None else None
    aim = _target(capture, parts, graph, frames, may_run_again=on_error is not None)
    target, sources, item, text = aim.target, aim.sources, aim.item, aim.text
    if on_error is not None:
        on_error.direct = target is graph
    guards = prepared.guards
    if added := _added_guards(prepared):
        guards = tuple(program.order([*guards, *map(kinds.prepared, added)]))
    info = EntryInfo(
        guards=guards,
        inputs=tuple((item.source, item.spec) for item in capture.inputs),
        graph_module=parts.graph_module,
        text=text,
        broken=capture.cause,
        assumptions=capture.assumptions,
        specialised=tuple(_specialisations(capture)),
    )
    if on_error is not None and violated is not None:
        on_error.violated = functools.partial(violated, info)
    keep(
        EntryParts(
            capture=capture,
            graph_module=parts.graph_module if runs else None,
            info=info,
            sources=sources,
            item=item,
            text=text,
            constants=aim.constants,
            on_error=on_error,
            snapshot=aim.snapshot,
            frames=frames,
            changing=changes.found,
        )
    )
    arguments = len(capture.scope.arguments)
    checked = program.guard_program(guards, sources, arguments)
    if capture.locks:
        checked, target, item = under_locks(
            capture.locks, capture.scope, guards, checked, target, item
        )
    return new_entry(
        checked,
        target,
        item=item,
        info=info,
        handler=handler,
        on_error=on_error,
        runs_to_end=to_end and bool(capture.suspended),
    )


def _quiet(graph: Any) -> Callable[..., Any]:
    """A backend's callable (TypeError for what is none); of a graph module what it runs: calling
    the module itself would print the errors that have the call run again.
    """
    if isinstance(graph, fx.GraphModule) and not (graph._forward_hooks or graph._forward_pre_hooks):
        return graph.forward
    if not callable(graph):
        raise TypeError(
            f"the backend returned {graph!r}; it must return a callable that takes the "
            f"graph's inputs and returns a tuple"
        )
    return graph  # type: ignore[no-any-return]


def eager_entry(capture: Capture, state: torch_state.UsualState, handler: Any = None) -> Any:
    """An entry that runs the original function, for calls that cannot be captured."""
    guards = tuple(all_guards(capture, state))
    info = EntryInfo(
        guards=guards,
        inputs=tuple((item.source, item.spec) for item in capture.inputs),
        skipped=capture.cause,
    )
    checked = program.guard_program(guards, (), len(capture.scope.arguments))
    return new_entry(checked, None, info=info, handler=handler)


def raising_entry(scope: Scope, reason: Break) -> Any:
    """An entry for this call only: the original function raises what capture saw it raise."""
    function = flat_function(scope.function)

    def run(*arguments: Any) -> Any:
        function(*arguments)
        raise CaptureError(reason)

    names = scope.function.__code__.co_varnames
    sources = [Argument(names[at], at) for at in range(len(scope.arguments))]
    return new_entry(
        program.guard_program((), sources, len(sources)), run, info=EntryInfo(skipped=reason)
    )


@dataclass(frozen=True, slots=True)
class _Aim:
    """What an entry calls, with the values of which sources, and which item of what that returns
    is the result; if it is an entry function, its source and constants.
    """

    target: Callable[..., Any]
    sources: list[Source]
    item: int
    text: str = ""
    constants: dict[str, Any] = field(default_factory=dict)
    snapshot: StateSnapshot = field(default_factory=StateSnapshot)


def _target(
    capture: Capture,
    parts: Parts,
    graph: Callable[..., Any] | None,
    frames: list[types.FunctionType],
    *,
    may_run_again: bool,
) -> _Aim:
    """What the entry calls: the graph itself where nothing remains to be done after it."""
    sources = [item.source for item in parts.inputs]
    result = capture.result
    saved = StateSnapshot()
    if may_run_again:
        saved = state_snapshot(capture, written_inputs(capture), parts.graph_module)
    if graph is not None and not (capture.side_effects or frames or capture.enables_grad or saved):
        if isinstance(result, FromGraph) and result.value in parts.outputs:
            return _Aim(graph, sources, parts.outputs.index(result.value))
        if (
            isinstance(result, MakeTuple)
            and result.cls is tuple
            and [getattr(item, "value", None) for item in result.items] == parts.outputs
        ):
            return _Aim(graph, sources, RESULT_AS_TUPLE)
    source_of = {item.value: item.source for item in capture.inputs}
    symbols: dict[str, Source | GraphValue] = {**symbol_sources(capture.inputs), **capture.unbacked}
    code = EntryCode(sources, parts.outputs, symbols, source_of, cyclic=parts.cyclic)
    function = code.function(
        capture, graph, frames, may_run_again=may_run_again, state_snapshot=saved
    )
    return _Aim(function, code.inputs, WHOLE_RESULT, code.text, code.constants, saved)


# ---------------------------------------------------------------- locks


class UnderLocks:
    """The target of such an entry, in front of the entry that it would be without locks."""

    def __init__(self, locks: tuple[Source, ...], entry: PythonEntry) -> None:
        self._locks = locks
        self._entry = entry

    def __call__(self, function: types.FunctionType, *arguments: Any) -> Any:
        scope = Scope(function, arguments)
        with ExitStack() as held:
            for source in self._locks:
                held.enter_context(source.load(scope))
            holds, result = self._entry.run(function, arguments)
            if holds:
                return result
        return flat_function(function)(*arguments)


def under_locks(
    locks: tuple[Source, ...],
    scope: Scope,
    guards: Sequence[Guard],
    checked: program.GuardProgram,
    target: Any,
    item: int,
) -> tuple[program.GuardProgram, UnderLocks, int]:
    """The program, target and item of an entry that holds locks while it runs."""
    inner = PythonEntry(program=checked, target=target, item=item)
    outer = program.guard_program(guards, call_sources(scope), len(scope.arguments))
    return outer, UnderLocks(locks, inner), WHOLE_RESULT


def call_sources(scope: Scope) -> list[Source]:
    """What an `UnderLocks` is called with: the function and its bound arguments."""
    names = scope.function.__code__.co_varnames
    return [
        CapturedFunction(scope.function.__name__),
        *(Argument(names[at], at) for at in range(len(scope.arguments))),
    ]


# ---------------------------------------------------------------- guards


def all_guards(capture: Capture, state: torch_state.UsualState) -> list[Guard]:
    """All guards, prepared and in order: torch's state, inputs, sizes, the interpreter's."""
    guards = [Guard("TORCH_STATE", Constant(torch), state)]
    extras = dict.fromkeys(torch_state.implied_extras())
    guards += [
        Guard("STATE", Constant(torch), (name, torch_state.EXTRA[name]())) for name in extras
    ]
    guards += [
        Guard("STATE", Constant(torch), item)
        for item in capture.torch_state.items()
        if item[0] not in extras
    ]
    # Opaque objects and wrappers are guarded as they are read.
    guards += [
        _input_guard(item)
        for item in capture.inputs
        if not isinstance(item.spec, (Opaque, SubclassSpec))
    ]
    guards += _size_guards(capture)
    guards += _memory_guards(capture)
    guards += capture.guards
    return program.order([kinds.prepared(guard) for guard in guards])


def written_inputs(capture: Capture) -> list[Input]:
    """The input tensors whose memory the graph writes, directly or through a view."""
    written = {value.storage for call in capture.calls for value in call.mutates} - {None}
    return [item for item in capture.inputs if item.value.storage in written]


def _memory_guards(capture: Capture) -> Iterator[Guard]:
    written = written_inputs(capture)
    if written:
        storages = {item.value.storage for item in written}
        others = tuple(
            item.source
            for item in capture.inputs
            if isinstance(item.spec, Spec) and item.value.storage not in storages
        )
        sources = tuple(item.source for item in written)
        yield Guard("DISTINCT_MEMORY", sources[0], (sources, others))
        if len(sources) + len(others) > 1 and any(
            isinstance(source, MemoryOf) for source in (*sources, *others)
        ):
            yield Guard("DISTINCT_RANGES", sources[0], (sources, others))


def _input_guard(item: Input) -> Guard:
    if isinstance(item.spec, Expr):
        return Guard("INT", item.source)
    if isinstance(item.spec, FloatExpr):
        fixed = item.spec.env.fixed_floats.get(str(item.spec))
        return Guard("FLOAT", item.source) if fixed is None else Guard("EQUALS", item.source, fixed)
    assert isinstance(item.spec, Spec), (
        "objects that the graph hands on are guarded as they are read"
    )
    tensor: torch.Tensor = item.example
    words = core.tensor_words(tensor) if core is not None and configure() else None
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    return Guard(
        "TENSOR",
        item.source,
        TensorPayload(type(tensor), item.spec, tensor.requires_grad, keys, words),
    )


def _size_guards(capture: Capture) -> Iterator[Guard]:
    """The SizeEnv's conditions, and that sizes which define no symbol equal their Expr."""
    sources = symbol_sources(capture.inputs)
    for item in capture.inputs:
        if isinstance(item.spec, Expr):
            extents: list[tuple[Any, Source]] = [(item.spec, item.source)]
        elif isinstance(item.spec, (FloatExpr, Opaque)):
            continue
        else:
            extents = [
                (size, TensorSize(item.source, dim)) for dim, size in enumerate(item.spec.shape)
            ]
            extents += [
                (size, TensorStride(item.source, dim)) for dim, size in enumerate(item.spec.stride)
            ]
        for size, source in extents:
            name = symbol_name(size)
            if isinstance(size, Expr) and not (name is not None and sources.get(name) is source):
                yield _relation(
                    Condition("==", EXTENT, size),
                    {
                        str(EXTENT): source,
                        **{symbol: sources[symbol] for symbol in sorted(size.symbols())},
                    },
                )
    yield from _conditions(capture)


def _conditions(capture: Capture, known: Sequence[SizeGuard] = ()) -> Iterator[Guard]:
    """The SizeEnv's conditions, but for those that are known."""
    if capture.size_env is None:
        return
    sources = symbol_sources(capture.inputs)
    held = {id(guard) for guard in known}
    for taken in capture.size_env.guards:
        if id(taken) in held:
            continue
        condition = condition_of(taken)
        names = {symbol: sources[symbol] for symbol in sorted(condition.symbols())}
        yield _relation(condition, names, taken.where)


def _added_guards(prepared: PreparedEntry) -> list[Guard]:
    """What the backend fixed: conditions of sizes, and numbers."""
    capture = prepared.capture
    added = list(_conditions(capture, prepared.taken))
    if capture.size_env is not None:
        added += [
            Guard("EQUALS", item.source, capture.size_env.fixed_floats[str(item.spec)])
            for item in capture.inputs
            if isinstance(item.spec, FloatExpr)
            and str(item.spec) in capture.size_env.fixed_floats.keys() - prepared.fixed
        ]
    return added


def _relation(condition: Condition, names: dict[str, Source], where: str = "") -> Guard:
    return Guard("RELATION", next(iter(names.values())), Relation(condition, names), where)


def _specialisations(capture: Capture) -> Iterator[str]:
    """What `SizeEnv.specialised` says, in the user's terms."""
    if capture.size_env is not None and capture.size_env.specialised:
        names = {name: source.text() for name, source in symbol_sources(capture.inputs).items()}
        for size, reason in capture.size_env.specialised.items():
            yield f"{size.format(names)} == {size.hint}, as {reason}"
