"""`explain`: compile one call and say what was done with it, or say what was done with a compiled
callable so far.

print(flambeau.explain(model)(x))        # recompiles, calls, explains
print(flambeau.explain(compiled))        # what happened to a compiled callable up to now

model: 1 graph, 0 breaks, 0 recompiles, 0.25 s
graph 0: 12 calls; capture 0.03 s, autograd 0.03 s, inductor 0.10 s, build 0.08 s
  kernels: cpu_gelu_0, cpu_layer_norm_1 (cache: 0 hits, 2 misses)
  guards:
    L['x'] is Tensor f32[4, 8]
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flambeau.api import compile
from flambeau.explanation import (
    BreakExplanation,
    EventExplanation,
    ExplanationData,
    ExternExplanation,
    GraphExplanation,
    GuardExplanation,
    RecompileExplanation,
    count_text,
)
from flambeau.explanation_text import explanation_text
from flambeau.module import CompiledModule
from flambeau.perf_hints import extern_reason
from flambeau.program_explanation import explain_program
from flambeau.report import report_of
from flambeau_capture import state_of
from flambeau_capture.guards.kinds import guard_text
from flambeau_runtime.peak_memory import live_bytes
from flambeau_runtime.program import Extern

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau.kernel_times import Times
    from flambeau.report import GraphReport
    from flambeau_capture.events import Event
    from flambeau_capture.record import Break
    from flambeau_runtime.program import Program


@dataclass(frozen=True)
class Explanation(ExplanationData):
    """What compiling did. `str()` is for people, `to_json()` for programs; `result` is what the
    explained call returned.

    Calling an Explanation calls the compiled callable once more, and gives a new Explanation of all
    its calls.
    """

    result: Any = None
    compiled: Callable[..., Any] | None = field(default=None, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:
        """Call what is explained, and explain it again."""
        assert self.compiled is not None
        return _explanation(self.compiled, self.compiled(*args, **kwargs))

    def to_html(self, path: str | Path, *, measure: bool = False) -> Path:
        """Write all of it as one page, which needs no other file and no network; returns its path.

        `measure`: first time each kernel alone, on random inputs, and say which share of the
        memory's bandwidth it reaches.
        """
        # Not for those who ask for no page.
        from flambeau.report_page.page import page_html

        times: Times = {}
        if measure:
            from flambeau.kernel_times import measure_kernels

            assert self.compiled is not None
            report = report_of(self.compiled)
            times = measure_kernels(report, report.runtime_options)
        file = Path(path)
        file.write_text(page_html(self, times), encoding="utf-8")
        return file

    def to_json(self, indent: int | None = None) -> str:
        """Everything but the result and the callable, as JSON."""
        fields = {
            item.name: getattr(self, item.name)
            for item in dataclasses.fields(self)
            if item.name not in ("result", "compiled")
        }
        return json.dumps(fields, default=dataclasses.asdict, indent=indent)

    def __str__(self) -> str:
        counts = ", ".join(
            count_text(len(items), noun)
            for items, noun in (
                (self.graphs, "graph"), (self.breaks, "break"), (self.recompiles, "recompile"),
            )
        )  # fmt: skip
        head = f"{self.name}: {counts}, {self.seconds:.2f} s"
        return explanation_text(head, self)


def explain(model: Callable[..., Any], **arguments: Any) -> Any:
    """`explain(model, **compile_arguments)(*args, **kwargs)`: compile and run that call, and return
    an Explanation.

    The model is recompiled, so what compiled callables of it have cached is neither used nor
    changed. The call really runs: what it does to the world, it does once.

    `explain(compiled)`, for what `flambeau.compile` returned, is the Explanation of all that
    happened to it so far.

    Raises ValueError for compile arguments given with a compiled callable, and where compiling is
    disabled.
    """
    if _is_compiled(model):
        if arguments:
            raise ValueError(
                f"{', '.join(arguments)} cannot be given for what is compiled already: "
                f"explain the original instead"
            )
        return _explanation(model, None)

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        compiled = compile(model, **arguments)
        if not _is_compiled(compiled):
            raise ValueError("there is nothing to explain: compiling is disabled")
        return _explanation(compiled, compiled(*args, **kwargs))

    return explained


def _state_holder(compiled: Any) -> Any:
    return compiled._compiled if isinstance(compiled, CompiledModule) else compiled


def _is_compiled(model: Any) -> bool:
    try:
        report_of(model)
    except (KeyError, TypeError):
        return False
    return True


def _explanation(compiled: Callable[..., Any], result: Any) -> Explanation:
    report = report_of(compiled)
    events = tuple(state_of(_state_holder(compiled)).events)
    reasons = dict.fromkeys(event.reason for event in events if event.reason is not None)
    return Explanation(
        name=report.name,
        graphs=tuple(_graph(graph, events) for graph in report.graphs),
        breaks=tuple(_break(reason) for reason in reasons),
        recompiles=tuple(
            RecompileExplanation(event.failures, event.seconds)
            for event in events
            if event.kind == "recompile"
        ),
        events=tuple(f"{event.kind}: {event.text}" for event in events),
        seconds=sum(event.seconds for event in events),
        timeline=tuple(
            EventExplanation(event.kind, event.text, noted, event.capture_seconds, event.seconds)
            for noted, event in report.arrivals
        ),
        tables=tuple(report.tables),
        result=result,
        compiled=compiled,
    )


def _graph(graph: GraphReport, events: tuple[Event, ...]) -> GraphExplanation:
    result = next((event for event in events if _is_of(event, graph)), None)
    entry = None if result is None else result.entry
    ends = None if entry is None else entry.broken
    return GraphExplanation(
        calls=graph.calls,
        nodes=0 if graph.gm is None else len(graph.gm.graph.nodes),
        code="" if graph.gm is None else graph.gm.print_readable(print_output=False),
        guards=tuple(
            GuardExplanation(guard_text(guard), guard.kind, guard.source.text(), guard.where)
            for guard in (() if entry is None else entry.guards)
        ),
        seconds={"capture": result.capture_seconds if result else 0.0} | _stages(graph.seconds),
        kernels=tuple(kernel.name for program in graph.programs for kernel in program.kernels),
        cache_hits=graph.cache.hits,
        cache_misses=graph.cache.misses,
        fallback=graph.fallback,
        externs=_externs(graph),
        partitions=tuple(map(str, graph.partitions)),
        eager_derivatives=tuple(graph.eager_derivatives),
        separate_tangents=tuple(graph.separate_tangents),
        launches=tuple(filter(None, (launch() for launch in graph.launches))),
        memory=tuple(_memory(program) for program in graph.programs if not program.symbols),
        ends=f"{ends.where} [{ends.id}]" if ends is not None else "",
        assumes=() if entry is None else tuple(map(str, entry.assumptions)),
        specialises=() if entry is None else entry.specialised,
        stored=_stored(graph),
        stored_pieces=_stored_pieces(graph),
        stored_entry="" if entry is None else entry.stored,
        programs=tuple(
            explain_program(program, graph.functional.get(number))
            for number, program in enumerate(graph.programs)
        ),
        savings=tuple(graph.partitions),
        spans=tuple(graph.seconds.spans),
        background=graph.background,
    )


def _stored(graph: GraphReport) -> str:
    return f"written, for its entry alone: {graph.stored}" if graph.for_entry else graph.stored


def _stored_pieces(graph: GraphReport) -> tuple[str, ...]:
    """What became of the entries of pieces, and of how many."""
    counts = Counter(info.stored for _, info in graph.piece_entries() if info.stored)
    return tuple(f"{count}: {text}" for text, count in counts.items())


def _is_of(event: Event, graph: GraphReport) -> bool:
    """Whether an event made the entry that a graph is a part of."""
    entry = event.entry
    if entry is None:
        return False
    if graph.gm is None:
        return entry.graph_key == graph.key
    return entry.graph_module is graph.gm


def _memory(program: Program) -> str:
    held = live_bytes(program)
    return (
        f"{program.name}: holds {max(held):,} bytes at its peak, {held[0]:,} of them its arguments"
    )


def _externs(graph: GraphReport) -> tuple[ExternExplanation, ...]:
    calls = Counter(
        (step.op, extern_reason(step, program))
        for program in graph.programs
        for step in program.steps
        if isinstance(step, Extern)
    )
    return tuple(
        ExternExplanation(operator, count, reason) for (operator, reason), count in calls.items()
    )


def _stages(seconds: dict[str, float]) -> dict[str, float]:
    """The seconds of the backend's stages, each without those inside it."""
    inside = {"inductor": seconds.get("inductor", 0.0), "build": seconds.get("runtime", 0.0)}
    whole = seconds.get("backend", 0.0)
    if not any(inside.values()):
        return {"backend": whole}
    return {"autograd": max(0.0, whole - sum(inside.values())), **inside}


def _break(reason: Break) -> BreakExplanation:
    return BreakExplanation(reason.id, reason.cause, reason.where, reason.hint)
