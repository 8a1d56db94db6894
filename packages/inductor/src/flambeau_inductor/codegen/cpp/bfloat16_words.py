"""bfloat16 in vector loops: two neighbours are one 32-bit word, of which a shift and a mask
make floats. GCC's conversions of single elements move each to another lane of a vector.

    v0 = load b0[i0];  v1 = cast v0 :f32;  v2 = exp v1;  v3 = cast v2 :bf16;  store b1[i0] v3

    for (word = 0; word < (end - begin) / 2; ++word) {
      i0 = begin + 2 * word;  v0_word = load_word(b0 + i0);
      { v1 = low_half(v0_word);  v2 = exp(v1);  low0 = rounded_bits(v2); }
      { v1 = high_half(v0_word);  v2 = exp(v1);  high0 = rounded_bits(v2); }
      store_word(b1 + i0, low0, high0);
    }

Loops qualify that read and write rows of bfloat16 only, and compute in float32 between. An element
that is left over is computed as elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.codegen.cpp.float16_rows import is_short
from flambeau_inductor.codegen.cpp.plan import stride_along
from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import Compute, Load, Store, defined_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Axis, Statement

COMPUTED = (torch.float32, torch.int32, torch.bool)
"""Dtypes of values in words: as many fit a vector as there are words, or a mask selects of them."""


@dataclass(frozen=True)
class Words:
    """A loop's body on words: what is loaded, the statements of a half, in which `floats` maps
    loads of floats to words, and what is stored, each with the float that is rounded.
    """

    loads: tuple[Load, ...]
    half: tuple[Statement, ...]
    floats: dict[str, str]
    stores: tuple[tuple[Store, str], ...]


def in_words(body: Sequence[Statement], vector: Axis) -> Words | None:
    """The body on words, None if it does not qualify."""
    values = {name: s for s in body if (name := defined_name(s)) is not None}
    loads: list[Load] = []
    half: list[Statement] = []
    floats: dict[str, str] = {}
    stores: list[tuple[Store, str]] = []
    for statement in body:
        match statement:
            case Load(dtype=torch.bfloat16, mask=None) if _is_row(statement, vector, values):
                loads.append(statement)
            case Store(value=value, mode="", mask=None) if _is_row(statement, vector, values):
                rounded = _cast_from(values.get(value), torch.float32, torch.bfloat16, values)
                if rounded is None:
                    return None
                stores.append((statement, rounded))
            case Compute(name=name, dtype=torch.float32, op="cast", args=(x,)) if isinstance(
                load := values.get(x), Load
            ):
                floats[name] = x
                half.append(Load(name, torch.float32, load.buffer, load.index))
            case Compute(dtype=dtype) if (
                dtype in COMPUTED
                or _cast_from(statement, torch.float32, torch.bfloat16, values) is not None
            ) and not any(isinstance(values.get(x), Load) for x in statement.args):
                half.append(statement)
            case _:
                return None
    if not loads and not stores:
        return None
    return Words(tuple(loads), tuple(half), floats, tuple(stores))


def _is_row(statement: Load | Store, vector: Axis, values: Mapping[str, Statement]) -> bool:
    """Whether an access goes along a row, to a place known before the loop."""
    return stride_along(statement.index, vector) is sympy.S.One and free_names(
        statement.index
    ).isdisjoint(values)


def _cast_from(
    statement: Statement | None,
    source: torch.dtype,
    to: torch.dtype,
    values: Mapping[str, Statement],
) -> str | None:
    """The value that a statement casts from one dtype to another, None if it is no such cast."""
    if not isinstance(statement, Compute) or statement.op != "cast" or statement.dtype is not to:
        return None
    (operand,) = statement.args
    return operand if getattr(values.get(operand), "dtype", None) is source else None


def write_loop(
    writer: LoopWriter,
    body: Sequence[Statement],
    vector: Axis,
    begin: str,
    end: str,
    clause: tuple[str, str] | None = None,
) -> None:
    """A vector loop, in words where the body qualifies."""
    # Rows of a tile are better read as they were written: by elements.
    plain = writer.checked or writer.ordered or writer.staged or is_short(begin, end)
    words = None if plain else in_words(body, vector)
    if words is None or not words.stores:
        writer.simd(clause)
        with writer.loop(vector.symbol.name, begin, end):
            writer.statements(body)
        return
    name = vector.symbol.name
    with writer.block(""):  # a kernel may have several such loops, on the same values
        writer.line(f"const int64_t words = ({end} - {begin}) / 2;")
        writer.simd()
        with writer.loop("word", "0", "words"):
            writer.line(f"const int64_t {name} = {begin} + 2 * word;")
            write_word(writer, words)
        with writer.block(f"for (int64_t {name} = {begin} + 2 * words; {name} < {end}; ++{name})"):
            writer.statements(body)


def write_word(
    writer: LoopWriter, words: Words, first: Mapping[str, Sequence[str]] | None = None
) -> None:
    """The statements of both elements between loads and stores; `first`: lines before those
    of each.
    """
    for number in range(len(words.stores)):
        writer.line(f"uint32_t low{number}, high{number};")
    for side in write_elements(writer, words, first):
        for number, (_, rounded) in enumerate(words.stores):
            writer.line(f"{side}{number} = rounded_bits({rounded});")
    for number, (store, _) in enumerate(words.stores):
        place = f"{store.buffer} + {writer.printer.index_text(store.index)}"
        writer.line(f"store_word({place}, low{number}, high{number});")


def write_elements(
    writer: LoopWriter, words: Words, first: Mapping[str, Sequence[str]] | None = None
) -> Iterator[str]:
    """The loads, and the statements of each element in a block, in which its side is yielded."""
    masks = {condition: f"{condition}_mask" for condition in _known_conditions(words)}
    for condition, mask in masks.items():
        writer.line(f"const uint32_t {mask} = -(uint32_t){condition};")
    for load in words.loads:
        place = f"{load.buffer} + {writer.printer.index_text(load.index)}"
        writer.line(f"const uint32_t {load.name}_word = load_word({place});")
    for side in ("low", "high"):
        with writer.block(""):
            for line in (first or {}).get(side, ()):
                writer.line(line)
            writer.staged = {
                name: f"{side}_half({word}_word)" for name, word in words.floats.items()
            }
            writer.printer.masks = masks
            writer.statements(words.half)
            writer.staged, writer.printer.masks = {}, {}
            yield side


def _known_conditions(words: Words) -> list[str]:
    """The conditions of selections that are known before the loop. Both elements test them, and
    GCC then makes a path for each outcome, which it leaves as scalars.
    """
    own = {defined_name(statement) for statement in words.half}
    selections = (s for s in words.half if isinstance(s, Compute) and s.op == "where")
    return sorted({s.args[0] for s in selections} - own)
