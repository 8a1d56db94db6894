"""`explain`: compile one call and say what was done with it.

print(flambeau.explain(model)(x))

model: 1 graph, 0 breaks
graph 0: 12 calls; backend 0.21 s (inductor 0.10, runtime 0.08)
  kernels: cpu_gelu_0, cpu_layer_norm_1
  guards:
    L['x'] is Tensor f32[4, 8]
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flambeau.api import compile
from flambeau.module import CompiledModule
from flambeau.report import report_of
from flambeau_capture import state_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau.report import Fallback


@dataclass(frozen=True)
class GraphExplanation:
    """One graph: its torch-level calls, its code, guards, seconds per stage, kernels, and why it fell back if it did."""

    calls: int
    code: str
    guards: tuple[str, ...]
    seconds: dict[str, float]
    kernels: tuple[str, ...]
    fallback: Fallback | None


@dataclass(frozen=True)
class BreakExplanation:
    """Why a frame runs eagerly: a stable id, the cause and place in the user's terms, and what may help."""

    id: str
    cause: str
    where: str
    hint: str


@dataclass(frozen=True)
class Explanation:
    """What compiling one call did.  `str()` is for people, `to_json()` for programs; `result` is what the call returned."""

    name: str
    graphs: tuple[GraphExplanation, ...]
    breaks: tuple[BreakExplanation, ...]
    events: tuple[str, ...]
    seconds: float
    result: Any

    def to_json(self, indent: int | None = None) -> str:
        """Everything but the result, as JSON."""
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "result"
        }
        return json.dumps(fields, default=dataclasses.asdict, indent=indent)

    def __str__(self) -> str:
        head = (
            f"{self.name}: {_count(len(self.graphs), 'graph')}, {_count(len(self.breaks), 'break')}"
        )
        lines = [f"{head}, {self.seconds:.2f} s"]
        for index, graph in enumerate(self.graphs):
            seconds = ", ".join(f"{stage} {value:.2f} s" for stage, value in graph.seconds.items())
            lines.append(f"graph {index}: {_count(graph.calls, 'call')}; {seconds}")
            if graph.fallback is not None:
                lines.append(f"  runs eagerly: {graph.fallback.text} [{graph.fallback.reason}]")
                lines += [f"  hint: {graph.fallback.hint}"] * bool(graph.fallback.hint)
            if graph.kernels:
                lines.append(f"  kernels: {', '.join(graph.kernels)}")
            lines.append("  guards:")
            lines += [f"    {text}" for text in graph.guards]
        for reason in self.breaks:
            lines.append(f"break: {reason.where}: {reason.cause} [{reason.id}]")
            lines += [f"  hint: {reason.hint}"] * bool(reason.hint)
        return "\n".join(lines)


def explain(model: Callable[..., Any], **arguments: Any) -> Callable[..., Explanation]:
    """`explain(model, **compile_arguments)(*args, **kwargs)`: compile and run that call, and return an Explanation.

    The model is compiled anew, so what compiled callables of it have cached is neither used nor changed.  The call really
    runs: what it does to the world, it does once.
    """

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        compiled = compile(model, **arguments)
        result = compiled(*args, **kwargs)
        report = report_of(compiled)
        state = state_of(compiled._compiled if isinstance(compiled, CompiledModule) else compiled)
        infos = [entry.info for entry in state.entries]
        graphs = tuple(
            GraphExplanation(
                calls=graph.calls,
                code=graph.gm.print_readable(print_output=False),
                guards=tuple(
                    text
                    for info in infos
                    if info.graph_module is graph.gm
                    for text in info.guard_texts()
                ),
                seconds=dict(graph.seconds),
                kernels=tuple(
                    kernel.name for program in graph.programs for kernel in program.kernels
                ),
                fallback=graph.fallback,
            )
            for graph in report.graphs
        )
        breaks = tuple(
            BreakExplanation(reason.id, reason.cause, reason.where, reason.hint)
            for reason in (info.skipped for info in infos)
            if reason is not None
        )
        events = tuple(f"{event.kind}: {event.text}" for event in state.events)
        seconds = sum(event.seconds for event in state.events)
        return Explanation(report.name, graphs, breaks, events, seconds, result)

    return explained


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
