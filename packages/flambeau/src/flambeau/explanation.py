"""What `explain` knows, as data: graphs, breaks, recompiles, when what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flambeau.program_explanation import ProgramExplanation
    from flambeau.report import Fallback, Span
    from flambeau_autograd.partition import PartitionSummary
    from flambeau_capture.events import GuardFailure
    from flambeau_runtime.tuning.table import TuningTable


@dataclass(frozen=True)
class GuardExplanation:
    """One guard: its whole text, its kind, what it protects (`L['x']`), and the user's line that
    reads that ("" for arguments).
    """

    text: str
    kind: str
    protects: str
    where: str

    def __str__(self) -> str:
        return f"{self.text} (read at {self.where})" if self.where else self.text


@dataclass(frozen=True)
class ExternExplanation:
    """Calls of one operator that no generated kernel computes, and why none does."""

    operator: str
    calls: int
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} ({count_text(self.calls, 'call')}): {self.reason}"


@dataclass(frozen=True)
class GraphExplanation:
    """One graph that was handed to the backend.

    calls: its torch-level calls; `nodes` counts its inputs and outputs, too.
    code: the graph as Python text.
    seconds: of each stage: capture, autograd, inductor, build; or backend, if it is not ours.
    kernels: their names.
    cache_hits, cache_misses: what the build found in the cache on disk, and what not.
    fallback: why the graph runs eagerly, if it does.
    ends: the place and id of the graph break that ends it, "" if it ends with the function.
    externs: calls of ATen in its Programs, and why no kernel computes them.
    partitions: what each forward saves for its backward, and what the backward recomputes, a line
        for each.
    eager_derivatives: why the eager engine computes second derivatives that were asked for.
    separate_tangents: why a backward ran once for each tangent of a batch.
    launches: how each of its Programs is launched on a GPU: as one CUDA graph, or why not.
    memory: what each of its Programs holds at its peak, if that depends on no size of the call.
    assumes: what it checks of data, where the program would otherwise go another way.
    specialises: sizes that are guarded to be what they were on the compiled call, each with the
        operator that takes no symbolic ones.
    stored: with the option graph_cache, "read" or "written", or why the cache does not keep it.
    stored_pieces: the same of the entries of its pieces, where it reads its data, and how many.
    stored_entry: the same of the whole entry, of which the graph is a part: where that is read,
        nothing is captured, and there is no `code`.
    background: with the option background, where it was compiled while calls ran eagerly.
    programs: what its Programs run, step by step: kernels, calls of ATen, memory.
    savings: `partitions` as data: each saved tensor, each recomputed operator.
    spans: when each stage ran, by `time.perf_counter`.
    """

    calls: int
    nodes: int
    code: str
    guards: tuple[GuardExplanation, ...]
    seconds: dict[str, float]
    kernels: tuple[str, ...]
    cache_hits: int
    cache_misses: int
    fallback: Fallback | None
    ends: str
    externs: tuple[ExternExplanation, ...] = ()
    partitions: tuple[str, ...] = ()
    eager_derivatives: tuple[str, ...] = ()
    separate_tangents: tuple[str, ...] = ()
    launches: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()
    specialises: tuple[str, ...] = ()
    stored: str = ""
    stored_pieces: tuple[str, ...] = ()
    stored_entry: str = ""
    background: str = ""
    programs: tuple[ProgramExplanation, ...] = ()
    savings: tuple[PartitionSummary, ...] = ()
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class BreakExplanation:
    """Why a frame runs partly eagerly: id, cause and place in the user's terms, and a hint."""

    id: str
    cause: str
    where: str
    hint: str


@dataclass(frozen=True)
class RecompileExplanation:
    """Why a call was recompiled: for each entry the failed guard, expected and actual."""

    failures: tuple[GuardFailure, ...]
    seconds: float


@dataclass(frozen=True)
class EventExplanation:
    """An event of the compiled callable: its kind and text, when it was noted (by
    `time.perf_counter`), and how long it took, without and with the backend's time.
    """

    kind: str
    text: str
    noted: float
    capture_seconds: float
    seconds: float


@dataclass(frozen=True)
class ExplanationData:
    """What compiling did, without the call's result."""

    name: str
    graphs: tuple[GraphExplanation, ...]
    breaks: tuple[BreakExplanation, ...]
    recompiles: tuple[RecompileExplanation, ...]
    events: tuple[str, ...]
    seconds: float
    timeline: tuple[EventExplanation, ...] = ()
    tables: tuple[TuningTable, ...] = ()


def count_text(number: int, noun: str) -> str:
    """2, "graph" -> "2 graphs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
