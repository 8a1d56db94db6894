"""Reductions in Triton: how each kind of Reduce reduces a tile, and how it runs along a loop.

A looped reduction has a running tile [XBLOCK, RBLOCK] for each of its accumulators, advanced lane
by lane, and reduces across the lanes once, behind the loop:

    sum                   v_tile += x; in a long loop v_tile goes to v_total after every TURN steps,
                          for rounding errors grow with the number of additions in turn
    sum_exp               the greatest element so far of a few neighbouring lanes, v_top, and their
                          sum of exp(x - v_top)
    squared_deviations    the distances to the lane's first element, v_first: their sum, v_sum, and
                          that of their squares; these cancel little, however far x is from 0
    mean                  the same without squares
    argmax                the lane's greatest element, and its position v_at

A lane whose row has ended keeps what it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.triton.ops import TRITON_TYPES, extremum, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_inductor.ir import Reduce

POSITIONS = frozenset(("argmax", "argmin"))

SUBTRACTING = frozenset(("sum_exp", "squared_deviations", "mean", "logaddexp"))
"""Kinds, of scans too, that subtract from the elements a number that these are reduced to."""

TURN = 32
"""Float sums of a lane that are added to its total at once."""

LONG_LOOP = 2 * TURN
"""Steps of a loop whose sums have such totals."""


@dataclass(frozen=True)
class RowContext:
    """What a reduction knows of its row.

    `fits`: no lane is ever outside; `length`: the row's length as text; `index`: the type of
    positions; `helper` puts a helper function into the source and returns its name; `line` writes a
    line of code; `known`: results by kind and value.
    """

    fits: bool
    length: str
    index: str
    helper: Callable[[str], str]
    line: Callable[[str], None]
    known: dict[tuple[str, str], str]
    group: int = 1
    is_long: bool = False
    """Whether a loop has many steps."""

    def inside(self, new: str, old: str) -> str:
        """`new` in the lanes that lie inside the row, `old` outside."""
        return new if self.fits else f"tl.where(rmask, {new}, {old})"


def identity(kind: str, dtype: torch.dtype) -> str:
    """What a reduction starts from, as text."""
    if kind in ("sum", "any", "squared_deviations", "mean"):
        return "False" if dtype is torch.bool else number(0, dtype)
    if kind in ("prod", "all"):
        return "True" if dtype is torch.bool else number(1, dtype)
    largest = kind in ("min", "argmin")
    if dtype is torch.bool:
        return str(largest)
    if dtype.is_floating_point:
        return number(float("inf") if largest else float("-inf"), dtype)
    info = torch.iinfo(dtype)
    return number(info.max if largest else info.min, dtype)


# A whole row in one tile


def reduce_row(row: RowContext, kind: str, value: str, dtype: torch.dtype, name: str) -> str:
    """A Reduce of a row that lies in one tile, as an expression."""
    full = f"tl.broadcast_to({value}, [XBLOCK, RBLOCK])"
    zero = identity("sum", dtype)
    if kind == "mean":
        return _mean_of_row(row, value, dtype, name)
    if kind == "squared_deviations":
        row.line(f"{name}_far = {full} - {_mean_of_row(row, value, dtype, f'{name}_mean')}")
        return reduce_tile(row, "sum", row.inside(f"{name}_far * {name}_far", zero), dtype)
    if kind == "sum_exp":
        top = _reduced_once(row, "max", value, dtype, f"{name}_top")
        row.line(f"{name}_weights = tl.exp({full} - {top})")
        return reduce_tile(row, "sum", row.inside(f"{name}_weights", zero), dtype)
    if kind in POSITIONS:
        masked = row.inside(full, identity(kind, dtype))
        places = "tl.broadcast_to(rindex, [XBLOCK, RBLOCK])"
        row.line(f"{name}_most, {name}_at = {first_extremes(row, kind, masked, places)}")
        row.known.setdefault((kind.removeprefix("arg"), value), f"{name}_most[:, None]")
        return f"{name}_at[:, None].to(tl.int64)"
    return _reduced_once(row, kind, value, dtype, name)


def _mean_of_row(row: RowContext, value: str, dtype: torch.dtype, name: str) -> str:
    """The mean of a row in one tile, with the mean of the distances to it added: rounding makes it
    not differ from equal elements.
    """
    if ("mean", value) not in row.known:
        total = _reduced_once(row, "sum", value, dtype, f"{name}_total")
        row.line(f"{name}_near = {total} / {row.length}")
        row.line(f"{name}_rest = tl.broadcast_to({value}, [XBLOCK, RBLOCK]) - {name}_near")
        rest = reduce_tile(row, "sum", row.inside(f"{name}_rest", identity("sum", dtype)), dtype)
        row.line(f"{name} = {name}_near + {rest} / {row.length}")
        row.known["mean", value] = name
    return row.known["mean", value]


def _reduced_once(row: RowContext, kind: str, value: str, dtype: torch.dtype, name: str) -> str:
    """A reduction of a row in one tile, which other reductions of the row may need too."""
    if (kind, value) not in row.known:
        masked = row.inside(f"tl.broadcast_to({value}, [XBLOCK, RBLOCK])", identity(kind, dtype))
        row.line(f"{name} = {reduce_tile(row, kind, masked, dtype)}")
        row.known[kind, value] = name
    return row.known[kind, value]


def reduce_tile(row: RowContext, kind: str, tile: str, dtype: torch.dtype) -> str:
    """`tile` [XBLOCK, RBLOCK] reduced to [XBLOCK, 1]."""
    if kind == "sum":
        return f"tl.sum({tile}, 1)[:, None]"
    if kind in ("any", "all"):
        extreme = "max" if kind == "any" else "min"
        return f"(tl.{extreme}({tile}.to(tl.int32), 1)[:, None] != 0)"
    if kind == "prod":
        return f"tl.reduce({tile}, 1, {row.helper('product')})[:, None]"
    if dtype.is_floating_point:
        return f"tl.reduce({tile}, 1, {row.helper(f'{kind}imum_nan')})[:, None]"
    if dtype is torch.bool:
        return f"(tl.{kind}({tile}.to(tl.int32), 1)[:, None] != 0)"
    return f"tl.{kind}({tile}, 1)[:, None]"


def first_extremes(row: RowContext, kind: str, values: str, positions: str) -> str:
    """The first extreme value of each row, and its position."""
    rule = row.helper("first_largest" if kind == "argmax" else "first_smallest")
    return f"tl.reduce(({values}, {positions}), 1, {rule})"


def _sum_of_weighted(row: RowContext, top: str, sums: str, dtype: torch.dtype, name: str) -> str:
    """The sum over lanes of `sums` times exp(`top` - the greatest of them)."""
    row.line(f"{name}_tops = {top}")
    row.line(f"{name}_top = {reduce_tile(row, 'max', f'{name}_tops', dtype)}")
    return reduce_tile(row, "sum", f"({sums}) * tl.exp({name}_tops - {name}_top)", dtype)


# A row in a loop


def _has_total(row: RowContext, reduce: Reduce, dtype: torch.dtype) -> bool:
    return row.is_long and reduce.kind == "sum" and dtype is torch.float32


def start(row: RowContext, reduce: Reduce, dtype: torch.dtype) -> None:
    """The running tiles of a Reduce, before the loop."""
    name, kind, lanes = reduce.name, TRITON_TYPES[dtype], "RBLOCK"
    tiles = {"_tile": (identity(reduce.kind, dtype), kind)}
    if _has_total(row, reduce, dtype):
        tiles["_total"] = tiles["_tile"]
    if reduce.kind in POSITIONS:
        tiles["_at"] = (str(2**31 - 1), row.index)
    elif reduce.kind == "sum_exp":
        tiles = {"_top": (identity("max", dtype), kind), "_tile": (identity("sum", dtype), kind)}
        lanes = f"RBLOCK // {row.group}" if row.group > 1 else lanes
    elif reduce.kind in ("squared_deviations", "mean"):
        tiles = tiles if reduce.kind == "squared_deviations" else {}
        tiles |= {suffix: (identity("sum", dtype), kind) for suffix in ("_first", "_sum")}
        row.line(f"{name}_begun = tl.full([1, 1], 0, tl.int1)")
    for suffix, (first, triton_type) in tiles.items():
        row.line(f"{name}{suffix} = tl.full([XBLOCK, {lanes}], {first}, {triton_type})")


def advance(row: RowContext, reduce: Reduce, dtype: torch.dtype) -> None:
    """Take the loop's present tile into a Reduce's running tiles."""
    name, kind = reduce.name, reduce.kind
    running = f"{name}_tile"
    row.line(f"{name}_new = tl.broadcast_to({reduce.value}, [XBLOCK, RBLOCK])")
    new = f"{name}_new"
    if kind in POSITIONS:
        # Loops go forward: of equal elements the running one is first.
        place, sign = f"{name}_at", ">" if kind == "argmax" else "<"
        beats = f"({new} {sign} {running})"
        if dtype.is_floating_point:
            beats = f"{beats} | (({new} != {new}) & ({running} == {running}))"
        row.line(f"{name}_better = ({place} == {2**31 - 1}) | {beats}")
        updates = {
            place: f"tl.where({name}_better, rindex, {place})",
            running: f"tl.where({name}_better, {new}, {running})",
        }
    elif kind == "sum_exp" and row.group > 1:
        _advance_groups(row, name, dtype)
        return
    elif kind == "sum_exp":
        # One exponential for each element: either its weight or, if it is the greatest so far, the
        # weight of what came before. Equal infinities differ by NaN, but weigh the same.
        row.line(f"{name}_rise = {new} - {name}_top")
        row.line(f"{name}_grows = {name}_rise > 0")
        row.line(
            f"{name}_weight = tl.where({new} == {name}_top, 1.0, tl.exp(-tl.abs({name}_rise)))"
        )
        row.line(
            f"{name}_sum = tl.where({name}_grows, {running} * {name}_weight + 1.0, "
            f"{running} + {name}_weight)"
        )
        updates = {
            running: f"{name}_sum",
            f"{name}_top": f"tl.where({name}_grows, {new}, {name}_top)",
        }
    elif kind in ("squared_deviations", "mean"):
        first = f"{name}_first"
        row.line(f"{first} = tl.where({name}_begun, {first}, {new})")
        row.line(f"{name}_begun = {name}_begun | True")
        row.line(f"{name}_far = {new} - {first}")
        updates = {f"{name}_sum": f"{name}_sum + {name}_far"}
        if kind == "squared_deviations":
            updates[running] = f"{running} + {name}_far * {name}_far"
    else:
        updates = {running: combine(kind, running, new, dtype)}
    for tile, text in updates.items():
        row.line(f"{tile} = {row.inside(text, tile)}")
    if _has_total(row, reduce, dtype):
        total, zero = f"{name}_total", identity("sum", dtype)
        row.line(f"{name}_turns = (start // RBLOCK) % {TURN} == {TURN - 1}")
        row.line(f"{total} = tl.where({name}_turns, {total} + {running}, {total})")
        row.line(f"{running} = tl.where({name}_turns, {zero}, {running})")


def _advance_groups(row: RowContext, name: str, dtype: torch.dtype) -> None:
    """Take a tile into the running tiles of a sum_exp, a group of neighbouring lanes at a time: one
    exponential for each element and one for each group. Lanes outside weigh nothing, unless all
    before them do.
    """
    groups = f"[XBLOCK, RBLOCK // {row.group}, {row.group}]"
    inside = row.inside(f"{name}_new", identity("max", dtype))
    row.line(f"{name}_groups = tl.reshape({inside}, {groups})")
    most = f"tl.reduce({name}_groups, 2, {row.helper('maximum_nan')})"
    row.line(f"{name}_most = {extremum('maximum', f'{name}_top', most, dtype)}")
    # Equal infinities differ by NaN, but weigh the same.
    row.line(
        f"{name}_scale = tl.where({name}_top == {name}_most, 1.0, tl.exp({name}_top - {name}_most))"
    )
    row.line(f"{name}_each = tl.broadcast_to({name}_most[:, :, None], {groups})")
    row.line(
        f"{name}_weights = tl.where({name}_groups == {name}_each, 1.0, "
        f"tl.exp({name}_groups - {name}_each))"
    )
    row.line(f"{name}_tile = {name}_tile * {name}_scale + tl.sum({name}_weights, 2)")
    row.line(f"{name}_top = {name}_most")


def finish(row: RowContext, reduce: Reduce, dtype: torch.dtype) -> str:
    """The result of a Reduce from its running tiles, behind the loop."""
    name, kind = reduce.name, reduce.kind
    running = f"{name}_tile"
    if kind in POSITIONS:
        return f"{first_extremes(row, kind, running, f'{name}_at')}[1][:, None].to(tl.int64)"
    if kind == "sum_exp":
        return _sum_of_weighted(row, f"{name}_top", running, dtype, f"{name}_all")
    if kind in ("squared_deviations", "mean"):
        _moments(row, name, TRITON_TYPES[dtype], dtype)
        return _squares(row, name, dtype) if kind == "squared_deviations" else mean_of(row, name)
    if _has_total(row, reduce, dtype):
        running = f"{name}_total + {running}"
    return reduce_tile(row, kind, running, dtype)


def _moments(row: RowContext, name: str, triton_type: str, dtype: torch.dtype) -> None:
    """Nearly the mean of a row, the distances of lanes' means to it, and what these sum to."""
    row.line(
        f"{name}_count = (({row.length} + RBLOCK - 1 - tl.arange(0, RBLOCK)[None, :]) "
        f"// RBLOCK).to({triton_type})"
    )
    row.line(f"{name}_step = {name}_sum / tl.maximum({name}_count, 1.0)")
    weighted = f"({name}_first + {name}_step) * {name}_count"
    row.line(f"{name}_middle = {reduce_tile(row, 'sum', weighted, dtype)} / {row.length}")
    # The lanes' means less nearly the row's; what rounding left of the latter is taken out below.
    row.line(f"{name}_shift = ({name}_first - {name}_middle) + {name}_step")
    row.line(f"{name}_rest = {reduce_tile(row, 'sum', f'{name}_shift * {name}_count', dtype)}")


def mean_of(row: RowContext, name: str) -> str:
    """The mean of what the Reduce `name` has reduced in a loop, a mean or squared deviations."""
    return f"{name}_middle + {name}_rest / {row.length}"


def _squares(row: RowContext, name: str, dtype: torch.dtype) -> str:
    """The squared deviations of a row from those of its lanes."""
    row.line(
        f"{name}_squares = {name}_tile - {name}_sum * {name}_step "
        f"+ {name}_count * {name}_shift * {name}_shift"
    )
    squares = reduce_tile(row, "sum", f"{name}_squares", dtype)
    return f"{squares} - {name}_rest * {name}_rest / {row.length}"


def combine(kind: str, running: str, tile: str, dtype: torch.dtype) -> str:
    """Elementwise: the running tile of a looped reduction with the next one."""
    if kind == "sum":
        return f"{running} + {tile}"
    if kind == "prod":
        return f"{running} * {tile}"
    if kind in ("any", "all") or dtype is torch.bool:
        return f"{running} {'|' if kind in ('any', 'max') else '&'} {tile}"
    return extremum(f"{kind}imum", running, tile, dtype)
