"""What a Program does, as data for reports: its kernels and calls of ATen with the user's lines and
the bytes that they touch, its memory step by step, and the graph that it was compiled from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flambeau_prims.graph import Value
from flambeau_prims.sizes import hint_of
from flambeau_runtime.arena import byte_size
from flambeau_runtime.dims import evaluate
from flambeau_runtime.externs import refs_of
from flambeau_runtime.peak_memory import live_bytes
from flambeau_runtime.program import Allocate, Extern, Launch, View
from flambeau_runtime.program_text import format_step, format_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flambeau_prims.graph import Graph, Node
    from flambeau_runtime.program import Program, Step

_KERNEL_BEGINS = re.compile(r"^(?=// kernel )", re.MULTILINE)


@dataclass(frozen=True)
class StepExplanation:
    """One step of a Program: its text, what runs ("" for one that only names memory), the tensors
    that this touches and their bytes, and the bytes that are alive during it.

    renames: (new name, old name) of memory that a step names again.
    """

    text: str
    runs: str
    lines: tuple[str, ...]
    names: tuple[str, ...]
    bytes_touched: int
    live_bytes: int
    renames: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class KernelExplanation:
    """One kernel: its source, how often a call launches it, the user's lines that it computes, and
    the bytes that one launch touches: each tensor once, twice if it is updated in place.

    computes: the values of the compiled graph that it computes.
    tensors: the buffers of its first launch, as text.
    """

    name: str
    language: str
    source: str
    launches: int
    lines: tuple[str, ...]
    computes: tuple[str, ...]
    tensors: tuple[str, ...]
    bytes_touched: int


@dataclass(frozen=True)
class OperationExplanation:
    """One call of the compiled graph: the value that it makes, its operator and operands, the
    user's line, and the step that computes it (-1: none does, as a view or what is inlined).
    """

    name: str
    operator: str
    operands: tuple[str, ...]
    tensor: str
    line: str
    step: int


@dataclass(frozen=True)
class ProgramExplanation:
    """A Program: `inputs` are the bytes of its arguments, `sizes` the value of each symbol that the
    bytes are for. `operations` is empty if the compiled graph is not known, as for a Program that
    was read from the cache.
    """

    name: str
    steps: tuple[StepExplanation, ...]
    kernels: tuple[KernelExplanation, ...]
    operations: tuple[OperationExplanation, ...]
    outputs: tuple[str, ...]
    sizes: dict[str, int]
    argument_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are alive at a time."""
        return max([self.argument_bytes, *(step.live_bytes for step in self.steps)])


def likely_sizes(program: Program, graph: Graph | None) -> dict[str, int]:
    """The symbols of a Program as they were on the compiled call; numbers that are no sizes are 0.
    Empty if the graph is not known.
    """
    sizes: dict[str, int] = {}
    for symbol in program.symbols:
        if graph is None:
            return {}
        given = graph.inputs[symbol.input]
        if symbol.is_float or symbol.is_element:
            sizes[symbol.name] = 0
        elif isinstance(given, Value):
            sizes[symbol.name] = hint_of(given.spec.shape[symbol.dim or 0])
        else:
            sizes[symbol.name] = hint_of(given)
    return sizes


def explain_program(program: Program, graph: Graph | None) -> ProgramExplanation:
    """The explanation of a Program that was compiled from a graph."""
    sizes = likely_sizes(program, graph)
    known = len(sizes) == len(program.symbols)
    touched = _bytes_touched(program, sizes) if known else [0] * len(program.steps)
    alive = live_bytes(program, sizes) if known else [0] * (len(program.steps) + 1)
    tensors = {tensor.name: tensor for tensor in program.tensors}
    steps = tuple(
        StepExplanation(
            format_step(step, tensors),
            str(getattr(step, "kernel", getattr(step, "op", ""))),
            getattr(step, "lines", ()),
            tuple(_touched(step)),
            count,
            live,
            _renames(step),
        )
        for step, count, live in zip(program.steps, touched, alive[1:], strict=True)
    )
    return ProgramExplanation(
        program.name,
        steps,
        tuple(_kernels(program, steps)),
        () if graph is None else tuple(_operations(program, graph)),
        () if graph is None else tuple(o.name for o in graph.outputs if isinstance(o, Value)),
        sizes,
        alive[0],
    )


