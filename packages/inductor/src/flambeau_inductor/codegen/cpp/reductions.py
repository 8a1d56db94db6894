"""Reductions in C++: how each kind of Reduce starts, takes a value, joins two parts and ends.

Floats are summed side by side in a fixed number of lanes, whose sums are added in pairs; every part
of limited length goes to a double total (to a compensated one, if the values are doubles). The
error is therefore bounded whatever the length, and alike at every width of vectors. Maximum and
minimum run as the vectorisable `v > q ? v : q` beside a flag that remembers whether any element was
NaN.

Reductions with several accumulators (positions, sums of exponentials, squared deviations) advance
in lanes too, without branches; the lanes of a part are then joined to the whole by a function of
the prelude. The few elements behind the last whole block go to the whole one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.cpp.cpp_types import limits, literal, value_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.ir import Reduce

LANES = 32
"""Lanes of long rows: the registers of two to eight additions in flight, at every ISA level."""

PART_LENGTH = 1024
"""A float part sums at most so many elements, LANES of them side by side."""


@dataclass(frozen=True)
class Accumulator:
    """The C++ of one Reduce; `{q}` is the part that a vector loop accumulates, `{s}` the whole,
    `{v}` a value, `{at}` its position.

    A variable with a suffix has its own placeholder, `{s_nan}`; see `places`.
    `state`: (type, suffix, initial value) of each variable of the whole; `part` likewise, empty if
    single values go to the whole directly; `clauses`: the OpenMP operator of each part variable, in
    order; `join`: adds a part to the whole; `merge`: adds another whole (a thread's), `{q}`;
    `final`: the result from the whole; `pairs`: the prelude's function that adds lanes in pairs,
    where order matters.

    `lanes`, `lane_take`, `lane_join`: the variables of each lane if they are not those of a part;
    how a lane takes a value in the block of number `{step}` of a part; how all lanes of a part of
    `{blocks}` blocks, arrays `{q}`, join the whole (`{at}`: the position of element `offset` of the
    part).
    """

    state: tuple[tuple[str, str, str], ...]
    part: tuple[tuple[str, str, str], ...]
    clauses: tuple[str, ...]
    take: tuple[str, ...]
    join: tuple[str, ...]
    merge: tuple[str, ...]
    final: str
    pairs: str | None = None
    lanes: tuple[tuple[str, str, str], ...] = ()
    lane_take: tuple[str, ...] = ()
    lane_join: tuple[str, ...] = ()

    @property
    def vectorised(self) -> bool:
        """Whether a vector loop can run it that is not cut into lanes."""
        return bool(self.part)

    @property
    def wants_lanes(self) -> bool:
        """Whether a long row is accumulated in lanes."""
        return self.bounded or bool(self.lanes)

    @property
    def bounded(self) -> bool:
        """Whether single values go to parts of limited length, since their error grows with it."""
        return self.pairs is not None


SUFFIXES = ("", "_nan", "_at", "_low", "_top", "_mean", "_count", "_first")


def places(letter: str, name: str, index: str = "") -> dict[str, str]:
    """The variables or array elements `name` for the placeholders of a part `q` or a whole `s`."""
    return {f"{letter}{suffix}": f"{name}{suffix}{index}" for suffix in SUFFIXES}


def accumulator_of(reduce: Reduce, dtype: torch.dtype) -> Accumulator:
    """The Accumulator of a Reduce whose operand has this dtype."""
    kind = reduce.kind
    if kind in ("sum", "prod"):
        return _arithmetic(kind, dtype)
    if kind in ("max", "min"):
        return _extreme(kind, dtype)
    if kind in ("any", "all"):
        sign, start = ("|", "0") if kind == "any" else ("&", "1")
        one = (("int32_t", "", start),)
        join = (f"{{s}} {sign}= {{q}};",)
        return Accumulator(one, one, (sign,), (f"{{q}} {sign}= {{v}};",), join, join, "{s} != 0")
    if kind == "sum_exp":
        return _exponentials(dtype)
    if kind in ("squared_deviations", "mean"):
        return _moments(kind, dtype)
    return _position(kind, dtype)


def _arithmetic(kind: str, dtype: torch.dtype) -> Accumulator:
    sign, start = ("+", 0) if kind == "sum" else ("*", 1)
    join = (f"{{s}} {sign}= {{q}};",)
    ctype = value_type(dtype)
    if not dtype.is_floating_point:
        # Sums of the low bits are the low bits of sums.
        wide = "uint64_t" if dtype.itemsize > 4 else "uint32_t"
        one = ((wide, "", str(start)),)
        take = f"{{q}} {sign}= ({wide}){{v}};"
        return Accumulator(one, one, (sign,), (take,), join, join, f"({ctype}){{s}}")
    part = ((ctype, "", literal(start, dtype)),)
    take = f"{{q}} {sign}= {{v}};"
    pairs = f"{kind}_in_pairs"
    total = ("double", "", str(start))
    if kind == "sum" and dtype is torch.float64:
        # An infinite total has no low part: infinities less themselves are NaN.
        join = ("add_compensated({s}, {s_low}, {q});",)
        return Accumulator(
            (total, ("double", "_low", "0")),
            part,
            (sign,),
            (take,),
            join,
            (*join, "{s_low} += {q_low};"),
            "{s_low} == {s_low} ? {s} + {s_low} : {s}",
            pairs,
        )
    return Accumulator((total,), part, (sign,), (take,), join, join, f"({ctype}){{s}}", pairs)


def _extreme(kind: str, dtype: torch.dtype) -> Accumulator:
    sign = ">" if kind == "max" else "<"
    start = limits(dtype)[0 if kind == "max" else 1]
    ctype = "int32_t" if dtype == torch.bool else value_type(dtype)
    one = (ctype, "", start)
    take = f"{{q}} = {{v}} {sign} {{q}} ? {{v}} : {{q}};"
    join: tuple[str, ...] = (f"{{s}} = {{q}} {sign} {{s}} ? {{q}} : {{s}};",)
    if not dtype.is_floating_point:
        final = "{s} != 0" if dtype == torch.bool else "{s}"
        return Accumulator((one,), (one,), (kind,), (take,), join, join, final)
    both = (one, ("int32_t", "_nan", "0"))
    nan = literal(float("nan"), dtype)
    join = (*join, "{s_nan} |= {q_nan};")
    return Accumulator(
        both, both, (kind, "|"), (take, "{q_nan} |= {v} != {v};"), join, join,
        f"{{s_nan}} ? {nan} : {{s}}",
    )  # fmt: skip


def _position(kind: str, dtype: torch.dtype) -> Accumulator:
    sign = ">" if kind == "argmax" else "<"
    start = limits(dtype)[0 if kind == "argmax" else 1]
    ctype = "int32_t" if dtype == torch.bool else value_type(dtype)
    state = ((ctype, "", start), ("int64_t", "_at", "-1"))
    index = "int64_t" if dtype.itemsize == 8 else "int32_t"
    # NaN beats all but NaN. A later one wins only if it beats the earlier: of equals the first.
    beats = f"{{v}} {sign} {{s}}"
    if dtype.is_floating_point:
        beats = f"(({beats}) | (({{v}} != {{v}}) & ({{s}} == {{s}})))"
    take = (
        f"{{{{ const bool better = ({{s_at}} < 0) | {beats}; {{s}} = better ? {{v}} : {{s}}; "
        f"{{s_at}} = better ? {{at}} : {{s_at}}; }}}}"
    )
    joins = f"{{q_at}} >= 0 && ({{s_at}} < 0 || {beats.replace('{v}', '{q}')})"
    join = (f"if ({joins}) {{s}} = {{q}}, {{s_at}} = {{q_at}};",)
    of_lane, joined = beats.replace("{s}", "{q}"), beats.replace("{v}", "{q}[0]")
    lane_take = (
        f"const bool {{name}}_better = {of_lane};",
        "{q} = {name}_better ? {v} : {q};",
        f"{{q_at}} = {{name}}_better ? ({index}){{step}} : {{q_at}};",
    )
    rule = "largest" if kind == "argmax" else "smallest"
    lane_join = (
        f"for (int64_t c = 0; c < {LANES}; ++c) {{q_at}}[c] = {{q_at}}[c] * {LANES} + c;",
        f"{rule}_in_pairs<{LANES}>({{q}}, {{q_at}});",
        "const int64_t offset = {q_at}[0];",
        f"if ({{s_at}} < 0 || {joined}) {{s}} = {{q}}[0], {{s_at}} = {{at}};",
    )
    return Accumulator(
        state, (), (), (take,), join, join, "{s_at} < 0 ? 0 : {s_at}",
        lanes=((ctype, "", start), (index, "_at", "0")), lane_take=lane_take, lane_join=lane_join,
    )  # fmt: skip


def _exponentials(dtype: torch.dtype) -> Accumulator:
    """The greatest element so far, and the sum of exponentials of the distances to it."""
    ctype, (least, _) = value_type(dtype), limits(dtype)
    nan = literal(float("nan"), dtype)
    join = ("add_exponential({s}, {s_top}, {q_top}, {q});",)
    # Equal infinities differ by NaN, but weigh the same.
    lane_take = (
        f"const {ctype} {{name}}_rise = {{v}} - {{q_top}};",
        f"const {ctype} {{name}}_fall = {{name}}_rise > 0 ? -{{name}}_rise : {{name}}_rise;",
        f"const {ctype} {{name}}_weight = {{v}} == {{q_top}} ? 1 : exp_of({{name}}_fall);",
        "{q} = {name}_rise > 0 ? {q} * {name}_weight + 1 : {q} + {name}_weight;",
        "{q_top} = {name}_rise > 0 ? {v} : {q_top};",
    )
    return Accumulator(
        (("double", "", "0"), (ctype, "_top", least)),
        (),
        (),
        ("add_exponential({s}, {s_top}, {v}, 1);",),
        join,
        join,
        f"{{s_top}} - {{s_top}} == 0 ? ({ctype}){{s}} : {nan}",
        lanes=((ctype, "", "0"), (ctype, "_top", least)),
        lane_take=lane_take,
        lane_join=(f"join_exponentials<{LANES}>({{s}}, {{s_top}}, {{q}}, {{q_top}});",),
    )


def _moments(kind: str, dtype: torch.dtype) -> Accumulator:
    """The mean and the squared deviations from it, updated by Welford's rule for one element. The
    results of a row with an infinity are NaN, and the mean of an empty one.

    A lane sums distances to its first element of a part, and their squares: these cancel little,
    however far the values are from 0.
    """
    ctype, zero = value_type(dtype), literal(0, dtype)
    join = ("add_moments({s}, {s_mean}, {s_count}, {q}, {q_mean}, {q_count});",)
    lane_take = (
        "{q_first} = {step} == 0 ? {v} : {q_first};",
        f"const {ctype} {{name}}_far = {{v}} - {{q_first}};",
        "{q_mean} += {name}_far;",
        "{q} += {name}_far * {name}_far;",
    )
    arrays = "{q}, {q_mean}, {q_first}"
    kept = "{s_mean} / ({s_count} != 0)" if kind == "mean" else "{s}"
    result = f"({ctype})({kept} + ({{s_mean}} - {{s_mean}}))"
    return Accumulator(
        (("double", "", "0"), ("double", "_mean", "0"), ("double", "_count", "0")),
        (),
        (),
        ("add_moments({s}, {s_mean}, {s_count}, 0, {v}, 1);",),
        join,
        join,
        result,
        lanes=((ctype, "", zero), (ctype, "_mean", zero), (ctype, "_first", zero)),
        lane_take=lane_take,
        lane_join=(
            f"join_moments<{LANES}>({{s}}, {{s_mean}}, {{s_count}}, {arrays}, {{blocks}});",
        ),
    )


def split_means(reduces: Sequence[Reduce]) -> tuple[tuple[Reduce, ...], dict[Reduce, str]]:
    """Reduces without the means of what others take squared deviations of, and these means with the
    names of those others, whose accumulators hold them.
    """
    squares = {r.value: r.name for r in reduces if r.kind == "squared_deviations"}
    means = {r: squares[r.value] for r in reduces if r.kind == "mean" and r.value in squares}
    return tuple(reduce for reduce in reduces if reduce not in means), means


def column_accumulator(reduce: Reduce, dtype: torch.dtype, short: bool) -> Accumulator:
    """The Accumulator of a Reduce whose columns lie side by side. Positions (32 bits if the row is
    `short` and values are not longer) begin with the first: nothing beats it but what beats all.
    """
    accumulator = accumulator_of(reduce, dtype)
    if not accumulator.lanes or reduce.kind not in ("argmax", "argmin"):
        return accumulator
    (value, (_, at, start)) = accumulator.lanes
    index = "int32_t" if short and dtype.itemsize <= 4 else "int64_t"
    better, *rest = (
        text.replace("{name}_better", "better").replace("{step}", "{at}")
        for text in accumulator.lane_take
    )
    return replace(
        accumulator,
        state=(value, (index, at, start)),
        take=(f"{{{{ {better} {' '.join(rest).replace('(int32_t)', f'({index})')} }}}}",),
        final="{s_at}",
    )


def column_take(accumulator: Accumulator, reduce: Reduce, dtype: torch.dtype) -> tuple[str, ...]:
    """How a column accumulates a value, branch-free, on arrays `{q}`. NaN is an extreme."""
    if reduce.kind in ("max", "min") and dtype.is_floating_point:
        sign = ">" if reduce.kind == "max" else "<"
        return (f"{{q}} = {{v}} {sign} {{q}} || {{v}} != {{v}} ? {{v}} : {{q}};",)
    return accumulator.take


def column_final(accumulator: Accumulator) -> str:
    """A column's result."""
    return "{s}" if "{s_nan}" in accumulator.final else accumulator.final
