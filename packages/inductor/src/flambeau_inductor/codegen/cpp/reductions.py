"""Folds in C++: how each kind of Reduce starts, takes a value, joins two parts and ends.

Floats are summed in a float part of limited length whose total goes to a double, so that the error does not grow with the row.
Maximum and minimum run as the vectorisable `v > q ? v : q` beside a flag that remembers whether any element was NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.cpp.cpp_types import limits, literal, value_type

if TYPE_CHECKING:
    from flambeau_inductor.ir import Reduce

PART_LENGTH = 2048
"""A float part sums at most so many elements."""


@dataclass(frozen=True)
class Fold:
    """The C++ of one Reduce; `{q}` is the part that a vector loop folds into, `{s}` the whole, `{v}` a value, `{at}` its position.

    `state`: (type, suffix, initial value) of each variable of the whole; `part` likewise, empty if values go to the whole
    directly; `clauses`: the OpenMP operator of each part variable, in order; `final`: the result from the whole.
    """

    state: tuple[tuple[str, str, str], ...]
    part: tuple[tuple[str, str, str], ...]
    clauses: tuple[str, ...]
    take: tuple[str, ...]
    join: tuple[str, ...]
    final: str
    bounded: bool = False

    @property
    def vectorised(self) -> bool:
        """Whether a vector loop can run it; positions (argmax) are followed one by one."""
        return bool(self.part)


def fold_of(reduce: Reduce, dtype: torch.dtype) -> Fold:
    """The Fold of a Reduce whose operand has this dtype."""
    kind = reduce.kind
    if kind in ("sum", "prod"):
        return _arithmetic("+" if kind == "sum" else "*", 0 if kind == "sum" else 1, dtype)
    if kind in ("max", "min"):
        return _extreme(kind, dtype)
    if kind in ("any", "all"):
        sign, start = ("|", "0") if kind == "any" else ("&", "1")
        one = (("int32_t", "", start),)
        return Fold(
            one, one, (sign,), (f"{{q}} {sign}= {{v}};",), (f"{{s}} {sign}= {{q}};",), "{s} != 0"
        )
    return _position(kind, dtype)


def _arithmetic(sign: str, start: int, dtype: torch.dtype) -> Fold:
    if dtype.is_floating_point:
        part = (value_type(dtype), "", literal(start, dtype))
        state = ("double", "", str(start))
        return Fold(
            (state,), (part,), (sign,), (f"{{q}} {sign}= {{v}};",), (f"{{s}} {sign}= {{q}};",),
            f"({value_type(dtype)}){{s}}", bounded=True,
        )  # fmt: skip
    one = (("uint64_t", "", str(start)),)
    take = f"{{q}} {sign}= (uint64_t){{v}};"
    return Fold(
        one, one, (sign,), (take,), (f"{{s}} {sign}= {{q}};",), f"({value_type(dtype)}){{s}}"
    )


def _extreme(kind: str, dtype: torch.dtype) -> Fold:
    sign = ">" if kind == "max" else "<"
    start = limits(dtype)[0 if kind == "max" else 1]
    ctype = "int32_t" if dtype == torch.bool else value_type(dtype)
    one = (ctype, "", start)
    take, join = (
        f"{{q}} = {{v}} {sign} {{q}} ? {{v}} : {{q}};",
        f"{{s}} = {{q}} {sign} {{s}} ? {{q}} : {{s}};",
    )
    if not dtype.is_floating_point:
        final = "{s} != 0" if dtype == torch.bool else "{s}"
        return Fold((one,), (one,), (kind,), (take,), (join,), final)
    flag = ("int32_t", "_nan", "0")
    nan = literal(float("nan"), dtype)
    return Fold(
        (one, flag), (one, flag), (kind, "|"), (take, "{q}_nan |= {v} != {v};"), (join, "{s}_nan |= {q}_nan;"),
        f"{{s}}_nan ? {nan} : {{s}}",
    )  # fmt: skip


def _position(kind: str, dtype: torch.dtype) -> Fold:
    sign = ">" if kind == "argmax" else "<"
    start = limits(dtype)[0 if kind == "argmax" else 1]
    ctype = "int32_t" if dtype == torch.bool else value_type(dtype)
    state = ((ctype, "", start), ("int64_t", "_at", "-1"))
    beats = f"{{v}} {sign} {{s}} || {{s}}_at < 0"
    if dtype.is_floating_point:
        beats += " || ({v} != {v} && {s} == {s})"
    take = f"if ({beats}) {{s}} = {{v}}, {{s}}_at = {{at}};"
    # A later part wins only over an earlier one that it beats: the first of equals stays.
    joins = f"{{q}}_at >= 0 && ({beats.replace('{v}', '{q}')})"
    join = f"if ({joins}) {{s}} = {{q}}, {{s}}_at = {{q}}_at;"
    return Fold(state, (), (), (take,), (join,), "{s}_at < 0 ? 0 : {s}_at")


def column_take(fold: Fold, reduce: Reduce, dtype: torch.dtype) -> tuple[str, ...]:
    """How a column's fold takes a value: without branches, on the arrays `{q}` indexed by the column."""
    if reduce.kind in ("max", "min") and dtype.is_floating_point:
        sign = ">" if reduce.kind == "max" else "<"
        return (f"{{q}} = {{v}} {sign} {{q}} || {{v}} != {{v}} ? {{v}} : {{q}};",)
    return fold.take