def _touched(step: Step) -> list[str]:
    """The tensors that a launch or a call reads or writes."""
    if isinstance(step, Launch):
        return list(dict.fromkeys(step.buffers))
    if isinstance(step, Extern):
        names = [*refs_of((step.args, step.kwargs)), *filter(None, step.outputs)]
        return list(dict.fromkeys([*names, *dict(step.out).values()]))
    return []


def _renames(step: Step) -> tuple[tuple[str, str], ...]:
    if isinstance(step, View):
        return ((step.name, step.base),)
    if isinstance(step, Allocate) and step.in_place and step.reuse is not None:
        return ((step.name, step.reuse),)
    return ()


def _bytes_touched(program: Program, sizes: Mapping[str, int]) -> list[int]:
    """For each step the bytes of the tensors that it reads or writes."""
    tensors = {tensor.name: tensor for tensor in program.tensors}
    updated: set[str] = set()
    result = []
    for step in program.steps:
        names = _touched(step)
        if isinstance(step, Allocate) and step.in_place:
            updated.add(step.name)
        counts = (2 if name in updated else 1 for name in names)
        each = (int(evaluate(byte_size(tensors[name]), dict(sizes))) for name in names)
        result.append(sum(count * size for count, size in zip(counts, each, strict=True)))
        updated -= set(names)  # by now it is written
    return result


def _kernels(program: Program, steps: tuple[StepExplanation, ...]) -> list[KernelExplanation]:
    tensors = {tensor.name: tensor for tensor in program.tensors}
    result = []
    for kernel in program.kernels:
        launches = [
            (step, about)
            for step, about in zip(program.steps, steps, strict=True)
            if isinstance(step, Launch) and step.kernel == kernel.name
        ]
        if not launches:
            continue
        source = program.sources[kernel.source]
        result.append(
            KernelExplanation(
                kernel.name,
                source.language,
                kernel_text(source.text, kernel.name),
                len(launches),
                tuple(dict.fromkeys(line for _, about in launches for line in about.lines)),
                tuple(dict.fromkeys(name for step, _ in launches for name in step.computes)),
                tuple(f"{name}: {format_tensor(tensors[name])}" for name in launches[0][0].buffers),
                launches[0][1].bytes_touched,
            )
        )
    return result


def kernel_text(source: str, name: str) -> str:
    """The part of a source that is one kernel, its loop IR above it; all of it, if it has no such
    parts.
    """
    parts = _KERNEL_BEGINS.split(source)
    return next((part.strip() for part in parts[1:] if f" {name}(" in part), source.strip())


def _operations(program: Program, graph: Graph) -> list[OperationExplanation]:
    computed: dict[str, int] = {}
    for number, step in enumerate(program.steps):
        for name in getattr(step, "computes", ()):
            computed.setdefault(name, number)
    inputs = [value for value in graph.inputs if isinstance(value, Value)]
    result = [
        OperationExplanation(value.name, "input", (), _tensor_text(value), "", -1)
        for value in inputs
    ]
    for node in graph.nodes:
        outputs = [out for out in node.outputs if out is not None]
        if outputs:
            number = next((computed[out.name] for out in outputs if out.name in computed), -1)
            result.append(_operation(node, outputs, number))
    return result


def _operation(node: Node, outputs: list[Value], step: int) -> OperationExplanation:
    """The others of several results are known by the first one's name."""
    operands = dict.fromkeys(_first_name(value) for value in node.operands())
    operator = str(getattr(node.op, "name", node.op))
    operator = operator.removeprefix("prims.").removeprefix("aten::")
    text = ", ".join(map(_tensor_text, outputs))
    return OperationExplanation(
        outputs[0].name, operator, tuple(operands), text, str(node.where), step
    )


def _first_name(value: Value) -> str:
    if value.producer is None:
        return value.name
    return next(out.name for out in value.producer.outputs if out is not None)


def _tensor_text(value: Any) -> str:
    spec = value.spec
    return f"{str(spec.dtype).removeprefix('torch.')}[{', '.join(map(str, spec.shape))}]"
