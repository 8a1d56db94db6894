"""The Program of a graph of equal layers, from that of a graph of fewer such layers.

    buf1 = extern mm(arg0, arg1); buf2 = extern mm(buf1, arg2); buf3 = extern mm(buf2, arg3)
->  ...; buf3_1 = extern mm(buf3, arg4); buf3_2 = extern mm(buf3_1, arg5); ...

The steps of the short Program repeat where the layers do: each window of steps reads what the
window before it computes, and the inputs of the next layer. The window that repeats is put behind
the last as often as layers were left out, with the names of these layers. The windows are equal in
kernels, calls, memory and what they free, and compute the values of neighbouring layers. If the
short Program has no such windows, the whole graph is compiled as it is.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flambeau_prims.graph import Value
from flambeau_prims.repeated_regions import FIRST
from flambeau_prims.repeated_runs import repeated_runs
from flambeau_runtime import program as rt

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_prims.graph import Address, ShortGraph
    from flambeau_prims.repeated_runs import Run

LEAST_WINDOWS = 3
"""So many windows must be alike, of neighbouring layers each."""

_WORD = re.compile(r"[A-Za-z_]\w*")


def extend_program(short: ShortGraph, program: rt.Program) -> rt.Program | None:
    """The whole graph's Program from that of the short graph; None if its steps do not repeat."""
    if program.prepared is not None or any(
        symbol.is_element and symbol.input in short.input_classes for symbol in program.symbols
    ):
        return None
    return _Extension(short, program).run()


class _NotRepeated(Exception):
    """The steps do not repeat as the layers do."""


def _map_argument(arg: Any, fn: Callable[[str], str]) -> Any:
    """An argument of an extern call with its names mapped."""
    if isinstance(arg, rt.Ref):
        return rt.Ref(fn(arg.name))
    if isinstance(arg, (rt.SizeExpr, rt.Float)):
        return type(arg)(_map_dim(arg.text, fn))
    if isinstance(arg, (tuple, list)):
        return type(arg)([_map_argument(item, fn) for item in arg])
    return arg


def _map_dim(dim: Any, fn: Callable[[str], str]) -> Any:
    """A Dim with its symbols mapped."""
    return _WORD.sub(lambda m: fn(m[0]), dim) if isinstance(dim, str) else dim


def map_names(step: rt.Step, fn: Callable[[str], str]) -> rt.Step:
    """A step with the names of tensors and symbols mapped by `fn`, those that it defines last."""
    if isinstance(step, rt.Launch):
        return replace(
            step,
            buffers=tuple(map(fn, step.buffers)),
            ints=tuple(_map_dim(dim, fn) for dim in step.ints),
            grid=tuple(_map_dim(dim, fn) for dim in step.grid),
        )
    if isinstance(step, rt.Extern):
        return replace(
            step,
            args=_map_argument(step.args, fn),
            kwargs={key: _map_argument(arg, fn) for key, arg in step.kwargs.items()},
            out=tuple((key, fn(name)) for key, name in step.out),
            outputs=tuple(None if name is None else fn(name) for name in step.outputs),
        )
    if isinstance(step, rt.Allocate):
        reuse = None if step.reuse is None else fn(step.reuse)
        return rt.Allocate(fn(step.name), reuse, step.in_place)
    if isinstance(step, rt.View):
        base = fn(step.base)
        return rt.View(fn(step.name), base)
    if isinstance(step, rt.Reserve):
        increment, (seed, offset) = _map_dim(step.increment, fn), step.symbols
        return rt.Reserve(fn(step.name), step.device, increment, (fn(seed), fn(offset)))
    return rt.Free(fn(step.name))


def _defined(step: rt.Step) -> tuple[str, ...]:
    """The names that a step defines."""
    if isinstance(step, (rt.Allocate, rt.View)):
        return (step.name,)
    if isinstance(step, rt.Reserve):
        return (step.name, *step.symbols)
    if isinstance(step, rt.Extern):
        return tuple(name for name in step.outputs if name is not None)
    return ()


