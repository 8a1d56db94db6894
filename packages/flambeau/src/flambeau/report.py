"""Report: what the compiles of one callable did, for `explain`."""

from __future__ import annotations

import logging
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flambeau_capture.compiled import state_of
from flambeau_capture.events import Event
from flambeau_prims.fork_safety import fork_safe_lock
from flambeau_runtime.cache import CacheUse
from flambeau_runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch

    from flambeau.debug_folder import DebugFolder, GraphFolder
    from flambeau_autograd.partition import PartitionSummary
    from flambeau_capture.compiled import CompiledState
    from flambeau_capture.events import EntryInfo
    from flambeau_prims.graph import Graph
    from flambeau_runtime.program import Program
    from flambeau_runtime.tuning.table import TuningTable

_LOG = logging.getLogger("flambeau.cudagraphs")


@dataclass(frozen=True)
class Fallback:
    """A graph that runs eagerly though it should be compiled: the reason's id and its text."""

    reason: str
    text: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.text} [{self.reason}]"


@dataclass(frozen=True)
class Span:
    """A stage of a compile: when it began, by `time.perf_counter`, and how long it took."""

    stage: str
    started: float
    seconds: float


class StageSeconds(dict[str, float]):
    """The seconds of each stage of a graph's compile; `spans` says when each ran."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[Span] = []


@dataclass
class GraphReport:
    """One graph for the backend: its calls, the seconds of each stage, the fallback's reason."""

    gm: torch.fx.GraphModule | None
    """None where the whole entry has been read from the cache."""
    calls: int
    number: int = 0
    """Counts the graphs of the compiled callable, in the order of their compilation."""
    seconds: StageSeconds = field(default_factory=StageSeconds)
    programs: list[Any] = field(default_factory=list)
    """The Programs that the inductor backend made of it: inference, or forward and backward."""
    functional: dict[int, Graph] = field(default_factory=dict)
    """The functional graph that a Program was compiled from, by the Program's number; none for a
    Program that was read with its captured graph.
    """
    launches: list[Callable[[], str | None]] = field(default_factory=list)
    """How each Program is launched on a GPU, by now: a line, or None."""
    partitions: list[PartitionSummary] = field(default_factory=list)
    """What is saved for the backward, and what is recomputed in it: one for each forward."""
    eager_derivatives: list[str] = field(default_factory=list)
    """Why the eager engine computes second derivatives that were asked for."""
    separate_tangents: list[str] = field(default_factory=list)
    """Why a backward ran once for each tangent of a batch."""
    cache: CacheUse = field(default_factory=CacheUse)
    """What the build of its kernels found in the cache, and what not."""
    fallback: Fallback | None = None
    for_entry: bool = False
    """Whether the compiled graph is in the cache for its stored entry alone."""
    key: str = ""
    """The key of the compiled graph in the cache, if it may be there."""
    folder: GraphFolder | None = None
    stored: str = ""
    """"read" or "written": the compiled graph is in the cache; else why it is not, if asked for."""
    background: str = ""
    """Where it was compiled while calls ran eagerly, and why not in a worker process."""
    pieces: list[GraphReport] = field(default_factory=list)
    """Of a graph that is cut into pieces, their graphs, as they are compiled or read."""
    whole: GraphReport | None = None
    """The graph that this one is a piece of."""
    _states: dict[str, weakref.ref[CompiledState]] = field(default_factory=dict)

    def add_program(self, program: Program, functional: Graph | None = None) -> None:
        """Keep a Program, and what it was compiled from; the whole graph's, too, if it is of a
        piece.
        """
        if functional is not None:
            self.functional[len(self.programs)] = functional
        self.programs.append(program)
        if self.whole is not None:
            self.whole.add_program(program, functional)

    def fall_back(self, fallback: Fallback) -> None:
        """Keep why the graph runs eagerly, or a piece of it."""
        self.fallback = fallback
        if self.whole is not None:
            self.whole.fall_back(fallback)

    def around(self) -> Iterator[GraphReport]:
        """The graphs that this one is a piece of, from the inside."""
        if self.whole is not None:
            yield self.whole
            yield from self.whole.around()

    def start_piece(self, gm: torch.fx.GraphModule | None, calls: int) -> GraphReport:
        """Open the report of the graph of a piece. It is a part of this report, but for its
        Programs and its place in the cache.
        """
        piece = GraphReport(
            gm, calls, number=self.number, seconds=self.seconds, cache=self.cache,
            launches=self.launches, partitions=self.partitions, folder=self.folder, whole=self,
        )  # fmt: skip
        self.pieces.append(piece)
        return piece

    def add_piece(self, name: str, state: CompiledState) -> None:
        """Keep who compiles a piece."""
        self._states[name] = weakref.ref(state)

    def piece_entries(self) -> list[tuple[str, EntryInfo]]:
        """The entries of the pieces by their names, those of pieces of pieces, too."""
        states = ((name, state()) for name, state in list(self._states.items()))
        own = [
            (name, entry.info)
            for name, state in states
            if state is not None
            for entry in state.entries
        ]
        below = [
            (f"piece {number}, {name}", info)
            for number, piece in enumerate(list(self.pieces))
            for name, info in piece.piece_entries()
        ]
        return own + below


