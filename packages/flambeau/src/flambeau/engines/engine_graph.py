"""The callable around an engine's programs of one graph: which of them serves the sizes of a call,
layouts, and the writes to inputs at exit.

One program serves a range of sizes where the engine and the graph permit; otherwise each
combination of sizes and numbers has its program, up to `_LIMIT`. Further ones run operator by
operator, and the report says so.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from flambeau.engines.index_bounds import index_bounds
from flambeau.engines.interop_export import (
    Exported,
    export_for_all_sizes,
    export_with_sizes,
    is_symbolic,
)
from flambeau.engines.refusals import EngineRandom, EngineRefuses
from flambeau.engines.trial import check_results
from flambeau_prims.evaluate import run_graph, write_inputs
from flambeau_prims.fork_safety import fork_safe_lock
from flambeau_prims.graph import Graph, Value
from flambeau_prims.layouts import laid_out
from flambeau_prims.size_floats import evaluate_number, is_float_symbol
from flambeau_prims.symbols import symbol_reads
from flambeau_prims.unsupported import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flambeau_prims.spec import Spec

    Built: TypeAlias = "Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]"

_LIMIT = 16
"""Programs by sizes, of one graph."""
_EMPTY = "a tensor is empty, which engines do not take"


class Engine(Protocol):
    """A module of this package that builds programs."""

    DYNAMIC: bool
    """Whether a program may have symbolic sizes."""
    CHECKS_INDICES: bool
    """Whether a program fails where an index is out of bounds."""

    def build(
        self, program: torch.export.ExportedProgram, examples: tuple[torch.Tensor, ...]
    ) -> Built:
        """`run(inputs, results)`, all contiguous: computes the results and writes them there.
        Raises whatever says why there is none.
        """


@dataclass
class _Program:
    run: Built
    ranges: tuple[tuple[str, int, int | None], ...] = ()

    def serves(self, symbols: dict[str, Any]) -> bool:
        return all(
            least <= symbols[name] and (most is None or symbols[name] <= most)
            for name, least, most in self.ranges
        )


class EngineGraph:
    """A functional graph, run by an engine. Raises Unsupported if the engine cannot take it in its
    first sizes; for later ones it calls `refused` and runs operator by operator.
    """

    def __init__(
        self,
        graph: Graph,
        engine: Engine,
        refused: Callable[[Unsupported], None],
    ) -> None:
        check_draws_nothing(graph)
        self._bounds = () if engine.CHECKS_INDICES else index_bounds(graph)
        self._graph = graph
        self._engine = engine
        self._refused = refused
        self._reads = symbol_reads(graph.inputs)
        self._given = [
            number for number, item in enumerate(graph.inputs) if isinstance(item, Value)
        ]
        inputs = set(graph.inputs)
        self._results = [
            value for value in dict.fromkeys(graph.live_at_exit()) if value not in inputs
        ]
        self._pure = Graph(
            inputs=graph.inputs, nodes=graph.nodes, outputs=list(self._results), env=graph.env
        )
        self._lock = fork_safe_lock()
        self._for_all: _Program | None = None
        self._by_sizes: dict[tuple[Any, ...], _Program | None] = {}
        sizes = hints_of(graph, self._reads)
        if not self._results or sizes is None:
            return
        if engine.DYNAMIC and is_symbolic(graph):
            self._for_all = apart(lambda: self._build(export_for_all_sizes(self._pure, sizes)))
        if self._for_all is None:
            self._by_sizes[tuple(sizes.values())] = self._built_with(sizes)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        symbols = {name: read.value(inputs) for name, read in self._reads.items()}
        known: dict[Any, Any] = dict(zip(self._graph.inputs, inputs, strict=True))
        if self._results:
            given = [inputs[number].detach().contiguous() for number in self._given]
            results = [empty_of(value.spec, symbols) for value in self._results]
            program = self._program(symbols, any(not t.numel() for t in (*given, *results)))
            if program is None or not all(bound.holds(known, symbols) for bound in self._bounds):
                return run_graph(self._graph, inputs)
            try:
                program.run(given, results)
            except Exception as error:  # eager raises its own error, or has a result
                self._refused(EngineRefuses(_said(error)))
                return run_graph(self._graph, inputs)
            for value, result in zip(self._results, results, strict=True):
                stride = [evaluate_number(step, symbols) for step in value.spec.stride]
                known[value] = laid_out(result, tuple(stride))
        outputs = tuple(
            known[out] if isinstance(out, Value) else evaluate_number(out, symbols)
            for out in self._graph.outputs
        )
        write_inputs(self._graph, known)
        return outputs

    def _program(self, symbols: dict[str, Any], empty: bool) -> _Program | None:
        """The program for a call; None if the call runs operator by operator."""
        if empty:
            self._refused(EngineRefuses(_EMPTY))
            return None
        if self._for_all is not None and self._for_all.serves(symbols):
            return self._for_all
        key = tuple(symbols.values())
        with self._lock:
            if key not in self._by_sizes:
                try:
                    if len(self._by_sizes) >= _LIMIT:
                        raise EngineRefuses(f"the graph has programs for {_LIMIT} sizes already")
                    self._by_sizes[key] = self._built_with(symbols)
                except Unsupported as unsupported:
                    self._refused(unsupported)
                    if len(self._by_sizes) >= _LIMIT:
                        return None
                    self._by_sizes[key] = None
            return self._by_sizes[key]

    def _built_with(self, symbols: dict[str, Any]) -> _Program | None:
        return apart(lambda: self._build(export_with_sizes(self._pure, symbols)))

    def _build(self, exported: Exported | None) -> _Program | None:
        if exported is None:
            return None
        run = self._engine.build(exported.program, exported.examples)
        check_results(run, exported.eager, exported.examples)
        return _Program(run, exported.ranges)


def empty_of(spec: Spec, symbols: Mapping[str, Any]) -> torch.Tensor:
    """Contiguous memory for a result."""
    shape = [evaluate_number(size, symbols) for size in spec.shape]
    return torch.empty(shape, dtype=spec.dtype, device=spec.device)


def hints_of(graph: Graph, symbols: Iterable[str]) -> dict[str, int] | None:
    """The sizes that a graph is compiled for first; None if one is known in calls only."""
    env = graph.env
    if env is None:
        return {}
    if any(
        env.symbols[name].index in env.unbacked_atoms or is_float_symbol(name) for name in symbols
    ):
        return None
    return {name: env.symbols[name].hint for name in symbols}


def apart(build: Callable[[], _Program | None]) -> _Program | None:
    """What `build` gives in a separate thread, outside of the caller's modes of torch; what it
    raises becomes EngineRefuses.
    """
    with ThreadPoolExecutor(1, "flambeau-engine") as executor, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch.export about itself
        try:
            return executor.submit(build).result()
        except Unsupported:
            raise
        except Exception as error:
            raise EngineRefuses(_said(error)) from error


def _said(error: Exception) -> str:
    """What the innermost cause says, in a line: exporters wrap it in reports of many pages."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("Exception from", "Check '"))]
    return f"{type(error).__name__}: {' '.join(said[:2])[:300]}"


def check_draws_nothing(graph: Graph) -> None:
    """EngineRandom for a graph that draws random numbers."""
    for node in graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.op, "tags", ()):
            raise EngineRandom(f"{node.op} draws random numbers", node.op)