def _hashable(arg: Any) -> Any:
    """Equal for equal arguments of calls; floats by their bits."""
    if isinstance(arg, (tuple, list)):
        return (type(arg), *map(_hashable, arg))
    if isinstance(arg, dict):
        return tuple((key, _hashable(value)) for key, value in arg.items())
    return (type(arg), repr(arg))


class _Extension:
    def __init__(self, short: ShortGraph, program: rt.Program) -> None:
        self.short = short
        self.program = program
        self.tensors = {tensor.name: tensor for tensor in program.tensors}
        self.inputs = {name: number for number, name in enumerate(program.inputs)}
        self.labels = {
            program.inputs[number]: address for number, address in short.input_classes.items()
        }
        self.place: dict[str, tuple[int, int]] = {}
        """Of a name that a window defines, the step, and which of its names."""
        self.steps = program.steps
        # Layers that are repeated themselves have names with shorter marks.
        self.mark = "_"
        while any(self.mark in name for step in program.steps for name in _defined(step)):
            self.mark += "_"

    def run(self) -> rt.Program | None:
        tokens: list[int] = []
        reads: list[list[str]] = []
        known: dict[Any, int] = {}
        for step in self.steps:
            names: list[str] = []

            def blank(name: str, names: list[str] = names) -> str:
                names.append(name)
                return ""

            form = map_names(step, blank)
            defined = _defined(step)
            shapes = [
                replace(self.tensors[name], name="") for name in defined if name in self.tensors
            ]
            key = type(step), _hashable(self.fields(form)), _hashable(shapes)
            tokens.append(known.setdefault(key, len(known)))
            reads.append(names)
        self.definitions = [_defined(step) for step in self.steps]
        for index, names_of_step in enumerate(self.definitions):
            for number, name in enumerate(names_of_step):
                self.place[name] = (index, number)
        for run in repeated_runs(tokens, reads, self.definitions, LEAST_WINDOWS):
            try:
                self.windows = self.of_neighbours(run)
                self.check(self.windows, reads)
                return self.extended(self.windows)
            except _NotRepeated:
                continue
        return None

    @staticmethod
    def fields(form: rt.Step) -> Any:
        """What a step is but for its names and what is for people."""
        if isinstance(form, rt.Launch):
            return [form.kernel, form.buffers, form.ints, form.grid]
        if isinstance(form, rt.Extern):
            return [form.op, form.args, form.kwargs, form.outputs, form.out]
        return form

    # What must hold

    def check(self, run: Run, reads: list[list[str]]) -> None:
        """Steps in front of the windows read inputs and compute values of the first layers only,
        those behind them of the last: so the windows read and compute those of all between.
        """
        inputs = [list(filter(None, map(self.labels.get, names))) for names in reads]
        self.check_addresses(run, inputs)
        self.check_addresses(run, list(map(self.computed, self.steps)))
        recent = run.stop - 2 * run.length
        for index in range(run.stop, len(self.steps)):
            for name in reads[index]:
                if name in self.place and run.start <= self.place[name][0] < recent:
                    raise _NotRepeated

    def computed(self, step: rt.Step) -> list[Address]:
        """The addresses of the values that a step computes."""
        if not isinstance(step, (rt.Launch, rt.Extern)):
            return []
        return list(filter(None, map(self.short.values.get, step.computes)))

    @staticmethod
    def check_addresses(run: Run, addresses: list[list[Address]]) -> None:
        newest: dict[int, int] = {}
        for index in range(run.start, run.start + run.length):
            for kind, copy in addresses[index]:
                newest[kind] = max(copy, newest.get(kind, copy))
        oldest: dict[int, int] = {}
        for index in range(run.stop - run.length, run.stop):
            for kind, copy in addresses[index]:
                oldest[kind] = min(copy, oldest.get(kind, copy))
        for index, found in enumerate(addresses):
            for kind, copy in found:
                if index < run.start and copy > newest.get(kind, -1):
                    raise _NotRepeated
                if index >= run.stop and copy < oldest.get(kind, copy + 1):
                    raise _NotRepeated

    def of_neighbours(self, run: Run) -> Run:
        """The windows that read inputs of neighbouring layers, and compute values of such: the
        first and the last may belong to what stands in front of the layers, and behind them.
        """
        links = [
            all(map(self.follows, here, next_one))
            and all(
                map(self.computes_next, self.steps_of(run, window), self.steps_of(run, window + 1))
            )
            for window, (here, next_one) in enumerate(pairwise(run.outside))
        ]
        windows = run.longest_linked(links)
        if windows.count < LEAST_WINDOWS:
            raise _NotRepeated
        return windows

    def steps_of(self, run: Run, window: int) -> tuple[rt.Step, ...]:
        """The steps of a window."""
        first = run.start + window * run.length
        return self.steps[first : first + run.length]

    def follows(self, here: str, behind: str) -> bool:
        """Whether two names from outside of windows are one, or inputs of neighbouring layers."""
        if here not in self.labels or behind not in self.labels:
            return here == behind
        kind, copy = self.labels[here]
        return self.labels[behind] == (kind, copy + 1)

    def computes_next(self, here: rt.Step, behind: rt.Step) -> bool:
        """Whether a step computes what another does, for the next layer."""
        if not isinstance(here, (rt.Launch, rt.Extern)) or type(here) is not type(behind):
            return type(here) is type(behind)
        values = self.short.values
        if len(here.computes) != len(behind.computes):
            return False
        for name, other in zip(here.computes, behind.computes, strict=True):
            if (name in values) != (other in values):
                return False
            address = values.get(name)
            if address is None and name in values and name != other:
                return False
            if address is not None and values[other] != (address[0], address[1] + 1):
                return False
        return True

    # The whole Program

    def extended(self, run: Run) -> rt.Program:
        short, dropped = self.short, self.short.dropped
        last = self.steps[run.stop - run.length : run.stop]
        steps = list(self.explained(self.renamed(self.steps[: run.stop], 0), 0))
        for extra in range(1, dropped + 1):
            steps += self.explained(self.renamed(last, extra), extra)
        steps += self.explained(self.renamed(self.steps[run.stop :], dropped), dropped)
        tensors = self.declared(run)
        inputs = tuple(f"arg{number}" for number in range(len(short.whole.inputs)))
        counted = [(inputs[position], count) for position, count in self.counted_writes().items()]
        return replace(
            self.program,
            inputs=inputs,
            tensors=tuple(tensors),
            symbols=tuple(
                replace(symbol, input=short.inputs[symbol.input]) for symbol in self.program.symbols
            ),
            steps=tuple(steps),
            outputs=self.outputs(run),
            mutated=tuple(name for name, _ in counted),
            write_counts=tuple(count for _, count in counted),
            private_outputs=short.whole.private_outputs,
        )

    def counted_writes(self) -> dict[int, int]:
        """By position of an input of the whole graph, how often its version counter is bumped."""
        whole = self.short.whole
        position = {
            value: number for number, value in enumerate(whole.inputs) if isinstance(value, Value)
        }
        return {position[value]: count for value, count in whole.counted_writes()}

    def name(self, name: str, extra: int) -> str:
        """What a name is in a window that is `extra` windows behind the one that has it."""
        if name in self.inputs:
            label = self.labels.get(name)
            if label is None:
                return f"arg{self.short.inputs[self.inputs[name]]}"
            return f"arg{self.short.input_at[label[0], label[1] + extra]}"
        if extra == 0 or name not in self.place:
            return name
        index, number = self.place[name]
        run = self.windows
        if index >= run.stop or index < run.start:
            return name
        # Of a window in front of the last, the one behind it, as long as there is one.
        window = (index - run.start) // run.length
        ahead = min(extra, run.count - 1 - window)
        extra -= ahead
        name = self.definitions[index + ahead * run.length][number]
        return f"{name}{self.mark}{extra}" if extra else name

    def renamed(self, steps: Any, extra: int) -> list[rt.Step]:
        """Steps as those of the windows or the calls that come `extra` windows later."""
        return [map_names(step, lambda name: self.name(name, extra)) for step in steps]

    def explained(self, steps: list[rt.Step], extra: int) -> list[rt.Step]:
        """Steps with the values and lines of the layers that they belong to."""
        result: list[rt.Step] = []
        for step in steps:
            if isinstance(step, (rt.Launch, rt.Extern)):
                computes, lines = self.origins(step, extra)
                step = replace(step, computes=computes, lines=lines)
            result.append(step)
        return result

    def origins(
        self, step: rt.Launch | rt.Extern, extra: int
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The values that a step computes, `extra` windows later, and the user's lines of these."""
        computes: list[str] = []
        lines: dict[str, None] = {}
        for name in step.computes:
            address = self.short.values.get(name)
            if address is None:
                computes.append(name)
                continue
            new, line = self.short.names[address[0], address[1] + extra]
            computes.append(new)
            lines[line] = None
        if not all(self.short.values.get(name) for name in step.computes):
            return tuple(computes), step.lines
        return tuple(computes), tuple(filter(None, lines))

    def declared(self, run: Run) -> list[rt.Tensor]:
        """The tensors of the whole Program."""
        result: dict[str, rt.Tensor] = {}
        examples = {address[0]: self.tensors[name] for name, address in self.labels.items()}
        for number, address in (
            (number, address) for address, number in self.short.input_at.items()
        ):
            name = f"arg{number}"
            result[name] = replace(examples[address[0]], name=name)
        for tensor in self.program.tensors:
            name = self.name(tensor.name, 0)
            result[name] = replace(tensor, name=name)
        for index in range(run.stop - run.length, run.stop):
            for name in self.definitions[index]:
                if name in self.tensors:
                    for extra in range(1, self.short.dropped + 1):
                        new = f"{name}{self.mark}{extra}"
                        result[new] = replace(self.tensors[name], name=new)
        return list(result.values())

    def outputs(self, run: Run) -> tuple[Any, ...]:
        """The outputs of the whole Program: those of layers that were left out are computed in the
        windows that were added.
        """
        short = self.short
        made: dict[int, dict[int, Any]] = {}
        for value, name in zip(short.graph.outputs, self.program.outputs, strict=True):
            address = short.values.get(value.name) if isinstance(value, Value) else None
            if address is not None:
                made.setdefault(address[0], {})[address[1]] = name
            elif name in self.place and run.start <= self.place[name][0] < run.stop:
                raise _NotRepeated
        newest = {kind: self.newest(run, names) for kind, names in made.items()}
        result: list[Any] = []
        for source in short.outputs:
            if isinstance(source, int):
                value, name = short.graph.outputs[source], self.program.outputs[source]
                address = short.values.get(value.name) if isinstance(value, Value) else None
                if address is None:
                    result.append(self.name(name, 0) if isinstance(name, str) else name)
                    continue
                kind, copy = address
                copy += short.dropped if copy >= FIRST else 0
            else:
                kind, copy = source
            result.append(self.output(run, made[kind], newest[kind], copy))
        return tuple(result)

    def newest(self, run: Run, names: dict[int, Any]) -> int | None:
        """The last copy whose result a window computes, one position for all copies."""
        found = {}
        for copy, name in names.items():
            index, number = self.place.get(name, (-1, 0))
            if run.start <= index < run.stop:
                window, position = divmod(index - run.start, run.length)
                found[copy] = (window - copy, position, number)
        if len(set(found.values())) > 1:
            raise _NotRepeated
        return max(found, default=None)

    def output(self, run: Run, names: dict[int, Any], newest: int | None, copy: int) -> str:
        """The result of a copy of the whole graph."""
        dropped = self.short.dropped
        if newest is not None and newest <= copy <= newest + dropped:
            return self.name(names[newest], copy - newest)
        is_early = copy < FIRST or (newest is not None and copy < newest)
        name = names.get(copy if is_early else copy - dropped)
        if not isinstance(name, str):
            raise _NotRepeated
        index = self.place.get(name, (-1, 0))[0]
        if name in self.inputs or (index >= run.stop if is_early else index < run.stop):
            raise _NotRepeated
        return name
