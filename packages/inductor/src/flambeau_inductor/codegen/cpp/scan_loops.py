"""Loops over rows that scan, element after element in the direction of the Scans.

    double v1_carry = 0;
    for (r0 = 0; r0 < 512; ++r0) { ...; v1_carry += v0; const float v1 = (float)v1_carry; ... }

Where columns lie side by side each has a carry, and the loop over them is a vector loop.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from flambeau_inductor.codegen.cpp.elements import write_element
from flambeau_inductor.codegen.cpp.reductions import places
from flambeau_inductor.codegen.cpp.scans import carry_start, carry_type
from flambeau_inductor.ir import Scan, scan_direction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_inductor.codegen.cpp.reductions import Accumulator
    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Body
    from flambeau_inductor.scheduler.phases import Phase


def _declare_carries(writer: LoopWriter, body: Body, length: int | None) -> None:
    """The carries of a loop's Scans: of a row, or one each for so many columns."""
    for scan in body:
        if not isinstance(scan, Scan):
            continue
        if length is None:
            writer.line(f"{carry_type(scan)} {scan.name}_carry = {carry_start(scan)};")
        else:
            writer.line(f"{carry_type(scan)} {scan.name}_carry[{length}];")
            loop = f"for (int64_t c = 0; c < {length}; ++c)"
            writer.line(f"{loop} {scan.name}_carry[c] = {carry_start(scan)};")


@contextmanager
def scan_loops(writer: LoopWriter, body: Body, columns: int | None = None) -> Iterator[None]:
    """The carries of the body's Scans, if any, and loops over the inner axes in their direction."""
    direction = scan_direction(body)
    with ExitStack() as opened:
        if direction is not None:
            opened.enter_context(writer.block(""))
            _declare_carries(writer, body, columns)
        for axis in writer.kernel.inner:
            name, size = axis.symbol.name, writer.size(axis)
            if direction:
                opened.enter_context(writer.block(f"for (int64_t {name} = {size}; {name}-- > 0;)"))
            else:
                opened.enter_context(writer.loop(name, "0", size))
        yield


def write_scan_loop(writer: LoopWriter, phase: Phase, accumulators: dict[str, Accumulator]) -> None:
    """A phase of a row that scans: element after element."""
    with scan_loops(writer, phase.inner):
        write_element(writer, phase, phase.inner)
        for reduce in phase.reduces:
            accumulator, name = accumulators[reduce.name], reduce.name
            whole = places("s", f"{name}_all")
            if not accumulator.vectorised:
                for text in accumulator.take:
                    writer.line(text.format(**whole, v=reduce.value, at=writer.position()))
                continue
            for ctype, suffix, start in accumulator.part:
                writer.line(f"{ctype} {name}_part{suffix} = {start};")
            part = places("q", f"{name}_part")
            for text in accumulator.take:
                writer.line(text.format(**part, v=reduce.value))
            for text in accumulator.join:
                writer.line(text.format(**whole, **part))
