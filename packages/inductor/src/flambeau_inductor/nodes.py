"""What lowering hands to the scheduler: buffers, loop nests and extern calls, in program order.

buf0 = nest add_tanh { outer i0 < 4096; v0 = load arg0[i0]; ...; store buf0[i0] v2 }
buf1 = extern aten.mm(view of buf0, arg1)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flambeau_inductor.ir import CheckIndex, Load, Store, dtype_name, format_statement

if TYPE_CHECKING:
    from flambeau_inductor.attention import Attention
    from flambeau_inductor.indexing.sizes import SizeTable
    from flambeau_inductor.ir import Axis, Body, Integer
    from flambeau_prims.graph import Graph
    from flambeau_prims.graph import Node as GraphNode
    from flambeau_prims.spec import Size, Spec
    from flambeau_runtime.program import Symbol


@dataclass(eq=False, slots=True)
class Buffer:
    """A named range of memory. `role`: "input", "computed" (by nests; the program allocates
    it) or "extern" (the result of an extern call that makes its own memory).
    """

    name: str
    spec: Spec
    role: str


@dataclass(eq=False, slots=True)
class LoopNest:
    """One loop nest before fusion: an ir.Body over Buffer names, with axes "i0".. and "r0".."""

    order: int
    device: str
    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    body: Body
    label: str
    where: str = ""
    keeps_casts: bool = False
    """Whether its values are rounded where it says so, though wider ones are at hand."""
    shares: Integer = 0
    """The number of shares of the outer points (`ir.LoopKernel.shares`)."""
    host_reads: tuple[str, ...] = ()
    """Buffers on the CPU whose elements a launch passes by value (`elements.host_value`)."""
    computes: dict[GraphNode, None] = field(default_factory=dict)
    """The calls of the graph that it computes: its result's, and those inlined into it."""
    loads: dict[str, list[Load | Store]] = field(init=False)
    """By buffer, what reads it: a scatter changes what is there."""
    stores: dict[str, list[Store]] = field(init=False)

    def __post_init__(self) -> None:
        self.loads, self.stores = {}, {}
        for statement in self.body:
            if isinstance(statement, Load):
                self.loads.setdefault(statement.buffer, []).append(statement)
            elif isinstance(statement, Store):
                self.stores.setdefault(statement.buffer, []).append(statement)
                if statement.mode:
                    self.loads.setdefault(statement.buffer, []).append(statement)

    @property
    def reads(self) -> set[str]:
        """Names of the buffers it reads."""
        return {*self.loads, *self.host_reads}

    @property
    def writes(self) -> set[str]:
        """Names of the buffers it writes."""
        return set(self.stores)

    @property
    def scattered(self) -> dict[str, str]:
        """The buffers that it writes at computed places, with the modes of the scatters."""
        return {s.buffer: s.mode for stores in self.stores.values() for s in stores if s.mode}

    @property
    def can_raise(self) -> bool:
        """Whether it raises where an index is out of bounds, as kernels on a CPU do."""
        return self.device == "cpu" and self.relies_on_checks

    @property
    def relies_on_checks(self) -> bool:
        """Whether it may fail for what it reads: on an accelerator, an index out of bounds ends the
        process. (Integers are divided by 0 without harm.)
        """
        return any(isinstance(s, CheckIndex) for s in self.body)

    def __str__(self) -> str:
        axes = [f"{axis.symbol} < {axis.size}" for axis in self.outer]
        inner = [f"{axis.symbol} < {axis.size}" for axis in self.inner]
        head = f"nest {self.label} ({', '.join(axes)}" + (
            f" | {', '.join(inner)})" if inner else ")"
        )
        return "\n".join([head, *(f"  {format_statement(statement)}" for statement in self.body)])


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor as an argument of an extern call: a buffer, seen through a Spec."""

    buffer: str
    spec: Spec


@dataclass(frozen=True, slots=True)
class SizeRef:
    """A symbolic int as an argument of an extern call."""

    size: Size


@dataclass(eq=False, slots=True)
class ExternCall:
    """A call of ATen.  Arguments nest TensorRef, SizeRef and plain values.

    `results`: buffers of role "extern" that it makes (None: dropped). `out`: (keyword, buffer)
    pairs of role "computed" that it writes; `mutates`: the buffers of arguments that it changes in
    place, which count as read, too. `effect`: it draws random numbers or checks the data
    (`is_check`), and so stays, at its place among its like. `may_alias`: a result may be a window
    on an operand. `can_raise`: for what its operands hold.
    """

    order: int
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[str | None, ...]
    out: tuple[tuple[str, str], ...]
    reads: set[str]
    device: str
    side_effect: bool = False
    is_check: bool = False
    may_alias: bool = False
    can_raise: bool = False
    where: str = ""
    mutates: tuple[str, ...] = ()
    attention: Attention | None = None
    """What a kernel of our own computes instead of a library; `out` are its results."""
    computes: dict[GraphNode, None] = field(default_factory=dict)
    """The calls of the graph that it computes."""
    overwrites: tuple[tuple[str, str], ...] = ()
    """Buffers that it reads, as operands without gaps, and such that it may write over them."""

    @property
    def relies_on_checks(self) -> bool:
        """Whether it may fail for what it reads, as far as anyone knows."""
        return True

    @property
    def writes(self) -> set[str]:
        """Names of the buffers it writes or makes."""
        made = {name for name in self.results if name is not None}
        return made | {name for _, name in self.out} | {*self.mutates}

    def __str__(self) -> str:
        results = ", ".join(name or "_" for name in self.results)
        out = "".join(f", {key}={name}" for key, name in self.out)
        args = ", ".join([*map(str, self.args), *(f"{k}={v}" for k, v in self.kwargs.items())])
        return f"{results + ' = ' if results else ''}extern {self.op}({args}{out})"


Node = LoopNest | ExternCall


@dataclass(eq=False, slots=True)
class Lowered:
    """A graph as nests and extern calls. `inputs`: names in call order; those that are no buffers
    are ints. `outputs`: TensorRef, SizeRef or None, as the graph's. `updated`: buffers that are
    written again, at some places, when all of them have been written: an order of writes matters.
    `frozen`: inputs that hold the same numbers in nearly all calls.
    """

    graph: Graph
    sizes: SizeTable
    symbols: tuple[Symbol, ...] = ()
    inputs: list[str] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[TensorRef | SizeRef | None] = field(default_factory=list)
    write_counts: dict[str, int] = field(default_factory=dict)
    updated: set[str] = field(default_factory=set)
    compared: set[str] = field(default_factory=set)
    """Buffers that no kernel both writes and reads (`Realized.compared`)."""
    frozen: frozenset[str] = frozenset()

    def __str__(self) -> str:
        lines = [
            f"{b.name}: {dtype_name(b.spec.dtype)}{list(b.spec.shape)} {b.role}"
            for b in self.buffers.values()
        ]
        return "\n".join([*lines, *map(str, self.nodes)])
