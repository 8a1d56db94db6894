"""Graphs with a backward on disk: another process runs forward and backward without tracing.

    graph      {"call": ..., "program": the forward, "training": ...}
    program    each Program by the name of its graph: "backward", "backward_without_1"
    captured   the captured graph itself, with what the compiler saw of its inputs
    first-backward   on a GPU, the key of the Program that the next process reads ahead

The captured graph is read only for what was not stored: a set of undefined tangents that did not
occur before, and second derivatives. Autograd's passes then make the same graphs as in the first
process, which is checked: what they say of the call must be equal to what was stored.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import json
import re
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch

from flambeau import graph_keys, stored_graphs
from flambeau.not_stored import NotStored
from flambeau.progress import building
from flambeau.report import Stopwatch
from flambeau_autograd.backwards import Backward, BackwardTable
from flambeau_autograd.runtime_wrappers import wrap_training
from flambeau_autograd.traced_modes import TracedModes
from flambeau_autograd.training_json import decode_training, encode_training
from flambeau_prims.fork_safety import fork_safe_rlock
from flambeau_prims.lazy_exports import import_apart
from flambeau_runtime.cache import binding, recording_cache_use

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import fx

    from flambeau.compile_context import Compiled, Context
    from flambeau.report import GraphReport
    from flambeau.stored_graphs import StoredProgram
    from flambeau_autograd.cut_backward import Groups
    from flambeau_autograd.gradient_graph import Gradients
    from flambeau_autograd.graph_call import Call
    from flambeau_autograd.kept_inputs import Kept
    from flambeau_autograd.runtime_wrappers import Training
    from flambeau_autograd.specialized_backwards import Backwards

_Result = TypeVar("_Result")

__all__ = ["encode_captured", "encode_training", "read_training"]


def encode_captured(gm: fx.GraphModule, examples: list[Any], key: str, context: Context) -> bytes:
    """The captured graph as data; NotStored where it cannot be written, or not be read again."""
    messages = import_apart("flambeau.graph_messages")
    try:
        message = messages.encode_message(gm, examples, context, key)
        same = _is_read_back(gm, message, context)
    except (TypeError, ValueError, LookupError) as error:
        raise NotStored("foreign-call", str(error)) from None
    if not same:
        raise NotStored("foreign-call", "the graph, read again, is another one")
    data = {"binding": binding(stored_graphs.CAPTURED, key), "message": message}
    return stored_graphs.compact_json(data)


def decode_captured(captured: bytes) -> Callable[..., Any]:
    """The captured graph of what `encode_captured` gave: it runs as eager does."""
    messages = import_apart("flambeau.graph_messages")
    gm, _, _ = messages.decode_message(json.loads(captured)["message"])
    run: Callable[..., Any] = gm.forward
    return run


_OPERANDS = re.compile(r'{"node": "[^"]*"}')
"""The names of nodes that a call reads, in what `describe` says of it."""
_CALLS = ('["call_function', '["call_method')


def _without_names(described: str) -> str:
    """What `describe` says of a node, but for the names of calls."""
    kind, _, rest = described.partition('", "')
    if kind in _CALLS:
        described = kind + rest.partition('"')[2]
    return _OPERANDS.sub("", described)


def _is_read_back(gm: fx.GraphModule, message: dict[str, Any], context: Context) -> bool:
    """Whether a reader of the message gets this graph. Of nodes that are equal but for names, as in
    equal layers, one is read.
    """
    around, *described = gm.meta["description"]
    *items, _ = zip(gm.graph.nodes, (*message["graph"]["graph"][0], None), strict=True)
    distinct: dict[str, fx.Node] = {}
    for (node, _), text in zip(items, described, strict=False):
        distinct.setdefault(_without_names(text), node)
    checked = set(distinct.values())
    read = {each for node in (*checked, gm.graph.output_node()) for each in node.all_input_nodes}
    nodes = [
        item if node in checked else {"op": "placeholder", "name": node.name, "spec": item["spec"]}
        for node, item in items
        if node in checked or node in read
    ]
    part = {**message, "graph": {"graph": [nodes, message["graph"]["graph"][1]]}}
    messages = import_apart("flambeau.graph_messages")
    again, inputs, _ = messages.decode_message(json.loads(json.dumps(part)))
    around_again, *described_again = graph_keys.describe(again, inputs, context)
    names = {node.name for node in checked} | {gm.graph.output_node().name}
    found = {
        node.name: text
        for node, text in zip(again.graph.nodes, described_again, strict=True)
        if node.name in names
    }
    expected = {
        node.name: text
        for node, text in zip(gm.graph.nodes, described, strict=True)
        if node.name in names
    }
    return around_again == around and found == expected


def read_training(
    data: Any,
    captured: bytes,
    forward: Compiled,
    call: Call,
    report: GraphReport,
    context: Context,
    *,
    on_gpu: bool,
) -> Compiled:
    """The callable of a stored graph with a backward; `captured` is what `encode_captured` gave."""
    stored = StoredBackwards(data, captured, call, report, context)
    if on_gpu and torch.is_grad_enabled():
        stored.read_ahead(functools.partial(stored_graphs.read_first_backward, report.key, context))
    return wrap_training(forward, stored, call, stored.training)


def without_modes(step: Callable[[], _Result]) -> _Result:
    """The result of a step, in a separate thread: a backward may run below function transforms,
    and modes that see every call, of which that thread has none.
    """
    outcome: Future[_Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(step())
        except BaseException as error:  # which the caller raises
            outcome.set_exception(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    thread.start()
    thread.join()
    return outcome.result()


class _Loaded(NamedTuple):
    """A stored Program that is ready to run, and who says how it is launched."""

    stored: StoredProgram
    run: Callable[..., Any]
    launch: list[Callable[[], str | None]]


class _ReadAhead:
    """A Program that is read in a separate thread. What fails there is tried again, and raises,
    where it is needed.
    """

    def __init__(self, first: Callable[[], str], load: Callable[[str], _Loaded | None]) -> None:
        self.key = ""
        """Of the Program, once the thread has found it."""
        self._loaded: _Loaded | None = None

        def read() -> None:
            with contextlib.suppress(Exception):
                self.key = first()
                self._loaded = load(self.key)

        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(read,), daemon=False)
        self._thread.start()

    def take(self, key: str) -> _Loaded | None:
        """What was read, if it has this key. In a process that was forked meanwhile the thread has
        ended.
        """
        self._thread.join()
        return self._loaded if self.key == key else None


class StoredBackwards(BackwardTable):
    """The backwards and second derivatives of a stored graph, of which those that are not stored
    are made from the captured graph.
    """

    def __init__(
        self, data: Any, captured: bytes, call: Call, report: GraphReport, context: Context
    ) -> None:
        self.training = training = decode_training(data, call, self.gradients)
        read = [training.tangents[at] for kind, at in training.saved if kind == "tangent"]
        super().__init__(frozenset(read))
        self._data = data
        self._captured = captured
        self._report = report
        self._context = context
        self._key = report.key
        self._modes = TracedModes.current()
        self._made: tuple[Backwards, Gradients] | None = None
        self._ahead: _ReadAhead | None = None
        self._tracing = fork_safe_rlock()

    def batched(self, backward: Backward) -> Callable[..., Sequence[Any]]:
        """One of these backwards, for tangents that are batches."""
        return self._traced()[0].batched(backward)

    def cut(self, counted: Collection[int], limits: Sequence[int]) -> tuple[Groups, Any]:
        """Groups of gradients by their bytes, and backwards in pieces that give one group each."""
        return self._traced()[0].cut(counted, limits)

    def read_ahead(self, first: Callable[[], str]) -> None:
        """Read the backward with the key that `first` gives while the forward runs: on a GPU that
        leaves the host idle.
        """
        self._ahead = _ReadAhead(first, self._load)

    def _make(self, missing: frozenset[int]) -> Backward:
        key = graph_keys.key_of_backward(self._key, self.name_of(missing), self._context)
        ahead, self._ahead = self._ahead, None
        found = None if ahead is None else ahead.take(key)
        found = found or self._load(key)
        if ahead is not None and ahead.key != key:
            stored_graphs.write_first_backward(self._key, key, self._context)
        if found is None:
            return self._traced()[0].without(missing)
        self._report.launches += found.launch
        self._report.add_program(found.stored.program)
        return Backward(found.run, tuple(found.stored.sizes), self._tangents - missing)

    def _load(self, key: str) -> _Loaded | None:
        """The stored Program with a key, ready to run, or None."""
        stored = stored_graphs.read_program(key, self._context)
        if stored is None:
            return None
        with (
            Stopwatch(self._report.seconds, "runtime"),
            recording_cache_use(self._report.cache),
            building(stored.program, self._report.cache),
        ):
            title = f"{self._context.report.name} graph {self._report.number}"
            run, launch = stored_graphs.load_program(
                stored.program, stored.launches, title, self._context
            )
        return _Loaded(stored, run, launch)

    def gradients(
        self, kept: Kept | None, tangents: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None] | None:
        """`gradient_graph.Gradients.__call__`."""
        if torch.is_grad_enabled() and (kept is None or self.training.kept.reason(kept)):
            return None
        return self._traced()[1](kept, tangents)

    def _traced(self) -> tuple[Backwards, Gradients]:
        with self._tracing:
            if self._made is None:
                self._made = without_modes(self._trace)
            return self._made

    def _trace(self) -> tuple[Backwards, Gradients]:
        messages = import_apart("flambeau.graph_messages")
        gm, examples, _ = messages.decode_message(json.loads(self._captured)["message"])
        backends = import_apart("flambeau.backends")
        autograd = import_apart("flambeau_autograd.pipeline")
        fallbacks = import_apart("flambeau.fallbacks")
        compilers = import_apart("flambeau.program_compiler")
        compiler = fallbacks.OrOperators(
            compilers.ProgramCompiler(self._report, self._context), self._report, self._context
        )
        options = dataclasses.replace(
            backends.autograd_options(self._context), compile_backward_lazily=True
        )  # the forward is there

        def compile_graph(graph: Any, kind: str) -> Compiled:
            if graph.stored_as == "forward":
                return lambda *inputs: ()
            compiled: Compiled = compiler(graph, kind)
            return compiled

        gm.meta.update(name=self.training.name, has_key=True)
        with self._modes.restored(), torch.enable_grad():
            autograd.aot(gm, examples, compile_graph, options=options)
        made: Training = gm.meta["training"]
        if json.loads(json.dumps(encode_training(made))) != self._data:
            raise RuntimeError(
                f"{self._context.report.name}: the stored graph was traced again, for a backward "
                "that is not stored, and became another one; remove the cache directory"
            )
        gradients = cast("Gradients", made.gradients)
        gradients.kept = self.training.kept
        self._report.eager_derivatives = gradients.eager
        self._report.separate_tangents = gm.meta["separate_tangents"]
        return gm.meta["backwards"], gradients