def count_calls(gm: torch.fx.GraphModule) -> int:
    """How many calls a graph makes."""
    return sum(
        node.op in ("call_function", "call_method", "call_module") for node in gm.graph.nodes
    )


class Report:
    """The graphs of one compiled callable, in the order in which they were compiled."""

    def __init__(
        self,
        name: str,
        folder: DebugFolder | None = None,
        runtime_options: RuntimeOptions | None = None,
    ) -> None:
        self.name = name
        self.runtime_options = runtime_options or RuntimeOptions()
        """How its Programs are built and loaded."""
        self.folder = folder
        """Where each stage of each graph is written, if the environment asks for it."""
        self.tables: list[TuningTable] = []
        """What was measured, in order."""
        self.arrivals: list[tuple[float, Event]] = []
        """Each event, and when it was noted, by `time.perf_counter`."""
        self._graphs: list[GraphReport] = []
        self._texts: dict[tuple[Path, str, str], None] = {}
        self._lock = fork_safe_lock()
        self.note: Callable[[Event], None] = self._log
        """Keeps an event of the compiled callable; where there is none, the event is logged."""
        self._noted: set[str] = set()

    def note_text(self, root: Path, kind: str, key: str) -> None:
        """Keep that a text of the cache belongs to this callable."""
        with self._lock:
            self._texts[(root, kind, key)] = None

    def texts(self) -> list[tuple[Path, str, str]]:
        """The graphs, Programs and entries that were read or stored, as (root, kind, key)."""
        with self._lock:
            return list(self._texts)

    def note_once(self, kind: str, text: str) -> None:
        """Keep an event, unless there is an equal one."""
        with self._lock:
            if text in self._noted:
                return
            self._noted.add(text)
        self.note(Event(kind, text))

    def _log(self, event: Event) -> None:
        _LOG.warning("%s: %s: %s", self.name, event.kind, event.text)

    @property
    def graphs(self) -> tuple[GraphReport, ...]:
        """A snapshot; other threads may be compiling."""
        with self._lock:
            return tuple(self._graphs)

    def start_graph(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> GraphReport:
        """Open the report of a graph that is about to be compiled."""
        graph = GraphReport(gm, count_calls(gm))
        if self.folder is not None:
            graph.folder = self.folder.start_graph(gm, example_inputs)
        return self._add(graph)

    def start_stored_graph(self, calls: int) -> GraphReport:
        """Open the report of a graph that comes with a stored entry."""
        return self._add(GraphReport(None, calls))

    def _add(self, graph: GraphReport) -> GraphReport:
        with self._lock:
            graph.number = len(self._graphs)
            self._graphs.append(graph)
        return graph


class Stopwatch:
    """`with Stopwatch(graph.seconds, "inductor"):` adds the block's seconds to that stage."""

    def __init__(self, seconds: StageSeconds, stage: str) -> None:
        self._seconds = seconds
        self._stage = stage

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        elapsed = time.perf_counter() - self._started
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + elapsed
        self._seconds.spans.append(Span(self._stage, self._started, elapsed))


_REPORTS: weakref.WeakKeyDictionary[CompiledState, Report] = weakref.WeakKeyDictionary()
_REPORTS_LOCK = fork_safe_lock()


def attach_report(compiled: Callable[..., Any], report: Report) -> None:
    """Keep a compiled callable's report for as long as the callable lives."""
    state = weakref.ref(state_of(compiled))

    def note(event: Event) -> None:
        if (living := state()) is not None:
            living.note(event)

    report.note = note
    with _REPORTS_LOCK:
        _REPORTS[state_of(compiled)] = report


def all_reports() -> list[Report]:
    """The reports of all compiled callables that live."""
    with _REPORTS_LOCK:
        return list(_REPORTS.values())


def report_of(compiled: Callable[..., Any]) -> Report:
    """The report of what `flambeau.compile` returned."""
    with _REPORTS_LOCK:
        return _REPORTS[state_of(getattr(compiled, "_compiled", compiled))]


def owner_of(compiled: Callable[..., Any]) -> CompiledState:
    """The state of what `flambeau.compile` returned; TypeError for anything else."""
    return state_of(getattr(compiled, "_compiled", compiled)).owner
