"""Tiles of rows that belong to groups: each tile has rows of one group.

rows of groups 5, 0, 20 in tiles of 16  ->  tile 0: rows 0-4; tiles 1, 2: rows 5-20, 21-24

How many rows a group has is known when the kernel runs. There are programs for as many tiles as
there may be; those behind the last tile end at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.indexing.expressions import integer_text

if TYPE_CHECKING:
    from flambeau_inductor.lowering.row_groups import RowGroups


def tile_count(points: int, block: int, groups: RowGroups | None) -> int:
    """How many tiles some points make, or at the most make in groups."""
    return -(-points // block) if groups is None else points // block + groups.count


def tile_text(points: str, block: int, groups: RowGroups | None) -> str:
    """The same for a number that is known when the kernel runs."""
    if groups is None:
        return f"(({points} + {block - 1}) // {block})"
    return f"(({points}) // {block} + {groups.count})"


def place_in_group(groups: RowGroups, rows: str) -> list[str]:
    """Lines that find for tile `row` its `group`, its `first` row and the row `behind` its group.
    Of no group's tile, `group` is not below the number of groups. The rows behind the last bound
    are the last group's: what else the kernel stores is stored for them, too.
    """
    lanes = max(2, 1 << (groups.count - 1).bit_length())
    place = f"{groups.bounds} + {integer_text(groups.offset)} + groups"
    return [
        f"groups = tl.arange(0, {lanes})",
        f"ends = tl.load({place}, groups < {groups.count - 1}, other=0)",
        f"ends = tl.where(groups < {groups.count - 1}, ends, {rows}).to(tl.int32)",
        f"starts = tl.load({place} - 1, (groups > 0) & (groups < {groups.count}), other=0)",
        "counts = tl.maximum((ends - starts + XBLOCK - 1) // XBLOCK, 0)",
        f"counts = tl.where(groups < {groups.count}, counts, 0)",
        "totals = tl.cumsum(counts, 0)",
        "group = tl.sum((totals <= row).to(tl.int32), 0)",
        "first = tl.sum(tl.where(totals <= row, counts, 0), 0)",
        "begin = tl.sum(tl.where(groups == group, starts, 0), 0)",
        f"behind = tl.minimum(tl.sum(tl.where(groups == group, ends, 0), 0), {rows})",
        "first = begin + (row - first) * XBLOCK",
    ]
