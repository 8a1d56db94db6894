"""Compiled graphs on disk: what our compiler made of a captured graph, for other processes.

    captured graph, inputs, options, torch's state  ->  key  ->  {"call": ..., "program": ...}

The key holds all that the compiler may depend on, so a graph that is found needs no further check:
each node with its target and arguments, the inputs as the compiler sees them, the options, the
state of torch, the processor, the GPUs, and the versions of torch, Triton, Python and the files of
this compiler. A process that finds its graph imports neither autograd nor the inductor, nor Triton.

Only what is plain data is stored: compiled graphs with given sizes. Of a graph with a backward, and
of one that draws random numbers on a GPU, the captured graph is stored, too (`stored_training`).
`not_stored` says what keeps a graph from it. Files are the cache's (`flambeau_runtime.cache`):
the user's alone, bound to their key, of the hash that is expected; what is damaged is a miss.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from flambeau import graph_keys
from flambeau.compile_context import start_graph
from flambeau.logs import emit, shows_stages, wanted
from flambeau.not_stored import NotStored
from flambeau.progress import building
from flambeau.report import StageSeconds, Stopwatch
from flambeau.surroundings import state_of_torch
from flambeau_autograd.call_json import NotPlain, decode_call, encode_call
from flambeau_autograd.graph_call import wrap_inference
from flambeau_capture.stored.reasons import Stale
from flambeau_prims.collector import collector_paused
from flambeau_prims.lazy_exports import import_apart
from flambeau_prims.sizes import Expr
from flambeau_runtime import program_json
from flambeau_runtime.cache import Cache, CacheUse, binding, is_key, key_of, recording_cache_use
from flambeau_runtime.cache_locks import one_at_a_time
from flambeau_runtime.environment_errors import CacheError, EnvironmentProblem
from flambeau_runtime.executor import load
from flambeau_runtime.object_stores import cache_of
from flambeau_runtime.output_code import output_code
from flambeau_runtime.program import Extern, uses_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch import fx

    from flambeau.compile_context import Compiled, Context
    from flambeau.report import GraphReport
    from flambeau_prims.graph import Graph
    from flambeau_runtime.program import Program

KIND = "graph"
PROGRAM = "program"
CAPTURED = "captured"
FIRST_BACKWARD = "first-backward"

# ---------------------------------------------------------------- reading and writing


def read(gm: fx.GraphModule, examples: list[Any], context: Context) -> Compiled | None:
    """The stored compiled form of a graph, or None; noted in the graph's report."""
    if shows_stages(context.options.environment):
        return None
    try:
        key = graph_keys.key_of_graph(gm, examples, context)
    except NotStored:
        return None
    return _read(key, lambda: start_graph(context, gm, examples), gm, context)


def load_graph(
    key: str, calls: int, context: Context, whole: GraphReport | None = None
) -> Compiled | None:
    """The stored compiled form of the graph of a key, for an entry that is stored, too; of a piece
    of the graph `whole`.
    """

    def start() -> GraphReport:
        if whole is None:
            return context.report.start_stored_graph(calls)
        return whole.start_piece(None, calls)

    return _read(key, start, None, context)


def _training() -> Any:
    """`stored_training`, imported where a graph has a backward."""
    return import_apart("flambeau.stored_training")


def _splits() -> Any:
    """`stored_splits`, imported where a graph is cut into pieces."""
    return import_apart("flambeau.stored_splits")


