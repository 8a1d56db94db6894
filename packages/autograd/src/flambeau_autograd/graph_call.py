"""What surrounds a compiled graph in a call, and the callable of a graph without a backward."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_autograd.outputs import Output, build_outputs, is_plain
from flambeau_autograd.version_counters import set_versions
from flambeau_prims.symbols import symbol_reads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_prims.symbols import SymbolRead

    Compiled: TypeAlias = "Callable[..., tuple[Any, ...]]"
    Sizes: TypeAlias = "Callable[[Sequence[Any]], dict[str, int]]"

NO_SIZES: dict[str, int] = {}


@dataclass
class Call:
    """What surrounds a compiled graph in a call.

    `inputs` is the graph's inputs (constants and tangents left out), `passed` the positions among
    the caller's arguments that they are (None: all). `outputs` is the plan for the caller's
    outputs; `constants` are passed after the arguments; `copies` lists (input, result, writes):
    inputs to be overwritten so that autograd records it, by how many writes of the program.
    `versions` says where the version counters of results stand that the program wrote to.
    `grad_mode` is the mode to leave behind, or None.
    `no_autocast`: the graph spells its casts out, so autocast must not add its own. `no_grad`: the
    arguments may require grad, and the graph must not be recorded. `inference`: positions of the
    graph's arguments that are inference tensors.
    """

    inputs: list[Any]
    passed: list[int] | None
    outputs: list[Output]
    constants: tuple[torch.Tensor, ...] = ()
    copies: list[tuple[int, int, int]] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)
    grad_mode: bool | None = None
    no_autocast: bool = False
    no_grad: bool = False
    inference: frozenset[int] = frozenset()
    reads: dict[str, SymbolRead] | None = None
    """Where symbols are read, of a call without its `inputs` (`call_json`)."""


def wrap_inference(compiled: Compiled, call: Call) -> Compiled:
    """The callable for a graph without a backward; `compiled` itself if no wrapper is needed."""
    run = guarded(compiled, call)
    sizes = sizes_reader(call)
    plan, constants, grad_mode = call.outputs, call.constants, call.grad_mode
    if is_plain(plan) and not constants and grad_mode is None and call.passed is None:
        return run
    passed = getter(call.passed) if call.passed is not None else tuple

    def call_graph(*args: Any) -> tuple[Any, ...]:
        given = passed(args)
        outputs = build_outputs(plan, args, run(*given, *constants), sizes(given))
        if grad_mode is not None:
            torch._C._set_grad_enabled(grad_mode)
        return outputs

    return call_graph


def guarded(compiled: Compiled, call: Call) -> Compiled:
    """`compiled` under the modes that the call's graph asks for."""
    run = compiled
    if call.versions:
        run = _with_versions(run, call.versions)
    if call.no_autocast:
        run = _without_autocast(run)
    if call.no_grad:
        run = torch.no_grad()(run)
    return run


def _with_versions(compiled: Compiled, versions: dict[int, int]) -> Compiled:
    written, counts = getter(list(versions)), tuple(versions.values())

    def run(*args: Any) -> tuple[Any, ...]:
        results = compiled(*args)
        set_versions(written(results), counts)
        return results

    return run


def _without_autocast(compiled: Compiled) -> Compiled:
    def run(*args: Any) -> tuple[Any, ...]:
        with torch._C._DisableAutocast():
            return compiled(*args)

    return run


def getter(positions: list[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A fast function that picks these entries of a sequence, as a tuple: by slices where there are
    few, and all entries of a tuple as that tuple.
    """
    slices = _slices(positions)
    if not positions:
        return lambda sequence: ()
    if len(positions) == 1:
        (position,) = positions
        return lambda sequence: (sequence[position],)
    if len(slices) == 1:
        (only,) = slices
        return lambda sequence: tuple(sequence[only])
    if len(slices) * _ENTRIES_PER_SLICE >= len(positions):
        return itemgetter(*positions)

    def pick(sequence: Sequence[Any]) -> tuple[Any, ...]:
        picked: list[Any] = []
        for each in slices:
            picked += sequence[each]
        return tuple(picked)

    return pick


_ENTRIES_PER_SLICE = 16
"""About as many entries are picked one by one in the time of a slice."""


def _slices(positions: list[int]) -> list[slice]:
    """The slices that `positions` consist of, each as long as its step stays the same."""
    result: list[slice] = []
    start = 0
    while start < len(positions):
        first, stop = positions[start], start + 1
        step = positions[stop] - first if stop < len(positions) else 1
        while step > 0 and positions[stop : stop + 1] == [positions[stop - 1] + step]:
            stop += 1
        result.append(slice(first, positions[stop - 1] + 1, max(step, 1)))
        start = stop
    return result


def sizes_reader(call: Call) -> Sizes:
    """A function from a call's arguments to the values of the symbols, by name."""
    reads = list((symbol_reads(call.inputs) if call.reads is None else call.reads).items())
    if not reads:
        return lambda args: NO_SIZES

    def values(args: Sequence[Any]) -> dict[str, int]:
        return {name: read.value(args) for name, read in reads}

    return values
