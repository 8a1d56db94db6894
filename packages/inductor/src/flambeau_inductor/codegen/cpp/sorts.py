"""Sorts of rows in C++: the row is stored, its positions are sorted by keys, and later loops read
the row in that order.

    float row_v1[512]; for (r0 ...) row_v1[r0] = v0;
    sort_row<false>(row_v1, 512, keys_v1, order_v1);
    for (r0 ...) { const float v1 = row_v1[order_v1[r0]]; const int64_t v2 = order_v1[r0]; ... }

Halves are sorted as floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.codegen.cpp.cpp_types import HALVES, storage_type, value_type

if TYPE_CHECKING:
    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Sort
    from flambeau_inductor.scheduler.phases import Phase


def _sorted_rows(phases: tuple[Phase, ...]) -> dict[tuple[str, bool], str]:
    """(value, descending) -> the name of its row: values and positions of one order share it."""
    names: dict[tuple[str, bool], str] = {}
    for phase in phases:
        for sort in phase.sorts:
            names.setdefault((sort.value, sort.descending), sort.name)
    return names


def declare_rows(writer: LoopWriter, phases: tuple[Phase, ...]) -> None:
    """Memory for the rows, their keys, and the order."""
    writer.row_names = _sorted_rows(phases)
    if not writer.row_names:
        return
    length = max(1, int(writer.product(writer.kernel.inner)))
    for (value, _), name in writer.row_names.items():
        dtype = writer.dtypes[value]
        ctype = "float" if dtype in HALVES else storage_type(dtype)
        writer.line(f"{ctype} row_{name}[{length}];")
        writer.line(f"sort_key<{ctype}> keys_{name}[{2 * length}];")
        writer.line(f"int32_t order_{name}[{length}];")


def collect(writer: LoopWriter, phase: Phase) -> None:
    """Store an element of what will be sorted."""
    for key in dict.fromkeys((sort.value, sort.descending) for sort in phase.sorts):
        half = HALVES.get(writer.dtypes[key[0]])
        value = f"from_{half}({key[0]})" if half else key[0]
        writer.line(f"row_{writer.row_names[key]}[{writer.position()}] = {value};")


def sort_rows(writer: LoopWriter, phase: Phase) -> None:
    """Sort the rows that a phase has stored."""
    count = writer.product(writer.kernel.inner)
    for key in dict.fromkeys((sort.value, sort.descending) for sort in phase.sorts):
        name, down = writer.row_names[key], "true" if key[1] else "false"
        writer.line(f"sort_row<{down}>(row_{name}, {count}, keys_{name}, order_{name});")


def fetch(writer: LoopWriter, sort: Sort) -> None:
    """Read an element of a sorted row."""
    name, position = writer.row_names[sort.value, sort.descending], writer.position()
    order = f"order_{name}[{position}]"
    half = HALVES.get(sort.dtype)
    text = order if sort.kind == "positions" else f"row_{name}[{order}]"
    text = f"to_{half}({text})" if half else text
    writer.line(f"const {value_type(sort.dtype)} {sort.name} = {text};")
    writer.replay.values[sort.name] = sort.name
    writer.replay.dtypes[sort.name] = sort.dtype
