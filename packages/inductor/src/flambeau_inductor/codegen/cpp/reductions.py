"""Reductions in C++: how each kind of Reduce starts, takes a value, joins two parts and ends.

Floats are summed side by side in a fixed number of lanes, whose sums are added in pairs; every part
of limited length goes to a double total (to a compensated one, if the values are doubles). The
error is therefore bounded whatever the length, and alike at every width of vectors. Maximum and
minimum run as the vectorisable `v > q ? v : q` beside a flag that remembers whether any element was
NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.cpp.cpp_types import limits, literal, value_type

if TYPE_CHECKING:
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
    values go to the whole directly; `clauses`: the OpenMP operator of each part variable, in order;
    `join`: adds a part to the whole; `merge`: adds another whole (a thread's), `{q}`; `final`: the
    result from the whole; `pairs`: the prelude's function that adds lanes in pairs, where order
    matters.
    """

    state: tuple[tuple[str, str, str], ...]
    part: tuple[tuple[str, str, str], ...]
    clauses: tuple[str, ...]
    take: tuple[str, ...]
    join: tuple[str, ...]
    merge: tuple[str, ...]
    final: str
    pairs: str | None = None

    @property
    def vectorised(self) -> bool:
        """Whether a vector loop can run it; positions (argmax) are followed one by one."""
        return bool(self.part)

    @property
    def bounded(self) -> bool:
        """Whether parts have a limited length, since their error grows with it."""
        return self.pairs is not None


def places(letter: str, name: str, index: str = "") -> dict[str, str]:
    """The variables or array elements `name` for the placeholders of a part `q` or a whole `s`."""
    return {f"{letter}{suffix}": f"{name}{suffix}{index}" for suffix in ("", "_nan", "_at", "_low")}


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
    return _position(kind, dtype)


def _arithmetic(kind: str, dtype: torch.dtype) -> Accumulator:
    sign, start = ("+", 0) if kind == "sum" else ("*", 1)
    join = (f"{{s}} {sign}= {{q}};",)
    ctype = value_type(dtype)
    if not dtype.is_floating_point:
        one = (("uint64_t", "", str(start)),)
        take = f"{{q}} {sign}= (uint64_t){{v}};"
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
    beats = f"{{v}} {sign} {{s}} || {{s_at}} < 0"
    if dtype.is_floating_point:
        beats += " || ({v} != {v} && {s} == {s})"
    take = f"if ({beats}) {{s}} = {{v}}, {{s_at}} = {{at}};"
    # A later part wins only over an earlier one that it beats: the first of equals stays.
    joins = f"{{q_at}} >= 0 && ({beats.replace('{v}', '{q}')})"
    join = (f"if ({joins}) {{s}} = {{q}}, {{s_at}} = {{q_at}};",)
    return Accumulator(state, (), (), (take,), join, join, "{s_at} < 0 ? 0 : {s_at}")


def column_take(accumulator: Accumulator, reduce: Reduce, dtype: torch.dtype) -> tuple[str, ...]:
    """How a column accumulates a value, branch-free, on arrays `{q}`. NaN is an extreme."""
    if reduce.kind in ("max", "min") and dtype.is_floating_point:
        sign = ">" if reduce.kind == "max" else "<"
        return (f"{{q}} = {{v}} {sign} {{q}} || {{v}} != {{v}} ? {{v}} : {{q}};",)
    return accumulator.take


def column_final(accumulator: Accumulator) -> str:
    """A column's result."""
    return "{s}" if "{s_nan}" in accumulator.final else accumulator.final
