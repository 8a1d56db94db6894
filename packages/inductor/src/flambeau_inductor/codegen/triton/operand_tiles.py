"""What a matrix product's kernel computes before its loop, and how tiles of digits become one.

v1 = load b2[i1]; loop: v2 = mul (load b1[64*i1 + r0]) v1; behind it: add v1   ->  v1 is loaded once
digits u0, u1 of [KBLOCK // 2, RBLOCK]   ->  one tile [KBLOCK, RBLOCK], rows alternating
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import CheckIndex, Statement, defined_name, index_of, operands
from flambeau_inductor.lowering.body_builder import drop_dead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.codegen.contraction import Contraction
    from flambeau_inductor.ir import Body, LoopKernel
    from flambeau_inductor.lowering.row_groups import RowGroups


def row_statements(kernel: LoopKernel, contraction: Contraction) -> tuple[Body, Body]:
    """The statements outside of the loop: those before it, which factors and checks of indices need
    (a check comes before what it guards), and those behind it. The group of a row is known.
    """
    known = set() if contraction.groups is None else {contraction.groups.value}
    outside = [each for each in contraction.epilogue if defined_name(each) not in known]
    reads = {
        name
        for operand in (contraction.left, contraction.right)
        for statement in operand.body
        for name in _read(statement)
    }
    by_sum = {contraction.reduce.name}
    for statement in outside:
        name = defined_name(statement)
        if name is not None and not by_sum.isdisjoint(_read(statement)):
            by_sum.add(name)
    before: list[Statement] = []
    for statement in reversed(outside):
        is_check = isinstance(statement, CheckIndex)
        if not is_check and defined_name(statement) not in reads:
            continue
        if by_sum.isdisjoint(_read(statement)) and defined_name(statement) not in by_sum:
            before.insert(0, statement)
            reads |= _read(statement)
    return tuple(before), drop_dead([s for s in outside if s not in before])


def axes_of_values(kernel: LoopKernel, groups: RowGroups | None) -> dict[str, set[str]]:
    """The axes that each value of a kernel varies along in a tile, whose rows are of one group."""
    axes = {axis.symbol.name for axis in (*kernel.outer, *kernel.inner)}
    result: dict[str, set[str]] = {}
    for statement in kernel.body:
        name = defined_name(statement)
        if name is not None:
            read = _read(statement)
            result[name] = (read & axes).union(*(result.get(each, ()) for each in read))
        if groups is not None and name == groups.value:
            result[name] = set()
    return result


def interleaved(tiles: Sequence[str], is_left: bool) -> str:
    """One tile of digits: point `period * r + t` of the inner axis is point r of tile t."""
    if len(tiles) == 1:
        return tiles[0]
    levels = len(tiles).bit_length() - 1
    joined = _joined(list(tiles))
    if is_left:
        return f"{joined}.reshape(XBLOCK, KBLOCK)"
    order = ", ".join(map(str, (0, *range(2, 2 + levels), 1)))
    return f"{joined}.permute({order}).reshape(KBLOCK, RBLOCK)"


def _joined(tiles: list[str]) -> str:
    """The tiles with a dimension of two for each bit of their number, the lowest bit last."""
    if len(tiles) == 1:
        return tiles[0]
    return f"tl.join({_joined(tiles[0::2])}, {_joined(tiles[1::2])})"


def _read(statement: Statement) -> set[str]:
    """The values and axes that a statement reads, in index expressions, too."""
    index = index_of(statement)
    return {*operands(statement), *(free_names(index) if index is not None else ())}
