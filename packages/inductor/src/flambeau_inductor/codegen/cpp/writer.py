"""The text of one kernel as it grows: lines, blocks, loops and statements."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.cpp.cpp_types import literal, storage_type, value_type
from flambeau_inductor.codegen.cpp.hidden_integers import chosen_integers, hidden_values
from flambeau_inductor.codegen.cpp.plan import static_product
from flambeau_inductor.codegen.cpp.printer import CppPrinter
from flambeau_inductor.codegen.short_erf import sums_of_erf
from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import Axis, CheckIndex, Compute, Constant, Load, Store, index_of
from flambeau_inductor.scalar_ops import Replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import sympy

    from flambeau_inductor.ir import LoopKernel, Statement
    from flambeau_inductor.scheduler.phases import Phase


def is_checked(kernel: LoopKernel) -> bool:
    """Whether the kernel returns a status: nonzero if an index was out of bounds."""
    return any(isinstance(statement, CheckIndex) for statement in kernel.body)


def is_narrowing(statement: Statement, dtypes: Mapping[str, torch.dtype]) -> bool:
    """Whether a float becomes an integer of one or two bytes."""
    if not isinstance(statement, Compute) or statement.op != "cast":
        return False
    source, to = dtypes[statement.args[0]], statement.dtype
    return source.is_floating_point and not to.is_floating_point and to.itemsize < 4


class LoopWriter:
    """Writes the loops and statements of a kernel. `staged`: the C++ of loads from a tile.
    `streamed`: the buffers that are stored around the caches, with the axes of the stores.
    `whole_row`: the bounds of rows of whole tiles, if the kernel goes by tiles.
    `row_axis`: the innermost axis of a phase's loops.
    `row_names`: (value, descending) -> the row that holds it while it is sorted.
    """

    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel = kernel
        self.printer = CppPrinter()
        self.printer.sums_of_erf = sums_of_erf(kernel.body)
        self.replay = Replay(self.printer)
        self.text: list[str] = []
        self.depth = 0
        self.checked = is_checked(kernel)
        self.checks = {s.value: s for s in kernel.body if isinstance(s, CheckIndex)}
        self.dtypes = {
            s.name: s.dtype for s in kernel.body if not isinstance(s, (Store, CheckIndex))
        }
        self.staged: dict[str, str] = {}
        self.streamed: dict[str, tuple[Axis, ...]] = {}
        self.whole_row: tuple[str, str] | None = None
        if kernel.inner:
            self.row_axis = kernel.inner[-1]
        self.ordered = False
        """Whether points of the vector loop must come one after another."""
        self.row_names: dict[tuple[str, bool], str] = {}
        self.phases: tuple[Phase, ...] = ()

    def line(self, text: str) -> None:
        """Append a line, indented."""
        self.text.append("  " * self.depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """`head {` ... `}`; what was renamed inside is forgotten after."""
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        renamed, guards = dict(self.printer.renamed), dict(self.printer.guards)
        yield
        self.printer.renamed, self.printer.guards = renamed, guards
        self.depth -= 1
        self.line("}")

    def loop(self, variable: str, begin: str, end: str):  # type: ignore[no-untyped-def]
        """A counting loop."""
        return self.block(f"for (int64_t {variable} = {begin}; {variable} < {end}; ++{variable})")

    def size(self, axis: Axis) -> str:
        """The size of an axis in C++."""
        text = self.printer.index_text(axis.size)
        return text if text.isalnum() else f"({text})"

    def product(self, axes: Sequence[Axis]) -> str:
        """The number of points of some axes in C++."""
        static = static_product(tuple(axes))
        if static is not None:
            return f"INT64_C({static})" if static >= 1 << 31 else str(static)
        return " * ".join(self.size(axis) for axis in axes)

    def declarations(self) -> None:
        """Parameters, sizes, and the status."""
        for number, param in enumerate(self.kernel.params):
            const = "const " if param.access == "read" else ""
            ctype = storage_type(param.dtype)
            self.line(
                f"{const}{ctype} *__restrict {param.name} = ({const}{ctype} *)buffers[{number}];"
            )
        self.size_declarations()
        self.bound_declarations()
        self.hidden_declarations()
        if self.checked:
            self.line("int64_t bad = 0;")

    def bound_declarations(self) -> None:
        """Bounds of floats that become small integers, hidden from the compiler: it would compare
        floats, but select integers, which takes three times as long.
        """
        body = self.kernel.body
        if not any(is_narrowing(statement, self.dtypes) for statement in body):
            return
        compared = {
            name
            for s in body
            if isinstance(s, Compute) and s.op in ("maximum", "minimum")
            for name in s.args
        }
        for s in body:
            if isinstance(s, Constant) and s.name in compared and s.dtype.is_floating_point:
                bound = self.printer.bounds[s.name] = f"{s.name}_bound"
                text = literal(s.value, s.dtype)
                self.line(f'{value_type(s.dtype)} {bound} = {text}; __asm__("" : "+m"({bound}));')

    def hidden_declarations(self) -> None:
        """Integers that are chosen for an index, hidden from the compiler (`hidden_integers`)."""
        chosen = chosen_integers(self.kernel.body)
        if chosen is None:
            return
        self.printer.chosen = frozenset(chosen)
        self.printer.hidden = hidden_values(self.kernel.body, chosen)
        for number, name in self.printer.hidden.items():
            text = literal(number, torch.int64)
            self.line(f'int64_t {name} = {text}; __asm__("" : "+r"({name}));')

    def size_declarations(self) -> None:
        """The symbolic sizes as C constants."""
        for number, size in enumerate(self.kernel.sizes):
            self.line(f"const int64_t {size.name} = ints[{number}];")

    def statements(self, statements: Iterable[Statement]) -> None:
        """Replay statements here; an index with a CheckIndex is made safe in each scope."""
        self.printer.rounded = {}
        for statement in statements:
            index = index_of(statement)
            if index is not None:
                self.make_safe(index)
            if isinstance(statement, Load) and statement.name in self.staged:
                test = " != 0" if statement.dtype == torch.bool else ""
                self.replay.values[statement.name] = self.printer.bind(
                    statement, self.staged[statement.name] + test
                )
                self.replay.dtypes[statement.name] = statement.dtype
            else:
                self.replay.step(statement)
        self.flush()

    def make_safe(self, index: sympy.Expr) -> None:
        """Replace names in an index that are checked by what is safe to access."""
        for name in sorted(free_names(index)):
            if name in self.checks and name not in self.printer.guards:
                self.printer.make_safe(name, self.checks[name].size)

    def flush(self) -> None:
        """Write the lines that the printer has made."""
        for text in self.printer.lines:
            self.line(text)
        self.printer.lines = []

    def simd(self, *clauses: tuple[str, str] | None) -> None:
        """The pragma, with its reductions."""
        if self.ordered:
            return
        text = "".join(f" reduction({sign}:{name})" for name, sign in filter(None, clauses))
        self.line(f"#pragma omp simd{text}")

    def position(self) -> str:
        """The row-major position in the inner axes."""
        text = ""
        for axis in self.kernel.inner:
            name = axis.symbol.name
            text = f"({text}) * {self.size(axis)} + {name}" if text else name
        return text