UNREADABLE = (Stale, LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What damaged data raise where they are read, and what fits no object of this process."""


def _read(
    key: str, start: Callable[[], GraphReport], gm: fx.GraphModule | None, context: Context
) -> Compiled | None:
    text = read_text(KIND, key, context)
    if text is None:
        return None
    try:
        data = json.loads(text)
        if any(_digest_of_rules(name) != rules for name, rules in data["operators"].items()):
            return None
        if "split" in data:
            return _read_split(key, data["split"], start, context)
        call = decode_call(data["call"])
        program = program_json.decode(data["program"])
        training, draws = data["training"], data["draws"]
        lines = _decoded_lines(program, data["launches"])
    except UNREADABLE:
        return None
    needs_captured = training is not None or draws is not None
    captured = read_text(CAPTURED, key, context) if needs_captured else b""
    if captured is None:
        return None
    seconds = StageSeconds()
    use = CacheUse()
    try:
        with (
            Stopwatch(seconds, "runtime"),
            recording_cache_use(use),
            building(program, use),
        ):
            title = f"{context.report.name} graph {len(context.report.graphs)}"
            executable, launch = load_program(program, lines, title, context)
    except EnvironmentProblem:  # which the backend meets, too, and reports
        return None
    report = start()
    report.launches += launch
    report.stored, report.seconds, report.cache, report.key = "read", seconds, use, key
    report.add_program(program)
    if wanted("output_code", context.options.environment):
        code = f"{context.report.name}\n{output_code(program)}"
        emit("output_code", code, context.options.environment)
    if gm is not None:
        gm.meta["writes_last"] = True
    compiled: Compiled
    if training is None:
        compiled = wrap_inference(executable, call)
    else:
        compiled = _training().read_training(
            training, captured, executable, call, report, context, on_gpu=uses_gpu(program)
        )
    return compiled if draws is None else _draw_as_eager(compiled, captured, tuple(draws))


def load_program(
    program: Program, lines: Any, title: str, context: Context
) -> tuple[Callable[..., Any], list[Callable[[], str | None]]]:
    """A stored Program, ready to run, and who says how it is launched, if that is on a GPU.

    `lines`: its `plain_launches.LaunchLines`.
    """
    options = context.options.runtime
    if not uses_gpu(program):
        return load(program, options, None, title), []
    launches = import_apart("flambeau.plain_launches")
    refused = launches.PlainLaunches(context.report, lines)
    executable = load(program, options, refused, title)
    describe = import_apart("flambeau_runtime.graph_launch").describe_launch
    return executable, [functools.partial(describe, program, executable, options)]


def _launch_lines(program: Program, graph: Graph) -> Any:
    """What `load_program` is to be given of the graph that a Program was compiled from."""
    if not uses_gpu(program):
        return None
    return dataclasses.asdict(import_apart("flambeau.plain_launches").LaunchLines.of(graph))


def _decoded_lines(program: Program, data: Any) -> Any:
    """What `_launch_lines` gave as data; TypeError for anything else."""
    if not uses_gpu(program):
        return None
    return import_apart("flambeau.plain_launches").LaunchLines(**data)


def _draw_as_eager(compiled: Compiled, captured: bytes, aligned: tuple[int, ...]) -> Compiled:
    """`eager_draws.draw_as_eager` by the captured graph, which is read when a call needs it."""

    @functools.cache
    def graph() -> Compiled:
        return _training().without_modes(functools.partial(_training().decode_captured, captured))

    draws = import_apart("flambeau.eager_draws")
    run: Compiled = draws.draw_as_eager(compiled, lambda *args: graph()(*args), aligned)
    return run


def _read_split(
    key: str, data: Any, start: Callable[[], GraphReport], context: Context
) -> Compiled:
    split = _splits().decode_split(data)
    report = start()
    report.stored, report.key = "read", key
    compiled: Compiled = _splits().callable_of_stored(split, report, context)
    return compiled


def _digest_of_rules(operator: str) -> str | None:
    digest: str | None = import_apart("flambeau.custom_operators").rules_digest(operator)
    return digest


def is_stored(key: str, context: Context) -> bool:
    """Whether the cache holds the compiled form of a graph."""
    return read_text(KIND, key, context) is not None


def write(
    gm: fx.GraphModule, examples: list[Any], key: str, report: GraphReport, context: Context
) -> str:
    """Store the compiled form of a graph that `aot` has compiled: "written", or why it is not."""
    try:
        with collector_paused():
            content = _bound(key, _contents(gm, report))
            _write_captured(gm, examples, key, context)
            store_text(KIND, key, content, context)
    except CacheError as error:
        return str(NotStored("no-directory", str(error)))
    except NotPlain as error:
        return str(NotStored("foreign-result", str(error)))
    except NotStored as error:
        return str(error)
    return "written"


def _write_captured(gm: fx.GraphModule, examples: list[Any], key: str, context: Context) -> None:
    """Store the captured graph, if calls may need it; NotStored if it would be read as another."""
    draws = gm.meta.get("draws")
    if "training" not in gm.meta and not draws:
        return
    if "description" not in gm.meta:
        raise NotStored("draws" if draws else "functions-of-the-program")
    captured = _training().encode_captured(gm, examples, key, context)
    store_text(CAPTURED, key, captured, context)


def write_for_entry(
    gm: fx.GraphModule, examples: list[Any], key: str, report: GraphReport, context: Context
) -> None:
    """Store the compiled form of a graph that cannot be found by what it is made of: it has
    symbolic sizes, or functions of the program. Its key is of its content: only the stored entry
    that it belongs to leads to it, which has the guards on sizes and functions.
    """
    try:
        with collector_paused():
            contents = _contents(gm, report)
            _check_operators(report, contents["operators"])
            own = key_of(key, compact_json(contents))
            _write_captured(gm, examples, own, context)
            report.key = own
            store_text(KIND, own, _bound(own, contents), context)
            report.for_entry = True
            _write_backwards(report, context)
    except CacheError as error:
        report.stored = str(NotStored("no-directory", str(error)))
    except NotPlain as error:
        report.stored = str(NotStored("foreign-result", str(error)))
    except NotStored as error:
        report.stored = str(error)


def _write_backwards(report: GraphReport, context: Context) -> None:
    """Store the Programs of backwards that were compiled before their graph had a key."""
    for at, graph in report.functional.items():
        if graph.stored_as.startswith("backward"):
            stores = _FunctionalGraph(report, graph, "backward", context)
            _write_program(stores, report.programs[at], context)


def _check_operators(report: GraphReport, operators: Collection[str]) -> None:
    """NotStored if a Program calls an operator of the program that is none of these."""
    for program in report.programs:
        for step in program.steps:
            if isinstance(step, Extern) and not step.op.startswith(("aten.", "prims.")):
                namespace, name, *_ = step.op.split(".")
                if f"{namespace}::{name}" not in operators:
                    raise NotStored("foreign-call", step.op)


def _bound(key: str, contents: dict[str, Any]) -> bytes:
    return compact_json({"binding": binding(KIND, key), **contents})


def _contents(gm: fx.GraphModule, report: GraphReport) -> dict[str, Any]:
    """The data of a compiled graph."""
    operators = graph_keys.content().operators_of_the_program(gm)
    if (split := gm.meta.get("split")) is not None:
        return {"operators": operators, "split": _splits().encode_split(split)}
    if report.fallback is not None:
        raise NotStored("eager", report.fallback.reason)
    call, training = gm.meta.get("call"), gm.meta.get("training")
    programs = report.programs if training is None else report.programs[:1]
    if call is None or len(programs) != 1:
        raise NotStored("programs")
    return {
        "operators": operators,
        "call": encode_call(call),
        "program": program_json.encode(programs[0]),
        "launches": _launch_lines(programs[0], report.functional[0]),
        "draws": list(gm.meta["aligned_inputs"]) if gm.meta.get("draws") else None,
        "training": None if training is None else _training().encode_training(training),
    }


def compact_json(data: Any) -> bytes:
    """Plain data, which this process has made, as compact JSON."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False, check_circular=False).encode()


def read_text(kind: str, key: str, context: Context) -> bytes | None:
    """What the cache holds; it is not counted with the kernels."""
    if not context.options.runtime.use_cache:
        return None
    cache = cache_of(context.options.runtime)
    with recording_cache_use(CacheUse()):
        text = cache.read(kind, key)
    if text is not None:
        context.report.note_text(cache.root, kind, key)
    return text


def store_text(kind: str, key: str, content: bytes, context: Context) -> None:
    cache = cache_of(context.options.runtime)
    with recording_cache_use(CacheUse()):
        cache.store(kind, key, content, ".json")
    context.report.note_text(cache.root, kind, key)


# ---------------------------------------------------------------- Programs of functional graphs


class _FunctionalGraph:
    """A functional graph that is made of a captured one, as its stored Program is found by."""

    def __init__(self, report: GraphReport, graph: Graph, kind: str, context: Context) -> None:
        self._graph = graph
        self._captured = report.key
        self.key = "" if kind == "inference" else self._key(report.key, kind, context)

    @functools.cached_property
    def digest(self) -> str:
        """The hash of its text."""
        return key_of(str(self._graph))

    def _key(self, key: str, kind: str, context: Context) -> str:
        """The captured graph's key decides its backwards. Others, of second derivatives and pieces
        of backwards, differ by their text.
        """
        name = self._graph.stored_as
        if key and name.startswith("backward"):
            return graph_keys.key_of_backward(key, name, context)
        return key and key_of(key, kind, self.digest, *state_of_torch())

    def sizes(self) -> list[str]:
        """The symbols that it takes as ints."""
        return [str(value) for value in self._graph.inputs if isinstance(value, Expr)]

    def note_first(self, context: Context) -> None:
        """Note the first backward that is compiled when a call needs it: the next process may need
        it first, too.
        """
        late = self._graph.stored_as.startswith("backward_")
        if late and read_text(FIRST_BACKWARD, self._captured, context) is None:
            write_first_backward(self._captured, self.key, context)

    def launch_lines(self, program: Program) -> Any:
        """What `load_program` is to be given besides its Program."""
        return _launch_lines(program, self._graph)


def _program_of(graph: _FunctionalGraph, context: Context) -> Program | None:
    data = read_program(graph.key, context)
    return data.program if data is not None and data.graph == graph.digest else None


class StoredProgram(NamedTuple):
    """The Program of a functional graph, as the cache holds it."""

    program: Program
    sizes: list[str]
    """The symbols that it takes as ints."""
    launches: Any
    """`plain_launches.LaunchLines` of a Program on a GPU."""
    graph: str
    """The hash of the functional graph's text."""


def read_first_backward(key: str, context: Context) -> str:
    """The key of the Program of the backward that calls of a captured graph need first, as far as
    earlier processes know: the general one where none has noted another.
    """
    text = read_text(FIRST_BACKWARD, key, context)
    try:
        noted = "" if text is None else json.loads(text)["program"]
    except (ValueError, LookupError, TypeError):
        noted = ""
    return noted if is_key(noted) else graph_keys.key_of_backward(key, "backward", context)


def write_first_backward(key: str, program: str, context: Context) -> None:
    """Note the key of the Program that the next process is to read ahead."""
    data = {"binding": binding(FIRST_BACKWARD, key), "program": program}
    with contextlib.suppress(CacheError):  # the kernels say so
        store_text(FIRST_BACKWARD, key, compact_json(data), context)


def read_program(key: str, context: Context) -> StoredProgram | None:
    """The stored Program of a functional graph, or None."""
    text = read_text(PROGRAM, key, context) if key else None
    try:
        data = None if text is None else json.loads(text)
        if data is None:
            return None
        program = program_json.decode(data["program"])
        lines = _decoded_lines(program, data["launches"])
        return StoredProgram(program, data["sizes"], lines, data["graph"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def stored_or_compiled(
    report: GraphReport,
    graph: Graph,
    kind: str,
    context: Context,
    compile_program: Callable[[], Program],
) -> Program:
    """The Program of a functional graph: the stored one, or one that this process compiles while
    others that need it wait.
    """
    stores = _FunctionalGraph(report, graph, kind, context)
    program = _program_of(stores, context)
    if program is not None:
        return program
    with _compiling_once(PROGRAM, stores.key, context) as stored:
        program = _program_of(stores, context) if stored else None
        if program is None:
            program = compile_program()
            _write_program(stores, program, context)
        return program


def _write_program(graph: _FunctionalGraph, program: Program, context: Context) -> None:
    """Store the Program of a functional graph, if the captured graph has a key."""
    if graph.key:
        data = {
            "binding": binding(PROGRAM, graph.key),
            "program": program_json.encode(program),
            "sizes": graph.sizes(),
            "launches": graph.launch_lines(program),
            "graph": graph.digest,
        }
        with contextlib.suppress(CacheError):  # the kernels say so
            store_text(PROGRAM, graph.key, compact_json(data), context)
        if uses_gpu(program):
            graph.note_first(context)


def stored_first(context: Context, backend: Callable[..., Compiled]) -> Callable[..., Compiled]:
    """A backend that compiles only the graphs that are not stored."""

    def look_up(gm: fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        found = read(gm, example_inputs, context)
        if found is not None:
            return found
        try:
            key = graph_keys.key_of_graph(gm, example_inputs, context)
        except NotStored:
            return backend(gm, example_inputs)
        if graph_keys.has_backward(example_inputs):
            return backend(gm, example_inputs)  # its Programs are stored, one by one
        with _compiling_once(KIND, key, context) as stored:
            found = read(gm, example_inputs, context) if stored else None
            return found or backend(gm, example_inputs)

    return look_up


@contextlib.contextmanager
def _compiling_once(kind: str, key: str, context: Context) -> Iterator[bool]:
    """A block that one process of the host runs at a time for a key: whether another has stored
    something under it meanwhile.
    """
    runtime = context.options.runtime
    if not key or not runtime.use_cache:
        yield False
        return
    cache = Cache(runtime.cache_dir)
    with one_at_a_time(cache, kind, key):
        with recording_cache_use(CacheUse()):
            stored = cache.read(kind, key) is not None
        yield stored
